"""What every policy promises, whichever it is: the same histories for all, built-in and registered alike."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.policies.worlds import BITS, history, jobs, region, request, view
from vennue.core.binding import BindingTable
from vennue.core.ids import DeviceId, Signature
from vennue.core.plan import PoolView, Request
from vennue.policies import get_policy
from vennue.policies.registry import POLICIES

every_policy = pytest.mark.parametrize("name", [*POLICIES.built_in])  # and none that other tests have registered
randoms = st.integers(0, 2**32).map(random.Random)


def signatures(seen: PoolView) -> Iterable[Signature]:
    """The regions seen, and some that appear only after the plan was made."""
    return (*seen.rates, region(), region(*range(BITS)), *(region(r.bit) for r in seen.requests))


@every_policy
@given(randoms)
def test_a_region_is_offered_each_request_that_it_covers_once_and_no_other(name: str, rng: random.Random) -> None:
    """Those that need devices; where devices do not know who does, all that are open."""
    policy = get_policy(name)
    for seen in history(rng):
        plan = policy.plan(seen)
        for signature in signatures(seen):
            offered = [offer.attempt for offer in plan.offers(signature)]
            listed = seen.requests if policy.work_conserving else seen.everyone
            assert sorted(offered) == sorted(r.attempt for r in listed if signature >> r.bit & 1)


@every_policy
@given(randoms)
def test_the_plan_follows_from_the_view_alone(name: str, rng: random.Random) -> None:
    experienced = get_policy(name)
    for seen in history(rng):
        plan, fresh = experienced.plan(seen), get_policy(name).plan(seen)
        assert (plan.choice, plan.until) == (fresh.choice, fresh.until)
        for signature in signatures(seen):
            assert plan.offers(signature) == fresh.offers(signature)


@every_policy
@given(randoms)
def test_planning_changes_nothing_that_it_looks_at(name: str, rng: random.Random) -> None:
    policy = get_policy(name)
    for seen in history(rng):
        before = state(seen)
        policy.plan(seen)
        assert state(seen) == before


@every_policy
@given(randoms)
def test_no_eligible_device_is_turned_away_while_a_request_needs_it(name: str, rng: random.Random) -> None:
    """Tiers aside, and policies that say that they are not work conserving."""
    policy = get_policy(name)
    for seen in history(rng):
        plan = policy.plan(seen)
        for signature in seen.rates:
            table = BindingTable()
            for r in seen.everyone:
                table.open(r, lease_s=60.0)
            table.publish(plan)
            covered = any(signature >> r.bit & 1 for r in seen.requests)
            excused = not policy.work_conserving or any(offer.tier is not None for offer in plan.offers(signature))
            bound = table.bind(DeviceId("d"), signature, seen.now, draw=rng.random(), response_s=rng.expovariate(0.02))
            assert bound is not None if covered and not excused else bound is None or covered
            if bound is not None:  # the next region meets the same world
                del bound.request.live[bound.id]


@every_policy
def test_without_requests_nothing_is_offered(name: str) -> None:
    assert get_policy(name).plan(PoolView(0.0, [], {region(0): 1.0})).offers(region(0)) == ()


@every_policy
def test_without_any_supply_a_region_that_appears_later_is_served(name: str) -> None:
    plan = get_policy(name).plan(view([request("a", 3)], {}))
    assert jobs(plan, region(3)) == "a"


@every_policy
def test_requests_alike_are_served_by_arrival_and_then_by_id(name: str) -> None:
    alike = [request("c", arrival=1), request("b", arrival=1), request("z", arrival=0)]
    assert jobs(get_policy(name).plan(view(alike)), region(0)) == "zbc"


@every_policy
def test_requirements_beyond_the_width_of_a_machine_word_are_told_apart(name: str) -> None:
    requests = [request("a", 3), request("b", 67), request("c", 69)]
    plan = get_policy(name).plan(view(requests, {region(3, 67): 1.0, region(69): 1.0}))
    assert sorted(jobs(plan, region(3, 67))) == ["a", "b"]
    assert jobs(plan, region(69)) == "c"


def state(seen: PoolView) -> list[object]:
    requests: list[Request] = list(seen.requests)
    fields = [slot for slot in Request.__slots__ if slot not in {"live", "reported"}]
    return [
        [[getattr(r, field) for field in fields] + [dict(r.live), dict(r.reported)] for r in requests],
        dict(seen.rates),
        list(seen.capabilities),
        {job: profile.snapshot() for job, profile in seen.profiles.items()},
    ]
