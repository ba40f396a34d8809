"""Matching (spec section 3): when the gate opens, which tier is drawn, and whom it restricts."""

import math

import pytest

from tests.unit.policies.worlds import region, request, view
from vennue.core.ids import JobId
from vennue.core.plan import PoolView, Request, Tier
from vennue.core.profile import ProfileSnapshot, ResponseProfile
from vennue.policies import get_policy
from vennue.policies.matching import Matcher, gate_opens, tier_bounds_s

ANY = region(0)
SPEEDS_S = [float(seconds) for seconds in range(1, 101)]
"""A hundred devices, one for each expected response time from 1 s to 100 s."""
CAPABILITIES = tuple((seconds, ANY) for seconds in SPEEDS_S)


def profile(*, collection_s: float = 100.0, delay_s: float = 10.0) -> ResponseProfile:
    """Of a job whose devices take as long as expected, each speed reported twice; c = collection / delay."""
    return ResponseProfile.restore(ProfileSnapshot(SPEEDS_S * 2, SPEEDS_S * 2, [(delay_s, collection_s)]))


def seen_by(*requests: Request, learned: ResponseProfile | None = None, now: float = 0.0) -> PoolView:
    profiles = {r.job: learned or profile() for r in requests}
    return view(requests, {ANY: 1.0}, now, capabilities=CAPABILITIES, profiles=profiles)


def tier(head: Request, *, tiers: int = 2, rate_per_s: float = 1.0, **world) -> Tier | None:
    return Matcher(tiers).choose(head, seen_by(head, **world), rate_per_s)


@pytest.mark.parametrize(
    ("tiers", "gain", "opens_above"),
    [(2, 0.438, 1.78), (3, 0.620, 5.27), (3, 0.263, 2.71), (4, 0.620, 7.90), (4, 0.438, 5.34), (4, 0.208, 3.79)],
)
def test_the_gate_opens_where_the_paper_says(tiers: int, gain: float, opens_above: float):
    assert not gate_opens(tiers, gain, opens_above - 0.01)
    assert gate_opens(tiers, gain, opens_above + 0.01)


def test_a_tier_as_slow_as_all_devices_never_pays():
    assert not gate_opens(2, 1.0, 1e12)
    assert not gate_opens(2, 1.0, math.inf)


def test_tiers_hold_equal_numbers_of_devices():
    assert tier_bounds_s(CAPABILITIES, 0, 4) == [26.0, 51.0, 76.0]


def test_tiers_are_of_the_devices_that_meet_the_requirement():
    fast_and_slow = tuple((seconds, region(0) if seconds <= 40 else region(1)) for seconds in SPEEDS_S)
    assert tier_bounds_s(fast_and_slow, 0, 2) == [21.0]


def test_there_are_no_tiers_of_too_few_devices():
    assert tier_bounds_s(CAPABILITIES[:15], 0, 2) is None
    assert tier_bounds_s(CAPABILITIES[:16], 0, 2) == [9.0]


def test_there_are_no_tiers_of_devices_that_are_alike():
    assert tier_bounds_s(((0.0, ANY),) * 100, 0, 2) is None


def test_a_request_whose_collection_dominates_is_given_a_tier():
    # c = 10. Of two tiers, the faster one's p95 is 48 s and everybody's 95 s: (1 − 0.505) · 10 > 1.
    assert tier(request("a", lottery=0.0)) == Tier(-math.inf, 51.0)


def test_a_slow_tier_is_refused_when_it_gains_nothing():
    # The slower tier's p95 is 98 s, above everybody's.
    assert tier(request("a", lottery=0.9)) is None


def test_the_tier_is_drawn_by_the_requests_own_lottery():
    # Of four tiers with p95s of 24, 49, 74 and 99 s and c = 100, all but the slowest pay.
    long_collection = profile(collection_s=1000.0)
    drawn = [tier(request("a", lottery=u), tiers=4, learned=long_collection) for u in (0.1, 0.3, 0.6, 0.9)]
    assert drawn == [Tier(-math.inf, 26.0), Tier(26.0, 51.0), Tier(51.0, 76.0), None]


def test_a_request_that_mostly_waits_for_devices_takes_any():
    # c = 1: even devices that answer at once would not pay for waiting twice as long.
    assert tier(request("a", lottery=0.0), learned=profile(collection_s=10.0)) is None


def test_a_job_in_its_first_round_takes_any():
    assert tier(request("a", lottery=0.0), learned=ResponseProfile()) is None


def test_a_tier_without_reports_leaves_the_gate_shut():
    only_fast = ResponseProfile.restore(ProfileSnapshot(SPEEDS_S[:50], SPEEDS_S[:50], [(10.0, 100.0)]))
    assert tier(request("a", lottery=0.0), learned=only_fast) is None


def test_a_deadline_must_leave_time_for_the_longer_wait_and_the_tier():
    # 2 tiers · 10 devices / (1/s) + the tier's p95 of 48 s = 68 s from now.
    assert tier(request("a", lottery=0.0, deadline_at=168.0), now=100.0) is None
    assert tier(request("a", lottery=0.0, deadline_at=168.1), now=100.0) is not None


def test_a_group_that_is_served_from_no_region_is_not_restricted():
    assert tier(request("a", lottery=0.0), rate_per_s=0.0) is None


def test_an_asynchronous_job_is_not_restricted():
    assert tier(request("a", lottery=0.0, continuous=True)) is None


def test_new_capabilities_move_the_bounds():
    matcher, head = Matcher(2), request("a", lottery=0.0)
    assert matcher.choose(head, seen_by(head), 1.0) == Tier(-math.inf, 51.0)
    slower = tuple((seconds + 10, ANY) for seconds in SPEEDS_S)
    moved = PoolView(0.0, [head], {ANY: 1.0}, 0, slower, {JobId("a"): profile()})
    assert matcher.choose(head, moved, 1.0) == Tier(-math.inf, 61.0)


@pytest.mark.parametrize("policy", ["venn", "fifo-match"])
def test_only_the_head_of_a_group_is_restricted(policy: str):
    plan = get_policy(policy, tiers=2).plan(seen_by(request("a", lottery=0.0), request("b", lottery=0.0)))
    assert [offer.tier for offer in plan.offers(ANY)] == [Tier(-math.inf, 51.0), None]


def test_fifo_match_restricts_the_first_request_of_each_requirement():
    requests = [request("a", 0, lottery=0.0), request("b", 1, lottery=0.0), request("c", 0, lottery=0.0)]
    both = region(0, 1)
    capabilities = tuple((seconds, both) for seconds in SPEEDS_S)
    profiles = {r.job: profile() for r in requests}
    seen = view(requests, {both: 1.0}, capabilities=capabilities, profiles=profiles)
    offers = get_policy("fifo-match", tiers=2).plan(seen).offers(both)
    assert [(offer.attempt[0], offer.tier is not None) for offer in offers] == [("a", True), ("b", True), ("c", False)]


@pytest.mark.parametrize("policy", ["venn", "fifo-match"])
def test_one_tier_turns_matching_off(policy: str):
    plan = get_policy(policy, tiers=1).plan(seen_by(request("a", lottery=0.0)))
    assert [offer.tier for offer in plan.offers(ANY)] == [None]
