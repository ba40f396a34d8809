"""The local pool: a whole server without a port, on which the SDK behaves as on a real one."""

import asyncio
import contextlib
import json

import httpx
import numpy as np
import pytest

from vennue.core.errors import StorageError, Unavailable
from vennue.sdk.retry import Retry
from vennue.testing.ledgers import FaultyLedger, MemoryLedger
from vennue.testing.pool import EPOCH_S, LocalPool
from vennue.testing.transport import FaultyTransport
from vennue.testing.virtual import in_virtual_time, run_virtual

ONE_TRY = Retry(attempts=1)


async def adds_one(device, *, takes_s=10.0):
    async with device, contextlib.aclosing(device.tasks()) as tasks:
        async for task in tasks:
            await asyncio.sleep(takes_s)
            await task.report({"w": task.model["w"] + 1}, examples=1)


@contextlib.asynccontextmanager
async def fleet(pool, count=2, **options):
    devices = [asyncio.create_task(adds_one(pool.device(device_id=f"d{n}"), **options)) for n in range(count)]
    try:
        yield
    finally:
        for device in devices:
            device.cancel()
        await asyncio.wait(devices)


async def learn(pool, rounds=3, **spec):
    async with pool.job(name="sum", demand=2, rounds=rounds, **spec) as job:
        model = {"w": np.zeros(2, np.float32)}
        async for turn in job.rounds():
            model = await turn.run(model)
    return model["w"].tolist()


@in_virtual_time
async def test_a_job_runs_on_it_as_on_a_real_server():
    async with LocalPool() as pool, fleet(pool):
        assert await learn(pool) == [3.0, 3.0]
        assert 30.0 <= asyncio.get_running_loop().time() < 90.0  # three rounds of ten seconds' training


async def test_a_job_runs_on_it_in_real_time_too():
    async with LocalPool() as pool, fleet(pool, takes_s=0.0):
        assert await learn(pool, rounds=1) == [1.0, 1.0]


@in_virtual_time
async def test_after_a_kill_it_goes_on_from_what_was_durable():
    async with LocalPool() as pool, fleet(pool):
        learning = asyncio.create_task(learn(pool, rounds=5))
        for _ in range(3):
            await asyncio.sleep(15)
            await pool.restart()
        assert await learning == [5.0, 5.0]


@in_virtual_time
async def test_while_it_is_down_it_cannot_be_reached():
    async with LocalPool() as pool:
        pool.kill()
        with pytest.raises(Unavailable, match="no server is running"):
            await pool.job(name="x", demand=1, retry=ONE_TRY).register()


@in_virtual_time
async def test_a_request_under_way_when_it_is_killed_gets_no_answer():
    async with LocalPool() as pool:
        job = await pool.job(name="x", demand=1).register()
        async with pool.client() as client:
            blob = (await client.put("/v1/blobs/" + "0" * 64, content=b"")).status_code
            assert blob == 422
            polling = asyncio.create_task(client.get(f"/v1/jobs/{job.id}/rounds/1?wait=30"))
            await asyncio.sleep(0)
            pool.kill()
            with pytest.raises(httpx.ReadError, match="the server went away"):
                await polling


@in_virtual_time
async def test_a_graceful_stop_answers_long_polls_and_refuses_what_comes_later():
    async with LocalPool() as pool:
        job = pool.job(name="x", demand=1, rounds=1)
        await job.register()
        turn = await anext(aiter(job.rounds()))
        waiting = asyncio.create_task(turn.run({"w": np.zeros(2, np.float32)}))
        await asyncio.sleep(5)
        await pool.stop()
        assert not pool.running
        await pool.start()
        async with fleet(pool, 1):
            assert (await waiting)["w"].tolist() == [1.0, 1.0]


@in_virtual_time
async def test_a_ledger_that_cannot_be_read_keeps_it_from_starting(tmp_path):
    pool = LocalPool(tmp_path, ledger=FaultyLedger(MemoryLedger(), fail_rate=1.0))
    with pytest.raises(StorageError, match="on purpose"):
        await pool.start()
    assert not pool.running


@in_virtual_time
async def test_a_crash_while_it_starts_is_told(tmp_path):
    ledger = FaultyLedger(MemoryLedger())
    pool = LocalPool(tmp_path, ledger=ledger)
    ledger.crash = pool.kill
    ledger.plan[1] = "crash before"
    with pytest.raises(Unavailable, match="was killed"):
        await pool.start()
    await pool.gone()
    await pool.start()
    await pool.stop()


def test_pool_time_starts_at_the_wall_s_time_and_passes_with_the_loop_s():
    async def times():
        async with LocalPool() as pool:
            begin = pool.coordinator.now()
            await asyncio.sleep(7)
            return begin, pool.coordinator.now()

    assert run_virtual(times()) == (EPOCH_S, EPOCH_S + 7)


@in_virtual_time
async def test_the_wall_s_clock_may_be_turned_back_between_two_servers():
    wall = [5000.0]
    async with LocalPool(wall=lambda: wall[0]) as pool:
        await pool.job(name="x", demand=1).register()
        wall[0] = 100.0
        await pool.restart()
        assert pool.coordinator.now() == 5000.0


@in_virtual_time
async def test_a_request_that_breaks_off_is_answered_as_cut_off():
    async with LocalPool() as pool:
        seen = set()
        for seed in range(20):
            network = FaultyTransport(pool.transport(), disconnect=1.0, seed=seed)
            async with httpx.AsyncClient(base_url="http://pool.test", transport=network) as client:
                try:
                    await client.post("/v1/check-ins", content=b'{"device": "d1"}')
                except httpx.TransportError as error:
                    seen.add(type(error).__name__)
        assert seen == {"WriteError", "ReadError"}
        assert pool.coordinator.counters.check_ins > 5
        assert 0 < pool.responses[200] < 20


@in_virtual_time
async def test_files_are_served_whole_in_ranges_and_as_headers():
    async with LocalPool() as pool, pool.client() as client:
        digest = pool.blobs.put(b"0123456789")
        path = f"/v1/blobs/{digest}"
        assert (await client.get(path)).content == b"0123456789"
        part = await client.get(path, headers={"range": "bytes=3-5"})
        assert (part.status_code, part.content) == (206, b"345")
        head = await client.head(path)
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "10", b"")


@in_virtual_time
async def test_errors_are_problem_documents_as_on_a_real_server():
    async with LocalPool() as pool, pool.client() as client:
        answer = await client.get("/v1/jobs/nobody")
        assert answer.status_code == 404
        assert json.loads(answer.content)["type"] == "urn:vennue:error:not-found"


@in_virtual_time
async def test_a_pool_shows_whether_it_runs_and_what_is_in_it():
    pool = LocalPool()
    assert repr(pool) == "<LocalPool at http://pool.test: not running>"
    async with pool:
        job = await pool.job(name="sum", demand=2).register()
        now = f"{EPOCH_S:.3f}"
        assert repr(pool) == (
            f"<LocalPool at http://pool.test: <Pool at {now} s: 1 of 1 jobs active, 0 attempts, 0 devices at work>>"
        )
        assert repr(pool.coordinator.pool.jobs[job.id]) == f"<Job {job.id}: active, 0 rounds committed>"
