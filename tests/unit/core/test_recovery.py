"""After a crash attempts go on with the reports that were counted, and take those of devices that trained meanwhile."""

import pytest

from tests.unit.core.pools import (
    MODEL,
    RESULT,
    ArrivalOrder,
    attempt,
    check_in,
    open_job,
    pool_with_round,
    report,
    submit,
)
from vennue.core import invariants
from vennue.core.assignment import Assignment
from vennue.core.effects import AssignmentEnded, Commit, SaveAttempt
from vennue.core.errors import Forbidden, TooLate
from vennue.core.events import Committed, OpenRound, Recover, Report, ReportTogether, Tick
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, assignment_id, attempt_of, restarts_before
from vennue.core.pool import Pool
from vennue.core.records import attempt_record, job_record
from vennue.core.recovery import NO_PLACE, SERVED

J = JobId("j")


def crashed(pool: Pool, *reports: Assignment, now: float = 100.0) -> Pool:
    """The pool of the next process, told of these reports."""
    recovered = Pool(ArrivalOrder())
    recovered.restore(map(job_record, pool.jobs.values()), map(attempt_record, pool.attempts()), now)
    recovered.drain()
    recovered.handle(Recover(AttemptId("j.1.1"), tuple(Report(one.id, one.device) for one in reports)), now)
    invariants.check(recovered)
    return recovered


def commits(pool: Pool) -> list[tuple[AssignmentId, ...]]:
    return [effect.assignments for effect in pool.drain() if isinstance(effect, Commit)]


# -- what was counted ------------------------------------------------------------------------------------------------


def test_reports_that_were_counted_still_count() -> None:
    pool = pool_with_round(demand=3)
    bound = [check_in(pool, f"d{n}") for n in range(3)]
    for one in bound[:2]:
        report(pool, one, now=5)
    after = crashed(pool, *bound[:2])
    assert list(attempt(after).request.reported) == [one.id for one in bound[:2]]
    assert report(after, bound[0], 101) is False
    check_in(after, "new", now=101)
    assert check_in(after, "another", now=101) is None


def test_a_round_that_had_all_its_reports_commits_exactly_these() -> None:
    pool = pool_with_round(demand=2)
    bound = [check_in(pool, f"d{n}") for n in range(2)]
    for one in bound:
        report(pool, one, now=5)
    after = crashed(pool, *bound)
    assert commits(after) == [(bound[0].id, bound[1].id)]
    assert after.handle(Committed(AttemptId("j.1.1"), RESULT), 102).committed == 1


def test_more_reports_in_the_spool_than_places_all_count_since_any_of_them_may_have_been_acknowledged() -> None:
    before = pool_with_round(demand=2)
    early = [check_in(before, f"early{n}") for n in range(2)]
    restarted = crashed(before)
    late = check_in(restarted, "late", now=101)
    check_in(restarted, "later", now=101)
    for one in early:
        report(restarted, one, now=102)
    # The report of "late", which lost its place, was whole in the spool, and the server died before it could say so.
    after = crashed(restarted, *early, late, now=103)
    assert commits(after) == [(early[0].id, early[1].id, late.id)]


def test_telling_of_the_same_reports_twice_changes_nothing() -> None:
    pool = pool_with_round(demand=3)
    one = check_in(pool, "d")
    report(pool, one, now=5)
    after = crashed(pool, one)
    after.handle(Recover(AttemptId("j.1.1"), (Report(one.id, one.device),)), 101)
    assert len(attempt(after).request.reported) == 1


def test_reports_that_cannot_be_read_cost_the_attempt_and_not_the_job() -> None:
    pool = pool_with_round(demand=3)
    after = crashed(pool)
    after.handle(Recover(AttemptId("j.1.1"), failure="the disk is broken"), 101)
    assert (attempt(after).id, attempt(after).restarts) == ("j.1.2", 0)
    assert "its reports were lost: the disk is broken" in " ".join(after.jobs[J].tell())


def test_an_attempt_that_has_closed_recovers_nothing() -> None:
    pool = pool_with_round(demand=1)
    after = crashed(pool)
    after.handle(Recover(AttemptId("gone.1.1")), 101)
    after.handle(Recover(AttemptId("j.1.7")), 101)
    assert attempt(after).id == "j.1.1"


# -- time ------------------------------------------------------------------------------------------------------------


def test_an_attempt_has_its_whole_time_again_and_keeps_when_it_opened() -> None:
    pool = pool_with_round(demand=3, deadline_s=60)
    after = crashed(pool, now=1000)
    again = attempt(after)
    assert (again.opened_at, again.deadline_at, again.request.waiting_since) == (0, 1060, 0)
    assert after.next_wake() == 1060
    after.handle(Tick(), 1060)
    assert attempt(after).id == "j.1.2"


def test_a_second_crash_is_like_the_first() -> None:
    pool = pool_with_round(demand=5)
    first = check_in(pool, "a")
    after = crashed(pool)
    second = check_in(after, "b", now=101)
    after = crashed(after, now=200)
    third = check_in(after, "c", now=201)
    assert (first.id, second.id, third.id) == ("j.1.1.1", "j.1.1.1-1", "j.1.1.2-1")
    assert [report(after, one, now=202) for one in (first, second, third)] == [True, True, True]
    assert [restarts_before(one.id) for one in (first, second, third)] == [0, 1, 2]


# -- devices that come back ------------------------------------------------------------------------------------------


def test_r6_a_device_that_trained_while_the_server_was_down_reports_and_counts() -> None:
    pool = pool_with_round(demand=2, lease_s=60)
    bound = [check_in(pool, f"d{n}") for n in range(2)]
    after = crashed(pool, now=600)
    assert [report(after, one, now=601) for one in bound] == [True, True]
    assert commits(after) == [(bound[0].id, bound[1].id)]


def test_r6_its_place_is_there_although_others_were_bound_meanwhile() -> None:
    pool = pool_with_round(demand=2)
    old = [check_in(pool, f"d{n}") for n in range(2)]
    after = crashed(pool)
    new = [check_in(after, f"n{n}", now=101) for n in range(2)]
    after.drain()
    assert report(after, old[0], now=102) is True
    # The one that was bound last, and has worked the least, gives its place back.
    assert [effect.assignment for effect in after.drain() if isinstance(effect, AssignmentEnded)] == [new[1].id]
    assert list(attempt(after).request.live) == [new[0].id]
    with pytest.raises(TooLate):
        report(after, new[1], now=103)
    invariants.check(after)
    assert check_in(after, "n1", now=104) is None  # the round is full again


def test_a_slot_that_comes_back_after_a_return_is_offered_again() -> None:
    pool = pool_with_round(demand=2)
    old = check_in(pool, "d")
    after = crashed(pool)
    for device in ("n1", "n2"):
        check_in(after, device, now=101)
    report(after, old, now=102)
    assert check_in(after, "n3", now=103) is None
    after.handle(Tick(), 701)  # the lease of n1 runs out
    assert check_in(after, "n4", now=702) is not None


def test_a_device_that_came_back_is_answered_as_before_when_it_repeats_itself() -> None:
    pool = pool_with_round(demand=2)
    old = check_in(pool, "d")
    after = crashed(pool)
    assert [report(after, old, 101), report(after, old, 101)] == [True, False]
    with pytest.raises(Forbidden):
        after.handle(Report(old.id, DeviceId("thief")), 102)


def test_a_device_may_hold_another_job_s_task_when_it_reports_the_old_one() -> None:
    pool = pool_with_round(demand=2)
    old = check_in(pool, "d")
    after = crashed(pool)
    submit(after, "k", now=100)
    after.handle(OpenRound(JobId("k"), 1, MODEL), 100)
    for other in ("e", "f"):
        check_in(after, other, now=101)
    new = check_in(after, "d", now=101)
    assert new.job == "k"
    assert [report(after, old, now=102), report(after, new, now=103)] == [True, True]
    invariants.check(after)


def test_a_sum_may_hold_reports_from_before_and_after_the_crash() -> None:
    pool = pool_with_round(demand=3)
    old = [check_in(pool, f"d{n}") for n in range(2)]
    after = crashed(pool)
    new = check_in(after, "n", now=101)
    together = ReportTogether(tuple(Report(one.id, one.device) for one in (*old, new)))
    assert after.handle(together, 102) == 3
    assert [set(ids) for ids in commits(after)] == [{old[0].id, old[1].id, new.id}]


def test_a_report_that_returns_takes_no_place_of_another_one_in_the_same_sum() -> None:
    pool = pool_with_round(demand=2)
    old = check_in(pool, "d")
    after = crashed(pool)
    first, second = (check_in(after, f"n{n}", now=101) for n in range(2))
    after.drain()
    # Bound last, ``second`` would be the one to give its place back, were it not in the sum itself.
    assert after.handle(ReportTogether((Report(old.id, old.device), Report(second.id, second.device))), 102) == 2
    effects = after.drain()
    assert [set(one.assignments) for one in effects if isinstance(one, Commit)] == [{old.id, second.id}]
    assert [one.assignment for one in effects if isinstance(one, AssignmentEnded)] == [first.id]
    invariants.check(after)


def test_of_more_returning_reports_than_places_the_sum_is_refused_and_those_too_many_are_named() -> None:
    pool = pool_with_round(demand=2, deadline_s=1000, min_fraction=1.0)
    old = [check_in(pool, f"d{n}") for n in range(2)]
    after = crashed(pool)
    new = check_in(after, "n", now=101)
    report(after, new, now=102)
    sum_of_both = ReportTogether(tuple(Report(one.id, one.device) for one in old))
    assert after.without_place(attempt(after), sum_of_both.reports) == {old[1].id: NO_PLACE}
    with pytest.raises(TooLate, match="all places"):
        after.handle(sum_of_both, 103)
    invariants.check(after)
    assert after.handle(ReportTogether((Report(old[0].id, old[0].device),)), 104) == 1
    assert [set(ids) for ids in commits(after)] == [{new.id, old[0].id}]


def test_after_the_attempt_a_device_that_comes_back_is_too_late() -> None:
    pool = pool_with_round(demand=1, deadline_s=60)
    old = check_in(pool, "d")
    after = crashed(pool)
    after.handle(Tick(), 160)
    assert attempt(after).id == "j.1.2"
    with pytest.raises(TooLate):
        report(after, old, now=161)


@pytest.mark.parametrize("number", ["0", "x", "1-0", "0-1", "1-1", "2-1", "-1", ""])
def test_an_assignment_that_was_never_made_before_the_crash_does_not_come_back(number) -> None:
    after = crashed(pool_with_round(demand=2))
    assert after.awaits(AssignmentId(f"j.1.1.{number}")) is None


def test_without_a_crash_nothing_comes_back() -> None:
    pool = pool_with_round(demand=2)
    assert pool.awaits(AssignmentId("j.1.1.7")) is None


def test_an_id_tells_its_attempt_and_the_restarts_before_it() -> None:
    made = assignment_id(AttemptId("j.2.3"), 17, 4)
    assert (made, attempt_of(made), restarts_before(made)) == ("j.2.3.4-17", "j.2.3", 4)


def test_the_ledger_knows_of_the_restart_before_anybody_is_bound() -> None:
    pool = pool_with_round(demand=2)
    after = Pool(ArrivalOrder())
    after.restore(map(job_record, pool.jobs.values()), map(attempt_record, pool.attempts()), 100)
    [saved] = [effect.record for effect in after.drain() if isinstance(effect, SaveAttempt)]
    assert (saved.id, saved.state, saved.restarts) == ("j.1.1", "open", 1)


# -- other kinds of jobs ---------------------------------------------------------------------------------------------


def test_an_asynchronous_job_goes_on_with_its_buffer_and_its_devices() -> None:
    pool = pool_with_round(mode="async", demand=3, buffer_size=2, max_staleness=1)
    a, b, c, d = (check_in(pool, name) for name in "abcd")
    assert d is None
    report(pool, a, now=1)
    report(pool, b, now=2)
    pool.handle(Committed(AttemptId("j.1.1"), RESULT), 3)
    d = check_in(pool, "d", now=4)
    report(pool, d, now=5)
    after = crashed(pool, d)
    again = attempt(after)
    assert (again.version, again.model, list(again.request.reported)) == (1, RESULT, [d.id])
    assert report(after, c, 101) is True
    assert commits(after) == [(d.id, c.id)]


def test_a_report_that_was_committed_since_the_restart_does_not_count_again() -> None:
    pool = pool_with_round(mode="async", demand=3, buffer_size=1)
    a = check_in(pool, "a")
    after = crashed(pool)
    assert report(after, a, 101) is True
    after.handle(Committed(AttemptId("j.1.1"), RESULT), 102)
    with pytest.raises(TooLate):
        report(after, a, now=103)


def test_a_round_that_binds_by_measured_losses_keeps_all_its_reports() -> None:
    pool = pool_with_round(demand=10, overcommit="auto", deadline_s=1000, min_fraction=1.0)
    bound = [check_in(pool, f"d{n}") for n in range(9)]
    for one in bound:
        report(pool, one, now=5)
    after = crashed(pool, *bound)
    assert len(attempt(after).request.reported) == 9
    assert attempt(after).request.wanted >= 10


def test_other_jobs_are_as_they_were() -> None:
    pool = pool_with_round(demand=2)
    open_job(pool, "k", demand=2)
    after = crashed(pool)
    assert [one.id for one in after.attempts()] == ["j.1.1", "k.1.1"]


def test_of_two_reports_of_one_device_in_a_sum_the_one_of_the_assignment_that_it_holds_counts() -> None:
    pool = pool_with_round(demand=3)
    old = check_in(pool, "d")
    after = crashed(pool)
    new = check_in(after, "d", now=101)
    both = ReportTogether((Report(old.id, old.device), Report(new.id, new.device)))
    assert after.without_place(attempt(after), both.reports) == {old.id: SERVED}
    with pytest.raises(TooLate, match="reported in this round already"):
        after.handle(both, 102)
    assert after.handle(ReportTogether((Report(new.id, new.device),)), 103) == 1
    assert after.without_place(attempt(after), [Report(old.id, old.device)]) == {old.id: SERVED}
    invariants.check(after)
