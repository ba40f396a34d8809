"""Planning: once however much has happened, isolated from what a policy does, and remembered for explanations."""

from tests.unit.core.pools import MODEL, ArrivalOrder, check_in, open_job, pool_with_round, submit
from vennue.core.events import OpenRound, Report
from vennue.core.ids import JobId
from vennue.core.plan import Plan, PoolView
from vennue.core.planning import KEPT_CAUSES, KEPT_PLANS, Cause
from vennue.core.pool import Pool


def test_however_many_rounds_open_before_a_check_in_they_cost_one_plan() -> None:
    pool = Pool(ArrivalOrder())
    for number in range(50):
        submit(pool, f"j{number}")
        pool.handle(OpenRound(JobId(f"j{number}"), 1, MODEL), 0)
    check_in(pool, "d")
    [record] = pool.planning.history
    assert (record.number, record.requests) == (1, 50)
    assert record.causes[0] == Cause("needs devices", "j0.1.1")
    assert (len(record.causes), record.more_causes) == (KEPT_CAUSES, 50 - KEPT_CAUSES)


def test_a_plan_is_kept_with_what_caused_it() -> None:
    pool = pool_with_round(demand=1)
    first = check_in(pool, "a", now=1)
    pool.handle(Report(first.id, first.device), 2)
    check_in(pool, "b", now=3)
    assert [(record.at, record.causes) for record in pool.planning.history] == [
        (1, (Cause("needs devices", "j.1.1"),)),
        (3, (Cause("has all its devices", "j.1.1"), Cause("needs no more devices", "j.1.1"))),
    ]


def test_the_history_is_bounded() -> None:
    pool = pool_with_round(demand=1000)
    for number in range(KEPT_PLANS + 10):
        pool.set_planner(ArrivalOrder())
        check_in(pool, f"d{number}")
    numbers = [record.number for record in pool.planning.history]
    assert numbers == list(range(11, KEPT_PLANS + 11))


class Expires:
    """A plan that stands for ten seconds."""

    def plan(self, view: PoolView) -> Plan:
        return Plan([(r.bit, (r.offer,)) for r in view.requests], until=view.now + 10)


def test_a_plan_that_ran_out_is_replaced_without_a_cause() -> None:
    pool = pool_with_round(demand=9)
    pool.set_planner(Expires())
    for now in (0, 5, 10, 15):
        check_in(pool, f"d{now}", now=now)
    assert [(record.at, len(record.causes)) for record in pool.planning.history] == [(0, 2), (10, 0)]


class Raises:
    """A policy with a defect."""

    def plan(self, view: PoolView) -> Plan:
        raise ZeroDivisionError("deadline - deadline")


def test_a_failure_is_in_the_history_with_the_plan_that_stayed_in_force() -> None:
    pool = pool_with_round(demand=3)
    check_in(pool, "d")
    good = pool.planning.history[-1].plan
    pool.set_planner(Raises())
    check_in(pool, "e")
    record = pool.planning.history[-1]
    line = Raises.plan.__code__.co_firstlineno + 1
    assert record.failure == f"ZeroDivisionError in test_planning.py, line {line}: deadline - deadline"
    assert record.plan is good
    assert record.causes == (Cause("the policy was changed"),)


def test_news_that_a_request_is_filled_may_wait_but_a_request_that_opens_is_planned_for_at_once() -> None:
    pool = Pool(ArrivalOrder(), plan_lag_s=10.0)
    for job in ("a", "b"):
        open_job(pool, job, demand=1 if job == "a" else 9)
    for now in (1, 2, 3):  # the first one fills job a's request
        check_in(pool, f"d{now}", now=now)
    assert pool.plans == 1
    submit(pool, "c")
    pool.handle(OpenRound(JobId("c"), 1, MODEL), 4)
    check_in(pool, "d4", now=5)
    assert pool.plans == 2
    assert [cause.what for cause in pool.planning.history[-1].causes] == ["has all its devices", "needs devices"]


def test_news_that_a_request_is_filled_is_planned_for_when_it_has_waited_long_enough() -> None:
    pool = pool_with_round(demand=1)
    lagging = Pool(ArrivalOrder(), plan_lag_s=10.0)
    for driven in (pool, lagging):
        submit(driven, "other", demand=9)
        if driven is lagging:
            submit(driven, "j", demand=1)
            driven.handle(OpenRound(JobId("j"), 1, MODEL), 0)
        for now in (1, 2, 10, 11, 12):
            check_in(driven, f"d{now}", now=now)
    assert [record.at for record in pool.planning.history] == [1, 2]
    assert [record.at for record in lagging.planning.history] == [1, 11]
