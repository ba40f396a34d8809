"""Plans: what a policy decides, and the only thing that a check-in looks at.

A policy turns a `PoolView` (the open requests and the supply of each region) into a `Plan`: for each region of the
Venn diagram, an ordered sequence of offers. Planning happens on job-side events and may be rich; binding a check-in
walks the region's offers and takes the first whose request still needs a device. Every policy, from random to Venn,
is a plan, so the hot path never changes. A region's offers are worked out when the region is first looked up, so a
plan costs what its regions in use cost, and a region that appears after the plan was made has offers too.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, Protocol

import msgspec

from vennue.core.assignment import Assignment
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature
from vennue.core.profile import ResponseProfile
from vennue.core.tenant import Tenant

Choice = Literal["first", "uniform"]
"""How a check-in picks among its region's offers: the first that needs a device, or one uniformly at random."""

Pick = Callable[[DeviceId, float, Sequence[JobId]], int]
"""Settles which one job a device may serve, whether or not that job needs devices at the moment: given the device, a
draw that is uniform in [0, 1) and the jobs that its region's offers are for (at least one), the job's index."""


class Tier(msgspec.Struct, frozen=True):
    """A band of device capability: devices whose expected response time lies in ``[low_s, high_s)`` seconds."""

    low_s: float
    high_s: float

    def admits(self, response_s: float) -> bool:
        """Whether a device with this expected response time belongs to the tier."""
        return self.low_s <= response_s < self.high_s


class Offer(msgspec.Struct, frozen=True):
    """A place in a region's order: the attempt that may take the device, and the tier it is restricted to."""

    attempt: AttemptId
    tier: Tier | None = None


class Request:
    """An open attempt's need for devices, as policies see it. Owned and updated by the binding table.

    ``wanted`` is the demand times the overcommit; ``live`` assignments may still report and ``reported`` ones have.
    Both counts are the sizes of the assignment tables themselves, so they cannot drift from them.
    """

    __slots__ = (
        "arrival", "arrived_at", "attained", "attempt", "bit", "committed", "continuous", "deadline_at", "demand",
        "job", "live", "lottery", "offer", "opened_at", "repeats", "reported", "rounds_left", "tenant", "waiting_since",
        "wanted", "weight",
    )  # fmt: skip

    def __init__(
        self,
        attempt: AttemptId,
        job: JobId,
        bit: int,
        *,
        demand: int,
        wanted: int,
        opened_at: float,
        deadline_at: float | None,
        arrival: int,
        rounds_left: int | None,
        attained: int,
        lottery: float,
        weight: float = 1.0,
        continuous: bool = False,
        arrived_at: float | None = None,
        committed: int = 0,
        waiting_since: float | None = None,
        tenant: Tenant | None = None,
    ) -> None:
        self.attempt = attempt
        self.offer = Offer(attempt)
        """The attempt's offer without a tier, made once, since every plan needs it."""
        self.job = job
        self.bit = bit
        """The requirement's bit in every region's signature."""
        self.demand = demand
        self.wanted = wanted
        self.opened_at = opened_at
        self.deadline_at = deadline_at
        self.arrival = arrival
        """Rank of the job by arrival, from 0: the order of FIFO and of every tie."""
        self.rounds_left = rounds_left
        """Declared rounds not yet committed, this one included; None when the job is open-ended."""
        self.attained = attained
        """Devices bound to the job before this attempt opened."""
        self.lottery = lottery
        """A uniform draw in [0, 1) made when the attempt opened: the order of `random-order`."""
        self.weight = weight
        self.continuous = continuous
        """An asynchronous attempt: a report frees the slot for another device."""
        self.arrived_at = opened_at if arrived_at is None else arrived_at
        """When the job arrived, or could begin if it had to wait for another one."""
        self.committed = committed
        """Rounds that the job has committed."""
        self.waiting_since = opened_at if waiting_since is None else waiting_since
        """When the round's first attempt opened: a retry does not make the wait any shorter."""
        self.tenant = tenant
        """Whose quota it is served under, if any."""
        self.live: dict[AssignmentId, Assignment] = {}
        self.reported: dict[AssignmentId, Assignment] = {}
        self.repeats = 0
        """Check-ins since the last device was bound, of devices that have reported in this round already."""

    @property
    def needs(self) -> int:
        """Devices still to be bound."""
        if self.continuous:
            return self.wanted - len(self.live)
        return self.wanted - len(self.live) - len(self.reported)

    @property
    def bound(self) -> int:
        """Devices bound that have not been lost: the slots in use."""
        return len(self.live) + len(self.reported)

    @property
    def service(self) -> int:
        """Devices bound to the job so far, over all its attempts."""
        return self.attained + self.bound

    def __repr__(self) -> str:
        return f"Request({self.attempt}, bit={self.bit}, needs={self.needs}/{self.wanted})"


class PoolView(msgspec.Struct, frozen=True):
    """What a policy may look at: the moment, the requests that need devices, and the supply.

    ``requests`` holds the open requests with ``needs > 0`` in the order in which they opened; ``rates`` the
    check-ins per second of each region that has been seen, averaged over the last 24 h.
    """

    now: float
    requests: Sequence[Request]
    rates: Mapping[Signature, float]
    rates_version: int = 0
    """Changes whenever ``rates`` does, so that a policy can keep what it derived from them."""
    capabilities: Sequence[tuple[float, Signature]] = ()
    """Recent check-ins, a sample: the device's expected response time in seconds, ascending, and its region."""
    profiles: Mapping[JobId, ResponseProfile] = {}
    """What each job's earlier rounds and reports have taught."""
    everyone: Sequence[Request] = ()
    """All open requests, those too that need no device now, in the order in which they opened."""


class Plan:
    """Region → ordered offers, in force until the next plan.

    A plan is a sequence of *queues*: offers that stand or fall together, because one requirement decides whether a
    region may serve them. A region's offers are those of the queues whose requirement it meets, in the plan's order,
    except that the queue which owns the region comes first.

    Args:
        queues: ``(bit, offers)`` pairs, best first, where ``bit`` is the requirement's.
        owners: the index in ``queues`` of the queue that comes first in a region, for regions that have an owner.
        urgent: how many of the first queues precede even a region's owner.
        choice: how a check-in picks among the offers. With a `Pick` they may be for requests that need no device.
        until: pool time in seconds at which the plan goes out of date by itself, though nothing has happened.
    """

    __slots__ = ("_made", "_owners", "_queues", "_urgent", "choice", "until")

    def __init__(
        self,
        queues: Sequence[tuple[int, Sequence[Offer]]],
        owners: Mapping[Signature, int] | None = None,
        *,
        urgent: int = 0,
        choice: Choice | Pick = "first",
        until: float = math.inf,
    ) -> None:
        self._queues = queues
        self._owners = owners or {}
        self._urgent = urgent
        self._made: dict[Signature, tuple[Offer, ...]] = {}
        self.choice: Choice | Pick = choice
        self.until = until

    @classmethod
    def ordered(cls, requests: Iterable[Request], *, choice: Choice | Pick = "first") -> "Plan":
        """The plan of every policy that ranks requests alike in all regions."""
        return cls([(r.bit, (r.offer,)) for r in requests], choice=choice)

    def offers(self, signature: Signature) -> tuple[Offer, ...]:
        """The region's offers, best first. Never one whose requirement the region does not meet."""
        made = self._made.get(signature)
        if made is None:
            made = tuple(self.walk(signature))
            self._made[signature] = made
        return made

    def walk(self, signature: Signature) -> Iterator[Offer]:
        """The same, one by one: binding rarely looks beyond the first few."""
        return chain.from_iterable(offers for bit, offers in self._order(signature) if signature >> bit & 1)

    def _order(self, signature: Signature) -> Iterator[tuple[int, Sequence[Offer]]]:
        queues, urgent = self._queues, self._urgent
        owner = self._owners.get(signature)
        if owner is None or owner <= urgent:
            return iter(queues)
        return chain(queues[:urgent], (queues[owner],), queues[urgent:owner], queues[owner + 1 :])


EMPTY_PLAN = Plan(())


class Planner(Protocol):
    """What the pool asks of a policy. `vennue.policies.Policy` is the base class to derive from.

    A planner with a true attribute ``learns`` is given ``capabilities`` and ``profiles`` in its views.
    """

    def plan(self, view: PoolView) -> Plan:
        """The plan for this view. Must not change the view, and must depend on nothing else."""
        ...
