"""Check-ins from rates by the hour: a Poisson stream for each kind of device, the day repeated without end.

It is what a pool knows of its own supply, made a trace: how many devices of each kind check in, hour by hour. Every
check-in is a device of its own, whose kind is its id modulo the number of kinds, so a population that lists the kinds
in their order tells what it is.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput
from vennue.simulation.traces.model import BLOCK_SIZE, Block, FloatArray, IntArray, checked_seed, in_blocks

HOUR_S = 3600.0
_SPAN_S = 900.0
"""What is drawn at once: its own random stream, so the check-ins do not depend on the size of the blocks."""


class HourlyCheckIns:
    """A `CheckIns` stream.

    Args:
        rates_per_s: check-ins per second: a row per hour, from the stream's first on, and a column per kind.
        session_s: how long each device stays.
        seed: of all that is drawn.
        name: what reports call the trace.

    Raises:
        InvalidInput: no rates, one that is negative or no number, or none above 0.
    """

    def __init__(
        self, rates_per_s: npt.ArrayLike, *, session_s: float = HOUR_S, seed: int = 0, name: str = "hourly"
    ) -> None:
        rates = np.asarray(rates_per_s, dtype=np.float64)
        if rates.ndim != 2 or not rates.size or not (np.isfinite(rates) & (rates >= 0)).all() or not rates.any():
            raise InvalidInput(
                "needs check-ins per second for each hour and kind of device, at least one above 0",
                field="rates_per_s", fix="wait until devices have checked in",
            )  # fmt: skip
        self.name = name
        self.clock_h = 0.0
        self._rates = rates
        self._session_s = session_s
        self._seed = checked_seed(seed)

    @property
    def rate_per_s(self) -> float:
        """Check-ins per second, averaged over a day."""
        return float(self._rates.sum(axis=1).mean())

    def blocks(self, until_s: float = math.inf, *, extend_s: float = 0.0, size: int = BLOCK_SIZE) -> Iterator[Block]:
        """See `CheckIns.blocks`."""
        drawn = 0
        for span in itertools.count():
            if span * _SPAN_S >= until_s:
                return
            time_s, kind = self._draw(span)
            device = (drawn + np.arange(len(time_s))) * self._rates.shape[1] + kind
            drawn += len(time_s)
            yield from in_blocks(time_s, device, time_s + (self._session_s + extend_s), until_s, size)

    def _draw(self, span: int) -> tuple[FloatArray, IntArray]:
        rng = np.random.default_rng((self._seed, span))
        rates = self._rates[int(span * _SPAN_S // HOUR_S) % len(self._rates)]
        total = rates.sum()
        count = int(rng.poisson(total * _SPAN_S))
        time_s = span * _SPAN_S + np.sort(rng.random(count)) * _SPAN_S
        if not count:
            return time_s, np.zeros(0, dtype=np.int64)
        kind = np.searchsorted(np.cumsum(rates) / total, rng.random(count), side="right")
        return time_s, kind.clip(max=len(rates) - 1)
