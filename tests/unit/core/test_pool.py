"""The pool's behaviour, one promise at a time, in virtual seconds."""

import re

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
from vennue.core.effects import AttemptClosed, AttemptOpened, Commit, JobEnded, PolicyFailed
from vennue.core.errors import Conflict, Forbidden, IllegalTransition, InvalidInput, NotFound, TooLate
from vennue.core.errors import JobEnded as JobHasEnded
from vennue.core.events import (
    Abort,
    Accept,
    CancelJob,
    CommitFailed,
    Committed,
    CompleteJob,
    Decline,
    OpenRound,
    Report,
    Tick,
)
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest, JobId
from vennue.core.invariants import Auditor
from vennue.core.plan import Plan, PoolView
from vennue.core.pool import Pool
from vennue.core.round import AttemptState

J = JobId("j")


def effects_of(pool: Pool, kind: type):
    return [effect for effect in pool.drain() if isinstance(effect, kind)]


# -- binding ---------------------------------------------------------------------------------------------------------


def test_a_device_that_meets_the_requirement_is_bound() -> None:
    pool = pool_with_round(requirement="device.ram_gb >= 4")
    assert check_in(pool, "big", ram_gb=6).attempt == "j.1.1"


def test_a_device_that_misses_the_requirement_is_turned_away() -> None:
    pool = pool_with_round(requirement="device.ram_gb >= 4")
    assert check_in(pool, "small", ram_gb=2) is None


def test_a_round_takes_no_more_devices_than_it_asked_for() -> None:
    pool = pool_with_round(demand=2)
    assert [check_in(pool, f"d{n}") is not None for n in range(3)] == [True, True, False]


def test_overcommit_binds_that_many_more() -> None:
    pool = pool_with_round(demand=10, overcommit=1.3)
    assert sum(check_in(pool, f"d{n}") is not None for n in range(20)) == 13


def test_a_device_that_checks_in_again_gets_the_assignment_it_holds() -> None:
    pool = pool_with_round()
    first = check_in(pool, "d", now=1)
    assert check_in(pool, "d", now=2) is first


def test_a_device_whose_attributes_stopped_matching_loses_its_assignment() -> None:
    pool = pool_with_round(requirement="device.ram_gb >= 4", demand=1)
    check_in(pool, "d", ram_gb=6)
    assert check_in(pool, "d", ram_gb=2) is None
    assert check_in(pool, "other", ram_gb=6) is not None


def test_a_region_seen_first_after_the_plan_was_made_is_served_too() -> None:
    pool = pool_with_round(requirement="device.ram_gb >= 4")
    assert check_in(pool, "small", ram_gb=1) is None
    assert check_in(pool, "big", ram_gb=32) is not None


def test_a_device_may_hold_one_assignment_although_two_jobs_want_it() -> None:
    pool = pool_with_round(demand=1)
    open_job(pool, "k", demand=1)
    assert [check_in(pool, "d").job, check_in(pool, "d").job, check_in(pool, "e").job] == ["j", "j", "k"]


# -- private requirements --------------------------------------------------------------------------------------------


def test_a_private_requirement_waits_for_the_devices_answer_under_a_short_lease() -> None:
    pool = pool_with_round(private_requirement="device.samples >= 100", deadline_s=500)
    offered = check_in(pool, "d", now=10)
    assert (offered.accepted, offered.expires_at) == (False, 40)


def test_accepting_extends_the_lease_to_the_task() -> None:
    pool = pool_with_round(private_requirement="device.samples >= 100", lease_s=200, deadline_s=500)
    offered = check_in(pool, "d", now=10)
    accepted = pool.handle(Accept(offered.id, offered.device), 15)
    assert (accepted.accepted, accepted.expires_at) == (True, 215)


def test_a_device_that_declines_gets_the_next_job_in_the_same_session() -> None:
    pool = pool_with_round(demand=1)
    open_job(pool, "k", demand=1)
    first = check_in(pool, "d")
    second = pool.handle(Decline(first.id, first.device, "no memory", declined=frozenset({J})), 1)
    assert second.job == "k"


def test_a_declined_slot_is_offered_to_the_next_device() -> None:
    pool = pool_with_round(demand=1)
    first = check_in(pool, "d")
    assert pool.handle(Decline(first.id, first.device, declined=frozenset({J})), 1) is None
    assert check_in(pool, "e", now=2).job == "j"


# -- leases ----------------------------------------------------------------------------------------------------------


def test_a_device_that_never_comes_back_costs_only_its_lease() -> None:
    pool = pool_with_round(demand=1, lease_s=60)
    check_in(pool, "lost", now=0)
    assert check_in(pool, "early", now=59.9) is None
    assert check_in(pool, "late", now=60) is not None


def test_d1_a_silent_device_keeps_its_task_until_the_lease_ends() -> None:
    pool = pool_with_round(demand=1, lease_s=60)
    assignment = check_in(pool, "d", now=0)
    assert report(pool, assignment, now=59) is True


def test_a_report_after_the_lease_is_refused() -> None:
    pool = pool_with_round(demand=1, lease_s=60)
    assignment = check_in(pool, "d", now=0)
    with pytest.raises(TooLate, match="expired"):
        report(pool, assignment, now=61)


def test_a_device_that_aborts_frees_its_slot() -> None:
    pool = pool_with_round(demand=1)
    assignment = check_in(pool, "d")
    pool.handle(Abort(assignment.id, assignment.device, "battery"), 1)
    assert check_in(pool, "e", now=2) is not None


def test_time_that_steps_back_expires_nothing_and_is_ignored() -> None:
    pool = pool_with_round(now=1000, demand=1, lease_s=60)
    assignment = check_in(pool, "d", now=1000)
    pool.handle(Tick(), 5)
    assert (pool.now, report(pool, assignment, now=10)) == (1000, True)


# -- reports ---------------------------------------------------------------------------------------------------------


def test_a_report_is_counted_once() -> None:
    pool = pool_with_round(demand=2)
    assignment = check_in(pool, "d")
    assert [report(pool, assignment), report(pool, assignment)] == [True, False]
    assert len(pool.attempts()[0].request.reported) == 1


def test_a_report_for_somebody_elses_assignment_is_refused() -> None:
    pool = pool_with_round(demand=2)
    assignment = check_in(pool, "d")
    with pytest.raises(Forbidden, match="another device"):
        pool.handle(Report(assignment.id, DeviceId("thief")), 1)
    report(pool, assignment)
    with pytest.raises(Forbidden, match="another device"):
        pool.handle(Report(assignment.id, DeviceId("thief")), 1)


def test_a_report_for_an_unknown_job_is_not_found() -> None:
    with pytest.raises(NotFound):
        pool_with_round().handle(Report(AssignmentId("nobody.1.1.1"), DeviceId("d")), 0)


def test_the_last_report_needed_starts_the_commit_with_exactly_the_reports_counted() -> None:
    pool = pool_with_round(demand=2)
    one, two = check_in(pool, "d"), check_in(pool, "e")
    report(pool, one)
    assert effects_of(pool, Commit) == []
    report(pool, two)
    assert effects_of(pool, Commit) == [Commit(AttemptId("j.1.1"), (one.id, two.id))]


def test_a_round_with_a_deadline_commits_at_its_minimum_fraction() -> None:
    pool = pool_with_round(demand=10, min_fraction=0.7, deadline_s=100)
    bound = [check_in(pool, f"d{n}") for n in range(10)]
    for assignment in bound[:6]:
        report(pool, assignment)
    assert effects_of(pool, Commit) == []
    report(pool, bound[6])
    assert len(effects_of(pool, Commit)[0].assignments) == 7


def test_s2_a_report_after_the_commit_began_is_late() -> None:
    pool = pool_with_round(demand=2, overcommit=1.5)
    bound = [check_in(pool, f"d{n}") for n in range(3)]
    report(pool, bound[0])
    report(pool, bound[1])
    with pytest.raises(TooLate, match="round has closed"):
        report(pool, bound[2])


# -- rounds ----------------------------------------------------------------------------------------------------------


def commit(pool: Pool, attempt: str, now: float = 0.0, result: Digest = RESULT):
    return pool.handle(Committed(AttemptId(attempt), result), now)


def test_a_commit_moves_the_job_to_its_next_round() -> None:
    pool = pool_with_round(demand=1, rounds=2)
    report(pool, check_in(pool, "d", now=3), now=10)
    job = commit(pool, "j.1.1", now=11)
    assert (job.committed, job.model, job.scheduling_delay_s, job.collection_s) == (1, RESULT, 3, 8)
    pool.handle(OpenRound(J, 2, RESULT), 12)
    assert pool.attempts()[0].id == "j.2.1"


def test_the_last_declared_round_completes_the_job() -> None:
    pool = pool_with_round(demand=1, rounds=1)
    report(pool, check_in(pool, "d"), now=10)
    job = commit(pool, "j.1.1", now=11)
    assert (job.state, job.ended_at) == ("completed", 11)


def test_at_the_deadline_too_few_reports_abort_and_the_round_is_tried_again_on_the_same_model() -> None:
    pool = pool_with_round(demand=4, deadline_s=100)
    assignments = [check_in(pool, f"d{n}") for n in range(4)]
    for assignment in assignments[:2]:
        report(pool, assignment, now=5)
    pool.drain()
    pool.handle(Tick(), 100)
    effects = pool.drain()
    assert AttemptClosed(AttemptId("j.1.1"), AttemptState.ABORTED) in effects
    assert AttemptOpened(AttemptId("j.1.2"), MODEL) in effects


def test_at_the_deadline_enough_bound_and_enough_of_them_reported_commit() -> None:
    pool = pool_with_round(demand=10, min_fraction=0.8, deadline_s=100, lease_s=1000)
    bound = [check_in(pool, f"d{n}") for n in range(8)]
    for assignment in bound[:7]:
        report(pool, assignment, now=5)
    pool.handle(Tick(), 100)
    # 8 bound is 80 % of 10, and 7 reports are 80 % of those 8 (6.4, rounded up).
    assert [len(effect.assignments) for effect in effects_of(pool, Commit)] == [7]


def test_reports_of_an_aborted_attempt_never_count_for_the_next() -> None:
    pool = pool_with_round(demand=2, deadline_s=100, lease_s=1000)
    first = check_in(pool, "d")
    check_in(pool, "e")
    report(pool, first)
    pool.handle(Tick(), 100)
    assert pool.attempts()[0].request.reported == {}
    with pytest.raises(TooLate):
        report(pool, first, now=101)


def test_s12_after_an_abort_the_next_attempt_starts_from_the_last_committed_model() -> None:
    pool = pool_with_round(demand=1, deadline_s=100)
    report(pool, check_in(pool, "d"))
    commit(pool, "j.1.1")
    pool.handle(OpenRound(J, 2, RESULT), 1)
    pool.handle(Tick(), 101)
    assert (pool.attempts()[0].id, pool.attempts()[0].model) == ("j.2.2", RESULT)


def test_a_round_without_a_deadline_waits_and_replaces_lost_devices() -> None:
    pool = pool_with_round(demand=2, lease_s=60)
    report(pool, check_in(pool, "d"), now=1)
    check_in(pool, "lost", now=1)
    replacement = check_in(pool, "e", now=100_000)
    report(pool, replacement, now=100_001)
    assert len(effects_of(pool, Commit)) == 1


def test_a_round_without_a_deadline_is_tried_again_after_its_limit() -> None:
    pool = pool_with_round(demand=2, round_limit_s=1000)
    pool.handle(Tick(), 1000)
    assert pool.attempts()[0].id == "j.1.2"


def test_a_job_fails_after_its_last_attempt() -> None:
    pool = pool_with_round(demand=2, deadline_s=100, max_attempts=2)
    pool.handle(Tick(), 100)
    pool.handle(Tick(), 200)
    assert pool.jobs[J].state == "failed"
    assert "failed 2 times" in str(pool.jobs[J].reason)


def test_a_commit_that_fails_costs_the_attempt_not_the_job() -> None:
    pool = pool_with_round(demand=1)
    report(pool, check_in(pool, "d"))
    pool.handle(CommitFailed(AttemptId("j.1.1"), "disk full"), 5)
    assert (pool.jobs[J].state, pool.attempts()[0].id) == ("active", "j.1.2")


def test_a_commit_that_is_never_answered_is_tried_again_by_its_timer() -> None:
    pool = pool_with_round(demand=1)
    report(pool, check_in(pool, "d"))
    pool.handle(Tick(), 600)
    assert pool.attempts()[0].id == "j.1.2"
    with pytest.raises(TooLate):
        commit(pool, "j.1.1", now=601)


def test_opening_the_same_round_again_changes_nothing() -> None:
    pool = pool_with_round()
    assert pool.handle(OpenRound(J, 1, MODEL), 5).id == "j.1.1"
    assert len(pool.attempts()) == 1


def test_opening_the_same_round_on_another_model_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="another model"):
        pool_with_round().handle(OpenRound(J, 1, RESULT), 5)


def test_opening_a_round_out_of_turn_tells_the_story() -> None:
    with pytest.raises(IllegalTransition) as caught:
        pool_with_round().handle(OpenRound(J, 7, MODEL), 5)
    assert caught.value.story == ("0.000 s submitted", "0.000 s attempt j.1.1 opened for 2 devices")
    assert "is still open" in str(caught.value)


# -- ends ------------------------------------------------------------------------------------------------------------


def test_cancel_frees_every_device_at_once_and_repeats_harmlessly() -> None:
    pool = pool_with_round(demand=1)
    open_job(pool, "k", demand=1)
    check_in(pool, "d")
    pool.handle(CancelJob(J), 1)
    pool.handle(CancelJob(J), 2)
    assert check_in(pool, "d", now=3).job == "k"
    assert [effect.state for effect in effects_of(pool, JobEnded)] == ["cancelled"]


def test_a2_a_commit_that_arrives_after_the_cancel_changes_nothing() -> None:
    pool = pool_with_round(demand=1)
    report(pool, check_in(pool, "d"))
    pool.handle(CancelJob(J), 1)
    with pytest.raises(TooLate):
        commit(pool, "j.1.1", now=2)
    assert (pool.jobs[J].state, pool.jobs[J].committed) == ("cancelled", 0)


def test_an_ended_job_opens_no_round() -> None:
    pool = pool_with_round()
    pool.handle(CancelJob(J, "too slow"), 1)
    with pytest.raises(JobHasEnded, match="cancelled: too slow"):
        pool.handle(OpenRound(J, 1, MODEL), 2)


def test_completing_in_the_middle_of_a_round_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="wait for the round, or cancel"):
        pool_with_round().handle(CompleteJob(J), 1)


def test_an_open_ended_job_completes_when_its_owner_says_so() -> None:
    pool = pool_with_round(demand=1)
    report(pool, check_in(pool, "d"))
    commit(pool, "j.1.1")
    assert pool.handle(CompleteJob(J), 9).state == "completed"


def test_a_bad_spec_changes_nothing() -> None:
    pool = Pool(ArrivalOrder())
    with pytest.raises(InvalidInput, match="demand"):
        submit(pool, "j", demand=0)
    assert pool.jobs == {}
    assert pool.drain() == []


# -- policies --------------------------------------------------------------------------------------------------------


class Raises:
    """A policy with a defect."""

    def plan(self, view: PoolView) -> Plan:
        raise ZeroDivisionError("deadline - deadline")


def test_a_policy_that_raises_leaves_the_last_good_plan_in_force_and_is_reported() -> None:
    pool = pool_with_round(demand=3)
    check_in(pool, "d")
    pool.set_planner(Raises())
    assert check_in(pool, "e") is not None
    (failed,) = effects_of(pool, PolicyFailed)
    assert re.fullmatch(r"ZeroDivisionError in test_pool\.py, line \d+: deadline - deadline", failed.reason)


def test_changing_the_policy_loses_no_job() -> None:
    pool = pool_with_round(demand=2)
    assignment = check_in(pool, "d")
    pool.set_planner(ArrivalOrder())
    assert check_in(pool, "e").job == "j"
    assert report(pool, assignment) is True


def test_plans_are_coalesced_by_the_replan_interval() -> None:
    pool = Pool(ArrivalOrder(), replan_interval_s=10)
    for name in ("j", "k"):
        open_job(pool, name, demand=1)
        check_in(pool, f"d{name}", now=1)
    assert pool.plans == 1
    check_in(pool, "d2", now=11)
    assert pool.plans == 2


# -- asynchronous jobs -----------------------------------------------------------------------------------------------


def test_an_asynchronous_job_asks_for_one_more_device_at_each_report() -> None:
    pool = pool_with_round(mode="async", demand=2, buffer_size=2)
    first = check_in(pool, "a")
    check_in(pool, "b")
    assert check_in(pool, "c") is None
    report(pool, first)
    assert check_in(pool, "c") is not None


def test_an_asynchronous_job_commits_every_full_buffer_and_goes_on() -> None:
    pool = pool_with_round(mode="async", demand=3, buffer_size=2, rounds=2)
    a, b, c = (check_in(pool, name) for name in "abc")
    report(pool, a)
    report(pool, b)
    assert effects_of(pool, Commit) == [Commit(AttemptId("j.1.1"), (a.id, b.id))]
    commit(pool, "j.1.1", now=5)
    d = check_in(pool, "d", now=6)
    assert (c.version, d.version) == (0, 1)
    report(pool, c, now=7)
    report(pool, d, now=8)
    assert effects_of(pool, Commit) == [Commit(AttemptId("j.1.1"), (c.id, d.id))]
    assert commit(pool, "j.1.1", now=9, result=MODEL).state == "completed"


def test_an_asynchronous_report_beyond_the_staleness_limit_is_refused() -> None:
    pool = pool_with_round(mode="async", demand=3, buffer_size=1, max_staleness=0)
    slow = check_in(pool, "slow")
    report(pool, check_in(pool, "fast"))
    commit(pool, "j.1.1", now=5)
    with pytest.raises(TooLate, match="1 model versions old"):
        report(pool, slow, now=6)


# -- recovery --------------------------------------------------------------------------------------------------------


def test_after_a_crash_jobs_and_commits_are_there_and_the_open_round_goes_on() -> None:
    audited = Auditor(pool_with_round(demand=2, rounds=3))
    pool = audited.pool
    for device in "ab":
        assignment = check_in(pool, device)
        audited.handle(Report(assignment.id, assignment.device), 1)
    audited.handle(Committed(AttemptId("j.1.1"), RESULT), 2)
    audited.handle(OpenRound(J, 2, RESULT), 3)
    audited.handle(Tick(), 3)
    recovered = Pool(ArrivalOrder())
    recovered.restore(audited.ledger_jobs.values(), audited.open_in_ledger(), 50)
    job = recovered.jobs[J]
    assert (job.committed, job.model, attempt(recovered).id) == (1, RESULT, "j.2.1")
    assert check_in(recovered, "a", now=51).attempt == "j.2.1"
