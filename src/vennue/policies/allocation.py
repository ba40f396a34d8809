"""Which job group owns which region: the allocation at the heart of Venn (spec section 2, the paper's Algorithm 1).

`Irs.allocate` groups open requests by requirement, gives each region to the scarcest group that it can serve, and then
lets larger groups take regions over where that shortens more waiting than it prolongs. Sets of regions are ints with a
bit per region, so a step costs the same for one region as for hundreds. What depends only on the rates, on which groups
there are, or on one group's requests is kept between calls and never shows: an instance with a history and a fresh one
give the same answer.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter

import numpy as np

from vennue.core.ids import AttemptId, Signature
from vennue.core.plan import Offer, Request
from vennue.core.supply import RATE_FLOOR_PER_S

MAX_PARTS = 4096
"""Sets of regions whose rates are kept."""


class Regions:
    """The regions that have been seen, with their rates. A set of them is an int: bit *i* is the *i*-th signature.

    A region that has been seen at all counts for at least one check-in per 24 h, so that no rate divides by zero.
    """

    def __init__(self, rates: Mapping[Signature, float]) -> None:
        self._signatures = sorted(rates)
        self._rates_per_s = [max(rates[signature], RATE_FLOOR_PER_S) for signature in self._signatures]
        self._covers = self._cover_all()
        self._parts: dict[int, tuple[float, list[Signature]]] = {}

    def cover(self, bit: int) -> tuple[int, float]:
        """The regions that meet the requirement under ``bit``, and |S|: their check-ins per second together."""
        return self._covers[bit] if bit < len(self._covers) else (0, 0.0)

    def part(self, regions: int) -> tuple[float, list[Signature]]:
        """The check-ins per second of a set of regions, and their signatures."""
        found = self._parts.get(regions)
        if found is None:
            if len(self._parts) >= MAX_PARTS:
                self._parts.clear()
            members = list(_members(regions))
            rate_per_s = float(sum(self._rates_per_s[index] for index in members))
            found = self._parts[regions] = rate_per_s, [self._signatures[index] for index in members]
        return found

    def _cover_all(self) -> list[tuple[int, float]]:
        """`cover` for every bit that is set in a signature."""
        if not self._signatures:
            return []
        size = self._signatures[-1].bit_length() // 8 + 1
        packed = b"".join(signature.to_bytes(size, "little") for signature in self._signatures)
        table = np.frombuffer(packed, np.uint8).reshape(len(self._signatures), size)
        met = np.ascontiguousarray(np.unpackbits(table, axis=1, bitorder="little").T)
        # Each row is summed in the same order, so requirements that the same regions meet have exactly equal supplies.
        supplies_per_s = (met * np.array(self._rates_per_s)).sum(axis=1).tolist()
        masks = (int.from_bytes(row.tobytes(), "little") for row in np.packbits(met, axis=1, bitorder="little"))
        return list(zip(masks, supplies_per_s, strict=True))


class Queue:
    """One group's open requests, those to serve first in front. Immutable, so that it can be kept."""

    __slots__ = (
        "_demands_to", "_urgencies_to", "bit", "demand", "first", "length", "offers", "requests", "source",
    )  # fmt: skip

    def __init__(
        self, bit: int, requests: Sequence[Request], demands: Sequence[float], urgencies: Sequence[float]
    ) -> None:
        self.source = (requests, demands, urgencies)
        self.bit = bit
        ranked = sorted(
            (demand / urgency, request.arrival, request.attempt, index)
            for index, (request, demand, urgency) in enumerate(zip(requests, demands, urgencies, strict=True))
        )
        order = [index for *_, index in ranked]
        self.requests = [requests[index] for index in order]
        self.offers: Sequence[Offer] = [request.offer for request in self.requests]
        self.first: tuple[int, AttemptId] = min((request.arrival, request.attempt) for request in requests)
        """The group's place among groups of equal supply."""
        self._demands_to = list(accumulate(demands[index] for index in order))
        self._urgencies_to = list(accumulate(urgencies[index] for index in order))
        self.demand = self._demands_to[-1]
        """Devices that the queue needs altogether."""
        self.length = self._urgencies_to[-1]
        """The queue length m: its requests, each counted by its urgency (1, unless weights or fairness say more)."""

    def length_within(self, devices: float) -> float:
        """The length of that part of the queue which the first ``devices`` devices serve, in whole requests."""
        served = bisect_right(self._demands_to, devices)
        return self._urgencies_to[served - 1] if served else 0.0


class Group:
    """A job group in the course of one allocation: its queue, S (all regions it covers) and S' (those it holds)."""

    __slots__ = ("_queues", "cover", "held", "held_per_s", "queue", "supply_per_s")

    def __init__(self, queue: Queue, cover: int, supply_per_s: float) -> None:
        self.queue = queue
        self.cover = cover
        self.supply_per_s = supply_per_s
        self.held = 0
        self.held_per_s = 0.0
        self._queues = [queue]

    def gains_more_than(self, other: "Group") -> bool:
        """Whether regions of ``other`` shorten more waiting here than they prolong there: m'_j/|S'_j| > m'_k/|S'_k|.

        m'_j, the affected queue length, counts the requests here that would be served, by the regions held now,
        while the other queue still is: those whose summed delay, in order, is at most delay(k). That is the whole
        queue when delay(j) ≤ delay(k). Later ones gain nothing: they get the regions anyway, when the other queue is
        done. Whole requests are counted. Of a group that took regions over, the queue goes on with theirs.
        """
        affected = 0.0
        devices = other.queue.demand * self.held_per_s / other.held_per_s
        for queue in self._queues:
            affected += queue.length_within(devices)
            devices -= queue.demand
            if devices < 0:
                break
        return affected / self.held_per_s > other.queue.length / other.held_per_s

    def take(self, regions: int, rate_per_s: float, other: "Group") -> None:
        """Take regions over from another group, whose queue now waits behind this one's."""
        self.held |= regions
        self.held_per_s += rate_per_s
        other.held ^= regions
        other.held_per_s = other.held_per_s - rate_per_s if other.held else 0.0
        self._queues.append(other.queue)


class Allocation:
    """The outcome: the groups, scarcest first, and the index of the group that owns each region."""

    __slots__ = ("groups", "owners")

    def __init__(self, groups: list[Group], owners: dict[Signature, int]) -> None:
        self.groups = groups
        self.owners = owners


class Irs:
    """Intersection resource scheduling. Keeps between calls only what follows from its inputs.

    Args:
        demand: devices that count as a request's remaining demand.
    """

    def __init__(self, demand: Callable[[Request], float]) -> None:
        self._demand = demand
        self._rates: dict[Signature, float] = {}
        self._regions = Regions({})
        self._queues: dict[int, Queue] = {}
        self._bits: list[int] | None = None
        self._initial: tuple[list[tuple[int, float]], dict[Signature, int]] = [], {}

    def allocate(
        self,
        requests: Iterable[Request],
        rates: Mapping[Signature, float],
        urgency: Callable[[Request], float] = attrgetter("weight"),
    ) -> Allocation:
        """Steps 1 to 3 of spec section 2. Cost O(m log m + n² + r) for m requests, n groups and r regions.

        A request's *urgency* divides its demand where its group's requests are ordered, and counts it in queue
        lengths: with 1 for all, exactly the paper's algorithm; with a job's weight, its weighted counterpart.
        """
        regions = self.regions(rates)
        groups = [Group(queue, *regions.cover(queue.bit)) for queue in self._update_queues(requests, urgency)]
        groups.sort(key=lambda group: (group.supply_per_s, group.queue.first))
        owners = self._allocate_scarcest_first(groups, regions)
        _reallocate(groups, regions, owners)
        return Allocation(groups, owners)

    def regions(self, rates: Mapping[Signature, float]) -> Regions:
        """The regions under these rates."""
        if rates != self._rates:
            self._rates = dict(rates)
            self._regions = Regions(rates)
            self._bits = None
        return self._regions

    def _update_queues(self, requests: Iterable[Request], urgency: Callable[[Request], float]) -> Iterable[Queue]:
        """A queue per requirement; those whose requests, demands and urgencies are as they were are kept."""
        members: defaultdict[int, list[Request]] = defaultdict(list)
        for request in requests:
            members[request.bit].append(request)
        kept, demand = self._queues, self._demand
        self._queues = {}
        for bit, group in members.items():
            source = group, list(map(demand, group)), list(map(urgency, group))
            queue = kept.get(bit)
            self._queues[bit] = queue if queue is not None and queue.source == source else Queue(bit, *source)
        return self._queues.values()

    def _allocate_scarcest_first(self, groups: list[Group], regions: Regions) -> dict[Signature, int]:
        """Step 2: each group takes the regions it covers that no scarcer one took. The owners, as a new dict."""
        bits = [group.queue.bit for group in groups]
        if bits != self._bits:
            free = -1
            holdings = []
            owners: dict[Signature, int] = {}
            for index, group in enumerate(groups):
                held = group.cover & free
                free ^= held
                held_per_s, signatures = regions.part(held)
                holdings.append((held, held_per_s))
                owners.update(dict.fromkeys(signatures, index))
            self._bits = bits
            self._initial = holdings, owners
        holdings, owners = self._initial
        for group, (held, held_per_s) in zip(groups, holdings, strict=True):
            group.held, group.held_per_s = held, held_per_s
        return owners.copy()


def _reallocate(groups: list[Group], regions: Regions, owners: dict[Signature, int]) -> None:
    """Step 3: larger groups, the largest first, take regions from smaller ones while they gain more than those lose.

    A smaller group that holds nothing which the larger one covers is passed over: there is nothing to take.
    """
    # `reverse` keeps groups of equal supply in the order of their arrival.
    descending = sorted(enumerate(groups), key=lambda item: item[1].supply_per_s, reverse=True)
    smaller = sum(group.held for group in groups)  # a union, since no two groups hold the same region
    for position, (index, group) in enumerate(descending):
        smaller &= ~group.held
        wanted = smaller & group.cover if group.held else 0
        for _, other in descending[position + 1 :]:
            if not wanted:
                break
            shared = wanted & other.held
            if not shared or other.supply_per_s >= group.supply_per_s:
                continue
            if not group.gains_more_than(other):
                break
            wanted ^= shared
            smaller ^= shared
            shared_per_s, signatures = regions.part(shared)
            group.take(shared, shared_per_s, other)
            owners.update(dict.fromkeys(signatures, index))


def _members(regions: int) -> Iterator[int]:
    """The indices of the bits set, ascending."""
    while regions:
        lowest = regions & -regions
        yield lowest.bit_length() - 1
        regions ^= lowest
