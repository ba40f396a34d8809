"""What if a job were submitted to a running pool: its jobs simulated with and without it, on the supply that it has.

The pool's snapshot says how many devices of each kind checked in during each hour of the last day, and which jobs have
how many rounds to go; the coming days are taken to be like the last one. Both sides meet the same devices. Each
check-in stands for a device that does one task and is gone, a report takes as long as the job's rounds took to collect
so far, owners open their rounds at once, and a round in progress is begun anew.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S, JobSpec
from vennue.core.requirement import AttributeSchema, Requirement
from vennue.protocol import JobLoad, PoolSnapshot
from vennue.simulation.options import Options
from vennue.simulation.run import Engine, simulate
from vennue.simulation.traces.devices import MEAN_COMPUTATION_MS, Capacity, DevicePopulation, DeviceTable
from vennue.simulation.traces.hourly import HourlyCheckIns
from vennue.simulation.workload import JobTemplate

OPEN_ENDED_ROUNDS: Final = 10
"""What is simulated of a job that does not say how many rounds it will run."""
USUAL_TASK_S: Final = 30.0
"""What a task takes where no round has been collected yet."""
_FAST_KBPS: Final = 1e12


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a job is expected to be done, in seconds from now; None where that is beyond what was simulated."""

    job: str
    name: str
    is_new: bool
    rounds: int
    """Rounds to go, as far as they were simulated."""
    open_ended: bool
    eligible_per_s: float
    """Eligible check-ins per second over the last day."""
    without_s: float | None
    """Without the new job."""
    with_s: float | None
    """With it."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The pool's jobs with and without a new one."""

    policy: str
    seeds: int
    simulated_s: float
    """How far the simulations went at most."""
    stopped: bool
    """Whether they were ended early, so that more would have been done later."""
    jobs: list[Forecast]


def what_if(
    snapshot: PoolSnapshot,
    spec: JobSpec,
    *,
    policy: str | None = None,
    parameters: Mapping[str, object] | None = None,
    seeds: int = 3,
    horizon_s: float = 7 * DAY_S,
    engine: Engine = "auto",
    stop: Callable[[], bool] | None = None,
) -> WhatIf:
    """Simulate a pool's jobs with and without a new one.

    Args:
        snapshot: the pool.
        spec: the new job.
        policy: the pool's own by default.
        parameters: of ``policy``.
        seeds: draws of devices to average over.
        horizon_s: how far to look.
        engine: which engine to use.
        stop: asked now and then whether to stop early.

    Raises:
        InvalidInput: the spec makes no sense, nobody has checked in yet, or the policy is not here.
    """
    spec.check(AttributeSchema.open())
    spec.check_idle_fields()
    loads = [*snapshot.jobs, JobLoad(id="", name=spec.name, spec=spec, rounds_left=spec.rounds, collection_s=None)]
    kinds, rates = _kinds(snapshot, [load.spec.requirement for load in loads])
    mean_rates = rates.mean(axis=0)
    eligible = [float(mean_rates[[kind[index] for kind in kinds]].sum()) for index in range(len(loads))]
    usual_s = fmean([load.collection_s for load in loads if load.collection_s] or [USUAL_TASK_S])
    templates = [_template(index, load, usual_s) for index, load in enumerate(loads)]
    able = [index for index, rate in enumerate(eligible) if rate > 0]
    table = DeviceTable({f"r{index}": [kind[index] for kind in kinds] for index in range(len(loads))})
    population = DevicePopulation(
        table, Capacity([MEAN_COMPUTATION_MS], [_FAST_KBPS]), listed_rows=np.arange(len(kinds))
    )
    longest_s = max(template.workload_s for template in templates)
    chosen = snapshot.policy if policy is None else policy
    settings = (snapshot.parameters if policy is None else parameters) or {}
    simulated_s, stopped = 0.0, False

    def ends(indices: Sequence[int]) -> dict[int, float | None]:
        """When each of these jobs is done, on average over the seeds."""
        nonlocal simulated_s, stopped
        if not indices:
            return {}
        found: dict[int, list[float]] = {index: [] for index in indices}
        for seed in range(seeds):
            result = simulate(
                [templates[index] for index in indices],
                chosen,
                parameters=settings,
                seed=seed,
                trace=HourlyCheckIns(rates, session_s=max(3600.0, 4 * longest_s), seed=seed, name=snapshot.policy),
                population=population,
                options=_options(horizon_s),
                engine=engine,
                stop=stop,
            )
            simulated_s = max(simulated_s, result.end_s)
            stopped = stopped or result.ended == "stopped"
            for index, ended_s in zip(indices, result.jobs["ended_s"].tolist(), strict=True):
                found[index].append(ended_s)
        means = {index: fmean(times) for index, times in found.items()}
        return {index: mean if math.isfinite(mean) else None for index, mean in means.items()}

    new = len(loads) - 1
    without = ends([index for index in able if index != new])
    with_it = ends(able)
    return WhatIf(
        policy=chosen,
        seeds=seeds,
        simulated_s=simulated_s,
        stopped=stopped,
        jobs=[
            Forecast(
                job=load.id,
                name=load.name,
                is_new=index == new,
                rounds=templates[index].spec.rounds or 0,
                open_ended=load.rounds_left is None,
                eligible_per_s=eligible[index],
                without_s=without.get(index),
                with_s=with_it.get(index),
            )
            for index, load in enumerate(loads)
        ],
    )


def _kinds(snapshot: PoolSnapshot, texts: Sequence[str]) -> tuple[list[tuple[bool, ...]], np.ndarray]:
    """The kinds of devices, by which of the requirements they meet, and the check-ins of each by the hour from now."""
    requirements = [Requirement.parse(text, AttributeSchema.open()) for text in texts]
    by_kind: dict[tuple[bool, ...], np.ndarray] = {}
    for supply in snapshot.supply:
        kind = tuple(requirement.matches(supply.attributes) for requirement in requirements)
        rates = np.array([math.nan if rate is None else rate for rate in supply.by_hour_per_s])
        by_kind[kind] = by_kind.get(kind, 0.0) + rates
    if not by_kind:
        raise InvalidInput(
            "no device has checked in yet, so there is nothing to simulate", field="supply", value=0, limit=1,
            fix="try again when devices have checked in",
        )  # fmt: skip
    rates = np.stack(list(by_kind.values()), axis=1)
    observed = ~np.isnan(rates).any(axis=1)
    rates[~observed] = rates[observed].mean(axis=0) if observed.any() else 0.0
    return list(by_kind), rates


def _template(index: int, load: JobLoad, usual_s: float) -> JobTemplate:
    """A job as the engines take it: its rounds to go, arriving now; the pool's requirements are the devices' kinds."""
    spec = msgspec.structs.replace(
        load.spec,
        requirement=f"device.r{index}",
        private_requirement=None,
        after=(),
        rounds=OPEN_ENDED_ROUNDS if load.rounds_left is None else load.rounds_left,
        time_limit_s=None,
    )
    task_s = load.collection_s or usual_s
    if spec.deadline_s is not None:
        task_s = min(task_s, spec.deadline_s / 2)
    return JobTemplate(spec=spec, arrival_s=0.0, workload_s=task_s)


def _options(horizon_s: float) -> Options:
    return Options(
        poll_interval_s=0.0,
        tasks_per_session=1,
        anonymous_sessions=True,
        dispatch_s=0.0,
        lease_s=None,
        overcommit=1.0,
        horizon_s=horizon_s,
    )
