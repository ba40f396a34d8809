"""The pool's clock: wall time at the start plus monotonic time since, so that it never steps.

A wall clock that jumps (NTP, a suspended laptop, an operator) would expire every lease at once or none at all. Pool
time starts no earlier than what the ledger already holds, so that durations over a restart are never negative.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Pool time, in seconds."""


def pool_clock(floor: float = 0.0, *, wall: Clock = time.time, monotonic: Clock = time.monotonic) -> Clock:
    """A clock that starts at the wall's time now, but not before ``floor``."""
    offset = max(wall(), floor) - monotonic()

    def clock() -> float:
        return offset + monotonic()

    return clock
