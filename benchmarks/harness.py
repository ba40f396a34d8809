"""What a benchmark is written with: a result with its gate, and a loop that times a function.

A benchmark is a generator function named ``bench_<name>`` in a file ``benchmarks/bench_*.py``; it yields results named
``<name>`` or ``<name>/<variant>``. The runner (``python -m benchmarks``) finds it; nothing is registered by hand. Where
two things can run side by side, the second is the ``baseline``, measured in the same run: ratios hold on any machine.
"""

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_TIME_UNITS_NS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
_PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured figure.

    Args:
        name: ``<name>`` or ``<name>/<variant>``, where the benchmark's function is ``bench_<name>``.
        value: the figure, in ``unit``.
        unit: ``"/s"``, ``"MB/s"``, ``"GB/s"``, ``"ns"``, ``"µs"``, ``"ms"``, ``"s"``, ``"MB"``, ``"×"``, …
        gate: the value that must be reached: at least it when higher is better, else at most it.
        higher_is_better: as for a rate; false for a duration or a size.
        baseline: what ``value`` is compared with, in the same unit and measured in the same run.
        ratio_gate: the bound on ``ratio``, in the same direction as ``gate``.
    """

    name: str
    value: float
    unit: str
    gate: float | None = None
    higher_is_better: bool = True
    baseline: float | None = None
    ratio_gate: float | None = None

    def __post_init__(self) -> None:
        for name in ("value", "baseline"):
            figure = getattr(self, name)
            if figure is not None and not math.isfinite(figure):
                raise ValueError(f"{self.name}: {name} is {figure}, so nothing was measured")

    @property
    def ratio(self) -> float | None:
        """``value / baseline``, where there is a baseline."""
        return None if self.baseline is None else self.value / self.baseline

    @property
    def passes(self) -> bool:
        """Whether every gate that is set holds."""
        return self._reaches(self.value, self.gate) and self._reaches(self.ratio, self.ratio_gate)

    def _reaches(self, figure: float | None, bound: float | None) -> bool:
        if bound is None:
            return True
        if figure is None:
            return False
        return figure >= bound if self.higher_is_better else figure <= bound

    def in_loops(self, loop_ns: float) -> float:
        """The figure in iterations of the calibration loop, so that a slow machine and a fast one agree.

        A duration becomes iterations, a rate becomes units per iteration; a figure without time stays as it is.
        """
        if self.unit in _TIME_UNITS_NS:
            return self.value * _TIME_UNITS_NS[self.unit] / loop_ns
        if self.unit.endswith("/s"):
            scale = _PREFIXES.get(self.unit[0], 1.0)
            return self.value * scale * loop_ns * 1e-9
        return self.value

    def record(self) -> dict[str, object]:
        """The result as it stands in ``build/bench.json``."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "gate": self.gate,
            "passes": self.passes,
            "baseline": self.baseline,
            "ratio": self.ratio,
        }


def seconds_per_call(
    function: Callable[[], object],
    *,
    calls: int = 1,
    repeats: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """The best mean duration of ``function`` over ``repeats`` runs of ``calls`` calls, after one run to warm up.

    In processor time, unless ``clock`` is another: so other processes take no part, beyond what they push out of the
    caches. The best run is the one that they disturbed least. Garbage is collected before each run, not during it.
    """
    best = float("inf")
    for repeat in range(repeats + 1):
        gc.collect()
        gc.disable()
        try:
            start = clock()
            for _ in range(calls):
                function()
            elapsed = clock() - start
        finally:
            gc.enable()
        if repeat > 0:
            best = min(best, elapsed / calls)
    return best


def calibration_loop_ns() -> float:
    """Nanoseconds that one iteration of a plain Python loop takes here: the yardstick of ``ranges.toml``."""
    iterations = 1_000_000

    def loop() -> int:
        total = 0
        for i in range(iterations):
            total += i & 7
        return total

    return seconds_per_call(loop) / iterations * 1e9
