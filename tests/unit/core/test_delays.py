"""What of a job's time is waiting for devices, and what is collecting their reports: no moment is both."""

import pytest

from tests.unit.core.pools import RESULT, ArrivalOrder, attempt, check_in, pool_with_round, report
from vennue.core.events import CommitFailed, Committed, OpenRound, Recover
from vennue.core.ids import AttemptId, JobId
from vennue.core.pool import Pool
from vennue.core.records import attempt_record, job_record

J = JobId("j")
FIRST = AttemptId("j.1.1")


def commit(pool: Pool, now: float, attempt: AttemptId = FIRST) -> None:
    pool.handle(Committed(attempt, RESULT), now)


def times(pool: Pool) -> tuple[float, float]:
    job = pool.jobs[J]
    return job.scheduling_delay_s, job.collection_s


def test_an_asynchronous_job_waits_until_its_slots_are_first_all_filled_and_not_again_at_each_update() -> None:
    pool = pool_with_round(mode="async", demand=2, buffer_size=1, rounds=3)
    a, b = check_in(pool, "a", now=2), check_in(pool, "b", now=5)
    report(pool, a, now=9)
    commit(pool, now=10)
    assert times(pool) == (5, 5)
    c = check_in(pool, "c", now=20)  # takes the slot that is free since 9
    report(pool, b, now=22)
    commit(pool, now=23)
    assert times(pool) == (5, 18)
    report(pool, c, now=31)
    commit(pool, now=31)
    job = pool.jobs[J]
    assert (job.state, job.ended_at) == ("completed", 31)
    assert times(pool) == (5, 26)


def test_an_asynchronous_job_whose_slots_were_never_all_filled_waits_in_each_update_for_its_last_device() -> None:
    pool = pool_with_round(mode="async", demand=3, buffer_size=1, rounds=2)
    report(pool, check_in(pool, "a", now=2), now=4)
    commit(pool, now=4)
    assert times(pool) == (2, 2)
    report(pool, check_in(pool, "b", now=7), now=9)
    commit(pool, now=9)
    assert times(pool) == (2 + 3, 2 + 2)


def test_a_device_bound_while_the_update_commits_belongs_to_the_wait_before_the_commit() -> None:
    pool = pool_with_round(mode="async", demand=2, buffer_size=1, rounds=2)
    report(pool, check_in(pool, "a", now=1), now=3)
    check_in(pool, "b", now=4)
    check_in(pool, "c", now=5)  # now both slots are taken
    commit(pool, now=6)
    assert times(pool) == (5, 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_time_in_attempts_that_aborted_is_neither(mode: str) -> None:
    pool = pool_with_round(demand=1, rounds=1, mode=mode, buffer_size=1 if mode == "async" else None)
    report(pool, check_in(pool, "a", now=2), now=5)
    pool.handle(CommitFailed(FIRST, "no space"), 10)
    report(pool, check_in(pool, "b", now=14), now=20)
    commit(pool, now=21, attempt=attempt(pool).id)
    assert times(pool) == (4, 7)


def test_rounds_of_a_synchronous_job_add_up_to_the_time_that_they_were_open() -> None:
    pool = pool_with_round(demand=2, rounds=2)
    for opened_at, number in ((0, 1), (100, 2)):
        if number > 1:
            pool.handle(OpenRound(J, number, RESULT), opened_at)
        a, b = check_in(pool, "a", now=opened_at + 2), check_in(pool, "b", now=opened_at + 5)
        report(pool, a, now=opened_at + 9)
        report(pool, b, now=opened_at + 12)
        commit(pool, now=opened_at + 13, attempt=AttemptId(f"j.{number}.1"))
    assert times(pool) == (5 + 5, 8 + 8)


@pytest.mark.parametrize("updates", [0, 1])
def test_after_a_restart_no_moment_of_an_asynchronous_job_is_counted_twice(updates) -> None:
    pool = pool_with_round(mode="async", demand=1, buffer_size=1, rounds=2)
    if updates:
        report(pool, check_in(pool, "a", now=10), now=20)
        commit(pool, now=20)
    after = Pool(ArrivalOrder())
    after.restore(map(job_record, pool.jobs.values()), map(attempt_record, pool.attempts()), 100)
    after.handle(Recover(FIRST, ()), 100)
    report(after, check_in(after, "b", now=103), now=110)
    commit(after, now=110)
    # Without an update yet, the wait since the opening goes on; else it is not known since when the next one was made.
    assert times(after) == ((10 + 3, 10 + 7) if updates else (103, 7))
