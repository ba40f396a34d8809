"""Timers: when something is due, for each key at most once.

A heap whose outdated entries are passed over when they come up, so that moving a timer costs no more than setting one.
What is set bounds the heap, however often timers move.
"""

import heapq
import math
from typing import Generic, TypeVar

K = TypeVar("K", bound=tuple[object, ...])


class Timers(Generic[K]):
    """Times by key. Timers of one moment come up in the order of their keys."""

    __slots__ = ("_due_at", "_heap", "wake_at")

    def __init__(self) -> None:
        self._due_at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []
        self.wake_at = math.inf
        """Nothing is due before this time. It may be early, since a timer may have been moved."""

    def __len__(self) -> int:
        """Entries of the heap."""
        return len(self._heap)

    @property
    def bound(self) -> int:
        """The most entries that the heap may have."""
        return 64 + 2 * len(self._due_at)

    def at(self, key: K) -> float:
        """When the key is due; infinity when it is not set."""
        return self._due_at.get(key, math.inf)

    def set(self, key: K, at: float) -> None:
        """Have the key come up at this time, and at no other."""
        if self._due_at.get(key) == at:
            return
        self._due_at[key] = at
        heapq.heappush(self._heap, (at, key))
        if at < self.wake_at:
            self.wake_at = at
        self._keep_bound()

    def cancel(self, key: K) -> None:
        """Have the key not come up."""
        if self._due_at.pop(key, None) is not None:
            self._keep_bound()

    def pop(self, now: float) -> K | None:
        """The key that has been due the longest by ``now``, which is then no longer set; None when none is due."""
        found = None
        while found is None and self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._due_at.get(key) == at:
                del self._due_at[key]
                found = key
        self.wake_at = self._heap[0][0] if self._heap else math.inf
        return found

    def _keep_bound(self) -> None:
        if len(self._heap) > self.bound:
            self._heap = [(at, key) for key, at in self._due_at.items()]
            heapq.heapify(self._heap)
