"""A round's reports are those of as many devices: none of them serves it twice."""

import pytest

from tests.unit.core.pools import (
    MODEL,
    ArrivalOrder,
    attempt,
    check_in,
    commit_all,
    open_job,
    pool_with_round,
    serve,
    submit,
)
from vennue.core.errors import TooLate
from vennue.core.events import Abort, CheckIn, OpenRound, Recover, Report, ReportTogether, Tick
from vennue.core.ids import AssignmentId, DeviceId, JobId
from vennue.core.invariants import Auditor
from vennue.core.pool import Pool
from vennue.core.tenant import Quota
from vennue.policies import get_policy

J, K = JobId("j"), JobId("k")


def reporters(pool: Pool) -> list[str]:
    """The devices whose reports the round of job j has."""
    return [one.device for one in attempt(pool).request.reported.values()]


def test_s3_a_device_that_has_reported_is_not_bound_to_the_round_again() -> None:
    pool = pool_with_round(demand=3)
    assert [serve(pool, device) for device in "dddee"] == ["j", None, None, "j", None]
    assert (attempt(pool).request.needs, attempt(pool).request.repeats) == (1, 1)
    assert serve(pool, "f") == "j"
    assert attempt(pool).state == "committing"


def test_it_serves_another_job_meanwhile_and_the_next_round_again() -> None:
    pool = pool_with_round(demand=2, rounds=2)
    open_job(pool, "k", demand=1)
    assert [serve(pool, "d"), serve(pool, "d"), serve(pool, "d")] == ["j", "k", None]
    serve(pool, "e")
    commit_all(pool)
    pool.handle(OpenRound(J, 2, MODEL), 1)
    assert serve(pool, "d", 1) == "j"


def test_it_serves_the_round_s_next_attempt_which_begins_anew() -> None:
    pool = pool_with_round(demand=2, deadline_s=60)
    assert [serve(pool, "d"), serve(pool, "d")] == ["j", None]
    pool.handle(Tick(), 60)
    assert attempt(pool).number == 2
    assert serve(pool, "d", 60) == "j"


def test_a_device_that_did_not_report_may_try_again() -> None:
    pool = pool_with_round(demand=2)
    first = check_in(pool, "d")
    pool.handle(Abort(first.id, first.device), 0)
    assert serve(pool, "d") == "j"


def test_an_asynchronous_job_takes_a_device_as_often_as_it_comes() -> None:
    pool = Pool(ArrivalOrder())
    open_job(pool, "j", demand=2, mode="async", buffer_size=3)
    assert [serve(pool, "d"), serve(pool, "d")] == ["j", "j"]


@pytest.mark.parametrize("policy", ["random", "fifo", "venn"])
def test_it_holds_under_every_way_of_binding(policy) -> None:
    """Uniformly at random, in order, with quotas and in batches; the auditor agrees that nobody was turned away."""
    for options in ({}, {"quotas": {"default": Quota(devices=5)}}, {"batch_window_s": 1.0}):
        pool = Auditor(Pool(get_policy(policy), **options))
        pool.work_conserving = False
        submit(pool, "j", demand=3)  # type: ignore[arg-type]  # an auditor is driven as its pool
        pool.handle(OpenRound(J, 1, MODEL), 0)
        for step in range(9):
            device = DeviceId(f"d{step % 2}")
            profile = pool.pool.registry.profile({})
            pool.handle(CheckIn(device, profile), float(step))
            pool.handle(Tick(), step + 1.0)
            held = pool.pool.table.holds(device)
            if held is not None:
                pool.handle(Report(held.id, device), step + 1.0)
            pool.drain()
        assert reporters(pool.pool) == ["d0", "d1"]
        assert attempt(pool.pool).request.needs == 1


def test_what_is_remembered_of_devices_goes_with_the_round() -> None:
    pool = pool_with_round(demand=2, rounds=1)
    serve(pool, "d")
    assert pool.table.served(DeviceId("d")) == {J}
    serve(pool, "e")
    assert pool.table.served(DeviceId("d")) == frozenset()
    assert {name: count for name, count, _ in pool.sizes()}["devices that have reported"] == 0


# -- after a restart, when assignments from before may come back ------------------------------------------------------


def restarted() -> Pool:
    """A pool whose job j, of three devices, goes on in its first round after a restart."""
    before = Auditor(Pool(ArrivalOrder()))
    submit(before, "j", demand=3)  # type: ignore[arg-type]  # an auditor is driven as its pool
    before.handle(OpenRound(J, 1, MODEL), 0)
    pool = Pool(ArrivalOrder())
    record = [*before.ledger_jobs.values()], before.open_in_ledger()
    pool.restore(*record, 10)
    return pool


def test_a_device_s_second_assignment_from_before_a_restart_does_not_count_beside_its_first() -> None:
    pool = restarted()
    pool.handle(Recover(attempt(pool).id, (Report(AssignmentId("j.1.1.1"), DeviceId("d")),)), 10)
    assert serve(pool, "d", 10) is None
    with pytest.raises(TooLate, match="has reported in this round already"):
        pool.handle(Report(AssignmentId("j.1.1.2"), DeviceId("d")), 11)
    assert len(attempt(pool).request.reported) == 1


def test_a_report_from_before_a_restart_takes_the_place_of_what_the_device_was_given_since() -> None:
    pool = restarted()
    since = check_in(pool, "d", 10)
    assert pool.handle(Report(AssignmentId("j.1.1.1"), DeviceId("d")), 11) is True
    with pytest.raises(TooLate):
        pool.handle(Report(since.id, since.device), 12)
    assert reporters(pool) == ["d"]
    assert attempt(pool).request.needs == 2


def test_a_sum_with_a_second_report_of_a_device_from_before_a_restart_is_refused_whole_and_changes_nothing() -> None:
    pool = restarted()
    pool.handle(Recover(attempt(pool).id, (Report(AssignmentId("j.1.1.1"), DeviceId("d")),)), 10)
    other = check_in(pool, "e", 10)
    both = (Report(AssignmentId("j.1.1.2"), DeviceId("d")), Report(other.id, other.device))
    with pytest.raises(TooLate, match="has reported in this round already"):
        pool.handle(ReportTogether(both), 11)
    assert pool.handle(ReportTogether(both[1:]), 11) == 1
    assert reporters(pool) == ["d", "e"]
