"""Uploads and downloads of devices whose links are slow, and reports that come again and again."""

import asyncio
import math
import random
from typing import Any

import httpx
import numpy as np

from tests.cases.actors import opened
from vennue.protocol import EXAMPLES_HEADER
from vennue.server.config import Limits
from vennue.tensors.model import load, save
from vennue.testing import LocalPool, in_virtual_time

KIB = 1024


async def task_of(client: httpx.AsyncClient, device: str) -> dict[str, Any]:
    task: dict[str, Any] = (await client.post("/v1/check-ins", json={"device": device})).json()["task"]
    return task


def report(task: dict[str, Any], content: Any, examples: int = 1) -> dict[str, Any]:
    """A request, as often as one likes to send it."""
    return {
        "url": f"/v1/assignments/{task['assignment']}/report",
        "headers": {"Authorization": f"Bearer {task['token']}", EXAMPLES_HEADER: str(examples)},
        "content": content,
    }


@in_virtual_time
async def test_c1_each_upload_comes_one_to_three_times_in_any_order_and_counts_once_in_its_own_round():
    """Replays of all rounds so far are shuffled among the reports of each round, all of them at once."""
    rng, rounds, demand = random.Random(1), 4, 5
    async with LocalPool() as pool, pool.client() as client:
        body = {"spec": {"name": "job", "demand": demand, "rounds": rounds}}
        job = (await client.post("/v1/jobs", json=body)).json()["id"]
        model = pool.blobs.put(save({"w": np.zeros(3, np.float32)}))
        earlier: list[dict[str, Any]] = []
        for number in range(1, rounds + 1):
            await client.post(f"/v1/jobs/{job}/rounds", json={"round": number, "model": model})
            tasks = [await task_of(client, f"d{device}") for device in range(demand)]
            values = [[rng.uniform(-1, 1) for _ in range(3)] for _ in tasks]
            weights = [rng.randint(1, 100) for _ in tasks]
            fresh = [
                report(task, save({"w": np.array(value, np.float32)}), weight)
                for task, value, weight in zip(tasks, values, weights, strict=True)
            ]
            uploads = [one for one in fresh for _ in range(rng.randint(1, 3))] + earlier
            rng.shuffle(uploads)
            answers = await asyncio.gather(*(client.put(**upload) for upload in uploads))
            assert {answer.status_code for answer in answers} == {200}
            view = (await client.get(f"/v1/jobs/{job}/rounds/{number}", params={"wait": 30})).json()
            assert (view["reported"], view["weight"]) == (demand, sum(weights))
            exact = [
                math.fsum(float(np.float32(value[at])) * weight for value, weight in zip(values, weights, strict=True))
                / sum(weights)
                for at in range(3)
            ]
            np.testing.assert_allclose(load(pool.blobs.path(view["result"]))["w"], exact, rtol=1e-6)
            model = view["result"]
            earlier += fresh
        assert pool.coordinator.counters.reports == rounds * demand


@in_virtual_time
async def test_q6_a_device_on_a_slow_link_loses_its_slot_when_its_time_is_up_and_the_round_closes_without_it():
    """758 MB at 1 Mbit/s take 101 minutes; here a thousandth of it takes as long, and the lease covers ten."""
    numbers = 758_000 // 4
    body = save({"w": np.ones(numbers, np.float32)})
    per_s = len(body) / (758e6 / 125e3)

    async def slowly():
        for start in range(0, len(body), KIB):
            yield body[start : start + KIB]
            await asyncio.sleep(KIB / per_s)

    async with LocalPool(limits=Limits(least_bytes_per_s=1.0)) as pool, pool.client() as client:
        job = (await client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 2, "lease_s": 600}})).json()["id"]
        model = pool.blobs.put(save({"w": np.zeros(numbers, np.float32)}))
        await client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": model})
        slow, quick = await task_of(client, "slow"), await task_of(client, "quick")
        uploading = asyncio.create_task(client.put(**report(slow, slowly())))
        assert (await client.put(**report(quick, body))).status_code == 200
        assert "task" not in (await client.post("/v1/check-ins", json={"device": "spare"})).json()
        await asyncio.sleep(601)
        assert not uploading.done()
        spare = await task_of(client, "spare")  # the slot is free, though the upload goes on
        assert (await client.put(**report(spare, body))).status_code == 200
        view = (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30})).json()
        assert (view["state"], view["attempt"], view["reported"]) == ("committed", 1, 2)
        assert (await uploading).status_code == 409
        assert pool.coordinator.data.uploads.active == 0


@in_virtual_time
async def test_s9_no_device_is_timed_out_because_another_one_downloads_slowly():
    """One of a hundred devices takes an hour for its download; the others report at once, and are free again."""
    async with LocalPool(validate=False) as pool, pool.client() as client:
        job = await opened(pool, demand=100, lease_s=7200)
        tasks = [await task_of(client, f"d{device}") for device in range(100)]
        body = save({"w": np.ones(2, np.float32)})
        for task in tasks[1:]:
            assert (await client.put(**report(task, body))).status_code == 200
        other = await opened(pool, demand=99)
        for device in range(1, 100):  # nobody waits for the slow one: all of them serve the next job meanwhile
            assert (await client.put(**report(await task_of(client, f"d{device}"), body))).status_code == 200
        view = (await client.get(f"/v1/jobs/{other}/rounds/1", params={"wait": 30})).json()
        assert view["state"] == "committed"
        await asyncio.sleep(3600)
        assert (await client.get(f"/v1/blobs/{tasks[0]['model']}")).status_code == 200
        assert (await client.put(**report(tasks[0], body))).status_code == 200
        view = (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30})).json()
        assert (view["state"], view["attempt"], view["reported"]) == ("committed", 1, 100)


@in_virtual_time
async def test_check_ins_and_long_polls_are_answered_at_once_while_slow_reports_take_every_place():
    """Where no further report is taken either, devices and owners do not notice: only its sender is told to wait."""
    numbers, places = 2**19, 4
    body = save({"w": np.ones(numbers, np.float32)})

    async def slowly():
        for start in range(0, len(body), 64 * KIB):
            yield body[start : start + 64 * KIB]
            await asyncio.sleep(10)

    async with LocalPool(limits=Limits(uploads=places)) as pool, pool.client() as client:
        job = (await client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 6, "lease_s": 3600}})).json()["id"]
        model = pool.blobs.put(save({"w": np.zeros(numbers, np.float32)}))
        await client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": model})
        tasks = [await task_of(client, f"d{number}") for number in range(places + 1)]
        slow = [asyncio.create_task(client.put(**report(task, slowly()))) for task in tasks[:places]]
        await asyncio.sleep(60)
        assert pool.coordinator.data.uploads.active == places

        clock = asyncio.get_running_loop()
        asked_at = clock.time()
        last = await task_of(client, "the last")
        assert (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 0})).json()["bound"] == 6
        assert clock.time() == asked_at
        refusal = await client.put(**report(tasks[places], body))
        assert (refusal.status_code, "Retry-After" in refusal.headers) == (503, True)

        assert {(await upload).status_code for upload in slow} == {200}
        for task in (tasks[places], last):
            assert (await client.put(**report(task, body))).status_code == 200
        view = (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30})).json()
        assert (view["state"], view["reported"]) == ("committed", 6)
