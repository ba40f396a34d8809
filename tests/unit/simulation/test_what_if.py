"""What a new job would do to a pool, worked out by hand from supply, demand and the policy's order."""

import pytest

from vennue.core.errors import InvalidInput
from vennue.core.ids import JobId
from vennue.core.job import JobSpec
from vennue.protocol import JobLoad, KindSupply, PoolSnapshot
from vennue.simulation.what_if import what_if

BIG = "device.ram_gb >= 4"


def pool(*jobs, policy="fifo", supply=None):
    """A pool in which one device with 6 GB and one with 2 GB check in per second."""
    if supply is None:
        supply = [KindSupply(attributes={"ram_gb": ram, "data": ["x"]}, by_hour_per_s=[1.0] * 24) for ram in (6.0, 2.0)]
    return PoolSnapshot(taken_at=0.0, policy=policy, parameters={}, supply=supply, jobs=list(jobs))


def load(name, *, rounds=1, collection_s=100.0, **spec):
    return JobLoad(
        id=name, name=name, spec=JobSpec(**{"name": name, "demand": 1000, **spec}), rounds_left=rounds,
        collection_s=collection_s,
    )  # fmt: skip


def test_in_first_come_first_served_order_a_new_job_delays_nobody_and_waits_for_all():
    found = what_if(pool(load("old")), JobSpec(name="new", demand=1000, rounds=1))
    old, new = found.jobs
    # Two a second: 500 s for a thousand devices, and 100 s to collect; the new one gets its own after those.
    assert old.without_s == pytest.approx(600, rel=0.1)
    assert old.with_s == pytest.approx(old.without_s)
    assert new.with_s == pytest.approx(1100, rel=0.1)
    assert (new.without_s, new.is_new, new.eligible_per_s) == (None, True, 2.0)


def test_under_shortest_job_first_a_small_new_job_delays_a_large_one_by_its_demand():
    found = what_if(pool(load("old"), policy="srsf"), JobSpec(name="new", demand=200, rounds=1))
    old, new = found.jobs
    assert new.with_s == pytest.approx(200, rel=0.1)  # 100 s for its devices, 100 s to collect
    assert old.without_s is not None
    assert old.with_s == pytest.approx(old.without_s + 100, rel=0.1)


def test_only_the_devices_that_meet_the_requirement_count():
    found = what_if(pool(), JobSpec(name="new", demand=300, rounds=1, requirement=BIG + ' && "x" in device.data'))
    assert found.jobs[0].eligible_per_s == 1.0
    assert found.jobs[0].with_s == pytest.approx(330, rel=0.15)  # 300 s for the devices, the usual 30 to collect


def test_a_job_that_no_device_can_serve_never_ends_and_the_others_are_simulated():
    found = what_if(
        pool(load("old"), load("odd", requirement="device.ram_gb > 64")), JobSpec(name="new", demand=10, rounds=1)
    )
    old, odd, new = found.jobs
    assert (odd.eligible_per_s, odd.without_s, odd.with_s) == (0.0, None, None)
    assert old.with_s is not None
    assert new.with_s is not None


def test_an_open_ended_job_is_simulated_for_its_next_rounds_and_private_parts_are_left_out():
    old = load("old", rounds=None, demand=10, collection_s=10.0, private_requirement="device.samples > 3")
    found = what_if(pool(old), JobSpec(name="new", demand=10, rounds=2, after=(JobId("old"),)))
    assert (found.jobs[0].rounds, found.jobs[0].open_ended) == (10, True)
    assert found.jobs[0].without_s == pytest.approx(10 * 15, rel=0.25)


def test_hours_that_were_not_observed_are_taken_to_be_like_the_others():
    supply = [KindSupply(attributes={}, by_hour_per_s=[None] * 23 + [2.0])]
    found = what_if(pool(supply=supply), JobSpec(name="new", demand=1000, rounds=1))
    assert found.jobs[0].eligible_per_s == 2.0


def test_a_pool_in_which_nobody_checked_in_cannot_be_simulated():
    with pytest.raises(InvalidInput, match="no device has checked in yet"):
        what_if(pool(supply=[]), JobSpec(name="new", demand=1))


def test_an_early_stop_is_marked():
    found = what_if(pool(load("old")), JobSpec(name="new", demand=1000, rounds=1), stop=lambda: True)
    assert found.stopped
    assert found.jobs[0].with_s is None
