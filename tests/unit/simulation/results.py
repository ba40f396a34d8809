"""Results of runs that were never made, so that what is derived from them can be worked out by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vennue.simulation.experiment import Experiment, PolicyChoice, Results
from vennue.simulation.options import Options
from vennue.simulation.result import ABORTED, COMMITTED, RunResult
from vennue.simulation.workload import parse

TINY = """
name: tiny
classes: {any: "true", fast: {cpu_score: 7}}
arrivals: {kind: fixed, gap_s: 300}
jobs:
  - {name: a, class: any, demand: 10, rounds: 2, deadline_s: 600}
  - {name: b, class: fast, demand: 20, rounds: 2, deadline_s: 600}
"""
"""Two jobs that a simulation of any policy finishes in half a second."""


def experiment(*policies: str, seeds: Sequence[int] = (0,), workload: str = TINY, **fields: Any) -> Experiment:
    choices = tuple(PolicyChoice.parse(policy) for policy in policies)
    # For worlds this small, loading the kernel would take longer than any run.
    fields = {"engine": "reference"} | fields
    return Experiment(workload=parse(workload), policies=choices, seeds=tuple(seeds), **fields)


def run_result(
    policy: str = "fifo", seed: int = 0, *, jct_s: Sequence[float | None] = (100.0, 300.0), end_s: float = 1000.0,
    **changes: Any,
) -> RunResult:  # fmt: skip
    """A run of two jobs, ``any`` that arrives at 0 s and ``fast`` at 300 s; one whose JCT is None has not ended.

    Each has an attempt that committed after 40 s (30 s to be given 10 devices) and one before it that aborted after
    20 s with 5 of its 10 devices. Of 4000 device-seconds online in two hours, 1000 were at work.
    """
    arrival_s = np.array([0.0, 300.0])
    ended_s = np.array([np.nan if time is None else time for time in jct_s]) + arrival_s
    jobs = {
        "id": np.array(["job-1", "job-2"]), "name": np.array(["a-1", "b-2"]), "category": np.array(["any", "fast"]),
        "requirement": np.array(["true", "device.cpu_score >= 7"]), "config": np.zeros(2, dtype=int),
        "mode": np.array(["sync", "sync"]), "demand": np.array([10, 10]), "rounds": np.array([1, 1]),
        "workload_s": np.full(2, 30.0), "arrival_s": arrival_s, "ended_s": ended_s,
        "state": np.where(np.isnan(ended_s), "unfinished", "completed"), "committed": np.array([1, 1]),
        "attempts": np.array([2, 2]), "scheduling_delay_s": np.array([30.0, 30.0]), "collection_s": np.full(2, 10.0),
        "bound": np.array([15, 15]), "used": np.array([9, 9]), "aborted": np.array([3, 3]),
        "straggling": np.array([2, 2]), "failed": np.array([1, 1]),
    }  # fmt: skip
    attempts = {
        "job": np.array([0, 1, 0, 1]), "round": np.array([1, 1, 1, 1]), "number": np.array([1, 1, 2, 2]),
        "opened_s": np.array([0.0, 300.0, 20.0, 320.0]), "scheduling_delay_s": np.array([15.0, 15.0, 30.0, 30.0]),
        "closed_s": np.array([20.0, 320.0, 60.0, 360.0]), "outcome": np.array([ABORTED, ABORTED, COMMITTED, COMMITTED]),
        "bound": np.array([5, 5, 10, 10]), "reported": np.array([3, 3, 9, 9]),
    }  # fmt: skip
    usage = {
        "start_s": np.array([0.0, 3600.0]), "online_s": np.array([3000.0, 1000.0]),
        "busy_s": np.array([900.0, 100.0]), "sessions": np.array([30, 10]),
    }  # fmt: skip
    regions = {
        "signature": np.array([0b01, 0b11], dtype=object), "check_ins": np.array([300, 700]),
        "share": np.array([0.3, 0.7]),
    }  # fmt: skip
    counters = {
        "sessions": 40, "check_ins": 1000, "plans": 7, "bound": 30, "used": 18, "aborted": 6, "straggling": 4,
        "failed": 2,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "workload": "tiny", "policy": policy, "seed": seed, "engine": "reference", "options": Options(),
        "ended": "finished", "end_s": end_s, "jobs": jobs, "attempts": attempts, "usage": usage, "regions": regions,
        "requirements": ["true", "device.cpu_score >= 7"], "counters": counters, "assignments": None, "wall_s": 0.5,
    }  # fmt: skip
    return RunResult(**fields | changes)


def results(*runs: RunResult, **changes: Any) -> Results:
    """The results of an experiment with these runs."""
    policies = dict.fromkeys(run.policy for run in runs)
    seeds = dict.fromkeys(run.seed for run in runs)
    fields: dict[str, Any] = {
        "experiment": experiment(*policies, seeds=tuple(seeds)), "runs": list(runs), "failures": [], "missing": 0,
        "alone_s": {seed: np.array([100.0, 100.0]) for seed in seeds},
        "wall_s": 1.0,
    }  # fmt: skip
    return Results(**fields | changes)
