"""Small-batch mode: check-ins wait at most a window, are bound together, and each is answered once."""

import pytest

from tests.unit.core.pools import MODEL, ArrivalOrder, check_in, open_job, submit
from vennue.core import invariants
from vennue.core.batch import MAX_BATCH, Collected
from vennue.core.effects import Answered
from vennue.core.errors import InvariantViolated
from vennue.core.events import CancelJob, Decline, OpenRound, Report, Tick
from vennue.core.ids import DeviceId, JobId
from vennue.core.plan import Offer, Plan, PoolView, Tier
from vennue.core.pool import Pool
from vennue.core.tenant import Quota

BIG = "device.ram_gb >= 8"


def pool_of(*jobs: tuple[str, int, str], planner: object = None, window_s: float = 1.0, **options: object) -> Pool:
    """A pool with an open round for each job, given as its name, demand and requirement, in order of arrival."""
    pool = Pool(planner or ArrivalOrder(), batch_window_s=window_s, **options)  # type: ignore[arg-type]  # by test
    for name, demand, requirement in jobs:
        open_job(pool, name, demand=demand, requirement=requirement)
    return pool


def answers(pool: Pool) -> dict[str, str | None]:
    """Whom each device that was answered is to serve."""
    answered = [effect for effect in pool.drain() if isinstance(effect, Answered)]
    assert len({effect.device for effect in answered}) == len(answered)
    return {effect.device: None if effect.assignment is None else effect.assignment.job for effect in answered}


def test_a_check_in_waits_for_the_window_and_no_longer() -> None:
    pool = pool_of(("j", 2, "true"))
    assert check_in(pool, "d", now=10) == Collected(11)
    assert check_in(pool, "e", now=10.9) == Collected(11)
    assert pool.next_wake() == 11
    assert answers(pool) == {}
    pool.handle(Tick(), 11)
    assert answers(pool) == {"d": "j", "e": "j"}
    assert check_in(pool, "f", now=12) == Collected(13)


def test_a_device_that_only_one_job_can_use_is_not_turned_away_for_one_that_two_can() -> None:
    pool = pool_of(("any", 1, "true"), ("big", 1, BIG))
    check_in(pool, "capable", ram_gb=16)
    check_in(pool, "small", ram_gb=2)
    pool.handle(Tick(), 1)
    # Bound one by one, "any" would have taken the capable device, and the small one would be idle.
    assert answers(pool) == {"small": "any", "capable": "big"}


def test_the_plan_s_order_still_holds_where_devices_are_short() -> None:
    pool = pool_of(("any", 2, "true"), ("big", 2, BIG))
    for device, ram_gb in (("b1", 16), ("b2", 16), ("s1", 2)):
        check_in(pool, device, ram_gb=ram_gb)
    pool.handle(Tick(), 1)
    assert answers(pool) == {"s1": "any", "b1": "any", "b2": "big"}


def test_devices_that_are_alike_are_bound_in_the_order_of_arrival() -> None:
    pool = pool_of(("j", 2, "true"))
    for device in ("first", "second", "third"):
        check_in(pool, device)
    pool.handle(Tick(), 1)
    assert answers(pool) == {"first": "j", "second": "j", "third": None}


def test_a_round_that_opens_within_the_window_is_served_from_it() -> None:
    pool = pool_of()
    check_in(pool, "d")
    submit(pool, "late", now=0.5, demand=1)
    pool.handle(OpenRound(JobId("late"), 1, MODEL), 0.5)
    pool.handle(Tick(), 1)
    assert answers(pool) == {"d": "late"}


def test_a_job_that_ends_within_the_window_gets_nothing() -> None:
    pool = pool_of(("j", 2, "true"), ("k", 2, "true"))
    check_in(pool, "d")
    pool.handle(CancelJob(JobId("j")), 0.5)
    pool.handle(Tick(), 1)
    assert answers(pool) == {"d": "k"}


def test_a_device_that_checks_in_twice_waits_and_is_answered_once_by_its_latest_attributes() -> None:
    pool = pool_of(("big", 1, BIG))
    check_in(pool, "d", ram_gb=16)
    check_in(pool, "d", now=0.5, ram_gb=2)
    pool.handle(Tick(), 1)
    assert answers(pool) == {"d": None}


def test_a_device_that_holds_a_task_is_answered_at_once() -> None:
    pool = pool_of(("j", 2, "true"))
    check_in(pool, "d")
    pool.handle(Tick(), 1)
    assert check_in(pool, "d", now=2).job == "j"


def test_a_device_whose_attributes_stopped_matching_loses_its_task_and_waits() -> None:
    pool = pool_of(("big", 1, BIG), ("any", 1, "device.ram_gb < 8"))
    check_in(pool, "d", ram_gb=16)
    pool.handle(Tick(), 1)
    pool.drain()
    assert check_in(pool, "d", now=2, ram_gb=2) == Collected(3)
    pool.handle(Tick(), 3)
    assert answers(pool) == {"d": "any"}


def test_a_device_that_declines_is_offered_the_next_job_at_once() -> None:
    pool = pool_of(("j", 1, "true"), ("k", 1, "true"))
    check_in(pool, "d")
    pool.handle(Tick(), 1)
    offered = pool.table.holds(DeviceId("d"))
    assert offered is not None
    assert pool.handle(Decline(offered.id, offered.device, declined=frozenset({offered.job})), 2).job == "k"


def test_a_full_batch_is_bound_at_once() -> None:
    pool = pool_of(("j", 3, "true"), window_s=1e6)
    for number in range(MAX_BATCH):
        check_in(pool, f"d{number}")
    served = answers(pool)
    assert (len(served), sum(job == "j" for job in served.values())) == (MAX_BATCH, 3)
    assert len(pool.batch) == 0
    assert check_in(pool, "next", now=5) == Collected(1e6 + 5)


def test_a_task_bound_in_a_batch_is_like_any_other() -> None:
    pool = pool_of(("j", 1, "true"))
    check_in(pool, "d")
    pool.handle(Tick(), 1)
    assignment = pool.table.holds(DeviceId("d"))
    assert assignment is not None
    assert (assignment.bound_at, assignment.expires_at) == (1, 601)
    assert pool.handle(Report(assignment.id, assignment.device), 2) is True


class FastFirst:
    """The first job takes only devices that answer within 10 s."""

    def plan(self, view: PoolView) -> Plan:
        first, *others = sorted(view.requests, key=lambda request: request.arrival)
        return Plan([(first.bit, (Offer(first.attempt, Tier(0.0, 10.0)),)), *((r.bit, (r.offer,)) for r in others)])


def test_a_job_that_waits_for_a_tier_gets_its_devices_out_of_the_batch() -> None:
    pool = pool_of(("picky", 1, "true"), ("easy", 2, "true"), planner=FastFirst())
    for device, response_s in (("slow", 60.0), ("fast", 5.0), ("slower", 90.0)):
        check_in(pool, device, response_s=response_s)
    pool.handle(Tick(), 1)
    assert answers(pool) == {"slow": "easy", "fast": "picky", "slower": "easy"}


def test_quotas_hold_within_a_batch() -> None:
    pool = Pool(ArrivalOrder(), batch_window_s=1.0, quotas={"a": Quota(devices=1)})
    for name, tenant in (("greedy", "a"), ("modest", "b")):
        open_job(pool, name, demand=2, tenant=tenant)
    for number in range(4):
        check_in(pool, f"d{number}")
    pool.handle(Tick(), 1)
    assert answers(pool) == {"d0": "greedy", "d1": "modest", "d2": "modest", "d3": "greedy"}


def test_a_batch_that_is_forgotten_is_seen() -> None:
    pool = pool_of(("j", 1, "true"))
    check_in(pool, "d")
    pool.batch.due_at = 0.5
    with pytest.raises(InvariantViolated, match=r"to be bound at 0\.5, but the pool wakes at"):
        invariants.check(pool)


def test_a_batch_is_bound_under_one_plan() -> None:
    pool = pool_of(("a", 1, "true"), ("b", 1, "true"), ("c", 1, "true"))
    for number in range(3):
        check_in(pool, f"d{number}")
    pool.handle(Tick(), 1)
    assert (sorted(filter(None, answers(pool).values())), pool.plans) == (["a", "b", "c"], 1)
