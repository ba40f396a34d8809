"""Losses are measured per job and region, and a round with overcommit "auto" binds what they make necessary."""

import pytest

from tests.unit.core.pools import MODEL, RESULT, ArrivalOrder, attempt, check_in, pool_with_round, report, submit
from vennue.core.errors import InvalidInput
from vennue.core.events import Abort, CancelJob, Committed, Decline, OpenRound, Tick
from vennue.core.ids import JobId, Signature
from vennue.core.job import JobSpec
from vennue.core.losses import MAX_OVERCOMMIT, MAX_REGIONS, Losses, Share
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA

J, K = JobId("j"), JobId("k")
ONE, BOTH = Signature(1), Signature(3)


def seen(losses: Losses, job: JobId, region: Signature, *, lost: int, of: int) -> None:
    for number in range(of):
        losses.observe(job, region, lost=number * lost % of < lost)


def test_before_anything_is_seen_a_tenth_is_expected_to_be_lost() -> None:
    assert Losses().expected(J, 0, {ONE: 1.0}) == pytest.approx(0.1)
    assert Losses().overcommit(J, 0, {}) == pytest.approx(1 / 0.9)


def test_twenty_observations_weigh_as_much_as_the_guess() -> None:
    share = Share()
    for _ in range(20):
        share.observe(lost=True)
    # Nothing has faded much yet: 20 of 20 were lost, and the guess was 0.1.
    assert share.estimate(0.1) == pytest.approx((20 + 2) / 40, rel=0.02)


def test_old_observations_fade() -> None:
    share = Share()
    for lost in [True] * 5000 + [False] * 1024:
        share.observe(lost=lost)
    # Of the losses e⁻² are left.
    assert share.estimate(0.0) == pytest.approx(0.1353, rel=0.05)


def test_a_job_that_loses_many_devices_is_told_from_one_that_does_not() -> None:
    losses = Losses()
    seen(losses, J, ONE, lost=400, of=1000)
    seen(losses, K, ONE, lost=0, of=1000)
    assert losses.expected(J, 0, {ONE: 1.0}) > 0.3
    assert losses.expected(K, 0, {ONE: 1.0}) < 0.02


def test_a_new_job_begins_with_what_its_regions_have_done_for_others() -> None:
    losses = Losses()
    for _ in range(100):
        seen(losses, J, ONE, lost=1, of=2)
        seen(losses, J, BOTH, lost=0, of=2)
    bad, good = losses.expected(K, 0, {ONE: 1.0}), losses.expected(K, 1, {ONE: 1.0, BOTH: 1.0})
    assert bad == pytest.approx(0.5, abs=0.05)
    assert good < 0.1
    assert losses.expected(K, 0, {ONE: 1.0, BOTH: 3.0}) == pytest.approx((bad + 3 * good) / 4)


def test_the_overcommit_is_bounded() -> None:
    losses = Losses()
    seen(losses, J, ONE, lost=999, of=1000)
    assert losses.overcommit(J, 0, {ONE: 1.0}) == MAX_OVERCOMMIT


def test_regions_that_a_bit_told_apart_become_one_when_it_is_given_away() -> None:
    losses = Losses()
    seen(losses, J, BOTH, lost=50, of=100)
    losses.forget_requirement(1)
    assert losses.regions == 1
    assert losses.expected(K, 0, {ONE: 1.0}) > 0.4


def test_memory_is_bounded_by_regions_and_jobs() -> None:
    losses = Losses()
    for number in range(MAX_REGIONS + 500):
        losses.observe(J, Signature(number), lost=False)
    losses.forget_job(J)
    assert (losses.regions, losses.jobs) == (MAX_REGIONS, 0)


# -- in the pool -----------------------------------------------------------------------------------------------------


def run_round(pool: Pool, number: int, lost: int, now: float) -> int:
    """A round of which so many devices abort; how many devices it wanted."""
    wanted = attempt(pool).request.wanted
    bound = [check_in(pool, f"d{number}-{n}", now) for n in range(wanted)]
    for assignment in bound[:lost]:
        pool.handle(Abort(assignment.id, assignment.device), now)
    for assignment in bound[lost:]:
        if attempt(pool).state == "open":
            report(pool, assignment, now)
    pool.handle(Committed(attempt(pool).id, RESULT), now)
    pool.handle(OpenRound(J, number + 1, MODEL), now)
    return wanted


def test_a_round_binds_as_many_more_as_losses_make_necessary() -> None:
    pool = pool_with_round(demand=100, overcommit="auto", deadline_s=1000, min_fraction=0.5)
    wanted = [run_round(pool, number, lost=40, now=float(number)) for number in range(1, 12)]
    assert wanted[0] == 111  # 100 / 0.9, nothing being known
    assert wanted[-1] > 150  # 40 lost for 50 that report is a loss of 44 %, at most 178
    assert wanted[-1] <= 178


def test_a_round_binds_no_more_once_nothing_is_lost() -> None:
    pool = pool_with_round(demand=100, overcommit="auto", deadline_s=1000, min_fraction=1.0)
    wanted = [run_round(pool, number, lost=0, now=float(number)) for number in range(1, 30)]
    assert (wanted[0], wanted[-1]) == (111, 100)


def test_devices_that_a_deadline_finds_at_work_count_as_lost_if_they_had_half_of_its_time() -> None:
    pool = pool_with_round(demand=10, deadline_s=100)
    for number in range(5):
        check_in(pool, f"early-{number}", now=50)
    for number in range(4):
        check_in(pool, f"late-{number}", now=51)
    pool.handle(Tick(), 100)
    # 5 of 5 were lost; they and a guess of 0.1 that counts as 20 make the region's share, and that is the job's guess.
    region = (5 + 20 * ((5 + 20 * 0.1) / 25)) / 25
    assert pool.losses.expected(J, 0, {ONE: 1.0}) == pytest.approx((5 + 20 * region) / 25, rel=0.02)


def test_a_device_that_declines_is_no_loss() -> None:
    pool = pool_with_round(demand=1)
    offered = check_in(pool, "d")
    pool.handle(Decline(offered.id, offered.device, declined=frozenset({J})), 1)
    assert pool.losses.expected(J, 0, {}) == pytest.approx(0.1)


def test_what_a_job_taught_of_itself_goes_with_it_and_what_it_taught_of_regions_stays() -> None:
    pool = pool_with_round(demand=1)
    submit(pool, "k", demand=1)
    for number in range(50):
        assignment = check_in(pool, f"d{number}")
        pool.handle(Abort(assignment.id, assignment.device), 1)
    pool.handle(CancelJob(J), 2)
    assert pool.losses.jobs == 0
    assert pool.losses.expected(K, 0, {ONE: 1.0}) > 0.5


@pytest.mark.parametrize("overcommit", [0.9, 11.0, float("nan")])
def test_an_overcommit_out_of_bounds_is_refused(overcommit) -> None:
    with pytest.raises(InvalidInput) as caught:
        JobSpec(name="x", demand=1, overcommit=overcommit).check(DEFAULT_SCHEMA)
    assert caught.value.field == "overcommit"


def test_a_job_that_waits_binds_by_what_is_known_when_it_begins() -> None:
    pool = Pool(ArrivalOrder())
    submit(pool, "j", demand=1)
    submit(pool, "k", demand=100, overcommit="auto", after=(J,))
    pool.handle(OpenRound(J, 1, MODEL), 0)
    pool.handle(OpenRound(K, 1, MODEL), 0)
    assert attempt(pool, "k").request.wanted == 111
    for number in range(200):
        assignment = check_in(pool, f"d{number}")
        pool.handle(Abort(assignment.id, assignment.device), 1)
    pool.handle(CancelJob(J), 2)
    assert pool.jobs[K].state == "cancelled"
    submit(pool, "l", now=3, demand=100, overcommit="auto")
    pool.handle(OpenRound(JobId("l"), 1, MODEL), 3)
    assert attempt(pool, "l").request.wanted == 200
