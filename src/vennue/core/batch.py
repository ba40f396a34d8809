"""Small-batch mode: check-ins wait for one another, up to a window, and are bound together.

Seeing several devices at once, the pool can give those that few requests can use to exactly these, and leave the
others to the rest: a device that could serve only one of two jobs is not turned away because a more capable one came
first and took its place. Devices are bound in the order of how many requests could use them, fewest first, each by the
plan's order for its region. Since that order of devices is the same for every request, the result is the stable
matching between devices and requests (Gale and Shapley 1962), and no eligible device idles while a request needs it.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from vennue.core.events import CheckIn
from vennue.core.ids import DeviceId, Signature
from vennue.core.requirement import Profile

MAX_BATCH: Final = 4096
"""As many check-ins are bound at once, however short they have waited: it bounds memory, and the pause for binding."""

MAX_WINDOW_S: Final = 30.0
"""The longest window: a device waits for its answer, and callers give up after a minute."""


class Collected(msgspec.Struct, frozen=True):
    """The answer to a check-in that waits for others: `effects.Answered` follows, at ``until`` or before."""

    until: float


class Batch:
    """The check-ins that wait.

    Args:
        window_s: how long the first one waits; 0 for online mode, in which none does.
    """

    __slots__ = ("_waiting", "due_at", "window_s")

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.due_at = math.inf
        """When they are to be bound."""
        self._waiting: dict[DeviceId, CheckIn] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def devices(self) -> list[DeviceId]:
        """Who waits, in the order of arrival."""
        return list(self._waiting)

    @property
    def full(self) -> bool:
        """Whether they are to be bound at once."""
        return len(self._waiting) >= MAX_BATCH

    def add(self, event: CheckIn, now: float) -> Collected:
        """A device waits from now on; one that waits already is known by what it says now."""
        if not self._waiting:
            self.due_at = now + self.window_s
        self._waiting[event.device] = event
        return Collected(self.due_at)

    def take(self, region: Callable[[Profile], Signature], needy: Signature) -> list[CheckIn]:
        """All that wait, in the order in which they are to be bound. None waits any more.

        Args:
            region: the region of an attribute profile.
            needy: the bits of the requirements under which requests need devices.
        """
        taken = sorted(self._waiting.values(), key=lambda event: (region(event.profile) & needy).bit_count())
        self._waiting.clear()
        self.due_at = math.inf
        return taken
