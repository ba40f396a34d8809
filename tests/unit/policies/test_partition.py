"""Pools that do not share: a device serves one job, also while that job needs nobody."""

from collections import Counter

import pytest

from tests.unit.policies.worlds import region, request, view
from vennue.core.binding import BindingTable
from vennue.core.ids import DeviceId, JobId
from vennue.core.tenant import Quota, Tenant
from vennue.policies import get_policy
from vennue.policies.partition import any_of, owner

JOBS = [JobId(name) for name in "abcd"]
DEVICES = [DeviceId(f"device-{number}") for number in range(4000)]


def owned(jobs: list[JobId]) -> list[JobId]:
    return [jobs[owner(device, 0.0, jobs)] for device in DEVICES]


def bind(policy: str, *requests, draw: float = 0.0, declined: frozenset[JobId] | None = None) -> list[str]:
    """The jobs that the first hundred devices get, - for none."""
    table = BindingTable()
    for one in requests:
        table.open(one, lease_s=60.0)
    table.publish(get_policy(policy).plan(view(requests)))
    bound = (table.bind(device, region(0), 0.0, draw=draw, declined=declined) for device in DEVICES[:100])
    return ["-" if assignment is None else assignment.job for assignment in bound]


def test_each_job_owns_an_equal_share_of_the_devices():
    # Four standard deviations of a binomial count: 4 × √(4000 × 1/4 × 3/4) = 110.
    assert all(abs(share - 1000) < 110 for share in Counter(owned(JOBS)).values())


def test_a_job_that_arrives_takes_devices_from_the_others_and_moves_no_device_between_them():
    moved = {(before, after) for before, after in zip(owned(JOBS[:3]), owned(JOBS), strict=True) if before != after}
    assert moved == {(job, "d") for job in "abc"}


def test_the_owner_of_a_device_does_not_depend_on_the_order_of_the_jobs():
    assert owned(JOBS) == owned(JOBS[::-1])


def test_devices_idle_while_the_job_that_owns_them_needs_nobody():
    served = bind("static-partition", request("a", needs=0, bound=5), request("b", needs=100))
    of_b = sum(owner(device, 0.0, JOBS[:2]) == 1 for device in DEVICES[:100])
    assert Counter(served) == {"b": of_b, "-": 100 - of_b}


def test_a_device_that_picks_for_itself_may_pick_a_job_that_needs_nobody():
    full, hungry = request("a", needs=0, bound=5), request("b", needs=100)
    assert set(bind("client-random", full, hungry, draw=0.49)) == {"-"}
    assert set(bind("client-random", full, hungry, draw=0.5)) == {"b"}


def test_devices_that_pick_for_themselves_pick_uniformly():
    picked = Counter(any_of(DEVICES[0], number / 100, JOBS) for number in range(100))
    assert picked == {0: 25, 1: 25, 2: 25, 3: 25}


@pytest.mark.parametrize("policy", ["static-partition", "client-random"])
def test_a_device_that_declined_the_job_it_would_serve_serves_no_other(policy):
    both = request("a", needs=100), request("b", needs=100)
    served = bind(policy, *both)
    spared = bind(policy, request("a", needs=100), request("b", needs=100), declined=frozenset({JobId("a")}))
    assert spared == ["-" if job == "a" else job for job in served]


@pytest.mark.parametrize(("borrow", "expected"), [(True, 100), (False, 7)])
def test_quotas_hold_for_devices_that_serve_one_job_only(borrow, expected):
    tenant = Tenant("team", Quota(devices=7, borrow=borrow))
    served = bind("client-random", request("a", needs=200, tenant=tenant))
    assert served.count("a") == expected
