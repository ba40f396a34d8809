"""Jobs that follow others: when they begin, what they hold until then, and what happens when they never can."""

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
from vennue.core.effects import JobEnded
from vennue.core.errors import Conflict, InvalidInput
from vennue.core.events import CancelJob, Committed, CompleteJob, OpenRound, Tick
from vennue.core.ids import JobId
from vennue.core.invariants import Auditor
from vennue.core.job import MAX_PREDECESSORS, After, JobSpec
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA

J, K = JobId("j"), JobId("k")


def two_jobs(when: str = "completed", **spec: object) -> Pool:
    """``j`` has a round open; ``k`` comes after it, and has its first round open, too."""
    pool = pool_with_round(demand=1, rounds=1)
    submit(pool, "k", demand=1, after=(After(job=J, when=when),), **spec)  # type: ignore[arg-type]  # varies by test
    pool.handle(OpenRound(K, 1, MODEL), 0)
    return pool


def finish(pool: Pool, now: float) -> None:
    assignment = check_in(pool, f"d{now}", now)
    report(pool, assignment, now)
    pool.handle(Committed(assignment.attempt, RESULT), now)


def test_q9_a_chain_of_jobs_runs_one_after_another() -> None:
    pool = Pool(ArrivalOrder())
    names = ["a", "b", "c", "d"]
    for before, name in zip([None, *names], names, strict=False):
        open_job(pool, name, demand=1, rounds=1, after=() if before is None else (JobId(before),))
    for now, name in enumerate(names, start=1):
        assert [one.job for one in pool.attempts() if one.state == "open"] == [name]
        finish(pool, now)
    assert [(job.started_at, job.ended_at) for job in pool.jobs.values()] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_job_that_waits_for_another_holds_no_devices() -> None:
    pool = two_jobs()
    first = check_in(pool, "d")
    assert (first.job, check_in(pool, "e")) == ("j", None)
    assert attempt(pool, "k").state == "waiting"


def test_a_round_s_time_begins_when_its_job_may() -> None:
    pool = two_jobs(deadline_s=60)
    pool.handle(Tick(), 1000)
    assert attempt(pool, "k").number == 1
    finish(pool, 1000)
    begun = attempt(pool, "k")
    assert (begun.state, begun.opened_at, begun.deadline_at) == ("open", 1000, 1060)
    assert (begun.request.waiting_since, begun.request.deadline_at) == (1000, 1060)


@pytest.mark.parametrize("how", [CancelJob, "deadline"])
@pytest.mark.parametrize(("when", "state"), [("completed", "cancelled"), ("ended", "active")])
def test_q9_after_a_job_that_ended_badly_only_those_begin_that_take_any_end(how, when, state) -> None:
    pool = pool_with_round(demand=1, deadline_s=60, max_attempts=1)
    submit(pool, "k", after=(After(job=J, when=when),))
    if how is CancelJob:
        pool.handle(CancelJob(J, "too dear"), 10)
    else:
        pool.handle(Tick(), 60)
    job = pool.jobs[K]
    assert job.state == state
    if state == "cancelled":
        assert str(job.reason).startswith(f"job j, which had to complete before, is {pool.jobs[J].state}: ")
        assert "with `when: ended` to have it begin whatever that job's end" in str(job.reason)


def test_a_cancelled_job_takes_a_long_chain_with_it_at_once() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j0")
    for number in range(1, 3000):
        submit(pool, f"j{number}", after=(JobId(f"j{number - 1}"),))
    pool.drain()
    pool.handle(CancelJob(JobId("j0")), 1)
    assert {job.state.value for job in pool.jobs.values()} == {"cancelled"}
    assert sum(isinstance(effect, JobEnded) for effect in pool.drain()) == 3000


def test_each_of_a_chain_is_told_which_end_came_first_and_not_all_of_those_between() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j")
    for name, earlier in (("k", "j"), ("l", "k"), ("m", "l")):
        submit(pool, name, after=(JobId(earlier),))
    pool.handle(CancelJob(J, "too dear"), 1)
    told = [str(pool.jobs[JobId(name)].reason).partition(";")[0] for name in "klm"]
    assert told == [
        "job j, which had to complete before, is cancelled: too dear",
        "job k, which had to complete before, is cancelled, since job j is cancelled: too dear",
        "job l, which had to complete before, is cancelled, since job j is cancelled: too dear",
    ]


def test_a_job_after_several_begins_when_the_last_has_ended() -> None:
    pool = Pool(ArrivalOrder())
    for name in "ab":
        submit(pool, name)
    submit(pool, "k", after=(JobId("a"), JobId("b")))
    pool.handle(CompleteJob(JobId("b")), 5)
    assert pool.jobs[K].waits_for == {"a"}
    pool.handle(CompleteJob(JobId("a")), 7)
    assert (pool.jobs[K].waits_for, pool.jobs[K].started_at) == (set(), 7)


def test_a_job_after_one_that_has_completed_begins_at_once() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j")
    pool.handle(CompleteJob(J), 1)
    submit(pool, "k", now=2, after=(J,))
    assert pool.handle(OpenRound(K, 1, MODEL), 3).state == "open"


def test_a_job_after_one_that_has_failed_is_refused_unless_it_takes_any_end() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j")
    pool.handle(CancelJob(J), 1)
    with pytest.raises(Conflict, match="job j can no longer complete, it is cancelled") as caught:
        submit(pool, "k", after=(J,))
    assert (caught.value.field, K in pool.jobs) == ("after", False)
    submit(pool, "k", after=(After(job=J, when="ended"),))
    assert pool.jobs[K].waits_for == set()


def test_a_job_after_an_unknown_one_is_refused_and_names_it() -> None:
    with pytest.raises(InvalidInput, match="there is no job nobody") as caught:
        submit(Pool(ArrivalOrder()), "k", after=(JobId("nobody"),))
    assert caught.value.field == "after"


def test_a_job_after_itself_is_refused_with_the_circle() -> None:
    with pytest.raises(InvalidInput, match="in a circle: k → k"):
        submit(Pool(ArrivalOrder()), "k", after=(K,))


@pytest.mark.parametrize(
    "after", [(J, After(job=J, when="ended")), tuple(JobId(f"j{n}") for n in range(MAX_PREDECESSORS + 1))]
)
def test_predecessors_that_make_no_sense_are_refused(after) -> None:
    with pytest.raises(InvalidInput) as caught:
        JobSpec(name="x", demand=1, after=after).check(DEFAULT_SCHEMA)
    assert caught.value.field == "after"


def test_a8_cancelling_a_job_that_waits_ends_it_at_once_and_its_predecessor_goes_on() -> None:
    pool = two_jobs()
    pool.handle(CancelJob(K, "not needed"), 1)
    assert (pool.jobs[K].state, pool.jobs[K].attempt) == ("cancelled", None)
    finish(pool, 2)
    assert (pool.jobs[J].state, pool.jobs[K].reason) == ("completed", "not needed")


def test_after_a_crash_a_job_still_waits_with_its_round_and_begins_in_time() -> None:
    audited = Auditor(two_jobs(deadline_s=60))
    audited.handle(Tick(), 1)
    recovered = Pool(ArrivalOrder())
    recovered.restore(audited.ledger_jobs.values(), audited.open_in_ledger(), 50)
    held = attempt(recovered, "k")
    assert (held.id, held.state, recovered.jobs[K].waits_for) == ("k.1.1", "waiting", {J})
    finish(recovered, 70)
    assert (attempt(recovered, "k").state, held.deadline_at) == ("open", 130)
