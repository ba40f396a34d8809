"""What happens to devices whose calls, connections and servers fail: by the ids of the cases, in virtual time."""

import asyncio
import logging

import httpx
import pytest

from tests.cases.actors import Cut, Network, adds_one, devices, learn, opened, show
from vennue.control.pacing import Pacing
from vennue.core.batch import Collected
from vennue.core.errors import InvalidInput
from vennue.core.events import CheckIn, Tick
from vennue.core.ids import DeviceId
from vennue.core.pool import Pool
from vennue.policies import get_policy
from vennue.server.config import Limits
from vennue.testing import LocalPool, MemoryLedger, in_virtual_time, run_virtual


@in_virtual_time
async def test_s4_a_round_that_waits_for_a_second_device_says_that_it_has_one_of_two():
    async with LocalPool() as pool, devices(adds_one(pool.device(device_id="only"))):
        job = await opened(pool, demand=2)
        await asyncio.sleep(60)
        reason = (await show(pool, f"/v1/jobs/{job}"))["reason"]
        assert reason["code"] == "needs-other-devices"
        assert reason["text"].startswith("1 of 2 devices; the last ")
        [change] = (await show(pool, f"/v1/jobs/{job}/explain"))["changes"]
        assert (change["field"], change["value"]) == ("demand", 1)
        async with devices(adds_one(pool.device(device_id="second"))):
            await asyncio.sleep(60)
            assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["state"] == "committed"


@in_virtual_time
async def test_s10_d9_a_device_that_is_cut_off_while_it_trains_for_an_hour_reports_for_the_same_assignment():
    """The network is down for all of the training but its first seconds, and for a while after it."""
    reached = []

    async def down(request, pass_on):
        if 5 < asyncio.get_running_loop().time() < 3700:
            raise httpx.ConnectError("no network", request=request)
        reached.append(request.url.path)
        return await pass_on(request)

    async with LocalPool() as pool:
        job = await opened(pool, lease_s=7200)
        told: list[bool] = []
        async with devices(adds_one(pool.device(transport=Network(pool, down)), takes_s=3600.0, told=told)):
            await asyncio.sleep(3800)
        assert told == [True]
        assert [path for path in reached if path.endswith("/report")] == [f"/v1/assignments/{job}.1.1.1/report"]
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["attempt"] == 1


@in_virtual_time
async def test_d2_calls_whose_answers_are_lost_are_asked_again_and_both_sides_agree():
    """The check-in, the acceptance and the report each happen, though the device first learns of none."""
    cut = Cut("/check-ins", "/accept", "/report")
    async with LocalPool() as pool:
        job = await opened(pool, private_requirement="device.samples > 1")
        told: list[bool] = []
        device = pool.device(transport=Network(pool, cut), private={"samples": 2})
        async with devices(adds_one(device, told=told)):
            await asyncio.sleep(60)
        assert cut.left == []
        assert told == [True]
        view = await show(pool, f"/v1/jobs/{job}/rounds/1")
        assert (view["state"], view["bound"], view["reported"]) == ("committed", 1, 1)


@in_virtual_time
async def test_d6_a_long_poll_whose_connection_is_cut_is_asked_again_and_no_commit_is_missed():
    async def cuts_idle(request, pass_on):
        try:
            return await asyncio.wait_for(pass_on(request), 20)
        except TimeoutError:
            raise httpx.RemoteProtocolError("the proxy closed an idle connection", request=request) from None

    async with LocalPool() as pool:
        lives = [adds_one(pool.device(device_id=f"d{n}"), takes_s=100.0) for n in range(2)]
        async with devices(*lives):
            assert await learn(pool, rounds=2, transport=Network(pool, cuts_idle)) == [2.0, 2.0]


@in_virtual_time
async def test_d10_a_device_whose_token_a_restarted_server_does_not_know_takes_another_task_and_goes_on():
    """The server's secret was changed while it was down, so that what the device trained cannot count."""
    ledger = MemoryLedger()
    async with LocalPool(ledger=ledger) as pool:
        job = await opened(pool)
        told: list[bool] = []
        async with devices(adds_one(pool.device(), takes_s=20.0, told=told)):
            await asyncio.sleep(10)
            await pool.stop()
            ledger._secret = b"another secret, of 32 bytes too."
            await pool.start()
            await asyncio.sleep(60)
        assert told == [False, True]
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["state"] == "committed"


@in_virtual_time
async def test_d11_a_server_killed_after_it_bound_a_device_and_before_it_said_so_gives_the_next_call_a_task():
    async with LocalPool() as pool:
        job = await opened(pool)
        killed: list[str] = []

        async def kills_once(request, pass_on):
            response = await pass_on(request)
            if request.url.path.endswith("/check-ins") and not killed:
                await response.aread()
                killed.append(response.json()["task"]["assignment"])
                await pool.restart()
                raise httpx.ReadError("the server went away", request=request)
            return response

        told: list[bool] = []
        async with devices(adds_one(pool.device(transport=Network(pool, kills_once)), told=told)):
            await asyncio.sleep(60)
        assert killed == [f"{job}.1.1.1"]
        assert told == [True]
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["state"] == "committed"


@in_virtual_time
async def test_d14_devices_that_would_poll_at_twice_the_server_s_pace_are_shed_and_its_queue_stays_bounded():
    """23 devices would come once a second, and the server answers 10 a second; shedding costs it a tenth of that.

    The time by which its loop is late is the time that its queue takes.
    """
    pacing = Pacing(short_s=0.5, busy_s=1.0, idle_s=1.0, check_ins_per_s=1e6)
    async with LocalPool(pacing=pacing, limits=Limits(lag_s=1.0), validate=False) as pool:
        loop = asyncio.get_running_loop()
        queue_s, looked_at, longest_s = 0.0, loop.time(), 0.0
        statuses = []

        async def slow(request, pass_on):
            nonlocal queue_s, looked_at, longest_s
            now = loop.time()
            queue_s, looked_at = max(0.0, queue_s - (now - looked_at)), now
            pool.app.lag.lag_s = queue_s
            queue_s += 0.1 if queue_s <= 1.0 else 0.01
            longest_s = max(longest_s, queue_s)
            response = await pass_on(request)
            statuses.append(response.status_code)
            await asyncio.sleep(queue_s)
            return response

        lives = [adds_one(pool.device(device_id=f"d{n}", transport=Network(pool, slow))) for n in range(23)]
        async with devices(*lives):
            await asyncio.sleep(120)
        assert longest_s <= 1.5
        assert 503 in statuses
        assert statuses.count(200) > 0.7 * 10 * 120  # shedding costs some, and the rest is served


def test_d16_one_bad_check_in_in_a_batch_of_a_thousand_spoils_none_of_the_others():
    pool = Pool(get_policy("fifo"), batch_window_s=2.0)
    answers: list[object] = []
    for number in range(1000):
        attributes: dict[str, object] = {"ram_gb": "much" if number == 500 else 4.0}
        try:
            profile = pool.registry.profile(attributes)
        except InvalidInput as error:
            answers.append(error.field)
            continue
        answers.append(pool.handle(CheckIn(DeviceId(f"d{number}"), profile), 1.0))
    assert answers[500] == "attributes.ram_gb"
    assert sum(isinstance(answer, Collected) for answer in answers) == 999
    pool.handle(Tick(), 3.0)
    assert len(pool.drain()) == 999


@in_virtual_time
async def test_a4_d4_devices_of_a_cancelled_job_learn_it_at_their_next_contact_and_nothing_of_theirs_is_stored():
    async with LocalPool() as pool:
        job = await opened(pool)
        told: list[bool] = []
        async with devices(adds_one(pool.device(), takes_s=100.0, told=told)), pool.client() as client:
            await asyncio.sleep(50)
            await client.post(f"/v1/jobs/{job}/cancel")
            other = await opened(pool, name="other")
            await asyncio.sleep(60)
            assert told == [False]
            assert list(pool.spool.rglob("*.report")) == []
            await asyncio.sleep(100)
            assert (await show(pool, f"/v1/jobs/{other}"))["committed_rounds"] == 1


@in_virtual_time
async def test_r7_devices_of_a_server_that_stops_are_told_when_to_come_back_and_log_no_error(caplog):
    caplog.set_level(logging.INFO, "vennue")
    async with LocalPool() as pool:
        job = await opened(pool, demand=3, lease_s=600)
        lives = [adds_one(pool.device(device_id=f"d{n}"), takes_s=7.0 + n) for n in range(3)]
        async with devices(*lives):
            await asyncio.sleep(3)
            pool.coordinator.announce_stop()
            async with pool.client() as client:
                told = await client.post("/v1/jobs", json={"spec": {"name": "x", "demand": 1}})
            assert (told.status_code, told.json()["detail"]) == (503, "the server is stopping")
            assert told.json()["retry_after_s"] > 0
            await pool.stop()
            await asyncio.sleep(5)
            await pool.start()
            await asyncio.sleep(60)
        assert (await show(pool, f"/v1/jobs/{job}/rounds/1"))["reported"] == 3
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("skew_s", [-3600.0, -1.0, 1.0, 3600.0])
def test_c6_a_device_whose_clock_is_wrong_is_served_like_any_other(skew_s):
    """No call carries a device's time: its clock can only shift when it calls and how long it thinks a lease runs."""

    async def main():
        async with LocalPool() as pool:
            await opened(pool, lease_s=60)
            timing = pool.timing()
            skewed = type(timing)(clock=lambda: timing.clock() + skew_s, rng=timing.rng)
            told: list[bool] = []
            async with devices(adds_one(pool.device(timing=skewed), told=told)):
                await asyncio.sleep(30)
            assert told == [True]

    run_virtual(main())
