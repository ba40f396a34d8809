"""Admission refuses what can never run, with the numbers, and nothing on a pool that has not been watched for long."""

import pytest

from vennue.control.admission import admit
from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.events import CheckIn
from vennue.core.ids import DeviceId
from vennue.core.job import JobSpec
from vennue.core.pool import Pool
from vennue.policies import get_policy

DAY_S = 86_400.0


@pytest.fixture
def pool():
    """A pool that saw 8640 check-ins in a day, 0.1 per second, of which one in ten has much memory."""
    made = Pool(get_policy("fifo"))
    for number in range(8640):
        profile = made.registry.profile({"ram_gb": 12 if number % 10 == 0 else 4})
        made.handle(CheckIn(DeviceId(f"d{number}"), profile), number * 10.0)
    return made


def test_a_demand_above_all_supply_within_the_deadline_is_refused_with_the_bound(pool):
    """Case Q8."""
    spec = JobSpec(name="x", demand=1000, deadline_s=600, min_fraction=0.8, requirement="device.ram_gb >= 8")
    with pytest.raises(Infeasible) as caught:
        admit(pool, spec, DAY_S, window_s=DAY_S)
    # 0.01 eligible devices per second for 600 s are 6; a round of 7 needs 6 of them (0.8 × 7 = 5.6).
    assert (caught.value.field, caught.value.value) == ("demand", 1000)
    assert caught.value.limit == 7
    assert "800 devices within 600 s" in caught.value.message


@pytest.mark.parametrize("spec", [{"demand": 7, "deadline_s": 600.0}, {"demand": 1000}], ids=["fits", "no deadline"])
def test_what_could_run_is_let_in(pool, spec):
    admit(pool, JobSpec(name="x", requirement="device.ram_gb >= 8", **spec), DAY_S, window_s=DAY_S)


def test_a_pool_that_was_not_watched_for_a_window_refuses_nothing():
    pool = Pool(get_policy("fifo"))
    admit(pool, JobSpec(name="x", demand=1000, deadline_s=1.0), 0.0, window_s=DAY_S)
    pool.handle(CheckIn(DeviceId("d"), pool.registry.profile({})), 0.0)
    admit(pool, JobSpec(name="x", demand=1000, deadline_s=1.0), DAY_S - 1, window_s=DAY_S)


def test_a_spec_that_makes_no_sense_is_refused_before_anything_else(pool):
    with pytest.raises(InvalidInput) as caught:
        admit(pool, JobSpec(name="x", demand=0), DAY_S, window_s=DAY_S)
    assert caught.value.field == "demand"
