"""What the kernel's checks notice, each fault put into the memory of a run under way."""

from collections.abc import Callable

import numpy as np
import pytest

from vennue.core.errors import InvariantViolated
from vennue.core.job import JobSpec
from vennue.policies import get_policy
from vennue.simulation.kernel.checks import Checks
from vennue.simulation.kernel.driver import KernelEngine
from vennue.simulation.kernel.state import COMPLETED, State
from vennue.simulation.options import Options
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, Trace
from vennue.simulation.workload import JobTemplate
from vennue.simulation.world import World

pytestmark = pytest.mark.timeout(600)  # the first run of all compiles the kernel

MEETS = np.ones((1, 1), np.uint8)


def state_under_way() -> State:
    """Two devices at work for the first of two jobs, which wants three, when the horizon is reached."""
    trace = Trace([0, 1], [10, 20], [900, 900], period_s=1000)
    population = DevicePopulation(DeviceTable({"ram_gb": [4.0]}), Capacity([78.0], [13_736.0]))
    jobs = [JobTemplate(JobSpec(name=f"j{n}", demand=3, rounds=1, deadline_s=500.0), n, 30.0) for n in range(2)]
    world = World(jobs, trace, population, seed=0, options=Options(horizon_s=40.0))
    engine = KernelEngine(world, get_policy("fifo"), validate=True)
    assert engine.run(lambda: False) == "horizon"
    return engine._state


def same_device_twice(state: State) -> None:
    state.slots["device"][state.slots["generation"] > 0] = 1


def lost_count(state: State) -> None:
    state.jobs["live"][0] = 1


def too_many(state: State) -> None:
    state.jobs["wanted"][0] = 1


def late_timer(state: State) -> None:
    state.timers[len(state.timers) // 2] += 1.0


def ended_with_devices(state: State) -> None:
    state.jobs["state"][0] = COMPLETED


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (same_device_twice, "1. device 1 holds 2 live assignments"),
        (too_many, "3. job 0 holds 2 assignments, it wants 1"),
        (lost_count, "4. job 0 counts 1 live assignments, there are 2"),
        (lost_count, "4. job 0 has bound 2 devices, 1 are accounted for"),
        (ended_with_devices, "5. job 0 has ended, and has an attempt"),
        (ended_with_devices, "5. job 0 is completed after 0 of 1 rounds"),
        (late_timer, "7. job 0 is due at"),
    ],
)
def test_a_broken_invariant_is_named_by_its_number(fault: Callable[[State], None], said: str):
    state = state_under_way()
    Checks(MEETS).check(state)
    fault(state)
    with pytest.raises(InvariantViolated, match=f"at 40.000 s.*{said}"):
        Checks(MEETS).check(state)


def test_a_device_that_does_not_meet_the_requirement_is_named():
    with pytest.raises(InvariantViolated, match=r"2\. a device of kind 0 serves job 0"):
        Checks(np.zeros((1, 1), np.uint8)).check(state_under_way())


def test_a_job_that_had_ended_stays_so():
    state, checks = state_under_way(), Checks(MEETS)
    state.jobs["state"][1] = COMPLETED
    state.jobs["open"][1] = 0
    with pytest.raises(InvariantViolated, match=r"5\. job 1 is completed after 0"):
        checks.check(state)
    state.jobs["state"][1] = 1
    state.jobs["open"][1] = 1
    with pytest.raises(InvariantViolated, match=r"5\. job 1 had ended, and its state has changed"):
        checks.check(state)
