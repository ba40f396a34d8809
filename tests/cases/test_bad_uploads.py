"""Reports that no honest device would send: each is refused with its reason, costs its bytes, and the round goes on.

All of them go through the whole server. What is refused leaves nothing on the disk; the round then has the mean of the
two good reports.
"""

import asyncio
import errno
import hashlib
import json
from base64 import b64encode
from typing import Any

import httpx
import numpy as np
import pytest

from tests.cases.actors import MODEL, opened
from vennue._files import write_all
from vennue.protocol import DIGEST_HEADER, EXAMPLES_HEADER, MODEL_HEADER
from vennue.server.config import Limits
from vennue.tensors.model import load, save
from vennue.testing import LocalPool, run_virtual
from vennue.updates import spool

GOOD = save({"w": np.full(2, 3.0, np.float32)})
DATA = GOOD[-8:]


def safetensors(header: str, data: bytes = DATA) -> bytes:
    """A file whose header is whatever one likes."""
    return len(header).to_bytes(8, "little") + header.encode() + data


def tensor(name: str = "w", shape: str = "[2]", start: int = 0, stop: int = 8) -> str:
    return f'"{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{stop}]}}'


def digest_of(data: bytes) -> dict[str, str]:
    return {DIGEST_HEADER: f"sha-256=:{b64encode(hashlib.sha256(data).digest()).decode()}:"}


BODIES = {
    "a tensor that is longer than its shape": (safetensors("{" + tensor(stop=16) + "}", DATA * 2), {}),
    "a tensor that begins behind the end": (safetensors("{" + tensor(start=8, stop=16) + "}"), {}),
    "a tensor that ends before it begins": (safetensors("{" + tensor(start=8, stop=0) + "}"), {}),
    "a body that is shorter than its header says": (safetensors("{" + tensor() + "}", DATA[:4]), {}),
    "a body that is longer than its header says": (safetensors("{" + tensor() + "}", DATA * 2), {}),
    "a header that claims to be endless": ((2**60).to_bytes(8, "little") + DATA, {}),
    "one tensor twice": (safetensors("{" + tensor() + "," + tensor() + "}"), {}),
    "two tensors of the same bytes": (safetensors("{" + tensor() + "," + tensor("v") + "}"), {}),
    "another tensor in its place": (safetensors("{" + tensor("v") + "}"), {}),
    "no tensor at all": (safetensors("{}", b""), {}),
    "a tensor of 2⁴⁰ numbers": (safetensors("{" + tensor(shape="[1099511627776]") + "}"), {}),
    "a tensor of 2⁴⁰ times 2⁴⁰ numbers": (safetensors("{" + tensor(shape="[1099511627776,1099511627776]") + "}"), {}),
    "a tensor of −1 numbers": (safetensors("{" + tensor(shape="[-1]") + "}"), {}),
    "a single NaN": (save({"w": np.array([1.0, np.nan], np.float32)}), {}),
    "a single infinity": (save({"w": np.array([1.0, -np.inf], np.float32)}), {}),
    "another digest than it says": (GOOD, digest_of(GOOD + b"x")),
    "no weight": (GOOD, {EXAMPLES_HEADER: "0"}),
    "a negative weight": (GOOD, {EXAMPLES_HEADER: "-1"}),
    "an infinite weight": (GOOD, {EXAMPLES_HEADER: "inf"}),
    "a weight that is no number": (GOOD, {EXAMPLES_HEADER: "nan"}),
    "the model of another round": (GOOD, {MODEL_HEADER: "0" * 64}),
}
NOT_READ = ("weight", "model of another")
"""What is refused before any of the body is read."""


async def task_of(client: httpx.AsyncClient, device: str) -> dict[str, Any]:
    task: dict[str, Any] = (await client.post("/v1/check-ins", json={"device": device})).json()["task"]
    return task


async def send(client: httpx.AsyncClient, task: dict[str, Any], content: Any, **headers: str) -> httpx.Response:
    return await client.put(
        f"/v1/assignments/{task['assignment']}/report",
        headers={"Authorization": f"Bearer {task['token']}", EXAMPLES_HEADER: "1", **headers},
        content=content,
    )


async def ends_well(pool: LocalPool, client: httpx.AsyncClient, job: str, *tasks: dict[str, Any]) -> None:
    """The round commits the mean of two good reports."""
    for task in tasks:
        assert (await send(client, task, GOOD)).status_code == 200
    view = (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30})).json()
    assert (view["state"], view["attempt"], view["reported"], view["weight"]) == ("committed", 1, 2, 2.0)
    assert load(pool.blobs.path(view["result"]))["w"].tolist() == [3.0, 3.0]


def left_in_the_spool(pool: LocalPool) -> list[str]:
    return [path.name for path in pool.spool.rglob("*") if path.is_file()]


@pytest.mark.parametrize("what", BODIES)
def test_an_upload_that_lies_is_refused_with_the_reason_and_its_round_goes_on(what):
    body, headers = BODIES[what]

    async def main() -> None:
        async with LocalPool() as pool, pool.client() as client:
            job = await opened(pool, demand=2)
            tasks = [await task_of(client, f"d{number}") for number in range(2)]
            refusal = await send(client, tasks[0], body, **headers)
            assert refusal.status_code in {400, 413, 422}, refusal.text
            problem = refusal.json()
            assert problem["detail"]
            assert problem["field"]
            received = pool.coordinator.data.refused_bytes
            assert received == 0 if any(word in what for word in NOT_READ) else 0 < received <= len(body)
            assert left_in_the_spool(pool) == []
            assert f"vennue_refused_bytes_total {float(received)}" in (await client.get("/metrics")).text
            await ends_well(pool, client, job, *tasks)

    run_virtual(main())


def test_an_upload_that_stalls_for_ever_is_given_up_and_its_round_goes_on():
    async def stalls():
        yield GOOD[:-4]
        await asyncio.sleep(1e9)

    async def main() -> None:
        async with LocalPool(limits=Limits(idle_body_s=60)) as pool, pool.client() as client:
            job = await opened(pool, demand=2, lease_s=3600)
            tasks = [await task_of(client, f"d{number}") for number in range(2)]
            refusal = await send(client, tasks[0], stalls())
            assert (refusal.status_code, refusal.json()["detail"]) == (408, "nothing of the body arrived for 60 s")
            assert pool.coordinator.data.uploads.active == 0
            assert left_in_the_spool(pool) == []
            await ends_well(pool, client, job, *tasks)

    run_virtual(main())


@pytest.mark.parametrize("writes", [0, 1], ids=["at once", "at the very end"])
def test_a_disk_that_is_full_in_the_middle_of_a_report_costs_only_that_try(monkeypatch, writes):
    body = save({"w": np.full(2**19, 3.0, np.float32)})  # two megabytes, which come in several blocks

    async def main() -> None:
        async with LocalPool() as pool, pool.client() as client:
            job = (await client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 2}})).json()["id"]
            model = pool.blobs.put(save({"w": np.zeros(2**19, np.float32)}))
            await client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": model})
            tasks = [await task_of(client, f"d{number}") for number in range(2)]
            left = writes

            def full(fd: int, data: Any) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise OSError(errno.ENOSPC, "no space left on device")
                write_all(fd, data)

            with monkeypatch.context() as patch:
                patch.setattr(spool, "write_all", full)
                refusal = await send(client, tasks[0], body)
            assert refusal.status_code == 503, refusal.text
            assert "No space left on device" in refusal.json()["detail"]
            assert left_in_the_spool(pool) == []
            for task in tasks:
                assert (await send(client, task, body)).status_code == 200
            view = (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30})).json()
            assert (view["state"], view["attempt"], view["reported"]) == ("committed", 1, 2)

    run_virtual(main())


def test_reports_in_a_spool_of_a_newer_version_are_told_and_their_round_is_tried_again(caplog):
    async def main() -> None:
        async with LocalPool() as pool, pool.client() as client:
            job = await opened(pool, demand=2)
            await send(client, await task_of(client, "d0"), GOOD)
            pool.kill()
            (path,) = pool.spool.rglob("*.update")
            path.write_bytes(path.read_bytes()[:-1] + bytes([spool.VERSION + 1]))
            await pool.restart()
            view = (await client.get(f"/v1/jobs/{job}/rounds/1")).json()
            assert (view["state"], view["attempt"], view["reported"]) == ("open", 2, 0)
            tasks = [await task_of(client, f"e{number}") for number in range(2)]
            for task in tasks:
                assert (await send(client, task, GOOD)).status_code == 200
            view = (await client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30})).json()
            assert (view["state"], view["reported"]) == ("committed", 2)

    run_virtual(main())
    assert (
        f"the spool is of version {spool.VERSION + 1}, this program knows versions up to {spool.VERSION}" in caplog.text
    )


def test_the_good_report_of_these_tests_is_one(tmp_path):
    """Else all of them would be refused for another reason."""
    assert json.loads(GOOD[8:-8])["w"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert load(MODEL)["w"].tolist() == [0.0, 0.0]
