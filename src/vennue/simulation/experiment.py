"""Experiments: one workload under several policies and seeds, everything else being equal.

An `Experiment` names all that decides its figures, so that it can be printed beside them, and `Experiment.check` finds
what is wrong with it before hours of work. `run_experiment` runs it, here or in parallel processes
(`vennue.simulation.parallel`): a run that fails takes no other with it, and what was stopped is kept, and marked.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from vennue.core.errors import InvalidInput, VennueError
from vennue.policies import available, get_policy, load_policies
from vennue.simulation.metrics import alone_s
from vennue.simulation.options import Options
from vennue.simulation.result import RunResult
from vennue.simulation.run import Engine, beyond_kernel, describe, simulate, takes_kernel
from vennue.simulation.traces import CheckIns, DevicePopulation, open_check_ins, open_population
from vennue.simulation.traces.model import FloatArray
from vennue.simulation.workload import Workload, check, draw
from vennue.simulation.world import MAX_SEED, World

Told = Callable[[float, int], None]
"""Told now and then how far the experiment is: the fraction of its work, and how many runs have ended."""

MAX_RUNS = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy of an experiment, with the parameters that differ from its defaults."""

    name: str
    parameters: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "PolicyChoice":
        """A choice from ``NAME`` or ``NAME:PARAMETER=VALUE:…``.

        Raises:
            InvalidInput: a parameter without a value. Whether the names exist is for `Experiment.check` to say.
        """
        name, *settings = text.strip().split(":")
        parameters = {}
        for setting in settings:
            parameter, equals, value = setting.partition("=")
            if not parameter or not equals:
                raise InvalidInput(
                    f"{setting!r} in {text!r} is no PARAMETER=VALUE", field="policy", value=text,
                    fix="write it as in venn:tiers=2:epsilon=1",
                )  # fmt: skip
            parameters[parameter] = value
        return cls(name, parameters)

    @property
    def label(self) -> str:
        """How tables and plots call it.

        Raises:
            InvalidInput: there is no such policy or parameter; the error suggests the nearest.
        """
        return describe(get_policy(self.name, **self.parameters))


class Run(NamedTuple):
    """One simulation of an experiment."""

    policy: PolicyChoice
    seed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A run that did not end well."""

    policy: str
    seed: int
    reason: str


Outcome = RunResult | Failure | None
"""What became of a run; None: it was not begun."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is compared, and under which conditions.

    Attributes:
        workload: the jobs.
        policies: the first is the one that the others are compared with.
        seeds: each is a draw of jobs, devices and chance, the same for all policies.
        trace: when devices check in, as `open_check_ins` takes it.
        devices: what they are, as `open_population` takes it.
        capacity: how fast they are, as `open_population` takes it; with the trace ``paper`` and the shipped devices
            it is ``paper`` by default.
        options: what the runs assume.
        engine: which engine runs them.
        validate: whether to check the core's invariants after every event.
        policy_files: Python files that define policies; they are loaded at once, and wherever runs are made.

    Raises:
        InvalidInput: a file with policies that is not there, does not import or defines none.
    """

    workload: Workload
    policies: tuple[PolicyChoice, ...]
    seeds: tuple[int, ...] = (0,)
    trace: str = "paper"
    devices: str | None = None
    capacity: str | None = None
    options: Options = dataclasses.field(default_factory=Options)
    engine: Engine = "auto"
    validate: bool = False
    policy_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path in self.policy_files:
            load_policies(path)

    @property
    def labels(self) -> list[str]:
        """The policies as tables and plots call them."""
        return [policy.label for policy in self.policies]

    def runs(self) -> list[Run]:
        """All runs, those of one seed together, for they share the trace."""
        return [Run(policy, seed) for seed in self.seeds for policy in self.policies]

    def check(self) -> dict[int, World]:
        """Make sure that every run can be made; returns the world of each seed.

        Raises:
            InvalidInput: with the field and the fix; files are named with their row.
        """
        labels = self.labels
        repeated = next((label for label in labels if labels.count(label) > 1), None)
        if repeated is not None or not labels:
            problem = "there is none to run" if repeated is None else f"{repeated} is there twice"
            raise InvalidInput(problem, field="policy", value=labels, fix="name every policy once")
        _check_seeds(self.seeds)
        if len(labels) * len(self.seeds) > MAX_RUNS:
            raise InvalidInput(
                f"{len(labels) * len(self.seeds)} runs are more than {MAX_RUNS}", field="seeds",
                value=len(self.seeds), limit=MAX_RUNS, fix="give fewer seeds or policies",
            )  # fmt: skip
        check_ins, population = self.open(self.seeds[0])
        check(self.workload, population)
        worlds = {}
        for seed in self.seeds:
            jobs = draw(self.workload, self.workload.seed + seed)
            worlds[seed] = World(jobs, check_ins, population, seed=seed, options=self.options)
        return worlds

    def slow(self) -> dict[str, str]:
        """The policies, by label, that the reference engine runs though nobody asked for it, and why."""
        if self.engine != "auto" or self.validate or not self.policies:
            return {}
        (world,) = dataclasses.replace(self, seeds=self.seeds[:1]).check().values()
        reasons = {
            choice.label: beyond_kernel(world, get_policy(choice.name, **choice.parameters)) for choice in self.policies
        }
        return {label: reason for label, reason in reasons.items() if reason}

    def takes_kernel(self, world: World) -> bool:
        """Whether the kernel makes any of the runs in this world, which is one of them."""
        planners = (get_policy(choice.name, **choice.parameters) for choice in self.policies)
        return any(takes_kernel(self.engine, world, planner, validate=self.validate) for planner in planners)

    def scarcity(self) -> str | None:
        """That the jobs of the first seed ask for more than its devices can ever do, if that is so."""
        if not self.seeds:
            return None
        (world,) = dataclasses.replace(self, seeds=self.seeds[:1]).check().values()
        return world.scarcity()

    def open(self, seed: int) -> tuple[CheckIns, DevicePopulation]:
        """The check-ins and the devices of the runs with this seed.

        Raises:
            InvalidInput: neither a name nor a readable file.
        """
        check_ins = _open_trace(self.trace, 0 if Path(self.trace).exists() else seed)
        capacity = self.capacity
        if capacity is None and self.devices is None and check_ins.name == "paper":
            capacity = "paper"
        return check_ins, open_population(self.devices, capacity, seed=seed)

    def simulate(self, run: Run, progress: Callable[[float], None], stop: Callable[[], bool]) -> Outcome:
        """One of the runs. Whatever goes wrong in it is its own affair."""
        try:
            if run.policy.name not in available():  # this is a process or a node that has yet to load them
                for path in self.policy_files:
                    load_policies(path)
            check_ins, population = self.open(run.seed)
            return simulate(
                self.workload, run.policy.name, parameters=run.policy.parameters, seed=run.seed, trace=check_ins,
                population=population, options=self.options, engine=self.engine, validate=self.validate,
                progress=progress, stop=stop,
            )  # fmt: skip
        except VennueError as error:
            return Failure(run.policy.label, run.seed, str(error))
        except Exception as error:  # noqa: BLE001 - a policy may raise anything, and the other runs stay valid
            return Failure(run.policy.label, run.seed, f"{type(error).__name__}: {error}")


@dataclasses.dataclass(frozen=True, slots=True)
class Results:
    """What an experiment found.

    Attributes:
        experiment: what was asked.
        runs: those that were made, by policy and seed in the experiment's order; one that was stopped says so in its
            ``ended``.
        failures: those that failed.
        missing: how many have no result, because the experiment was stopped before they began.
        alone_s: for each seed, what each job would take alone, in the order of `RunResult.jobs`.
        wall_s: real time that it all took.
    """

    experiment: Experiment
    runs: list[RunResult]
    failures: list[Failure]
    missing: int
    alone_s: Mapping[int, FloatArray]
    wall_s: float

    @property
    def stopped(self) -> bool:
        """Whether it was stopped before its end."""
        return self.missing > 0 or any(run.ended == "stopped" for run in self.runs)

    def __repr__(self) -> str:
        labels, seeds = ", ".join(self.experiment.labels), len(self.experiment.seeds)
        counts = f"{len(self.runs)} runs, {len(self.failures)} failed, {self.missing} missing"
        return f"<{type(self).__name__} of {self.experiment.workload.name!r} under {labels}, {seeds} seeds: {counts}>"

    def of(self, policy: str) -> list[RunResult]:
        """The runs of the policy with this label, by seed."""
        return [run for run in self.runs if run.policy == policy]


def run_experiment(
    experiment: Experiment,
    *,
    workers: int = 1,
    cluster: bool = False,
    told: Told | None = None,
    stop: Callable[[], bool] | None = None,
) -> Results:
    """Run an experiment.

    Args:
        experiment: what to run; it is checked first.
        workers: processes to run in. A program that asks for more than one must guard its start, as in
            ``if __name__ == "__main__"``, since they are spawned.
        cluster: run on a Ray cluster instead (the extra ``ray``).
        told: how far it is.
        stop: asked some times a second whether to stop; then what there is so far is returned.

    Raises:
        InvalidInput: it cannot be run.
    """
    began_at = time.perf_counter()
    worlds = experiment.check()
    alone = {seed: alone_s(world) for seed, world in worlds.items()}
    runs = experiment.runs()
    told = told or (lambda _fraction, _ended: None)
    stop = stop or (lambda: False)
    if cluster:
        from vennue.simulation.parallel import on_cluster

        outcomes = on_cluster(experiment, runs, told, stop)
    elif min(workers, len(runs)) > 1:
        from vennue.simulation.parallel import in_processes

        if experiment.takes_kernel(worlds[experiment.seeds[0]]):
            from vennue.simulation.kernel.compiling import make_ready

            make_ready()  # here, so that it is compiled once and not in every process
        outcomes = in_processes(experiment, runs, min(workers, len(runs)), told, stop)
    else:
        outcomes = _here(experiment, runs, told, stop)
    made = [outcome for outcome in outcomes if isinstance(outcome, RunResult)]
    labels = experiment.labels
    return Results(
        experiment=experiment,
        runs=sorted(made, key=lambda run: (labels.index(run.policy), experiment.seeds.index(run.seed))),
        failures=[outcome for outcome in outcomes if isinstance(outcome, Failure)],
        missing=outcomes.count(None),
        alone_s=alone,
        wall_s=time.perf_counter() - began_at,
    )


def settings(given: Sequence[str]) -> dict[str, object]:
    """The options that ``NAME=VALUE`` texts set.

    Raises:
        InvalidInput: a text that is not of this form. Whether the names exist is for `options` to say.
    """
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInput(
                f"{text!r} is no NAME=VALUE", field="set", value=text, fix="write it as in --set poll_interval_s=30"
            )
        found[name.strip()] = value.strip()
    return found


def as_document(experiment: Experiment) -> dict[str, object]:
    """All that the experiment assumes, as plain data."""
    return {
        "workload": msgspec.to_builtins(experiment.workload),
        "policies": {
            choice.label: msgspec.to_builtins(get_policy(choice.name, **choice.parameters).parameters)
            for choice in experiment.policies
        },
        "seeds": list(experiment.seeds),
        "trace": experiment.trace,
        "devices": experiment.devices,
        "capacity": experiment.capacity,
        "options": msgspec.to_builtins(experiment.options),
        "engine": experiment.engine,
        "validate": experiment.validate,
        "policy_files": list(experiment.policy_files),
    }


def _here(experiment: Experiment, runs: Sequence[Run], told: Told, stop: Callable[[], bool]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for run in runs:
        before = len(outcomes)

        def progress(part: float, before: int = before) -> None:
            told((before + part) / len(runs), before)

        outcomes.append(None if stop() else experiment.simulate(run, progress, stop))
    told(1.0, len(runs))
    return outcomes


def _check_seeds(seeds: Sequence[int]) -> None:
    bad = next((seed for seed in seeds if not 0 <= seed <= MAX_SEED), None)
    if bad is not None or not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput(
            f"needs distinct seeds from 0 to {MAX_SEED}, at least one",
            field="seeds",
            value=bad,
            limit=MAX_SEED,
            fix="give each once",
        )


@lru_cache(maxsize=1)
def _open_trace(spec: str, seed: int) -> CheckIns:
    """The policies of one seed share a trace: reading a long one takes longer than some runs."""
    return open_check_ins(spec, seed=seed)
