"""The two engines leave behind the same run, bit for bit: assignments, times and counters, in any small world.

Worlds are small and their times are whole numbers, so that things happen in the same moment as often as possible.
"""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vennue.core.errors import InvalidInput
from vennue.core.job import JobSpec
from vennue.core.plan import Offer, Plan, PoolView, Tier
from vennue.policies import Policy, available, get_policy
from vennue.simulation.options import Options
from vennue.simulation.result import RunResult
from vennue.simulation.run import simulate
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, Trace
from vennue.simulation.workload import JobTemplate

pytestmark = pytest.mark.timeout(600)  # the first run of all compiles the kernel

EXAMPLES = int(os.environ.get("EXAMPLES", "0")) or settings().max_examples // 3
"""Worlds per policy: a third of what the profile says (``soak``: thousands), unless the environment says otherwise."""

REQUIREMENTS = ["true", "device.ram_gb >= 4", "device.ram_gb >= 8", "device.ram_gb < 8", "device.ram_gb < 2"]
TABLE = DeviceTable({"ram_gb": [1.0, 4.0, 6.0, 8.0]})


class LongestWait(Policy):
    """A third party's policy, which the kernel knows nothing of, with a plan that goes out of date by itself."""

    name = "longest-wait"

    def plan(self, view: PoolView) -> Plan:
        ordered = sorted(view.requests, key=lambda r: (-r.waiting_since, r.committed, r.service, r.arrival))
        return Plan([(r.bit, (r.offer,)) for r in ordered], until=view.now + 50.0)


class OpeningOrder(Policy):
    """Serves requests in the order of the view, half of them restricted to a tier."""

    name = "opening-order"
    work_conserving: ClassVar[bool] = False

    def plan(self, view: PoolView) -> Plan:
        offers = [
            r.offer if r.lottery < 0.5 else Offer(r.attempt, Tier(0.0, 40.0 + 40.0 * r.lottery)) for r in view.requests
        ]
        return Plan([(r.bit, (offer,)) for r, offer in zip(view.requests, offers, strict=True)])


SHIPPED = [name for name in available() if type(get_policy(name)).__module__.startswith("vennue.")]
POLICIES = [*SHIPPED, LongestWait, OpeningOrder]
PARAMETERS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "venn-sched": st.fixed_dictionaries({"demand_scope": st.sampled_from(["round", "job"])}),
    "venn": st.fixed_dictionaries(
        {
            "demand_scope": st.sampled_from(["round", "job"]),
            "tiers": st.sampled_from([1, 2, 3, 4]),
            "epsilon": st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5]),
            "starvation_limit": st.sampled_from([None, None, 0.5, 2.0]),
        }
    ),
    "fifo-match": st.fixed_dictionaries({"tiers": st.sampled_from([1, 2, 3])}),
}
LEARNING = [name for name in SHIPPED if get_policy(name).learns]


@st.composite
def specs(draw: st.DrawFn, number: int) -> JobSpec:
    demand = draw(st.integers(1, 5))
    fields: dict[str, Any] = {
        "name": f"job {number}",
        "demand": demand,
        "rounds": draw(st.integers(1, 4)),
        "requirement": draw(st.sampled_from(REQUIREMENTS[:4])),
        "weight": draw(st.sampled_from([1.0, 1.0, 2.0, 0.3])),
        "lease_s": draw(st.sampled_from([None, None, 60.0, 150.0])),
        "max_attempts": draw(st.sampled_from([None, None, 3])),
        "round_limit_s": draw(st.sampled_from([7 * 86_400.0, 400.0])),
    }
    kind = draw(st.sampled_from(["timed", "timed", "patient", "async"]))
    if kind == "async":
        fields |= {
            "mode": "async",
            "buffer_size": draw(st.integers(1, 4)),
            "max_staleness": draw(st.sampled_from([None, 0, 1])),
        }
    else:
        fields["overcommit"] = draw(st.sampled_from([1.0, 1.0, 1.5]))
        enough: list[dict[str, Any]] = [{}, {"min_fraction": 0.5}, {"min_reports": draw(st.integers(1, demand))}]
        fields |= draw(st.sampled_from(enough))
        if kind == "timed":
            fields["deadline_s"] = float(draw(st.sampled_from([60, 100, 300])))
    if draw(st.integers(0, 4)) == 0:
        fields["time_limit_s"] = float(draw(st.sampled_from([300, 600, 900])))
    return JobSpec(**fields)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A few devices with a few sessions each, repeated for ever."""
    period = draw(st.sampled_from([600, 1500]))
    sessions = []
    for device in range(draw(st.integers(1, 10))):
        at = draw(st.integers(0, period // 2))
        for _ in range(draw(st.integers(1, 4))):
            if at >= period:
                break
            length = draw(st.sampled_from([0, 10, 49, 50, 51, 100, 300]))
            sessions.append((device, at, at + length))
            at += length + draw(st.sampled_from([0, 1, 20, 100, 400]))
    return Trace(*zip(*sessions, strict=True), period_s=period, name="small")


OPTIONS = st.builds(
    Options,
    poll_interval_s=st.sampled_from([0.0, 0.0, 20.0, 35.0]),
    tasks_per_session=st.sampled_from([0, 1, 2]),
    anonymous_sessions=st.booleans(),
    dispatch_s=st.sampled_from([0.0, 2.0]),
    accept_only_what_fits=st.booleans(),
    lease_s=st.sampled_from([None, 70.0]),
    overcommit=st.sampled_from([1.0, 1.3]),
    min_fraction=st.sampled_from([None, None, 0.7]),
    deadlines=st.sampled_from([True, True, True, False]),
    replan_interval_s=st.sampled_from([0.0, 0.0, 0.0, 30.0]),
    horizon_s=st.sampled_from([3000.0, 1000.0]),
)


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    options = draw(OPTIONS)
    if options.anonymous_sessions:
        options = options_with(options, extend_s=draw(st.sampled_from([0.0, 80.0])))
    capacity = Capacity(
        draw(st.sampled_from([[78.0], [78.0, 26.0, 156.0]])), draw(st.sampled_from([[13_736.0], [13_736.0, 3000.0]]))
    )
    jobs = [
        JobTemplate(draw(specs(number)), float(draw(st.sampled_from([0, 0, 50, 600]))), 30.0)
        for number in range(draw(st.integers(1, 6)))
    ]
    return {
        "workload": jobs,
        "trace": draw(traces()),
        "population": DevicePopulation(TABLE, capacity, seed=draw(st.integers(0, 3))),
        "options": options,
        "seed": draw(st.integers(0, 3)),
    }


@st.composite
def instructive_worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Worlds that are large enough for matching: jobs of many rounds, and more devices than they need."""
    capacity = Capacity(
        draw(st.sampled_from([[78.0, 26.0, 300.0], np.geomspace(10.0, 300.0, 100).tolist()])),
        draw(st.sampled_from([[13_736.0], [13_736.0, 3000.0]])),
    )
    jobs = []
    for number in range(draw(st.integers(1, 4))):
        demand = draw(st.integers(5, 20))
        fields: dict[str, Any] = {
            "deadline_s": draw(st.sampled_from([None, 150.0, 600.0])),
            "overcommit": draw(st.sampled_from([1.0, 1.2])),
        }
        if draw(st.integers(0, 5)) == 0:
            fields = {"mode": "async", "buffer_size": draw(st.integers(1, demand))}
        spec = JobSpec(
            name=f"job {number}",
            demand=demand,
            rounds=draw(st.integers(20, 50)),
            requirement=draw(st.sampled_from(REQUIREMENTS[:3])),
            **fields,
        )
        jobs.append(JobTemplate(spec, float(draw(st.sampled_from([0, 0, 500]))), 30.0))
    gap = draw(st.sampled_from([0.25, 1, 5]))
    devices = draw(st.integers(50, 150))
    sessions = [(device, device * gap, device * gap % 1000 + 900) for device in range(devices)]
    return {
        "workload": jobs,
        "trace": Trace(*zip(*sessions, strict=True), period_s=1001.0, name="instructive"),
        "population": DevicePopulation(TABLE, capacity, seed=draw(st.integers(0, 3))),
        "options": Options(
            poll_interval_s=draw(st.sampled_from([20.0, 60.0])),
            anonymous_sessions=draw(st.booleans()),
            dispatch_s=draw(st.sampled_from([0.0, 2.0])),
            replan_interval_s=draw(st.sampled_from([0.0, 0.0, 30.0])),
            horizon_s=8000.0,
        ),
        "seed": draw(st.integers(0, 3)),
    }


def options_with(options: Options, **changes: object) -> Options:
    return msgspec.structs.replace(options, **changes)


def differences(one: RunResult, other: RunResult) -> Iterable[str]:
    for part in ("jobs", "attempts", "assignments", "usage", "regions"):
        left, right = getattr(one, part), getattr(other, part)
        assert left.keys() == right.keys()
        for name, column in left.items():
            if not _equal(column, right[name]):
                yield f"{part}.{name}: {column.tolist()} != {right[name].tolist()}"
    for field in dataclasses.fields(one):
        if field.name not in {"jobs", "attempts", "assignments", "usage", "regions", "engine", "wall_s"}:
            left, right = getattr(one, field.name), getattr(other, field.name)
            if left != right:
                yield f"{field.name}: {left} != {right}"


def _equal(left: np.ndarray, right: np.ndarray) -> bool:
    if len(left) != len(right):
        return False
    same = left == right
    if left.dtype.kind == "f":
        same |= np.isnan(left) & np.isnan(right)
    return bool(same.all())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: getattr(policy, "name", policy))
@given(world=worlds(), data=st.data())
@settings(max_examples=EXAMPLES)
def test_both_engines_leave_the_same_run(policy: Any, world: dict[str, Any], data: st.DataObject):
    assert_they_agree(policy, world, data)


@pytest.mark.parametrize("policy", LEARNING)
@given(world=instructive_worlds(), data=st.data())
@settings(max_examples=EXAMPLES // 3)
def test_both_engines_learn_the_same(policy: str, world: dict[str, Any], data: st.DataObject):
    assert_they_agree(policy, world, data)


def assert_they_agree(policy: Any, world: dict[str, Any], data: st.DataObject) -> None:
    parameters = data.draw(PARAMETERS.get(policy, st.just({})), label="parameters")
    try:
        runs = both(policy, parameters, world)
    except InvalidInput as error:
        assume(error.field != "horizon_s")  # too short for any job
        raise
    assert list(differences(*runs)) == []
    for run in runs:
        assert_times_add_up(run)


def assert_times_add_up(run: RunResult) -> None:
    """Delay and collection are parts of the time that a job has run, and no moment is in both."""
    jobs = run.jobs
    ended_s = np.where(np.isnan(jobs["ended_s"]), run.end_s, jobs["ended_s"])
    lived_s = np.maximum(ended_s - jobs["arrival_s"], 0.0)
    assert (jobs["scheduling_delay_s"] >= 0).all()
    assert (jobs["collection_s"] >= 0).all()
    assert (jobs["scheduling_delay_s"] + jobs["collection_s"] <= lived_s + 1e-6).all()


def both(policy: Any, parameters: dict[str, Any], world: dict[str, Any]) -> list[RunResult]:
    return [
        simulate(
            policy=get_policy(policy, **parameters) if isinstance(policy, str) else policy(),
            engine=engine,
            validate=engine == "kernel",
            keep_assignments=True,
            **world,
        )
        for engine in ("reference", "kernel")
    ]
