"""Admission refuses what can never run, with the numbers, and nothing on a pool that has not been watched for long."""

import pytest

from vennue.control.admission import admit
from vennue.core.effects import Commit
from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.events import CheckIn, OpenRound, Report, SubmitJob
from vennue.core.ids import DeviceId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.core.pool import Pool
from vennue.core.tenant import Quota
from vennue.policies import get_policy

DAY_S = 86_400.0


@pytest.fixture
def pool():
    """A pool that saw 8640 check-ins in a day, 0.1 per second, of which one in ten has much memory."""
    made = Pool(get_policy("fifo"))
    for number in range(8640):
        profile = made.registry.profile({"ram_gb": 12 if number % 10 == 0 else 4})
        made.handle(CheckIn(DeviceId(f"d{number}"), profile), number * 10.0)
    return made


def test_a_demand_above_all_supply_within_the_deadline_is_refused_with_the_bound(pool):
    """Case Q8."""
    spec = JobSpec(name="x", demand=1000, deadline_s=600, min_fraction=0.8, requirement="device.ram_gb >= 8")
    with pytest.raises(Infeasible) as caught:
        admit(pool, spec, DAY_S, window_s=DAY_S)
    # 0.01 eligible devices per second for 600 s are 6; a round of 7 needs 6 of them (0.8 × 7 = 5.6).
    assert (caught.value.field, caught.value.value) == ("demand", 1000)
    assert caught.value.limit == 7
    assert "800 devices within 600 s" in caught.value.message


def test_q8_a_demand_that_no_device_meets_is_refused_without_a_deadline_too(pool):
    with pytest.raises(Infeasible) as caught:
        admit(pool, JobSpec(name="x", demand=1, requirement="device.ram_gb >= 64"), DAY_S, window_s=DAY_S)
    assert caught.value.limit == 0
    assert "0 eligible ones check in per second" in caught.value.message


def test_q14_a_job_that_would_rather_wait_is_let_in_with_the_same_numbers(pool):
    spec = JobSpec(
        name="x", demand=1000, deadline_s=600, requirement="device.ram_gb >= 8", if_infeasible="wait", min_fraction=0.5
    )
    seen = admit(pool, spec, DAY_S, window_s=DAY_S)
    assert (seen.least, seen.limit_s, seen.available) == (500, 600, 6)
    assert seen.supply_per_s == pytest.approx(0.01)


def test_what_is_queued_for_the_same_regions_is_among_the_numbers(pool):
    for job, requirement in (("big", "device.ram_gb >= 8"), ("any", "true"), ("small", "device.ram_gb < 8")):
        pool.handle(SubmitJob(JobId(job), JobSpec(name=job, demand=5, requirement=requirement)), DAY_S)
        pool.handle(OpenRound(JobId(job), 1, Digest("0" * 64)), DAY_S)
    seen = admit(pool, JobSpec(name="x", demand=1, requirement="device.ram_gb >= 12"), DAY_S, window_s=DAY_S)
    assert seen.queued == 10  # "big" and "any"; "small" shares no region that has been seen


@pytest.mark.parametrize(
    ("quota", "limit"),
    [
        (Quota(devices=5, borrow=False), 5),
        (Quota(devices=100, devices_per_day=7, borrow=False), 7),
        (Quota(devices=5), None),
        (Quota(devices=8, borrow=False), None),
    ],
    ids=["at once", "a day", "may borrow", "fits"],
)
def test_q20_a_round_above_a_quota_that_cannot_be_exceeded_is_refused_with_the_numbers(quota, limit):
    pool = Pool(get_policy("fifo"), quotas={"team": quota})
    spec = JobSpec(name="x", demand=8, tenant="team")
    if limit is None:
        admit(pool, spec, 0.0, window_s=DAY_S)
        return
    with pytest.raises(Infeasible) as caught:
        admit(pool, spec, 0.0, window_s=DAY_S)
    assert (caught.value.value, caught.value.limit) == (8, limit)
    assert "tenant team may use" in caught.value.message


def test_q20_a_round_above_its_quota_may_wait_and_is_then_served_in_turns():
    pool = Pool(get_policy("fifo"), quotas={"team": Quota(devices=2, borrow=False)})
    spec = JobSpec(name="x", demand=4, tenant="team", if_infeasible="wait")
    admit(pool, spec, 0.0, window_s=DAY_S)
    pool.handle(SubmitJob(JobId("x"), spec), 0.0)
    pool.handle(OpenRound(JobId("x"), 1, Digest("0" * 64)), 0.0)
    profile = pool.registry.profile({})
    for turn in range(2):
        now = 10.0 * turn
        given = [pool.handle(CheckIn(DeviceId(f"d{turn}-{number}"), profile), now) for number in range(4)]
        assert [assignment is not None for assignment in given] == [True, True, False, False]
        for assignment in given[:2]:
            pool.handle(Report(assignment.id, assignment.device), now + 5)
    assert any(isinstance(effect, Commit) and len(effect.assignments) == 4 for effect in pool.drain())


@pytest.mark.parametrize("spec", [{"demand": 7, "deadline_s": 600.0}, {"demand": 1000}], ids=["fits", "no deadline"])
def test_what_could_run_is_let_in(pool, spec):
    admit(pool, JobSpec(name="x", requirement="device.ram_gb >= 8", **spec), DAY_S, window_s=DAY_S)


def test_a_pool_that_was_not_watched_for_a_window_refuses_nothing():
    pool = Pool(get_policy("fifo"))
    admit(pool, JobSpec(name="x", demand=1000, deadline_s=1.0), 0.0, window_s=DAY_S)
    pool.handle(CheckIn(DeviceId("d"), pool.registry.profile({})), 0.0)
    admit(pool, JobSpec(name="x", demand=1000, deadline_s=1.0), DAY_S - 1, window_s=DAY_S)


def test_a_spec_that_makes_no_sense_is_refused_before_anything_else(pool):
    with pytest.raises(InvalidInput) as caught:
        admit(pool, JobSpec(name="x", demand=0), DAY_S, window_s=DAY_S)
    assert caught.value.field == "demand"


@pytest.mark.parametrize(
    ("strategy", "mode", "said"),
    [
        ("fedbuff", {}, "in a synchronous round none is old"),
        ("q-fedavg", {"mode": "async", "buffer_size": 2}, "in an asynchronous job devices start from several"),
    ],
)
def test_a_strategy_that_makes_no_sense_in_the_jobs_mode_is_refused_with_another_one(pool, strategy, mode, said):
    with pytest.raises(InvalidInput) as caught:
        admit(pool, JobSpec(name="x", demand=2, strategy=strategy, **mode), DAY_S, window_s=DAY_S)
    assert (caught.value.field, caught.value.value) == ("strategy", strategy)
    assert said in caught.value.message
    assert caught.value.fix is not None
    assert "or take fed" in caught.value.fix


def test_fedbuff_is_for_asynchronous_jobs_and_q_fedavg_for_synchronous_ones(pool):
    admit(pool, JobSpec(name="x", demand=2, strategy="fedbuff", mode="async", buffer_size=2), DAY_S, window_s=DAY_S)
    admit(pool, JobSpec(name="x", demand=2, strategy="q-fedavg"), DAY_S, window_s=DAY_S)
