"""What happens to jobs when servers die and models vanish: by the ids of the cases, in virtual time."""

import asyncio

from tests.cases.actors import MODEL, adds_one, devices, opened, show
from vennue.testing import FaultyLedger, LocalPool, MemoryLedger, in_virtual_time


@in_virtual_time
async def test_r4_a_hundred_jobs_end_and_nothing_counts_twice_though_their_server_is_killed_three_times():
    """One server at a time keeps a pool: it is killed three times, in the middle of whatever it does."""
    async with LocalPool(validate=False) as pool, pool.client() as client:
        model = pool.blobs.put(MODEL)
        for number in range(100):
            spec = {"name": f"j{number}", "demand": 2, "rounds": 1}
            await client.post("/v1/jobs", json={"spec": spec, "managed": {"model": model}})
        told: list[list[bool]] = [[] for _ in range(20)]
        lives = [adds_one(pool.device(device_id=f"d{n}"), takes_s=5.0 + n / 7, told=told[n]) for n in range(20)]
        async with devices(*lives):
            for _ in range(3):
                await asyncio.sleep(11)
                await pool.restart()
            await asyncio.sleep(600)
        views = (await show(pool, "/v1/jobs"))["jobs"]
        assert [view["state"] for view in views] == ["completed"] * 100
        rounds = [await show(pool, f"/v1/jobs/{view['id']}/rounds/1") for view in views]
        assert {(view["reported"], view["weight"]) for view in rounds} == {(2, 2.0)}
        assert sum(map(sum, told)) == 200


@in_virtual_time
async def test_r5_a_job_that_cannot_go_on_is_listed_with_the_reason(caplog):
    """While the server is down, somebody removes the model of its open round."""
    async with LocalPool() as pool:
        job = await opened(pool)
        model = (await show(pool, f"/v1/jobs/{job}/rounds/1"))["model"]
        await pool.stop()
        pool.blobs.path(model).unlink()
        await pool.start()
        await asyncio.sleep(1)
        [view] = (await show(pool, "/v1/jobs"))["jobs"]
        assert (view["id"], view["state"]) == (job, "cancelled")
        assert f"the model of its round is gone: {model}" in view["reason"]["text"]
        assert f"job {job} cannot go on" in caplog.text


@in_virtual_time
async def test_r5_a_submission_that_could_not_be_saved_is_told_and_its_repeat_makes_the_job():
    ledger = FaultyLedger(MemoryLedger())
    async with LocalPool(ledger=ledger) as pool, pool.client() as client:
        ledger.plan[ledger.writes + 1] = "fail before"
        body, key = {"spec": {"name": "job", "demand": 1}}, {"idempotency-key": "k"}
        failed = await client.post("/v1/jobs", json=body, headers=key)
        assert (failed.status_code, failed.json()["type"]) == (503, "urn:vennue:error:storage")
        await asyncio.sleep(5)
        assert (await show(pool, "/v1/jobs"))["jobs"] == []
        made = await client.post("/v1/jobs", json=body, headers=key)
        assert [job["id"] for job in (await show(pool, "/v1/jobs"))["jobs"]] == [made.json()["id"]]
