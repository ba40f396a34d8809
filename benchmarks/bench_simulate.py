"""How fast whole workloads are simulated, in check-ins per second and in seconds, and how much memory they take.

The paper's even workload runs at an eighth of its size, and in full when ``VENNUE_BENCH_FULL`` is set. Compiling the
kernel, which happens once per machine, is not counted; drawing the trace is. A run uses one core, so seconds are those
of the processor: what else runs on the machine does not count.
"""

import os
import resource
import time
from collections.abc import Iterator

from benchmarks.harness import Result
from vennue.simulation.result import RunResult
from vennue.simulation.run import Engine, simulate
from vennue.simulation.workload import load

GATE_PER_S = 2e6
LEARNING_GATE_PER_S = 1e6
FULL_GATE_S = 60.0
MEMORY_GATE_MB = 2000.0


def bench_simulate() -> Iterator[Result]:
    """The kernel, beside the reference engine."""
    _run("fifo", scale=4000)
    reference = _rate_per_s("venn-sched", scale=400, engine="reference")
    rate = max(_rate_per_s("venn-sched", scale=8) for _ in range(2))
    yield Result(name="simulate/venn-sched", value=rate, unit="/s", gate=GATE_PER_S, baseline=reference, ratio_gate=30)
    rate = max(_rate_per_s("venn", scale=8) for _ in range(2))
    yield Result(name="simulate/venn", value=rate, unit="/s", gate=LEARNING_GATE_PER_S)
    if os.environ.get("VENNUE_BENCH_FULL"):
        for policy in ("venn-sched", "venn"):
            _, seconds = _run(policy, scale=1)
            yield Result(
                name=f"simulate/full/{policy}", value=seconds, unit="s", gate=FULL_GATE_S, higher_is_better=False
            )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Result(name="simulate/memory", value=peak_mb, unit="MB", gate=MEMORY_GATE_MB, higher_is_better=False)


def _run(policy: str, *, scale: float, engine: Engine = "kernel") -> tuple[RunResult, float]:
    """A run, and the processor's seconds that it took."""
    started_at = time.process_time()
    run = simulate(load("even").scaled(scale), policy, options="faithful", engine=engine)
    return run, time.process_time() - started_at


def _rate_per_s(policy: str, *, scale: float, engine: Engine = "kernel") -> float:
    run, seconds = _run(policy, scale=scale, engine=engine)
    return run.counters["check_ins"] / seconds
