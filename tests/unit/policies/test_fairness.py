"""Fairness (spec section 4): who is behind, what ε does about it, and the guard against starvation."""

import math

import pytest

from tests.unit.policies.worlds import jobs, region, request, view
from vennue.core.ids import JobId
from vennue.core.plan import PoolView, Request
from vennue.core.profile import ResponseProfile
from vennue.policies import get_policy
from vennue.policies.allocation import Regions
from vennue.policies.fairness import isolated_delay_s, lag

ANY = region(0)
OWN, SHARED = region(0), region(0, 1)
HOUR_S = 3600.0


def venn(seen: PoolView, **parameters: object):
    return get_policy("venn", tiers=1, **parameters).plan(seen)


def served(requests: list[Request], **parameters: object) -> str:
    return jobs(venn(view(requests, {ANY: 1.0}, now=HOUR_S), **parameters), ANY)


# -- how far behind --------------------------------------------------------------------------------------------------


def test_alone_a_request_waits_for_its_devices_at_the_full_rate_of_its_regions():
    assert isolated_delay_s(request("a", 0, 30), Regions({OWN: 1.0, SHARED: 2.0, region(1): 50.0})) == 10.0


def test_alone_a_request_without_any_supply_waits_for_ever():
    assert isolated_delay_s(request("a", 0, 30), Regions({region(1): 50.0})) == math.inf


def test_the_lag_is_the_time_since_arrival_over_the_time_of_the_whole_job_alone():
    # Two rounds committed and three left, 10 s + 20 s each alone: 150 s; it has been there for an hour.
    learned = ResponseProfile()
    learned.observe_round(5.0, 20.0)
    late = request("a", needs=10, committed=2, rounds_left=3, arrived_at=0.0)
    seen = view([late], {ANY: 1.0}, now=HOUR_S, profiles={JobId("a"): learned})
    assert lag(late, seen, Regions(seen.rates)) == pytest.approx(24.0)


def test_a_job_without_an_end_is_taken_to_be_half_way():
    # Two rounds committed, the third is open: six in all, 10 s each.
    late = request("a", needs=10, committed=2, arrived_at=0.0)
    seen = view([late], {ANY: 1.0}, now=HOUR_S)
    assert lag(late, seen, Regions(seen.rates)) == pytest.approx(60.0)


# -- the knob --------------------------------------------------------------------------------------------------------


def test_without_fairness_the_smaller_demand_goes_first_however_long_the_other_has_waited():
    assert served([request("a", needs=20, arrived_at=0.0), request("b", needs=10, arrived_at=3599.0)]) == "ba"


@pytest.mark.parametrize(("epsilon", "order"), [(0.0, "ba"), (0.4, "ba"), (0.6, "ab"), (1.0, "ab"), (64.0, "ab")])
def test_with_fairness_the_job_behind_its_share_overtakes_as_epsilon_grows(epsilon: float, order: str):
    # One round of 20 or 10 devices; lags 3600/20 = 180 and 450/10 = 45, a factor of 4: overtakes when 4^ε > 2.
    requests = [
        request("a", needs=20, rounds_left=1, arrived_at=0.0),
        request("b", needs=10, rounds_left=1, arrived_at=HOUR_S - 450),
    ]
    assert served(requests, epsilon=epsilon) == order


def test_a_long_job_is_not_behind_though_it_is_old():
    # a's 1000 rounds of 20 devices take 20000 s alone, of which 3600 s have passed: 0.18. b's 30 s are over 15 times.
    requests = [
        request("a", needs=20, rounds_left=1000, arrived_at=0.0),
        request("b", needs=30, rounds_left=1, arrived_at=HOUR_S - 450),
    ]
    assert served(requests) == "ab"
    assert served(requests, epsilon=1.0) == "ba"


@pytest.mark.parametrize(("epsilon", "first"), [(0.0, "b"), (2.0, "a")])
def test_between_groups_the_queue_of_those_behind_grows(epsilon: float, first: str):
    # One request at 0.5/s presses less than one at 0.4/s. The lags are 3600/(5/0.9) = 648 for a, 3600/(200/0.4) = 7.2
    # for b: at ε = 2, b counts for a ten-thousandth of a.
    requests = [
        request("a", 0, 5, rounds_left=1, arrived_at=0.0),
        request("b", 1, 200, rounds_left=1, arrived_at=0.0),
    ]
    plan = venn(view(requests, {OWN: 0.5, SHARED: 0.4}, now=HOUR_S), epsilon=epsilon)
    assert jobs(plan, SHARED)[0] == first


def test_where_all_are_equally_behind_fairness_changes_nothing():
    # a's 90 rounds take 90 · 5/0.9 = 500 s alone, and so does b's one.
    requests = [
        request("a", 0, 5, committed=80, rounds_left=10, arrived_at=0.0),
        request("b", 1, 200, rounds_left=1, arrived_at=0.0),
    ]
    plan = venn(view(requests, {OWN: 0.5, SHARED: 0.4}, now=HOUR_S), epsilon=64.0)
    assert jobs(plan, SHARED)[0] == "b"


def test_a_lag_beyond_all_measure_overflows_nothing():
    requests = [request("a", needs=1, arrived_at=-1e12), request("b", needs=10**7, arrived_at=HOUR_S)]
    assert served(requests, epsilon=64.0) == "ab"


def test_jobs_that_nothing_can_serve_are_no_obstacle():
    seen = PoolView(HOUR_S, [request("a", 5, arrived_at=0.0)], {ANY: 1.0})
    assert jobs(venn(seen, epsilon=2.0), region(5)) == "a"


# -- the guard -------------------------------------------------------------------------------------------------------


def test_a_request_that_has_waited_the_limit_comes_first_in_all_its_regions():
    # Alone, a would wait 90/0.9 = 100 s; ten times that have passed.
    rates = {OWN: 0.5, SHARED: 0.4}
    requests = [request("a", 0, 90, waiting_since=0.0), request("b", 1, 1, waiting_since=990.0)]
    before = venn(view(requests, rates, now=999.0), starvation_limit=10)
    assert (jobs(before, OWN), jobs(before, SHARED)) == ("a", "ba")
    after = venn(view(requests, rates, now=1000.0), starvation_limit=10)
    assert (jobs(after, OWN), jobs(after, SHARED)) == ("a", "ab")


def test_the_plan_says_when_the_guard_will_change_it():
    requests = [request("a", needs=100, waiting_since=0.0), request("b", needs=30, waiting_since=500.0)]
    assert venn(view(requests, {ANY: 1.0}, now=600.0), starvation_limit=10).until == 800.0
    assert venn(view(requests, {ANY: 1.0}, now=800.0), starvation_limit=10).until == 1000.0
    assert venn(view(requests, {ANY: 1.0}, now=1000.0), starvation_limit=10).until == math.inf


def test_among_those_that_have_waited_too_long_the_first_to_do_so_goes_first():
    requests = [request("a", needs=100, waiting_since=0.0), request("b", needs=30, waiting_since=500.0)]
    assert jobs(venn(view(requests, {ANY: 1.0}, now=2000.0), starvation_limit=10), ANY) == "ba"


def test_a_request_that_has_waited_too_long_takes_any_device():
    requests = [request("a", needs=100, waiting_since=0.0), request("b", needs=30, waiting_since=500.0)]
    offers = venn(view(requests, {ANY: 1.0}, now=900.0), starvation_limit=10).offers(ANY)
    assert [(offer.attempt[0], offer.tier) for offer in offers] == [("b", None), ("a", None)]


def test_a_retry_does_not_make_the_wait_any_shorter():
    retried = request("a", 0, 90, opened_at=999.0, waiting_since=0.0)
    plan = venn(view([retried, request("b", 1, 1, opened_at=999.0)], {OWN: 0.5, SHARED: 0.4}, now=1000.0),
                starvation_limit=10)  # fmt: skip
    assert jobs(plan, SHARED) == "ab"


def test_without_a_limit_nobody_has_first_claim():
    seen = view([request("a", 0, 90), request("b", 1, 1)], {OWN: 0.5, SHARED: 0.4}, now=1e9)
    assert jobs(venn(seen), SHARED) == "ba"
    assert venn(seen).until == math.inf
