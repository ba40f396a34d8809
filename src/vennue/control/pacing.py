"""Pace steering: when a device that found no task should check in again.

A pool with millions of idle devices lives or dies by this number, and a pool of three must not wait for minutes. So the
pace follows from how many devices are out there: those that were told when to come back, and are not due yet. They
share a budget of check-ins per second. Half of it belongs to devices that a request needs at this moment, so that
a scarce kind is soon back however many others there are; the rest to those whose jobs are between rounds, and to those
that no job wants. In a small pool the budget is no limit, and devices come back after the least wait of their kind.

Every answer is spread by a uniform factor, and each device told later is told of a fuller book, so devices that come
all at once (after a restart, say) return one by one (Bonawitz et al. 2019, section 2.3, "pace steering").
"""

from enum import IntEnum
from typing import Final

import msgspec

from vennue.core.errors import InvalidInput

_BUCKETS: Final = 2048
"""How finely the times are kept at which devices come back."""


class Want(IntEnum):
    """How much the pool wants a device back."""

    SHORT = 0
    """A request that the device may serve still needs devices."""
    BUSY = 1
    """Jobs that the device may serve are active, but need nobody at this moment."""
    IDLE = 2
    """No active job may use the device."""
    SHED = 3
    """The server is overloaded, and has not even looked."""


_SHARES: Final = {Want.SHORT: 0.5, Want.BUSY: 0.3, Want.IDLE: 0.2, Want.SHED: 1.0}
"""Of the budget. Devices that were shed are not looked at twice, so they have a budget of their own."""


class Pacing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How devices without a task are paced. Durations in seconds. Compress them along with time in a simulated pool."""

    check_ins_per_s: float = 200.0
    """About how many check-ins of devices without a task to invite per second: a fiftieth of what one core answers."""
    short_s: float = 0.5
    """The least wait while a request that the device may serve needs devices."""
    busy_s: float = 1.0
    """The least wait while jobs that the device may serve are active, but need nobody at this moment."""
    idle_s: float = 2.0
    """The least wait while no active job may use the device."""
    longest_s: float = 3600.0
    """The longest wait, however large the pool: supply that is never seen cannot be planned with."""
    spread: float = 0.5
    """Each answer is its wait times a uniform factor in [1 - spread, 1 + spread]."""

    def __post_init__(self) -> None:
        if not 0 < self.short_s <= self.busy_s <= self.idle_s <= self.longest_s < float("inf"):
            raise InvalidInput(
                "must be 0 < short_s <= busy_s <= idle_s <= longest_s",
                field="pacing",
                value=f"{self.short_s}, {self.busy_s}, {self.idle_s}, {self.longest_s}",
                fix="give them in this order",
            )
        if not 0 < self.check_ins_per_s < float("inf"):
            raise InvalidInput(
                "must be above 0", field="pacing.check_ins_per_s", value=self.check_ins_per_s, limit=0,
                fix="leave it out for the default",
            )  # fmt: skip
        if not 0 <= self.spread < 1:
            raise InvalidInput("must be at least 0 and below 1", field="pacing.spread", value=self.spread)

    def least_s(self, want: Want) -> float:
        """The least wait, before it is spread."""
        return (self.short_s, self.busy_s, self.idle_s, self.idle_s)[want]


class Pace:
    """The pace of one pool, from who has been told to come back when. Memory is bounded, whatever the pool's size.

    Args:
        pacing: the bounds.
    """

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        width_s = pacing.longest_s * (1.0 + pacing.spread) / (_BUCKETS - 1)
        self._away = {want: _Away(width_s) for want in Want}

    def away(self, now: float) -> int:
        """Devices that have been told when to come back, and are not due yet."""
        return sum(away.count(now) for away in self._away.values())

    def retry_after_s(self, want: Want, now: float, draw: float) -> float:
        """Seconds until a device should check in again; above 0.

        Args:
            want: how much the pool wants it.
            now: pool time, seconds.
            draw: a uniform number in [0, 1).
        """
        pacing = self._pacing
        away = self._away[want]
        fair_s = (away.count(now) + 1) / (pacing.check_ins_per_s * _SHARES[want])
        wait_s = min(max(pacing.least_s(want), fair_s), pacing.longest_s)
        wait_s *= 1.0 - pacing.spread + 2.0 * pacing.spread * draw
        away.add(now + wait_s)
        return wait_s


class _Away:
    """When the devices of one kind come back: a ring of counters, each for a bucket of time, and their sum."""

    __slots__ = ("_counts", "_first", "_sum", "_width_s")

    def __init__(self, width_s: float) -> None:
        self._width_s = width_s
        self._counts = [0] * _BUCKETS
        self._first = 0  # the bucket, counted from time 0, that is due now
        self._sum = 0

    def count(self, now: float) -> int:
        """How many are not due yet, give or take a bucket."""
        due = int(now / self._width_s)
        if due > self._first:
            for bucket in range(self._first, min(due, self._first + _BUCKETS)):
                place = bucket % _BUCKETS
                self._sum -= self._counts[place]
                self._counts[place] = 0
            self._first = due
        return self._sum

    def add(self, at: float) -> None:
        """One more comes back then; it must be within the ring, counted from the last `count`."""
        self._counts[int(at / self._width_s) % _BUCKETS] += 1
        self._sum += 1
