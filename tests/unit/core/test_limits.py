"""A job's own limits: how long it may take, how long its owner may be silent, how many reports are enough."""

import pytest

from tests.unit.core.pools import RESULT, ArrivalOrder, attempt, check_in, open_job, pool_with_round, report, submit
from vennue.core.effects import Commit
from vennue.core.errors import InvalidInput
from vennue.core.events import CancelJob, Committed, CompleteJob, Contact, Tick
from vennue.core.ids import AttemptId, JobId
from vennue.core.job import After, JobSpec
from vennue.core.pool import Pool
from vennue.core.records import job_record
from vennue.core.requirement import DEFAULT_SCHEMA

J, K = JobId("j"), JobId("k")


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_job_fails_at_its_time_limit_in_the_middle_of_a_round() -> None:
    pool = pool_with_round(time_limit_s=100)
    check_in(pool, "d")
    assert pool.next_wake() == 100
    pool.handle(Tick(), 100)
    job = pool.jobs[J]
    assert (job.state, job.ended_at, job.reason) == ("failed", 100, "it had not ended within its time limit of 100 s")
    assert pool.table.assignments() == []


def test_a_job_that_ends_in_time_is_left_alone_by_its_limit() -> None:
    pool = pool_with_round(demand=1, rounds=1, time_limit_s=100)
    report(pool, check_in(pool, "d"))
    pool.handle(Committed(AttemptId("j.1.1"), RESULT), 99)
    pool.handle(Tick(), 1000)
    assert pool.jobs[J].state == "completed"


def test_the_time_that_a_job_waits_for_another_does_not_count() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j")
    submit(pool, "k", after=(J,), time_limit_s=100)
    pool.handle(CompleteJob(J), 500)
    pool.handle(Tick(), 599)
    assert pool.jobs[K].state == "active"
    pool.handle(Tick(), 600)
    assert pool.jobs[K].state == "failed"


def test_a_time_limit_counts_from_the_beginning_after_a_crash_too() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j", time_limit_s=100)
    recovered = Pool(ArrivalOrder())
    recovered.restore([job_record(pool.jobs[J])], [], 60)
    recovered.handle(Tick(), 100)
    assert recovered.jobs[J].state == "failed"


# -- silence ---------------------------------------------------------------------------------------------------------


def test_q3_a_job_whose_owner_has_died_fails_and_the_next_one_begins() -> None:
    pool = pool_with_round(demand=1, silence_limit_s=60)
    open_job(pool, "k", demand=1, after=(After(job=J, when="ended"),))
    report(pool, check_in(pool, "d"), 10)
    pool.handle(Committed(AttemptId("j.1.1"), RESULT), 20)
    pool.handle(Tick(), 79)
    assert pool.jobs[J].state == "active"
    pool.handle(Tick(), 80)
    assert (pool.jobs[J].state, pool.jobs[J].reason) == (
        "failed",
        "its owner was silent for 60 s, with no round open",
    )
    assert check_in(pool, "d", 81).job == "k"


def test_an_owner_who_asks_after_the_job_is_not_silent() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j", silence_limit_s=60)
    for now in (50, 100, 150):
        pool.handle(Contact(J), now)
    pool.handle(Tick(), 209)
    assert pool.jobs[J].state == "active"
    pool.handle(Tick(), 210)
    assert pool.jobs[J].state == "failed"


def test_a_silent_owner_loses_nothing_while_a_round_is_open() -> None:
    pool = pool_with_round(silence_limit_s=60)
    pool.handle(Tick(), 5000)
    assert pool.jobs[J].state == "active"


def test_asking_after_a_job_that_has_ended_changes_nothing() -> None:
    pool = pool_with_round()
    pool.handle(CancelJob(J), 1)
    pool.handle(Contact(J), 2)
    pool.handle(Tick(), 1e9)
    assert (pool.jobs[J].state, pool.jobs[J].ended_at) == ("cancelled", 1)


# -- reports ---------------------------------------------------------------------------------------------------------


def test_s5_a_round_commits_when_as_many_have_reported_as_its_owner_called_enough() -> None:
    pool = pool_with_round(demand=5, min_reports=3)
    bound = [check_in(pool, f"d{n}") for n in range(5)]
    for assignment in bound[:3]:
        report(pool, assignment)
    [commit] = [effect for effect in pool.drain() if isinstance(effect, Commit)]
    assert commit.assignments == tuple(assignment.id for assignment in bound[:3])


def test_at_the_deadline_fewer_reports_than_enough_never_commit() -> None:
    pool = pool_with_round(demand=5, min_reports=3, deadline_s=60)
    bound = [check_in(pool, f"d{n}") for n in range(3)]  # of 3 bound, 2 would be a share of 0.6
    for assignment in bound[:2]:
        report(pool, assignment)
    pool.handle(Tick(), 60)
    assert attempt(pool).number == 2


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("min_reports", {"demand": 3, "min_reports": 5}),
        ("min_reports", {"min_reports": 0}),
        ("min_reports", {"min_reports": 2, "min_fraction": 0.5}),
        ("min_reports", {"min_reports": 2, "mode": "async", "buffer_size": 2}),
        ("time_limit_s", {"time_limit_s": 50.0, "deadline_s": 60.0}),
        ("time_limit_s", {"time_limit_s": float("nan")}),
        ("silence_limit_s", {"silence_limit_s": 0.0}),
    ],
)
def test_s6_limits_that_contradict_each_other_are_refused_at_submission(field, fields) -> None:
    with pytest.raises(InvalidInput) as caught:
        JobSpec(**{"name": "x", "demand": 3, **fields}).check(DEFAULT_SCHEMA)
    assert caught.value.field == field


@pytest.mark.parametrize("deadline_s", [None, 60.0])
@pytest.mark.parametrize("min_fraction", [0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("reports", range(6))
def test_s14_a_round_of_five_commits_exactly_when_enough_have_reported_by_its_deadline(
    deadline_s, min_fraction, reports
) -> None:
    pool = pool_with_round(demand=5, min_fraction=min_fraction, deadline_s=deadline_s, round_limit_s=60, lease_s=100)
    for number in range(5):
        assignment = check_in(pool, f"d{number}")
        if number < reports and attempt(pool).state == "open":
            report(pool, assignment)
    pool.handle(Tick(), 60)
    enough = {0.2: 1, 0.5: 3, 0.8: 4, 1.0: 5}[min_fraction] if deadline_s else 5
    assert any(isinstance(effect, Commit) for effect in pool.drain()) == (reports >= enough)
