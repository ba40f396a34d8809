"""Small-batch mode in simulations: devices wait for one another, every invariant holds, and more of them are used."""

from typing import Any

import numpy as np
import pytest

from vennue.core.errors import InvalidInput
from vennue.core.job import JobSpec
from vennue.simulation.options import Options
from vennue.simulation.result import RunResult
from vennue.simulation.run import simulate
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, Trace
from vennue.simulation.workload import JobTemplate

TABLE = DeviceTable({"ram_gb": [2.0, 8.0]})
ANY = JobSpec(name="any", demand=1, rounds=3, deadline_s=400.0, min_fraction=1.0)
BIG = JobSpec(name="big", demand=1, rounds=3, deadline_s=400.0, min_fraction=1.0, requirement="device.ram_gb >= 8")


def run(window_s: float, *specs: JobSpec, **options: Any) -> RunResult:
    """A small and a big device check in every 500 s, the big one 1 s before the small one. Device 1 is the big one."""
    sessions = [(1, 100.0, 400.0), (0, 101.0, 400.0)]
    trace = Trace(*zip(*sessions, strict=True), period_s=500, name="two")
    defaults = {"poll_interval_s": 0.0, "overcommit": 1.0, "lease_s": None, "dispatch_s": 0.0, "horizon_s": 20_000.0}
    return simulate(
        [JobTemplate(spec, 0.0, 30.0) for spec in specs],
        "fifo",
        trace=trace,
        population=DevicePopulation(TABLE, Capacity([78.0], [13_736.0]), seed=1),
        options=Options(**{**defaults, **options}, batch_window_s=window_s),
        engine=options.pop("engine", "auto"),
        validate=True,
        keep_assignments=True,
    )


def test_devices_are_bound_when_their_window_ends():
    result = run(10.0, ANY)
    assert result.engine == "reference"
    assert result.assignments is not None
    assert set(np.mod(result.assignments["bound_s"], 500.0)) == {110.0}


def test_a_device_that_only_one_job_can_use_is_not_wasted_on_the_other():
    online, batches = run(0.0, ANY, BIG), run(10.0, ANY, BIG)
    # Bound one by one, the big device serves "any", which came first, until that has ended: in the rounds from 100, 600
    # and 1100 s, and "big" from 1600 s. Bound together, both jobs end in the round from 1100 s.
    assert online.jobs["ended_s"][1] > 2600.0
    assert batches.jobs["ended_s"].max() < 1600.0


def test_a_device_that_leaves_while_it_waits_does_no_work():
    result = run(350.0, ANY, anonymous_sessions=True)
    assert result.jobs["state"].tolist() == ["unfinished"]
    assert result.counters["failed"] > 0


@pytest.mark.parametrize(
    ("window_s", "spec", "said"),
    [(10.0, ANY, "wait for one another"), (0.0, JobSpec(name="a", demand=1, rounds=1, overcommit="auto"), "auto")],
)
def test_the_kernel_refuses_what_only_the_core_can_do(window_s, spec, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        simulate(
            [JobTemplate(spec, 0.0, 30.0)],
            "fifo",
            options=Options(batch_window_s=window_s),
            engine="kernel",
        )
    assert caught.value.field == "engine"


def test_a_job_that_binds_by_measured_losses_runs_on_the_core():
    result = run(0.0, JobSpec(name="a", demand=2, rounds=2, deadline_s=400.0, overcommit="auto"))
    assert (result.engine, result.jobs["state"].tolist()) == ("reference", ["completed"])
