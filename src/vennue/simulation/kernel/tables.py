"""The kernel's data structures: a tree of timers, a heap of tasks under way, a table of devices."""

import math

import numpy as np

from vennue.simulation.kernel.state import ACTIVE, State, compiled


@compiled
def set_timer(s: State, job: int) -> None:
    """Note when the job, its attempt or the oldest of its leases is due."""
    j = s.jobs[job]
    due_at = j.limit_at if j.state == ACTIVE else math.inf
    if j.open != 0:
        due_at = min(due_at, j.deadline_at)
    if j.head >= 0:
        due_at = min(due_at, s.slots[j.head].expires_at)
    node = len(s.timers) // 2 + job
    if s.timers[node] == due_at:
        return
    s.timers[node] = due_at
    while node > 1:
        node //= 2
        s.timers[node] = min(s.timers[2 * node], s.timers[2 * node + 1])


@compiled
def push_finish(s: State, time_s: float, visit: int) -> None:
    """A device's task will finish at this time."""
    c = s.clock[0]
    heap = s.finishes
    index = c.finishes
    sequence = c.sequence
    c.finishes += 1
    c.sequence += 1
    while index > 0:
        parent = (index - 1) // 2
        if heap[parent].time_s <= time_s:  # of equal times, the one that was there first stays in front
            break
        heap[index] = heap[parent]
        index = parent
    heap[index].time_s = time_s
    heap[index].sequence = sequence
    heap[index].visit = visit


@compiled
def pop_finish(s: State) -> int:
    """The visit whose task finishes first."""
    c = s.clock[0]
    heap = s.finishes
    first = heap[0].visit
    c.finishes -= 1
    last = c.finishes
    time_s = heap[last].time_s
    sequence = heap[last].sequence
    visit = heap[last].visit
    index = 0
    child = 1
    while child < last:
        if child + 1 < last and (
            heap[child + 1].time_s < heap[child].time_s
            or (heap[child + 1].time_s == heap[child].time_s and heap[child + 1].sequence < heap[child].sequence)
        ):
            child += 1
        if time_s < heap[child].time_s or (time_s == heap[child].time_s and sequence < heap[child].sequence):
            break
        heap[index] = heap[child]
        index = child
        child = 2 * index + 1
    heap[index].time_s = time_s
    heap[index].sequence = sequence
    heap[index].visit = visit
    return first


@compiled
def _home(s: State, device: int) -> int:
    """Where the table looks for a device first (Fibonacci hashing)."""
    return int((np.uint64(device) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & (len(s.holders) - 1)


@compiled
def find(s: State, device: int) -> int:
    """The slot of the assignment that the device holds, or −1."""
    mask = len(s.holders) - 1
    at = _home(s, device)
    while s.holders[at].device >= 0:
        if s.holders[at].device == device:
            return s.holders[at].slot
        at = (at + 1) & mask
    return -1


@compiled
def insert(s: State, device: int, slot: int) -> None:
    """A device, which is not in the table, holds the assignment in a slot."""
    mask = len(s.holders) - 1
    at = _home(s, device)
    while s.holders[at].device >= 0:
        at = (at + 1) & mask
    s.holders[at].device = device
    s.holders[at].slot = slot


@compiled
def forget(s: State, device: int) -> None:
    """Remove a device, and move up those that had to give way to it."""
    mask = len(s.holders) - 1
    gap = _home(s, device)
    while s.holders[gap].device != device:
        gap = (gap + 1) & mask
    at = gap
    while True:
        at = (at + 1) & mask
        if s.holders[at].device < 0:
            break
        if ((at - _home(s, s.holders[at].device)) & mask) >= ((at - gap) & mask):
            s.holders[gap].device = s.holders[at].device
            s.holders[gap].slot = s.holders[at].slot
            gap = at
    s.holders[gap].device = -1
