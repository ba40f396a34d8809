"""What a pool learns for matching: from whom, when, and that it forgets jobs which have ended."""

import pytest

from tests.unit.core.pools import MODEL, RESULT, check_in, open_job, profile, report, submit
from vennue.core.assignment import Assignment
from vennue.core.events import CancelJob, Committed, OpenRound, Report
from vennue.core.ids import AttemptId, JobId
from vennue.core.plan import Plan, PoolView
from vennue.core.pool import Pool
from vennue.core.profile import expected_response_s
from vennue.policies import get_policy

J = JobId("j")


class Watcher:
    """A planner that keeps the last view it was given."""

    def __init__(self, *, learns: bool) -> None:
        self.learns = learns
        self.view: PoolView | None = None

    def plan(self, view: PoolView) -> Plan:
        self.view = view
        return Plan.ordered(view.requests)


def pool_after_one_round(planner: Watcher) -> Pool:
    """Bound at 10 s, reported at 40 s, committed at 40 s; the second round is open."""
    pool = Pool(planner)
    open_job(pool, "j", demand=1)
    assignment = check_in(pool, "d", now=10, response_s=25.0)
    report(pool, assignment, 40)
    pool.handle(Committed(AttemptId("j.1.1"), RESULT), 40)
    pool.handle(OpenRound(J, 2, RESULT), 40)
    return pool


def test_a_planner_that_learns_sees_rounds_and_capabilities() -> None:
    planner = Watcher(learns=True)
    pool = pool_after_one_round(planner)
    check_in(pool, "e", now=50, response_s=5.0)
    assert planner.view is not None
    assert planner.view.profiles[J].collection_ratio == pytest.approx(30 / 10)
    assert planner.view.profiles[J].snapshot().expected_s == [25.0]
    assert planner.view.profiles[J].snapshot().took_s == [30.0]
    assert [seconds for seconds, _ in planner.view.capabilities] == [5.0, 25.0]


def test_a_planner_that_does_not_learn_costs_no_learning() -> None:
    planner = Watcher(learns=False)
    pool = pool_after_one_round(planner)
    check_in(pool, "e", now=50, response_s=5.0)
    assert planner.view is not None
    assert (planner.view.profiles, planner.view.capabilities) == ({}, ())


def test_an_ended_job_is_forgotten() -> None:
    pool = pool_after_one_round(Watcher(learns=True))
    pool.handle(CancelJob(J), 60)
    assert pool.planning.learned.profiles == {}


def bind_many(pool: Pool, now: float) -> list[Assignment]:
    """64 devices check in, every other one fast; those that were bound."""
    answers = [check_in(pool, f"d{n}", now=now, response_s=10.0 if n % 2 else 100.0) for n in range(64)]
    return [assignment for assignment in answers if assignment is not None]


def test_venn_restricts_a_job_to_a_tier_once_its_reports_show_that_it_pays() -> None:
    """Devices are there at once, so that collection is all; and the fast half answers in a tenth of the time."""
    pool = Pool(get_policy("venn", tiers=2))
    submit(pool, "j", demand=8)
    for number in range(1, 12):
        now = 200.0 * number
        pool.handle(OpenRound(J, number, MODEL), now)
        for assignment in sorted(bind_many(pool, now), key=lambda assignment: assignment.response_s):
            pool.handle(Report(assignment.id, assignment.device), now + assignment.response_s)
        pool.handle(Committed(AttemptId(f"j.{number}.1"), MODEL), now + 150)
    pool.handle(OpenRound(J, 12, MODEL), 3000)  # the draw of this attempt is the fast tier
    assert {assignment.response_s for assignment in bind_many(pool, 3000)} == {10.0}


def test_the_expected_response_follows_the_inference_latency() -> None:
    assert expected_response_s(profile(latency_ms=63)) == pytest.approx(0.63)


def test_a_device_that_tells_nothing_is_expected_to_take_no_time() -> None:
    assert expected_response_s(profile()) == 0
