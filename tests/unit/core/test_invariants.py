"""The invariants complain when they should: each is shown a state or a history that breaks it."""

import pytest

from tests.unit.core.pools import MODEL, RESULT, check_in, pool_with_round
from vennue.core import invariants
from vennue.core.effects import Commit, SaveAttempt
from vennue.core.errors import InvariantViolated, TooLate
from vennue.core.events import CancelJob, Committed, OpenRound, Report, Tick
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId
from vennue.core.invariants import Auditor


def test_a_sound_pool_passes() -> None:
    pool = pool_with_round(demand=2)
    check_in(pool, "d")
    invariants.check(pool)


def test_1_a_second_live_assignment_of_a_device_is_seen() -> None:
    pool = pool_with_round(demand=2)
    check_in(pool, "d")
    check_in(pool, "e").device = DeviceId("d")
    with pytest.raises(InvariantViolated, match="device d holds 2"):
        invariants.check(pool)


def test_2_an_ineligible_assignment_is_seen() -> None:
    pool = pool_with_round(requirement="device.ram_gb >= 4")
    check_in(pool, "d").signature = 0
    with pytest.raises(InvariantViolated, match="without bit 0"):
        invariants.check(pool)


def test_3_too_many_assignments_are_seen() -> None:
    pool = pool_with_round(demand=2)
    check_in(pool, "d"), check_in(pool, "e")
    pool.attempts()[0].request.wanted = 1
    with pytest.raises(InvariantViolated, match="holds 2 assignments, it wants 1"):
        invariants.check(pool)


def test_a_device_that_serves_a_round_twice_is_seen() -> None:
    pool = pool_with_round(demand=2)
    one = check_in(pool, "d")
    pool.handle(Report(one.id, one.device), 0)
    check_in(pool, "e").device = DeviceId("d")
    with pytest.raises(InvariantViolated, match=r"device d serves attempt j\.1\.1 twice"):
        invariants.check(pool)


def test_4_a_counter_that_drifted_is_seen() -> None:
    pool = pool_with_round(demand=2)
    assignment = check_in(pool, "d")
    pool.attempts()[0].request.reported[assignment.id] = assignment
    with pytest.raises(InvariantViolated, match="both live and reported"):
        invariants.check(pool)


def test_7_an_attempt_without_a_timer_is_seen() -> None:
    pool = pool_with_round()
    pool.attempts()[0].deadline_at += 1
    with pytest.raises(InvariantViolated, match="without a timer"):
        invariants.check(pool)


def audited_pool(demand: int = 2, rounds: int | None = None) -> Auditor:
    """A pool whose first two effects (the job, the attempt) an auditor has seen."""
    auditor = Auditor(pool_with_round(demand=demand, rounds=rounds))
    auditor.handle(Tick(), 0)
    return auditor


def test_5_a_closed_attempt_that_is_saved_again_is_seen() -> None:
    auditor = audited_pool(demand=1)
    auditor.handle(CancelJob(JobId("j")), 1)
    record = auditor.ledger_attempts[AttemptId("j.1.1")]
    auditor.pool._outbox.append(SaveAttempt(record))
    with pytest.raises(InvariantViolated, match=r"5\. attempt j\.1\.1 was cancelled"):
        auditor.handle(Tick(), 2)


def test_6_a_commit_of_a_report_that_never_came_is_seen() -> None:
    auditor = audited_pool(demand=1)
    auditor.pool._outbox.append(Commit(AttemptId("j.1.1"), (AssignmentId("j.1.1.9"),)))
    with pytest.raises(InvariantViolated, match="which never reported"):
        auditor.handle(Tick(), 2)


def test_8_a_device_turned_away_in_spite_of_need_is_seen() -> None:
    auditor = audited_pool(demand=1)
    auditor.pool.table.bind = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(InvariantViolated, match=r"turned away while attempt j\.1\.1 needs 1"):
        check_in(auditor, "d")  # type: ignore[arg-type]  # handles events as a pool does


def test_9_an_event_that_is_refused_but_changes_something_is_seen() -> None:
    auditor = audited_pool(demand=1)

    def refuse_after_the_fact(event: OpenRound, now: float) -> None:
        auditor.pool.jobs[JobId("j")].committed += 1
        raise TooLate("too late")

    auditor.pool._handlers[OpenRound] = refuse_after_the_fact
    with pytest.raises(InvariantViolated, match="refused changed the pool"):
        auditor.handle(OpenRound(JobId("j"), 1, MODEL), 1)


def test_9_a_report_that_is_too_stale_may_end_its_assignment_and_nothing_else() -> None:
    auditor = Auditor(pool_with_round(mode="async", demand=3, buffer_size=1, max_staleness=0))
    auditor.handle(Tick(), 0)
    slow, fast = check_in(auditor, "slow"), check_in(auditor, "fast")  # type: ignore[arg-type]
    auditor.handle(Report(fast.id, fast.device), 1)
    auditor.handle(Committed(fast.attempt, RESULT), 2)
    with pytest.raises(TooLate, match="1 model versions old"):
        auditor.handle(Report(slow.id, slow.device), 3)
    assert auditor.pool.table.assignments() == []


def test_10_a_commit_that_the_ledger_was_not_told_of_is_seen() -> None:
    auditor = audited_pool(demand=1, rounds=2)
    assignment = check_in(auditor, "d")  # type: ignore[arg-type]
    auditor.handle(Report(assignment.id, assignment.device), 1)
    auditor.pool._save = lambda job: None  # type: ignore[method-assign]
    with pytest.raises(InvariantViolated, match=r"10\. the ledger has job j"):
        auditor.handle(Committed(AttemptId("j.1.1"), RESULT), 2)


def test_11_a_heap_that_grows_is_seen() -> None:
    pool = pool_with_round()
    pool._timers._heap.extend((1e9, (0, "gone.1.1")) for _ in range(100))
    with pytest.raises(InvariantViolated, match="timers holds 102 entries, its bound is 66"):
        invariants.check(pool)


def test_12_time_that_runs_backwards_is_seen() -> None:
    auditor = audited_pool()
    auditor.pool.now = 100.0
    auditor.pool._handlers[Tick] = lambda event, now: setattr(auditor.pool, "now", 50.0)
    with pytest.raises(InvariantViolated, match=r"12\. the pool's time went back"):
        auditor.handle(Tick(), 100)


class Reasonless:
    """An explainer with nothing to say."""

    code = "filling"
    text = "it fills"
    needs = 2
    supply_per_s = None
    demand_ahead = 0


def test_13_a_pending_job_without_numbers_is_seen() -> None:
    pool = pool_with_round()
    complaints = list(invariants.pending_jobs_have_a_reason(pool, lambda pool, job: Reasonless))
    assert complaints == ["job j waits for devices, its reason filling lacks supply_per_s"]
