"""Every job has a reason with numbers; each is worked out here by hand from a pool of a few devices."""

from typing import Any

import pytest

from vennue.control.explain import Explainer
from vennue.control.setbacks import Counts
from vennue.core.events import Abort, CancelJob, CheckIn, Committed, CompleteJob, OpenRound, Report, SubmitJob
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest, JobId
from vennue.core.job import After, JobSpec
from vennue.core.plan import Plan
from vennue.core.pool import Pool
from vennue.core.tenant import Quota
from vennue.policies import get_policy

MODEL = Digest("0" * 64)
BIG = "device.ram_gb >= 4"


class World:
    """A first-come, first-served pool that has been observed for 1000 s."""

    def __init__(self, policy: str = "fifo", **options: Any) -> None:
        self.pool = Pool(get_policy(policy), **options)
        self.now = 0.0

    def job(self, name: str, **spec: object) -> JobId:
        fields = {"name": name, "demand": 10, **spec}
        self.pool.handle(SubmitJob(JobId(name), JobSpec(**fields)), self.now)  # type: ignore[arg-type]  # varies by test
        return JobId(name)

    def open(self, job: JobId, round_number: int = 1) -> None:
        self.pool.handle(OpenRound(job, round_number, MODEL), self.now)

    def check_in(self, device: str, ram_gb: float = 6.0):
        profile = self.pool.registry.profile({"ram_gb": ram_gb})
        return self.pool.handle(CheckIn(DeviceId(device), profile), self.now)

    def supply(self, count: int, ram_gb: float) -> None:
        """Check-ins in the first 1000 s, before any job needs them."""
        self.now = 0.0
        for number in range(count):
            self.now = 1000.0 * number / max(1, count)
            self.check_in(f"early-{ram_gb}-{number}", ram_gb)
        self.now = 1000.0

    def reason(self, job: JobId):
        self.pool.drain()
        return Explainer(self.pool, self.now, window_s=1000.0).reason(self.pool.jobs[job])


@pytest.fixture
def world():
    return World()


def test_a_job_without_an_open_round_waits_for_its_owner(world):
    reason = world.reason(world.job("a"))
    assert reason.code == "waiting-for-owner"
    assert "round 1" in reason.text


def test_a_managed_job_without_an_open_round_does_not_wait_for_its_owner(world):
    job = world.job("a")
    reason = Explainer(world.pool, world.now, managed={job}).reason(world.pool.jobs[job])
    assert reason.code == "waiting-for-platform"
    assert reason.text == "round 1 waits for the platform, which runs this job, to open it"


def test_before_any_device_has_checked_in_there_is_no_supply_yet(world):
    job = world.job("a")
    world.open(job)
    reason = world.reason(job)
    assert (reason.code, reason.needs, reason.supply_per_s) == ("no-supply-yet", 10, 0.0)


def test_when_no_device_meets_the_requirement_the_reason_names_it(world):
    job = world.job("a", requirement="device.ram_gb >= 64")
    world.supply(10, ram_gb=6)
    world.open(job)
    reason = world.reason(job)
    assert (reason.code, reason.supply_per_s) == ("no-eligible-device", 0.0)
    assert "device.ram_gb >= 64" in reason.text


def test_the_first_job_in_line_is_filling_at_the_rate_of_its_supply(world):
    job = world.job("a")
    world.supply(100, ram_gb=6)
    world.open(job)
    reason = world.reason(job)
    assert (reason.code, reason.needs, reason.demand_ahead, reason.blocking) == ("filling", 10, 0, [])
    assert reason.supply_per_s == pytest.approx(0.1)  # 100 check-ins in 1000 s
    assert reason.eta_s == pytest.approx(100.0)  # 10 devices at 0.1/s


def test_a_round_whose_devices_give_their_tasks_back_says_so_instead_of_promising_a_time(world):
    job = world.job("a")
    world.supply(100, ram_gb=6)
    world.open(job)
    for number in range(9):
        device = DeviceId(f"d{number}")
        world.pool.handle(Abort(world.check_in(device).id, device, "diverged"), world.now)
    assert world.reason(job).code == "filling"
    device = DeviceId("d9")
    world.pool.handle(Abort(world.check_in(device).id, device, "diverged"), world.now)
    reason = world.reason(job)
    assert (reason.code, reason.needs, reason.eta_s) == ("losing-devices", 10, None)
    assert "of those that took a task of this job 100% gave it back" in reason.text


def test_a_round_that_loses_its_devices_repeats_what_the_last_one_to_give_its_task_back_said(world):
    job = world.job("a")
    world.supply(100, ram_gb=6)
    world.open(job)
    for number in range(10):
        device = DeviceId(f"d{number}")
        world.pool.handle(Abort(world.check_in(device).id, device, "diverged"), world.now)
    said = Counts(returned=10, last_return="diverged")
    reason = Explainer(world.pool, world.now, setbacks=lambda _: said).reason(world.pool.jobs[job])
    assert reason.code == "losing-devices"
    assert "the last to give it back said 'diverged', and their logs say why" in reason.text


def test_a_job_behind_others_is_told_who_and_how_much_is_ahead(world):
    """Case Q4."""
    first, second, third = (world.job(name) for name in "abc")
    world.supply(100, ram_gb=6)
    for job in (first, second, third):
        world.open(job)
    world.check_in("d1")  # goes to a: 9 left
    reason = world.reason(third)
    assert (reason.code, reason.needs, reason.demand_ahead) == ("behind-other-jobs", 10, 19)
    assert reason.blocking == [first, second]
    assert "a, b come first and need 19 more" in reason.text
    assert "a comes first and needs 9 more" in world.reason(second).text
    assert reason.eta_s == pytest.approx(290.0, rel=0.02)  # (19 + 10) devices at 0.1/s


def test_a_job_that_is_first_in_some_region_is_filling_from_there(world):
    scarce, common = world.job("a", requirement=BIG), world.job("b")
    world.supply(100, ram_gb=6)
    for number in range(300):
        world.check_in(f"small-{number}", ram_gb=2)
    world.open(scarce)
    world.open(common)
    reason = world.reason(common)
    assert (reason.code, reason.blocking) == ("filling", [])
    assert reason.supply_per_s == pytest.approx(0.4)
    assert reason.eta_s == pytest.approx(10 / 0.3)  # the small devices are all its own


def test_chosen_at_random_nobody_is_ahead():
    world = World("random")
    jobs = [world.job(name) for name in "ab"]
    world.supply(100, ram_gb=6)
    for job in jobs:
        world.open(job)
    assert [world.reason(job).code for job in jobs] == ["filling", "filling"]


def test_a_full_round_collects_and_a_closed_one_commits(world):
    job = world.job("a", demand=1)
    world.open(job)
    world.check_in("d1")
    reason = world.reason(job)
    assert (reason.code, reason.needs) == ("collecting", 0)
    assert reason.text == "0 of 1 reports of round 1 are in; at most 7 days are left"
    world.pool.handle(Report(AssignmentId("a.1.1.1"), DeviceId("d1")), world.now)
    assert world.reason(job).code == "committing"
    world.pool.handle(Committed(AttemptId("a.1.1"), MODEL), world.now)
    assert world.reason(job).code == "waiting-for-owner"


def test_q9_a_job_that_waits_for_another_says_for_which(world):
    first = world.job("a")
    follower = world.job("b", after=(first,))
    world.open(follower)
    reason = world.reason(follower)
    assert (reason.code, reason.blocking) == ("waiting-for-job", [first])
    assert reason.text == (
        "it begins when a completes (0 rounds committed so far); should a fail or be cancelled, this job is cancelled, "
        "too"
    )


def test_a_job_that_waits_for_any_end_of_some_and_the_success_of_others_says_so(world):
    first = [world.job("a", rounds=3), world.job("b"), world.job("c")]
    after = (After(job=first[0], when="ended"), first[1], first[2])
    assert world.reason(world.job("d", after=after)).text == (
        "it begins when a ends, however it does (0 of 3 rounds committed so far), and b completes (0 rounds committed "
        "so far), and c completes (0 rounds committed so far); should one that must complete fail or be cancelled, "
        "this job is cancelled, too"
    )
    assert world.reason(world.job("e", after=after[:1])).text == (
        "it begins when a ends, however it does (0 of 3 rounds committed so far)"
    )


def test_q14_a_round_that_cannot_have_its_devices_in_time_is_flagged_until_it_can(world):
    job = world.job("a", demand=1000, deadline_s=600.0, if_infeasible="wait")
    world.supply(100, ram_gb=6)
    world.open(job)
    reason = world.reason(job)
    assert (reason.code, reason.needs, reason.since) == ("infeasible", 1000, 1000.0)
    assert "at least 800 within 600 s" in reason.text
    assert "60 in that time" in reason.text  # 0.1 per second for 600 s
    for number in range(3000):
        world.now = 1000.0 + number / 3.0
        world.check_in(f"late-{number}")
    # 3100 check-ins in 2000 s are 1.55/s, and 930 in 600 s; by then the attempt has most of its devices, too.
    assert world.reason(job).code not in {"infeasible", "stalled"}
    assert world.pool.jobs[job].attempt.request.bound > 800


def test_d18_a_job_whose_devices_have_all_gone_is_stalled_since_then_and_goes_on_when_they_return(world):
    job = world.job("a", demand=200)
    world.supply(100, ram_gb=6)
    world.open(job)
    world.now = 1000.0
    world.check_in("last")
    world.now = 10_000.0
    reason = world.reason(job)
    # The supply is counted in quarters of an hour: the last check-in was in the one from 900 s to 1800 s.
    assert (reason.code, reason.since) == ("stalled", 1800.0)
    assert "for 137 min" in reason.text
    world.check_in("again")
    assert world.reason(job).code == "filling"


def test_q20_a_job_beyond_its_tenant_s_quota_says_what_of_it_is_used():
    world = World(quotas={"team": Quota(devices=2)})
    greedy, modest = world.job("a", tenant="team"), world.job("b")
    world.supply(100, ram_gb=6)
    world.open(greedy)
    world.open(modest)
    for number in range(5):
        world.check_in(f"d{number}")
    reason = world.reason(greedy)
    assert (reason.code, reason.needs, reason.demand_ahead, reason.blocking) == ("over-quota", 8, 7, [modest])
    assert "tenant team has 2 of 2 devices at work" in reason.text
    assert world.reason(modest).code != "over-quota"


def test_an_ended_job_says_how_it_ended(world):
    done, stopped = world.job("a"), world.job("b")
    world.pool.handle(CompleteJob(done), world.now)
    world.pool.handle(CancelJob(stopped, "too dear"), world.now)
    assert (world.reason(done).code, world.reason(stopped).code) == ("completed", "cancelled")
    assert "too dear" in world.reason(stopped).text


class Picky:
    """A planner that leaves some jobs out, and fails on others."""

    def plan(self, view):
        if any(request.job == "poison" for request in view.requests):
            raise RuntimeError("I do not like this job")
        return Plan.ordered([request for request in view.requests if request.job != "unloved"])


def test_a_round_that_the_policy_leaves_out_says_so_instead_of_promising_a_time(world):
    world.supply(100, ram_gb=6)
    world.pool.set_planner(Picky())
    loved, unloved = world.job("loved"), world.job("unloved")
    for job in (loved, unloved):
        world.open(job)
    assert world.reason(loved).code == "filling"
    reason = world.reason(unloved)
    assert (reason.code, reason.eta_s) == ("not-planned", None)
    assert reason.text == "0 of 10 devices; the policy's plan leaves it out"


def test_a_round_that_came_since_the_policy_fails_says_so_and_others_go_on(world):
    world.supply(100, ram_gb=6)
    world.pool.set_planner(Picky())
    before = world.job("before")
    world.open(before)
    assert world.reason(before).code == "filling"
    poison = world.job("poison")
    world.open(poison)
    assert world.reason(before).code == "filling"
    reason = world.reason(poison)
    assert reason.code == "not-planned"
    assert "the policy fails" in reason.text
    assert "I do not like this job" in reason.text
