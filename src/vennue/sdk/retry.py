"""When to try a failed call again: exponential waits with full jitter, bounded in number and in total time.

Every call that the SDK makes may be repeated: it is a read, or the server knows it by its assignment, its digest, its
round or its idempotency key. Full jitter (each wait uniform between zero and a doubling ceiling) spreads a fleet that
lost its server at the same moment. Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

import math
import random
from dataclasses import dataclass, replace

from vennue.core.errors import InvalidInput

_ANY_NUMBER = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How persistent a client is. The defaults outlive a restart of the server by far.

    Args:
        attempts: tries of one call, the first included.
        first_s: ceiling of the first wait; it doubles with each further one.
        most_s: ceiling of any wait.
        total_s: no try begins later than this after the first failure.
        work_s: a report, which holds a device's work, is tried for this long instead, or for as long as its lease runs
            if that is longer, whatever ``attempts`` says (1 still never tries again). 0 treats it like any other call.

    Raises:
        InvalidInput: a bound that makes no sense.
    """

    attempts: int = 40
    first_s: float = 0.25
    most_s: float = 10.0
    total_s: float = 180.0
    work_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInput("must be at least 1", field="attempts", value=self.attempts, fix="1 never tries again")
        for field in ("first_s", "most_s", "total_s", "work_s"):
            value = getattr(self, field)
            if not value >= 0 or math.isinf(value):
                raise InvalidInput(
                    f"must be a number of seconds from 0, got {value}", field=field, value=value, fix="give a bound"
                )

    def for_work(self, lease_s: float) -> "Retry":
        """How persistent a device is with a report whose lease runs for ``lease_s`` seconds more.

        A lease is no bound: a round that was open when its server went away takes reports once it is back.
        """
        if self.attempts == 1 or self.work_s == 0:
            return self
        return replace(self, attempts=_ANY_NUMBER, total_s=max(self.total_s, self.work_s, lease_s))

    def wait_s(self, failures: int, rng: random.Random, at_least_s: float = 0.0) -> float:
        """The wait after this many failures (from 1), on top of what the server asked for."""
        ceiling = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 60))
        return at_least_s + rng.uniform(0.0, ceiling)

    def allows(self, failures: int, elapsed_s: float) -> bool:
        """Whether another try may begin after this many failures, ``elapsed_s`` after the first of them."""
        return failures < self.attempts and elapsed_s <= self.total_s
