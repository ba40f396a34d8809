"""Failures that job queues and pools of pulling workers have had, by their ids: what happens here instead."""

import contextlib
import itertools
import random

import pytest

from tests.unit.core.pools import (
    MODEL,
    RESULT,
    ArrivalOrder,
    attempt,
    check_in,
    commit_all,
    open_job,
    pool_with_round,
    serve,
    submit,
)
from vennue.core import invariants
from vennue.core.assignment import Assignment
from vennue.core.effects import AssignmentEnded, Commit, JobEnded
from vennue.core.errors import TooLate, VennueError
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
from vennue.core.ids import AttemptId, DeviceId, JobId
from vennue.core.invariants import Auditor
from vennue.core.job import After
from vennue.core.pool import Pool
from vennue.core.tenant import Quota
from vennue.policies import get_policy

J, K = JobId("j"), JobId("k")


def serve_and_commit(pool: Pool, device: str, now: float) -> str | None:
    """`serve`, and the round's aggregate is made if that was its last report."""
    job = serve(pool, device, now)
    commit_all(pool, now)
    return job


# -- queues ----------------------------------------------------------------------------------------------------------


def test_q1_a_hundred_jobs_under_a_cap_of_twenty_all_end_whatever_happens_to_their_devices_and_in_what_order() -> None:
    rng = random.Random(5)
    pool = Pool(ArrivalOrder(), quotas={"all": Quota(devices=20, borrow=False)})
    for number in range(100):
        open_job(pool, f"j{number}", tenant="all", demand=2, rounds=1, lease_s=50)
    at_work: list[Assignment] = []
    for step in itertools.count():
        now = float(step)
        bound = check_in(pool, f"d{step}", now)
        if bound is not None:
            at_work.append(bound)
        rng.shuffle(at_work)
        for assignment in [at_work.pop() for _ in range(min(len(at_work), rng.randrange(3)))]:
            how = rng.choice([Report, Report, Report, Abort, None])
            for _ in range(rng.choice([1, 1, 2])):  # some say it twice
                try:
                    if how is not None:
                        pool.handle(how(assignment.id, assignment.device), now)
                except VennueError:
                    assert assignment.id not in {live.id for live in pool.table.assignments()}
        for effect in pool.drain():
            if isinstance(effect, Commit):
                failed = rng.random() < 0.2
                event = CommitFailed(effect.attempt, "x") if failed else Committed(effect.attempt, RESULT)
                pool.handle(event, now)
        invariants.check(pool)
        assert len(pool.table.assignments()) == pool.tenants["all"].in_flight <= 20
        if all(job.state == "completed" for job in pool.jobs.values()):
            break
        assert step < 5000


def test_q7_what_is_free_is_never_negative_and_never_more_than_there_is() -> None:
    rng = random.Random(7)
    pool = Pool(ArrivalOrder(), quotas={"a": Quota(devices=3, borrow=False), "b": Quota(devices=2)})
    audited = Auditor(pool)
    for name, tenant in (("j", "a"), ("k", "b"), ("l", "none")):
        submit(audited, name, demand=4, overcommit=1.5, tenant=tenant, lease_s=30, deadline_s=200)  # type: ignore[arg-type]
        audited.handle(OpenRound(JobId(name), 1, MODEL), 0)
    for step in range(1500):
        held = pool.table.assignments()
        how = rng.choice(["apply", "apply", "return", "roll back", "decline", "wait"])
        if how == "apply":
            check_in(audited, f"d{rng.randrange(12)}", float(step))  # type: ignore[arg-type]
        elif how == "wait":
            audited.handle(Tick(), step + 0.5)
        elif held:
            one = rng.choice(held)
            event = {"return": Report, "roll back": Abort, "decline": Decline}[how](one.id, one.device)
            with contextlib.suppress(TooLate):  # its lease may run out in this very moment
                audited.handle(event, float(step))
        for effect in audited.drain():
            if isinstance(effect, Commit):
                audited.handle(Committed(effect.attempt, RESULT), float(step))
                job = effect.attempt.split(".")[0]
                audited.handle(OpenRound(JobId(job), pool.jobs[JobId(job)].committed + 1, MODEL), float(step))
        for request in pool.table.requests():
            assert 0 <= request.needs <= request.wanted


def test_q10_a_job_that_loads_for_ten_minutes_keeps_no_device_from_another() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "loading", demand=5)
    open_job(pool, "k", demand=2)
    assert [check_in(pool, f"d{n}", now=600).job for n in range(2)] == ["k", "k"]


@pytest.mark.parametrize("policy", ["fifo", "srsf", "las", "venn-sched", "venn", "random-order", "random"])
def test_q11_a_job_that_waits_for_scarce_devices_does_not_block_those_behind_it(policy) -> None:
    pool = Pool(get_policy(policy))
    open_job(pool, "scarce", demand=3, requirement="device.ram_gb >= 64")
    open_job(pool, "common", demand=3)
    assert [check_in(pool, f"d{n}", ram_gb=4).job for n in range(3)] == ["common"] * 3


def test_q13_a_big_job_is_done_within_a_bound_although_small_ones_keep_coming() -> None:
    pool = Pool(get_policy("venn", starvation_limit=3.0, tiers=1))
    open_job(pool, "big", demand=100, rounds=1)
    small = itertools.count()
    for step in range(1, 2000):
        open_job(pool, f"small-{next(small)}", float(step), demand=1, rounds=1)
        serve_and_commit(pool, f"d{step}", float(step))
        if pool.jobs[JobId("big")].state == "completed":
            break
    # Alone it would take 100 s at a device a second; it has first claim after three times that.
    assert pool.jobs[JobId("big")].ended_at is not None
    assert pool.now <= 300 + 100 + 5


def test_q15_jobs_that_cannot_be_served_do_not_keep_a_good_one_waiting_through_a_change_of_policy() -> None:
    pool = Pool(get_policy("fifo"))
    for number in range(32):
        open_job(pool, f"bad{number}", demand=1, requirement=f"device.ram_gb >= {1000 + number}")
    open_job(pool, "good", demand=2)
    assert check_in(pool, "d").job == "good"
    pool.set_planner(get_policy("venn-sched"))
    assert check_in(pool, "e").job == "good"
    assert len(pool.attempts()) == 33


def test_q19_thirty_two_jobs_that_want_the_same_hundred_devices_do_not_deadlock() -> None:
    pool = Pool(get_policy("fifo"))
    for number in range(32):
        open_job(pool, f"j{number}", demand=100, rounds=1)
    held = [check_in(pool, f"d{n}") for n in range(100)]
    assert len(pool.table.assignments()) == 100
    for assignment in held:
        pool.handle(Report(assignment.id, assignment.device), 1)
    [commit] = [effect for effect in pool.drain() if isinstance(effect, Commit)]
    assert pool.handle(Committed(commit.attempt, RESULT), 2).state == "completed"
    assert check_in(pool, "d0", now=3).job == "j1"


# -- rounds ----------------------------------------------------------------------------------------------------------


def test_s3_a_round_that_asks_for_more_devices_than_there_are_waits_and_never_takes_one_twice() -> None:
    pool = pool_with_round(demand=100)
    held = [check_in(pool, f"d{n % 60}") for n in range(600)]
    assert len({assignment.id for assignment in held}) == 60
    assert attempt(pool).request.needs == 40


def test_s8_drop_outs_are_made_up_for_by_overcommit_or_cost_an_attempt() -> None:
    for dropped, number in ((3, 1), (6, 2)):
        pool = pool_with_round(demand=10, overcommit=1.3, min_fraction=1.0, deadline_s=100)
        held = [check_in(pool, f"d{n}") for n in range(13)]
        for assignment in held[:dropped]:
            pool.handle(Abort(assignment.id, assignment.device), 1)
        for assignment in held[dropped:]:
            pool.handle(Report(assignment.id, assignment.device), 2)
        pool.handle(Tick(), 100)
        assert attempt(pool).number == number


# -- devices ---------------------------------------------------------------------------------------------------------


def test_d4_devices_of_a_cancelled_job_are_told_at_their_next_contact_and_nothing_of_theirs_counts() -> None:
    pool = pool_with_round(demand=3)
    held = [check_in(pool, f"d{n}") for n in range(3)]
    pool.handle(CancelJob(J), 1)
    assert [effect.assignment for effect in pool.drain() if isinstance(effect, AssignmentEnded)] == [a.id for a in held]
    for event in (Report, Accept, Abort, Decline):
        with pytest.raises(VennueError, match="is over"):
            pool.handle(event(held[0].id, held[0].device), 2)


def test_d5_a_device_that_reconnects_within_a_second_has_one_session() -> None:
    pool = pool_with_round(demand=3)
    first = check_in(pool, "d", now=10)
    assert check_in(pool, "d", now=10.5) is first
    assert len(pool.table.assignments()) == 1


def test_c5_a_device_that_two_jobs_want_in_the_same_moment_gets_one_lease() -> None:
    pool = Pool(ArrivalOrder())
    for name in ("j", "k"):
        open_job(pool, name, demand=1)
    assert [check_in(pool, "d", now=5).job for _ in range(2)] == ["j", "j"]
    assert len(pool.table.assignments()) == 1


# -- endings ---------------------------------------------------------------------------------------------------------


def waiting_for_another(pool: Pool) -> None:
    submit(pool, "other")
    open_job(pool, "j", after=(After(job=JobId("other")),))


def filling(pool: Pool) -> None:
    open_job(pool, "j", demand=2)
    check_in(pool, "d")


def offered(pool: Pool) -> None:
    open_job(pool, "j", private_requirement="device.x > 1")
    check_in(pool, "d")


def committing(pool: Pool) -> None:
    open_job(pool, "j", demand=1)
    one = check_in(pool, "d")
    pool.handle(Report(one.id, one.device), 0)


STATES = {
    "submitted": lambda pool: submit(pool, "j"),
    "waiting": waiting_for_another,
    "open": lambda pool: open_job(pool, "j", demand=2),
    "filling": filling,
    "offered": offered,
    "committing": committing,
}


@pytest.mark.parametrize("state", STATES)
def test_a3_a_cancel_ends_the_job_at_once_in_every_state(state) -> None:
    pool = Pool(ArrivalOrder())
    STATES[state](pool)
    pool.handle(CancelJob(J, "enough"), 1)
    assert (pool.jobs[J].state, pool.jobs[J].attempt, pool.jobs[J].ended_at) == ("cancelled", None, 1)
    assert pool.table.assignments() == []
    invariants.check(pool)


def test_a6_an_end_that_comes_before_the_beginning_harms_nothing() -> None:
    pool = Pool(ArrivalOrder())
    for event in (CancelJob(J), CompleteJob(J), Committed(AttemptId("j.1.1"), RESULT), OpenRound(J, 1, MODEL)):
        with pytest.raises(VennueError):
            pool.handle(event, 0)
    open_job(pool, "j", demand=1)
    assert serve_and_commit(pool, "d", 1) == "j"


def test_c10_ending_twice_is_told_once() -> None:
    pool = pool_with_round()
    for now in (1, 2):
        pool.handle(CancelJob(J), now)
    assert len([effect for effect in pool.drain() if isinstance(effect, JobEnded)]) == 1


# -- duplicates and clocks -------------------------------------------------------------------------------------------


def test_c6_a_device_s_clock_decides_nothing() -> None:
    # No event carries a device's time; the pool's own going back expires nothing and moves nothing.
    pool = pool_with_round(now=10_000, demand=1, lease_s=60)
    one = check_in(pool, "d", now=10_000)
    assert pool.handle(Report(one.id, one.device), 6_400) is True


def test_c9_no_update_of_another_round_or_attempt_is_ever_in_an_aggregate() -> None:
    pool = pool_with_round(demand=2, deadline_s=100, lease_s=10_000, rounds=3)
    seen: list[Assignment | None] = []
    for step in range(60):
        now = step * 10.0
        if attempt(pool).state == "open":
            seen.append(check_in(pool, f"d{step}", now))
        for old in [one for one in seen if one is not None][-6:]:
            for _ in range(2):
                try:
                    pool.handle(Report(old.id, old.device), now + (0 if step % 4 else 101))
                except VennueError:
                    continue
        for effect in pool.drain():
            if isinstance(effect, Commit):
                assert {name.rpartition(".")[0] for name in effect.assignments} == {effect.attempt}
                assert len(set(effect.assignments)) == len(effect.assignments)
                if pool.handle(Committed(effect.attempt, RESULT), pool.now).state == "completed":
                    return
                pool.handle(OpenRound(J, pool.jobs[J].committed + 1, MODEL), pool.now)
    raise AssertionError("the job does not end")


def test_a_device_known_by_another_name_is_another_device() -> None:
    pool = pool_with_round(demand=2)
    assert check_in(pool, "d").device != check_in(pool, "D").device
    assert pool.table.holds(DeviceId("d")) is not None
