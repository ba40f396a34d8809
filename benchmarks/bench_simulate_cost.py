"""What a simulated check-in costs as worlds grow: in jobs, in requirements, and in devices.

The work is always the same: 200 000 device-rounds, asked for by more or fewer jobs, under more or fewer requirements,
of more or fewer devices. Seconds are those of the processor. `bench_simulate` has the gate, on longer runs.
``python -m benchmarks.bench_simulate_cost FILE.svg`` draws the figures.
"""

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Result
from vennue.core.job import JobSpec
from vennue.simulation.papers.plots import Panel, Series, lines
from vennue.simulation.run import simulate
from vennue.simulation.tables import Estimate
from vennue.simulation.traces import open_check_ins
from vennue.simulation.workload import JobTemplate

POLICIES = ("fifo", "venn-sched", "venn")
JOBS = (50, 200, 1000)
REQUIREMENTS = (4, 16, 64)
DEVICES = (1_000, 10_000, 100_000)
DEVICE_ROUNDS = 200_000

_CPU_SCORES = (1.0, 2.0, 4.0, 6.0, 7.0, 9.0, 12.0, 16.0)
_MEMORY_SCORES = (10.0, 30.0, 100.0, 200.0, 400.0, 600.0, 800.0, 1000.0)


def bench_simulate_cost() -> Iterator[Result]:
    """Check-ins per second of processor time."""
    for axis, size, policy, per_s in measured():
        yield Result(name=f"simulate_cost/{axis}-{size}-{policy}", value=per_s, unit="/s")


def measured() -> Iterator[tuple[str, int, str, float]]:
    """What grows, how large it is, the policy, and the check-ins per second."""
    for policy in POLICIES:
        _per_s(jobs(4, 4, device_rounds=2000), policy, "paper", "faithful")  # compiles, or loads what was compiled
        for size in JOBS:
            yield "jobs", size, policy, _per_s(jobs(size, 4), policy, "paper", "faithful")
        for size in REQUIREMENTS:
            yield "requirements", size, policy, _per_s(jobs(200, size), policy, "paper", "faithful")
        for size in DEVICES:
            yield "devices", size, policy, _per_s(jobs(50, 4), policy, f"synth:{size}", "default")


def jobs(count: int, requirements: int, *, device_rounds: int = DEVICE_ROUNDS) -> list[JobTemplate]:
    """So many jobs of 100 devices a round, under so many requirements in turn, which nest and overlap."""
    side = round(requirements**0.5)
    every = len(_CPU_SCORES) // side
    pairs = itertools.product(_CPU_SCORES[::every], _MEMORY_SCORES[::every])
    texts = [f"device.cpu_score >= {cpu} && device.memory_score >= {memory}" for cpu, memory in pairs]
    rounds = max(device_rounds // (100 * count), 1)
    specs = (
        JobSpec(name=f"job {n}", demand=100, rounds=rounds, deadline_s=3600.0, requirement=texts[n % len(texts)])
        for n in range(count)
    )
    return [JobTemplate(spec, arrival_s=10.0 * n, workload_s=30.0) for n, spec in enumerate(specs)]


def _per_s(templates: Sequence[JobTemplate], policy: str, trace: str, preset: str) -> float:
    check_ins = open_check_ins(trace, seed=0)
    started_at = time.process_time()
    run = simulate(templates, policy, trace=check_ins, options=preset, engine="kernel")
    return run.counters["check_ins"] / (time.process_time() - started_at)


def draw(path: Path) -> None:
    """Measure, print, and draw."""
    found: dict[str, dict[str, list[tuple[float, Estimate]]]] = {}
    for axis, size, policy, per_s in measured():
        print(f"{axis:>12} {size:>7} {policy:>10} {per_s / 1e6:6.2f} M check-ins/s", flush=True)
        estimate = Estimate(per_s / 1e6, None, None, ())
        found.setdefault(axis, {}).setdefault(policy, []).append((float(size), estimate))
    panels = [
        Panel(axis, [Series(policy, f"c{i}", points) for i, (policy, points) in enumerate(curves.items(), start=1)])
        for axis, curves in found.items()
    ]
    title = "million check-ins per second"
    path.write_text(
        lines("What a check-in costs", panels, "", title, form="{:.2f}".format, log_x=True), encoding="utf-8"
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
