"""What owners, operators and devices ask that cannot be: each is told over HTTP what is wrong, and changes nothing."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.cases.actors import MODEL, adds_one, devices, opened, show
from vennue.control.pacing import Pacing
from vennue.core.tenant import Quota
from vennue.testing import LocalPool, in_virtual_time


async def submit(client: httpx.AsyncClient, **spec: object) -> httpx.Response:
    return await client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 1, **spec}})


async def check_in(client: httpx.AsyncClient, device: str = "d", **attributes: object) -> dict[str, Any]:
    answer = await client.post("/v1/check-ins", json={"device": device, "attributes": attributes})
    assert answer.status_code == 200
    said: dict[str, Any] = answer.json()
    return said


async def act(client: httpx.AsyncClient, task: dict[str, Any], step: str, token: str | None = None) -> httpx.Response:
    """What a device does about a task, with the task's token or another."""
    headers = {"authorization": f"Bearer {token or task['token']}", "vennue-examples": "1"}
    path = f"/v1/assignments/{task['assignment']}/{step}"
    if step == "report":
        return await client.put(path, content=MODEL, headers=headers)
    return await client.post(path, headers=headers)


def told(answer: httpx.Response) -> tuple[int, str, str | None]:
    problem = answer.json()
    return answer.status_code, problem["type"].rpartition(":")[2], problem.get("field")


@in_virtual_time
async def test_a_demand_above_a_quota_that_cannot_be_exceeded_is_refused_with_the_quota():
    quotas = {"small": Quota(devices=5, borrow=False)}
    async with LocalPool(quotas=quotas) as pool, pool.client() as client:
        answer = await submit(client, tenant="small", demand=6)
        assert told(answer) == (422, "infeasible", "demand")
        assert answer.json()["limit"] == 5
        assert (await show(pool, "/v1/jobs"))["jobs"] == []


@in_virtual_time
async def test_a_job_can_only_come_after_jobs_that_there_are_so_that_no_cycle_can_be():
    async with LocalPool() as pool, pool.client() as client:
        first = (await submit(client)).json()["id"]
        assert (await submit(client, after=[first])).status_code == 201
        assert told(await submit(client, after=["job-000000"])) == (422, "invalid-input", "after")
        assert told(await submit(client, after=[first, first])) == (422, "invalid-input", "after")


@pytest.mark.parametrize("policy", ["no-such-policy", "./mine.py", "os.system", ""])
def test_a_policy_that_does_not_import_is_refused_and_the_one_in_force_stays(policy):
    @in_virtual_time
    async def main():
        async with LocalPool(policy="srsf") as pool, pool.client() as client:
            answer = await client.put("/v1/policy", json={"policy": policy})
            assert told(answer) == (422, "invalid-input", "policy")
            assert (await show(pool, "/v1/plan"))["policy"] == "srsf"

    main()


@in_virtual_time
async def test_a_requirement_that_nobody_meets_any_more_while_its_round_waits_is_flagged_until_somebody_does():
    async with LocalPool(stall_grace_s=1800.0, pacing=Pacing(idle_s=60.0)) as pool:
        job = await opened(pool, demand=3, requirement="device.ram_gb >= 8", round_limit_s=1e6)
        async with devices(adds_one(pool.device(device_id="large", attributes={"ram_gb": 8}))):
            await asyncio.sleep(600)
        async with devices(adds_one(pool.device(device_id="small", attributes={"ram_gb": 2}))):
            await asyncio.sleep(4 * 3600)
            reason = (await show(pool, f"/v1/jobs/{job}"))["reason"]
            assert reason["code"] == "stalled"
            assert "no eligible device has checked in for" in reason["text"]
            lives = [adds_one(pool.device(device_id=f"l{n}", attributes={"ram_gb": 16})) for n in range(2)]
            async with devices(*lives):
                assert (await show(pool, f"/v1/jobs/{job}/rounds/1?wait=60"))["state"] == "committed"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"demand": 3, "min_reports": 5}, "min_reports"),
        ({"min_reports": 1, "min_fraction": 0.5}, "min_reports"),
        ({"deadline_s": 600, "time_limit_s": 60}, "time_limit_s"),
        ({"mode": "async", "buffer_size": 2, "deadline_s": 60}, "deadline_s"),
        ({"mode": "async", "buffer_size": 2, "min_fraction": 0.5}, "min_fraction"),
        ({"max_staleness": 2}, "max_staleness"),
    ],
)
def test_limits_that_contradict_each_other_are_refused_by_name(spec, field):
    @in_virtual_time
    async def main():
        async with LocalPool() as pool, pool.client() as client:
            status, _, found = told(await submit(client, **spec))
            assert (status, found) == (422, field)
            assert (await show(pool, "/v1/jobs"))["jobs"] == []

    main()


@in_virtual_time
async def test_an_offer_that_is_accepted_after_its_time_is_over_and_may_go_to_another():
    async with LocalPool(accept_lease_s=30.0) as pool, pool.client() as client:
        await opened(pool, private_requirement="device.samples > 1")
        offer = (await check_in(client, "slow"))["task"]
        await asyncio.sleep(31)
        other = (await check_in(client, "quick"))["task"]
        answer = await act(client, offer, "accept")
        assert told(answer)[:2] == (409, "too-late")
        assert "lease ran out" in answer.json()["detail"]
        assert (await act(client, other, "accept")).status_code == 200
        assert told(await act(client, offer, "report"))[:2] == (409, "too-late")


@in_virtual_time
async def test_a_token_that_is_shown_again_or_for_another_task_does_nothing():
    async with LocalPool() as pool, pool.client() as client:
        job = await opened(pool, demand=2)
        mine, theirs = [(await check_in(client, device))["task"] for device in ("mine", "theirs")]
        for step in ("accept", "decline", "abort", "report"):
            assert told(await act(client, theirs, step, mine["token"]))[:2] == (403, "forbidden")
        assert (await act(client, mine, "report")).json()["duplicate"] is False
        assert (await act(client, mine, "report")).json()["duplicate"] is True
        for step in ("decline", "abort", "accept"):  # it does not take the report back
            assert told(await act(client, mine, step))[:2] == (409, "too-late")
        view = await show(pool, f"/v1/jobs/{job}/rounds/1")
        assert (view["bound"], view["reported"]) == (2, 1)


@in_virtual_time
async def test_a_device_whose_attributes_change_before_it_accepts_is_judged_by_what_it_said_last():
    async with LocalPool() as pool, pool.client() as client:
        job = await opened(pool, requirement="device.ram_gb >= 4", private_requirement="device.samples > 1")
        offer = (await check_in(client, ram_gb=8))["task"]
        assert (await check_in(client, ram_gb=2)).get("task") is None
        answer = await act(client, offer, "accept")
        assert told(answer)[:2] == (409, "too-late")
        assert "other attributes" in answer.json()["detail"]
        again = (await check_in(client, ram_gb=6))["task"]
        assert (await act(client, again, "accept")).status_code == 200
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["bound"] == 1


@in_virtual_time
async def test_a_device_that_claims_a_thousand_sessions_at_once_has_one_task():
    async with LocalPool(validate=False) as pool, pool.client() as client:
        job = await opened(pool, demand=1000)
        answers = await asyncio.gather(*(check_in(client, "greedy") for _ in range(1000)))
        assert {answer["task"]["assignment"] for answer in answers} == {f"{job}.1.1.1"}
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["bound"] == 1
        assert (await act(client, answers[0]["task"], "report")).status_code == 200
        answers = await asyncio.gather(*(check_in(client, "greedy") for _ in range(1000)))
        assert [answer for answer in answers if answer.get("task")] == []
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["reported"] == 1
