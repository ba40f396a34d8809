"""Check-ins as the Venn paper's trace gives them, without the trace: a Poisson stream of short sessions.

The paper's trace (millions of sessions, each taken for a device of its own) is not public in full. This stream
reproduces the average job completion times that were published for it, to within about 3 %: 4.65 check-ins a second on
average, swinging by 60 % over the day, sessions of 80 s plus a log-normal time with median 300 s and σ 1.2. Use it with
`Capacity.paper` and `phone_population`.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S
from vennue.simulation.traces.model import BLOCK_SIZE, Block, FloatArray, checked_seed, in_blocks

_CHUNK_S = 6 * 3600.0
"""What is drawn at once: its own random stream, so the check-ins do not depend on the size of the blocks."""


class PaperCheckIns:
    """A `CheckIns` stream with the figures above; device ids count up from 0 and never repeat.

    Args:
        rate_per_s: check-ins per second, averaged over a day.
        amplitude: swing of the rate over the day, as a share of its average, at most 1; the peak is at 06:00 of each
            24 h of the stream.
        floor_s: shortest session (it includes the 80 s by which the authors' simulator extends every session).
        median_s: median of the log-normal rest.
        sigma: its σ.
        seed: of all that is drawn.
    """

    def __init__(
        self,
        *,
        rate_per_s: float = 4.65,
        amplitude: float = 0.6,
        floor_s: float = 80.0,
        median_s: float = 300.0,
        sigma: float = 1.2,
        seed: int = 0,
    ) -> None:
        if not 0 < rate_per_s < math.inf:
            raise InvalidInput(f"must be above 0, got {rate_per_s!r}", field="rate_per_s", value=rate_per_s, limit=0)
        if not 0 <= amplitude <= 1:
            raise InvalidInput(f"must be 0 to 1, got {amplitude!r}", field="amplitude", value=amplitude, limit=1)
        self.name = "paper"
        self.clock_h = 0.0
        self._rate_per_s = rate_per_s
        self._amplitude = amplitude
        self._floor_s = floor_s
        self._log_median_s = math.log(median_s)
        self._sigma = sigma
        self._seed = checked_seed(seed)

    @property
    def rate_per_s(self) -> float:
        """Check-ins per second, averaged over a day."""
        return self._rate_per_s

    def blocks(self, until_s: float = math.inf, *, extend_s: float = 0.0, size: int = BLOCK_SIZE) -> Iterator[Block]:
        """See `CheckIns.blocks`."""
        devices = 0
        for chunk in itertools.count():
            if chunk * _CHUNK_S >= until_s:
                return
            time_s, length_s = self._chunk(chunk)
            device = np.arange(devices, devices + len(time_s))
            yield from in_blocks(time_s, device, time_s + (length_s + extend_s), until_s, size)
            devices += len(time_s)

    def _chunk(self, chunk: int) -> tuple[FloatArray, FloatArray]:
        rng = np.random.default_rng((self._seed, chunk))
        grid_s = chunk * _CHUNK_S + np.linspace(0, _CHUNK_S, 361)
        expected = self._expected(grid_s)
        count = rng.poisson(expected[-1] - expected[0])
        # The order statistics of uniform times are the partial sums of exponential gaps over their total.
        gaps = rng.standard_exponential(count + 1).cumsum()
        time_s = np.interp(expected[0] + (expected[-1] - expected[0]) * (gaps[:-1] / gaps[-1]), expected, grid_s)
        return time_s, self._floor_s + rng.lognormal(self._log_median_s, self._sigma, count)

    def _expected(self, time_s: FloatArray) -> FloatArray:
        """Check-ins expected from second 0 on."""
        turn = 2 * math.pi / DAY_S
        return self._rate_per_s * (time_s + self._amplitude * (1 - np.cos(turn * time_s)) / turn)
