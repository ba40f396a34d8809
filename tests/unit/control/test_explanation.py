"""A job's whole explanation, each number worked out by hand from a pool of a few devices."""

import pytest

from tests.unit.control.test_explain import BIG, World
from vennue.control.explain import Explainer
from vennue.control.explanation import explanation
from vennue.control.hours import hours_of
from vennue.core.events import CancelJob, Committed, Report
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest
from vennue.core.supply import Supply


class Explained(World):
    def explain(self, job):
        self.pool.drain()
        return explanation(self.pool, Explainer(self.pool, self.now), self.pool.jobs[job], self.now)()


@pytest.fixture
def world():
    world = Explained()
    # In 1000 s: 100 check-ins with 6 GB, 200 with 3 GB and 700 with 2 GB.
    world.supply(100, 6)
    world.supply(200, 3)
    world.supply(700, 2)
    return world


def test_supply_is_told_for_the_day_for_now_and_by_the_hour(world):
    told = world.explain(world.job("a", requirement=BIG))
    assert told.supply_per_s == pytest.approx(0.1)
    assert told.supply_now_per_s == pytest.approx(0.1)
    assert told.supply_by_hour_per_s[:23] == [None] * 23
    assert told.supply_by_hour_per_s[23] == pytest.approx(0.1)


def test_a_pool_in_which_nobody_has_checked_in_yet_can_be_explained():
    world = Explained()
    told = world.explain(world.job("a", requirement=BIG))
    assert (told.supply_per_s, set(told.supply_by_hour_per_s[:23]), told.regions) == (0.0, {None}, [])


def test_each_region_tells_the_job_s_place_and_what_is_ahead(world):
    first, second = world.job("first", demand=30), world.job("second", demand=5, requirement=BIG)
    world.open(first)
    world.open(second)
    told = world.explain(second)
    assert [(r.position, r.ahead, r.jobs) for r in told.regions] == [(2, 30, [first, second])]
    assert told.shares_with == [first]
    assert [(r.position, r.ahead) for r in world.explain(first).regions] == [(1, 0), (1, 0)]


def test_the_next_lower_bound_that_devices_have_is_told_with_its_supply(world):
    job = world.job("a", requirement=BIG, demand=30)
    world.open(job)
    change = world.explain(job).changes[0]
    # 100 of 1000 have 4 GB, 300 have 3 GB or more.
    assert (change.field, change.value) == ("requirement", "device.ram_gb >= 3")
    assert change.text == "with ram_gb >= 3 instead of >= 4 the supply would be 3×"
    assert change.supply_per_s == pytest.approx(0.3)
    assert change.eta_s == pytest.approx(100.0)


def test_a_requirement_that_nobody_meets_is_told_what_would_be_met(world):
    told = world.explain(world.job("a", requirement='device.ram_gb >= 64 && "keyboard" in device.data'))
    assert told.supply_per_s == 0
    assert told.changes == []  # either alone is not enough
    told = world.explain(world.job("b", requirement='device.ram_gb >= 3 && "keyboard" in device.data'))
    assert [change.value for change in told.changes] == ["device.ram_gb >= 3 && true"]
    assert (
        told.changes[0].text == 'without "keyboard" in device.data the supply would be 0.3 per second instead of none'
    )


def test_a_round_that_cannot_fill_in_time_is_told_the_demand_and_the_deadline_that_would_do(world):
    job = world.job("a", requirement=BIG, demand=100, deadline_s=800, if_infeasible="wait")
    world.open(job)
    terms = {change.field: change.value for change in world.explain(job).changes if change.field != "requirement"}
    assert terms == {"demand": 80, "deadline_s": 1000.0}


def test_a_change_that_saves_next_to_nothing_is_not_told(world):
    few = world.job("few", demand=2)  # of 1 per second: 1 s less is not worth a change
    world.open(few)
    assert world.explain(few).changes == []
    world.pool.handle(CancelJob(few), world.now)
    some = world.job("some", demand=12)
    world.open(some)
    texts = [change.text for change in world.explain(some).changes]
    assert texts == ["at demand 6 the round would have its devices in 6 s instead of 12 s"]


def test_half_the_demand_is_not_told_of_where_others_take_nearly_all_of_the_time(world):
    first, second = world.job("first", demand=500), world.job("second", demand=20)
    world.open(first)
    world.open(second)
    assert world.explain(second).changes == []  # 510 s instead of 520 s


def test_a_looser_requirement_that_saves_a_moment_is_not_told(world):
    job = world.job("a", requirement="device.ram_gb >= 3", demand=1)
    world.open(job)
    assert world.explain(job).changes == []  # 1 s instead of 3 s


def test_the_ends_of_round_and_job_follow_from_the_rounds_so_far(world):
    job = world.job("a", demand=1, rounds=4)
    world.open(job)
    world.check_in("d", 6)
    world.now += 50
    world.pool.handle(Report(AssignmentId("a.1.1.1"), DeviceId("d")), world.now)
    world.pool.handle(Committed(AttemptId("a.1.1"), Digest("1" * 64)), world.now)
    world.open(job, 2)
    world.check_in("d", 6)
    world.now += 20
    told = world.explain(job)
    # Round 1 was collected in 50 s, and so may be this one, of which 20 s have passed; two more are to come.
    assert told.round_eta_s == pytest.approx(30)
    assert told.job_eta_s == pytest.approx(30 + 2 * 50)


def test_an_asynchronous_job_s_end_is_estimated_from_the_usual_time_between_its_model_updates(world):
    job = world.job("a", demand=2, rounds=4, mode="async", buffer_size=1)
    world.open(job)
    world.now += 10
    world.check_in("d", 6)
    world.check_in("e", 6)
    for number in (1, 2):
        world.now += 30
        world.pool.handle(Report(AssignmentId(f"a.1.1.{number}"), DeviceId("de"[number - 1])), world.now)
        world.pool.handle(Committed(AttemptId("a.1.1"), Digest("1" * 64)), world.now)
        world.check_in(f"next {number}", 6)
    world.now += 20
    told = world.explain(job)
    # Two updates in 70 s, 10 s of which it waited for devices; 20 s of the third have passed, and there is a fourth.
    assert told.round_eta_s == pytest.approx(10)
    assert told.job_eta_s == pytest.approx(10 + 35)


def test_nothing_is_estimated_before_any_round_was_collected(world):
    job = world.job("a", demand=5, rounds=2)
    world.open(job)
    told = world.explain(job)
    assert (told.round_eta_s, told.job_eta_s) == (None, None)


def test_a_job_that_has_ended_has_no_regions_and_no_changes(world):
    job = world.job("a", requirement=BIG)
    world.pool.handle(CancelJob(job, "no need"), world.now)
    told = world.explain(job)
    assert (told.state, told.regions, told.changes) == ("cancelled", [], [])


def test_hours_are_counted_from_now_backwards():
    supply = Supply()
    world = World()
    profile = world.pool.registry.profile({"ram_gb": 4})
    for second in range(0, 3 * 3600, 10):
        supply.observe(profile, float(second), 1 + (second >= 2 * 3600))
    hours = hours_of(supply, 3 * 3600.0 - 1)
    assert hours.counts[:, 0].tolist()[-3:] == [360, 360, 720]
    assert hours.observed_s.tolist()[-3:] == [3600, 3600, 3599]
    assert hours.observed_s[:21].sum() == 0


def test_an_explanation_is_of_the_moment_it_was_asked_for_although_it_is_worked_out_later(world):
    job = world.job("a", requirement=BIG, demand=30)
    world.open(job)
    told = world.explain(job)
    rest = explanation(world.pool, Explainer(world.pool, world.now), world.pool.jobs[job], world.now)
    world.pool.handle(CancelJob(job), world.now)
    world.supply(100, 7)
    assert rest() == told
    assert told.changes != []
