"""Reports that arrive as one sum: all are counted, or none."""

import pytest

from tests.unit.core.pools import attempt, check_in, pool_with_round
from vennue.core.effects import Commit
from vennue.core.errors import Conflict, Forbidden, TooLate
from vennue.core.events import Decline, Report, ReportTogether
from vennue.core.ids import DeviceId
from vennue.core.round import AttemptState


def together(pool, *assignments, now=0.0):
    return pool.handle(ReportTogether(tuple(Report(a.id, a.device) for a in assignments)), now)


def test_all_are_counted_at_once():
    pool = pool_with_round(demand=3)
    first, second, third = (check_in(pool, f"d{n}") for n in range(3))
    assert together(pool, first, second) == 2
    assert list(attempt(pool).request.reported) == [first.id, second.id]
    assert attempt(pool).request.needs == 0
    assert list(attempt(pool).request.live) == [third.id]


def test_one_that_is_over_keeps_the_others_from_being_counted():
    pool = pool_with_round(demand=3)
    first, second = check_in(pool, "d1"), check_in(pool, "d2")
    pool.handle(Decline(second.id, second.device), 0.0)
    with pytest.raises(TooLate):
        together(pool, first, second)
    assert not attempt(pool).request.reported
    assert together(pool, first) == 1


def test_somebody_elses_assignment_keeps_the_others_from_being_counted():
    pool = pool_with_round(demand=3)
    first, second = check_in(pool, "d1"), check_in(pool, "d2")
    reports = (Report(first.id, first.device), Report(second.id, DeviceId("thief")))
    with pytest.raises(Forbidden):
        pool.handle(ReportTogether(reports), 0.0)
    assert not attempt(pool).request.reported


def test_one_named_twice_is_a_conflict():
    pool = pool_with_round(demand=3)
    first = check_in(pool, "d1")
    with pytest.raises(Conflict, match="different reports"):
        together(pool, first, first)


def test_more_than_the_goal_are_all_in_the_commit():
    pool = pool_with_round(demand=5, deadline_s=60.0, min_fraction=0.4)
    assignments = [check_in(pool, f"d{n}") for n in range(4)]
    pool.drain()
    assert together(pool, *assignments) == 4
    (commit,) = (effect for effect in pool.drain() if isinstance(effect, Commit))
    assert set(commit.assignments) == {assignment.id for assignment in assignments}
    assert attempt(pool).state is AttemptState.COMMITTING


def test_an_asynchronous_attempt_takes_each_by_itself():
    pool = pool_with_round(demand=3, mode="async", buffer_size=2)
    first = check_in(pool, "d1")
    with pytest.raises(Conflict, match="by itself"):
        together(pool, first)
