"""Quotas: who is served within them, who may borrow, and what they count."""

import pytest

from tests.unit.core.pools import MODEL, ArrivalOrder, check_in, open_job, submit
from vennue.core import invariants
from vennue.core.errors import InvalidInput, InvariantViolated
from vennue.core.events import Abort, Accept, CancelJob, Decline, OpenRound, Report, Tick
from vennue.core.ids import DeviceId, JobId
from vennue.core.job import DAY_S, JobSpec
from vennue.core.plan import Plan, PoolView
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.core.tenant import SLOT_S, Quota, Tenant


class Uniform:
    """Binding by chance."""

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(view.requests, choice="uniform")


PLANNERS = pytest.mark.parametrize("planner", [ArrivalOrder, Uniform])


def pool_of(*jobs: tuple[str, str], planner: type = ArrivalOrder, demand: int = 10, **quotas: Quota) -> Pool:
    """A pool with an open round for each job, given as its name and its tenant, in the order of their arrival."""
    pool = Pool(planner(), quotas={"*" if name == "others" else name: quota for name, quota in quotas.items()})
    for name, tenant in jobs:
        open_job(pool, name, demand=demand, tenant=tenant)
    return pool


def jobs_of(pool: Pool, devices: int, now: float = 0.0) -> list[str | None]:
    """Whom so many devices serve, one after the other."""
    bound = [check_in(pool, f"d{pool.now}-{number}", now) for number in range(devices)]
    return [None if assignment is None else assignment.job for assignment in bound]


def tenant(pool: Pool, name: str) -> Tenant:
    found = pool.tenants[name]
    assert isinstance(found, Tenant)
    return found


@PLANNERS
def test_a_tenant_at_its_quota_gives_way_to_all_within_theirs(planner) -> None:
    pool = pool_of(("greedy", "a"), ("modest", "b"), planner=planner, a=Quota(devices=2), b=Quota(devices=5))
    served = jobs_of(pool, 7)
    assert (served.count("greedy"), served.count("modest")) == (2, 5)
    assert served[-1] == "modest" or planner is ArrivalOrder
    invariants.check(pool)


def test_the_plan_s_order_holds_among_tenants_within_their_quotas() -> None:
    pool = pool_of(("a1", "a"), ("b1", "b"), ("a2", "a"), demand=2, a=Quota(devices=3), b=Quota(devices=5))
    assert jobs_of(pool, 5) == ["a1", "a1", "b1", "b1", "a2"]


@PLANNERS
def test_what_nobody_within_a_quota_can_use_is_borrowed(planner) -> None:
    pool = pool_of(("greedy", "a"), planner=planner, a=Quota(devices=2))
    assert jobs_of(pool, 5) == ["greedy"] * 5
    assert tenant(pool, "a").in_flight == 5


@PLANNERS
def test_borrowed_devices_come_back_as_soon_as_they_are_wanted(planner) -> None:
    pool = pool_of(("greedy", "a"), planner=planner, a=Quota(devices=2), b=Quota(devices=2))
    bound = [check_in(pool, f"d{number}") for number in range(5)]
    submit(pool, "modest", tenant="b", demand=9)
    pool.handle(OpenRound(JobId("modest"), 1, MODEL), 1)
    for assignment in bound[:2]:
        pool.handle(Abort(assignment.id, assignment.device), 2)
    # The other three of the borrower's devices go on; the two that are free serve the tenant within its quota.
    assert jobs_of(pool, 2, now=3) == ["modest", "modest"]
    assert (tenant(pool, "a").in_flight, tenant(pool, "b").in_flight) == (3, 2)


@PLANNERS
def test_q20_a_tenant_that_may_not_borrow_never_has_more_than_its_quota(planner) -> None:
    pool = pool_of(("capped", "a"), planner=planner, a=Quota(devices=2, borrow=False))
    assert jobs_of(pool, 4) == ["capped", "capped", None, None]
    assert check_in(pool, "late", now=601) is not None  # the leases of the first two have run out


def test_a_report_gives_the_tenant_room_for_another_device() -> None:
    pool = pool_of(("capped", "a"), a=Quota(devices=1, borrow=False))
    first = check_in(pool, "d")
    assert check_in(pool, "e") is None
    pool.handle(Report(first.id, first.device), 1)
    assert check_in(pool, "e", now=2) is not None


def test_tenants_without_a_quota_are_within_it() -> None:
    pool = pool_of(("greedy", "a"), ("free", "b"), a=Quota(devices=1))
    assert jobs_of(pool, 5) == ["greedy", "free", "free", "free", "free"]


def test_a_quota_for_others_is_each_tenant_s_own() -> None:
    pool = pool_of(("a1", "a"), ("b1", "b"), others=Quota(devices=1, borrow=False))
    assert jobs_of(pool, 3) == ["a1", "b1", None]


def test_a_job_whose_requirement_the_device_misses_is_no_reason_to_hold_it_back() -> None:
    pool = pool_of(("greedy", "a"), a=Quota(devices=0), b=Quota(devices=5))
    open_job(pool, "picky", tenant="b", requirement="device.ram_gb >= 8")
    assert check_in(pool, "small", ram_gb=4).job == "greedy"
    assert check_in(pool, "big", ram_gb=8).job == "picky"


def test_a_declined_job_within_its_quota_is_no_reason_to_hold_the_device_back() -> None:
    pool = pool_of(("greedy", "a"), ("modest", "b"), a=Quota(devices=0), b=Quota(devices=5))
    first = check_in(pool, "d")
    second = pool.handle(Decline(first.id, first.device, declined=frozenset({first.job})), 1)
    assert (first.job, second.job) == ("modest", "greedy")


# -- the day ---------------------------------------------------------------------------------------------------------


def test_a_day_s_devices_count_until_they_are_a_day_ago() -> None:
    pool = pool_of(("capped", "a"), a=Quota(devices_per_day=3, borrow=False))
    assert jobs_of(pool, 4, now=0) == ["capped", "capped", "capped", None]
    assert check_in(pool, "x", now=DAY_S) is None
    assert check_in(pool, "x", now=DAY_S + SLOT_S) is not None


def test_a_device_that_declines_does_not_count_for_the_day() -> None:
    pool = pool_of(("capped", "a"), a=Quota(devices_per_day=1, borrow=False))
    first = check_in(pool, "d")
    pool.handle(Decline(first.id, first.device, declined=frozenset({first.job})), 1)
    assert (tenant(pool, "a").bound_in_a_day(1), check_in(pool, "e", now=2).job) == (0, "capped")


def test_a_device_that_is_lost_counts_for_the_day() -> None:
    pool = pool_of(("capped", "a"), a=Quota(devices_per_day=1, borrow=False))
    lost = check_in(pool, "d")
    pool.handle(Tick(), 10_000)
    assert (tenant(pool, "a").in_flight, check_in(pool, "e", now=10_001)) == (0, None)
    assert lost.request.needs == 10


def test_counts_of_a_day_agree_with_a_list_of_bindings() -> None:
    counted = Tenant("a", Quota(devices_per_day=1))
    bindings: list[float] = []
    now = 0.0
    for step in range(5000):
        now += (step * 7919) % 400
        counted.count(now, 1)
        bindings.append(now)
        if step % 3 == 0:
            counted.count(bindings.pop(-1 - step % 2), -1)
        newest_that_may_be_forgotten = ((now - DAY_S) // SLOT_S) * SLOT_S
        assert counted.bound_in_a_day(now) == sum(at >= newest_that_may_be_forgotten for at in bindings)


# -- ends ------------------------------------------------------------------------------------------------------------


def test_cancelling_a_job_gives_its_tenant_all_its_devices_back() -> None:
    pool = pool_of(("a1", "a"), ("a2", "a"), demand=3, a=Quota(devices=3, borrow=False))
    assert jobs_of(pool, 4) == ["a1", "a1", "a1", None]
    pool.handle(CancelJob(JobId("a1")), 1)
    assert (tenant(pool, "a").in_flight, jobs_of(pool, 1, now=2)) == (0, ["a2"])


def test_a_device_that_has_yet_to_accept_counts_as_in_flight() -> None:
    pool = Pool(ArrivalOrder(), quotas={"a": Quota(devices=1, borrow=False)})
    open_job(pool, "j", tenant="a", private_requirement="device.x > 1")
    offered = check_in(pool, "d")
    assert check_in(pool, "e") is None
    pool.handle(Accept(offered.id, offered.device), 1)
    assert tenant(pool, "a").in_flight == 1


def test_a_count_that_drifts_from_the_assignments_is_seen() -> None:
    pool = pool_of(("a1", "a"), a=Quota(devices=3))
    check_in(pool, "d")
    tenant(pool, "a").live.clear()
    with pytest.raises(InvariantViolated, match="tenant a is counted with 0 devices, its jobs have 1"):
        invariants.check(pool)


def test_a_borrowed_device_that_somebody_within_a_quota_could_use_is_seen() -> None:
    pool = pool_of(("greedy", "a"), ("modest", "b"), a=Quota(devices=0), b=Quota(devices=5))
    auditor = invariants.Auditor(pool)
    auditor.handle(Tick(), 0)
    tenant(pool, "b").quota = Quota(devices=0)  # so that the pool takes b for exhausted, and the auditor does not
    given = check_in(pool, "d")
    tenant(pool, "b").quota = Quota(devices=5)
    assert given.job == "greedy"
    assert list(auditor._borrowed(given, None)) == ["tenant a borrowed a device that attempt modest.1.1 could use"]


@pytest.mark.parametrize("fields", [{}, {"devices": -1}, {"devices_per_day": -1}])
def test_a_quota_that_makes_no_sense_is_refused(fields) -> None:
    with pytest.raises(InvalidInput) as caught:
        Quota(**fields)
    assert str(caught.value.field).startswith("quotas")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 65])
def test_a_tenant_s_name_must_make_sense(name) -> None:
    with pytest.raises(InvalidInput) as caught:
        JobSpec(name="j", demand=1, tenant=name).check(DEFAULT_SCHEMA)
    assert caught.value.field == "tenant"


def test_a_device_holds_what_it_was_given_though_its_tenant_is_beyond_its_quota() -> None:
    pool = pool_of(("greedy", "a"), a=Quota(devices=1))
    first = check_in(pool, "d")
    check_in(pool, "e")
    assert pool.table.holds(DeviceId("d")) is first
    assert check_in(pool, "d", now=1) is first
