"""Plans as binding sees them: which offers a region has, and in which order."""

import math

from tests.unit.policies.worlds import jobs, region, request
from vennue.core.plan import EMPTY_PLAN, Plan, Tier

A, B, C = request("a", 0), request("b", 1), request("c", 0)
QUEUES = [(0, (A.offer, C.offer)), (1, (B.offer,))]


def test_an_ordered_plan_offers_each_region_what_it_covers_in_one_order():
    plan = Plan.ordered([C, B, A])
    assert (jobs(plan, region(0)), jobs(plan, region(1)), jobs(plan, region(0, 1))) == ("ca", "b", "cba")


def test_a_region_outside_all_requirements_is_offered_nothing():
    assert Plan.ordered([A, B, C]).offers(region(9)) == ()


def test_the_queue_that_owns_a_region_comes_first_there():
    plan = Plan(QUEUES, {region(0, 1): 1})
    assert jobs(plan, region(0, 1)) == "bac"
    assert jobs(plan, region(0, 1, 2)) == "acb"


def test_an_owner_that_the_region_does_not_cover_is_passed_over():
    assert jobs(Plan(QUEUES, {region(0): 1}), region(0)) == "ac"


def test_urgent_queues_precede_even_the_owner():
    urgent = request("z", 0)
    plan = Plan([(0, (urgent.offer,)), *QUEUES], {region(0, 1): 2}, urgent=1)
    assert jobs(plan, region(0, 1)) == "zbac"


def test_a_plan_stands_until_the_time_it_names():
    assert EMPTY_PLAN.until == math.inf
    assert Plan(QUEUES, until=90.0).until == 90.0


def test_a_tier_admits_from_its_lower_bound_to_just_below_its_upper():
    tier = Tier(10.0, 20.0)
    assert [tier.admits(s) for s in (9.9, 10.0, 19.9, 20.0)] == [False, True, True, False]
