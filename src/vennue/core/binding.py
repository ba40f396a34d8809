"""The binding table: open requests, the plan in force, live assignments and their expiries.

This is the seam between the job and round state machines above it and one or many machines below it. Its contract is
a handful of operations (open, close, publish, bind, settle, expire), each with time passed in, each atomic. This is
the in-memory table that the simulator and the embedded server use. It holds nothing for devices that are not bound
right now, so its memory grows with the assignments in flight and never with the devices seen.
"""

import heapq
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import cast

from vennue.core.errors import Conflict, NotFound
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature, assignment_id, attempt_of
from vennue.core.plan import EMPTY_PLAN, Offer, Pick, Plan, Request
from vennue.core.tenant import Tenant


class Outcome(StrEnum):
    """How an assignment ends."""

    REPORTED = "reported"
    DECLINED = "declined"
    ABORTED = "aborted"
    LOST = "lost"
    DISPLACED = "displaced"
    """Its place went back to a device that had one before a crash."""
    CLOSED = "closed"


class Assignment:
    """A device given to an attempt: one lease, with an expiry.

    ``accepted`` is False while a private requirement awaits the device's answer; until then the lease is the short
    one that covers an answer, not a training task.
    """

    __slots__ = ("accepted", "bound_at", "device", "expires_at", "id", "request", "response_s", "signature", "version")

    def __init__(
        self,
        id: AssignmentId,
        device: DeviceId,
        request: Request,
        signature: Signature,
        bound_at: float,
        expires_at: float,
        *,
        accepted: bool,
        version: int,
    ) -> None:
        self.id = id
        self.device = device
        self.request = request
        self.signature = signature
        self.bound_at = bound_at
        self.expires_at = expires_at
        self.accepted = accepted
        self.version = version
        """The job's model version that the device was given (asynchronous jobs measure staleness against it)."""
        self.response_s = 0.0
        """The response time that was expected of the device, seconds, where the policy learns from it."""

    @property
    def attempt(self) -> AttemptId:
        """The attempt that it serves."""
        return self.request.attempt

    @property
    def job(self) -> JobId:
        """The job that it serves."""
        return self.request.job

    def __repr__(self) -> str:
        return f"Assignment({self.id}, device={self.device}, expires_at={self.expires_at:.3f})"


class _Entry:
    """An open request with what binding needs to know of it."""

    __slots__ = ("accept_lease_s", "count", "lease_s", "prefix", "request", "version")

    def __init__(
        self, request: Request, lease_s: float, accept_lease_s: float | None, restarts: int, version: int
    ) -> None:
        self.request = request
        self.prefix = assignment_id(request.attempt, 1, restarts)[:-1]
        """What the ids of its assignments begin with, before their number."""
        self.lease_s = lease_s
        self.accept_lease_s = accept_lease_s
        self.count = 0
        self.version = version


class _Queue:
    """A region's open offers under the plan in force, taken from the plan as they are needed.

    ``cursor`` is past the offers that are filled. ``epoch`` is the table's when the cursor was last right: a slot that
    comes back moves the epoch on, and the queue then starts over.
    """

    __slots__ = ("cursor", "epoch", "lanes", "offers", "rest")

    def __init__(self, rest: Iterator[Offer], epoch: int) -> None:
        self.offers: list[tuple[_Entry, Offer]] = []
        self.rest = rest
        self.cursor = 0
        self.epoch = epoch
        self.lanes: dict[Tenant | None, _Lane] = {}
        """The offers by tenant, where there are quotas; those of all tenants without one are one lane."""


class _Lane:
    """The places of one tenant's offers in a region's queue, with a cursor and an epoch of their own."""

    __slots__ = ("cursor", "epoch", "places")

    def __init__(self, epoch: int) -> None:
        self.places: list[int] = []
        self.cursor = 0
        self.epoch = epoch


class BindingTable:
    """The in-memory binding table. Not thread-safe: one owner calls it.

    Args:
        once_per_round: a device that has reported in a round is not bound to it again, so that a round's reports are
            those of so many devices. Asynchronous attempts take a device as often as it comes.
    """

    def __init__(self, *, once_per_round: bool = True) -> None:
        self.once_per_round = once_per_round
        self._served: dict[DeviceId, tuple[Request, ...]] = {}
        """The open requests in which each device has reported; nearly always one."""
        self._entries: dict[AttemptId, _Entry] = {}
        self._by_device: dict[DeviceId, Assignment] = {}
        self._expiries: list[tuple[float, int, Assignment]] = []
        self._sequence = 0
        self.wake_at = math.inf
        """No lease runs out before this time. It may be early, since the assignment may have been settled."""
        self._plan: Plan = EMPTY_PLAN
        self._queues: dict[Signature, _Queue] = {}
        self._epoch = 0
        self._quotas = False

    # -- requests ---------------------------------------------------------------------------------------------------

    def open(
        self,
        request: Request,
        *,
        lease_s: float,
        accept_lease_s: float | None = None,
        restarts: int = 0,
        version: int = 0,
    ) -> None:
        """Add a request.

        Args:
            request: of an attempt.
            lease_s: how long a device may take for the task.
            accept_lease_s: how long it may take to accept it, if it must (a private requirement).
            restarts: how often the server was restarted during the attempt, so that no assignment's id repeats.
            version: the job's model version.

        Raises:
            Conflict: the attempt is open already.
        """
        if request.attempt in self._entries:
            raise Conflict(f"attempt {request.attempt} is open already", field="attempt")
        self._entries[request.attempt] = _Entry(request, lease_s, accept_lease_s, restarts, version)
        if request.tenant is not None and not self._quotas:
            self._quotas = True
            self._drop_queues()

    def close(self, attempt: AttemptId) -> list[Assignment]:
        """Remove a request and end its live assignments, which are returned. Closing twice returns nothing."""
        entry = self._entries.pop(attempt, None)
        if entry is None:
            return []
        ended = cast(list[Assignment], list(entry.request.live.values()))
        for assignment in ended:
            self._end(assignment)
        for reported in cast(list[Assignment], list(entry.request.reported.values())):
            served = self._served.pop(reported.device, ())
            others = tuple(request for request in served if request is not entry.request)
            if others:
                self._served[reported.device] = others
        self._drop_queues()
        return ended

    def publish(self, plan: Plan) -> None:
        """Put a plan in force. Offers for attempts that are not open are passed over."""
        self._plan = plan
        self._drop_queues()

    def take_reported(self, attempt: AttemptId) -> tuple[AssignmentId, ...]:
        """The assignments that have reported, in the order of their reports; an asynchronous attempt starts afresh."""
        request = self._entries[attempt].request
        taken = cast(tuple[AssignmentId, ...], tuple(request.reported))
        if request.continuous:
            request.attained += len(taken)
            request.reported.clear()
        return taken

    def advance(self, attempt: AttemptId) -> None:
        """Later binds of this asynchronous attempt carry the next model version."""
        self._entries[attempt].version += 1

    # -- devices ----------------------------------------------------------------------------------------------------

    def bind(
        self,
        device: DeviceId,
        signature: Signature,
        now: float,
        *,
        draw: float = 0.0,
        response_s: float = 0.0,
        declined: frozenset[JobId] | None = None,
    ) -> Assignment | None:
        """Bind a device that checks in, or return the assignment it holds already, or None.

        Args:
            device: who checks in.
            signature: its region.
            now: pool time, seconds.
            draw: a uniform number in [0, 1), for plans that choose at random.
            response_s: the device's expected response time, seconds, for offers restricted to a tier.
            declined: jobs that this device declined in this session.
        """
        held = self._by_device.get(device)
        if held is not None:
            return held
        if self._served and device in self._served:
            return self._bind_again(device, signature, now, draw, response_s, declined)
        queue = self._queues.get(signature)
        if queue is None:
            queue = self._queues[signature] = _Queue(self._plan.walk(signature), self._epoch)
        elif queue.epoch != self._epoch:
            queue.cursor = 0
            queue.epoch = self._epoch
        choice = self._plan.choice
        if choice == "uniform":
            return self._bind_uniform(queue, device, signature, now, draw, declined)
        if choice != "first":
            return self._bind_picked(choice, queue, device, signature, now, draw, declined)
        if self._quotas:
            return self._bind_by_quota(queue, device, signature, now, response_s, declined)
        offers = queue.offers
        index = queue.cursor
        passed_over = False
        while index < len(offers) or self._extend(queue):
            entry, offer = offers[index]
            index += 1
            request = entry.request
            used = len(request.live) if request.continuous else len(request.live) + len(request.reported)
            if used >= request.wanted:
                if not passed_over:
                    queue.cursor = index
                continue
            tier = offer.tier
            if (tier is not None and not tier.admits(response_s)) or (declined and request.job in declined):
                passed_over = True
                continue
            return self._bind(entry, device, signature, now)
        return None

    def accept(self, id: AssignmentId, now: float) -> Assignment:
        """The device takes the task: the lease now covers the work. Accepting twice changes nothing.

        Raises:
            NotFound: no live assignment has this id.
        """
        assignment = self.live(id)
        if not assignment.accepted:
            entry = self._entries[assignment.attempt]
            assignment.accepted = True
            assignment.expires_at = now + entry.lease_s
            self._push_expiry(assignment)
            self._bound_expiries()
        return assignment

    def admit(self, assignment: Assignment) -> None:
        """Count the report of an assignment from before a crash. The request must have a place for it."""
        self._take_report(assignment)

    def settle(self, id: AssignmentId, outcome: Outcome) -> Assignment:
        """End a live assignment. A report keeps its slot; every other outcome gives the slot back.

        Raises:
            NotFound: no live assignment has this id.
        """
        assignment = self.live(id)
        request = self._entries[assignment.attempt].request
        del request.live[id]
        self._end(assignment)
        if outcome is Outcome.DECLINED and request.tenant is not None:
            request.tenant.count(assignment.bound_at, -1)
        if outcome is Outcome.REPORTED:
            self._take_report(assignment)
        if outcome is not Outcome.REPORTED or request.continuous:
            self._epoch += 1
        return assignment

    def expire(self, now: float) -> list[Assignment]:
        """End and return the assignments whose lease has run out by ``now``; their slots are free again."""
        lost = []
        while self._expiries and self._expiries[0][0] <= now:
            _, _, assignment = heapq.heappop(self._expiries)
            if self._by_device.get(assignment.device) is assignment and assignment.expires_at <= now:
                lost.append(self.settle(assignment.id, Outcome.LOST))
        self.wake_at = self._expiries[0][0] if self._expiries else math.inf
        return lost

    # -- looking ----------------------------------------------------------------------------------------------------

    def live(self, id: AssignmentId) -> Assignment:
        """The live assignment with this id.

        Raises:
            NotFound: there is none.
        """
        entry = self._entries.get(attempt_of(id))
        assignment = None if entry is None else entry.request.live.get(id)
        if assignment is None:
            raise NotFound(f"no live assignment {id}", field="assignment", value=id)
        return cast(Assignment, assignment)

    def holds(self, device: DeviceId) -> Assignment | None:
        """The device's live assignment, if any."""
        return self._by_device.get(device)

    def served(self, device: DeviceId) -> frozenset[JobId]:
        """The jobs in whose open rounds the device has reported, and which it therefore is not bound to."""
        return frozenset(request.job for request in self._served.get(device, ()))

    def requests(self) -> list[Request]:
        """All open requests, in the order in which they opened."""
        return [entry.request for entry in self._entries.values()]

    def request(self, attempt: AttemptId) -> Request | None:
        """The open request of an attempt, if it is open."""
        entry = self._entries.get(attempt)
        return None if entry is None else entry.request

    def assignments(self) -> list[Assignment]:
        """All live assignments."""
        return list(self._by_device.values())

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan

    def sizes(self) -> list[tuple[str, int, int]]:
        """What the table holds that could grow: name, entries, and the bound by what is in flight."""
        return [
            ("assignments", len(self._by_device), sum(entry.request.wanted for entry in self._entries.values())),
            (
                "devices that have reported",
                len(self._served),
                sum(len(e.request.reported) for e in self._entries.values()),
            ),
            ("lease expiries", len(self._expiries), 64 + 2 * len(self._by_device)),
        ]

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _bind(self, entry: _Entry, device: DeviceId, signature: Signature, now: float) -> Assignment:
        request = entry.request
        request.repeats = 0
        entry.count += 1
        id = AssignmentId(entry.prefix + str(entry.count))
        accept_lease_s = entry.accept_lease_s
        lease_s = entry.lease_s if accept_lease_s is None else accept_lease_s
        assignment = Assignment(
            id, device, request, signature, now, now + lease_s, accepted=accept_lease_s is None, version=entry.version
        )
        request.live[id] = assignment
        if request.tenant is not None:
            request.tenant.live[id] = assignment
            request.tenant.count(now, 1)
        self._by_device[device] = assignment
        self._push_expiry(assignment)
        return assignment

    def _take_report(self, assignment: Assignment) -> None:
        request = assignment.request
        request.reported[assignment.id] = assignment
        if self.once_per_round and not request.continuous:
            self._served[assignment.device] = (*self._served.get(assignment.device, ()), request)

    def _bind_again(
        self,
        device: DeviceId,
        signature: Signature,
        now: float,
        draw: float,
        response_s: float,
        declined: frozenset[JobId] | None,
    ) -> Assignment | None:
        """Bind a device that has reported in open rounds to any but these, as if it had declined them."""
        served = self._served.pop(device)
        others = (declined or frozenset()) | {request.job for request in served}
        bound = self.bind(device, signature, now, draw=draw, response_s=response_s, declined=others)
        self._served[device] = served
        if bound is None:
            for request in served:
                request.repeats += 1
        return bound

    def _bind_uniform(
        self,
        queue: _Queue,
        device: DeviceId,
        signature: Signature,
        now: float,
        draw: float,
        declined: frozenset[JobId] | None,
    ) -> Assignment | None:
        while self._extend(queue):
            pass
        choice: list[_Entry] = []
        borrowers: list[_Entry] = []
        for entry, _ in queue.offers:
            request = entry.request
            if request.needs <= 0 or (declined and request.job in declined):
                continue
            if request.tenant is None or not request.tenant.exhausted(now):
                choice.append(entry)
            elif request.tenant.quota.borrow:
                borrowers.append(entry)
        choice = choice or borrowers
        return self._bind(choice[int(draw * len(choice))], device, signature, now) if choice else None

    def _bind_picked(
        self,
        pick: Pick,
        queue: _Queue,
        device: DeviceId,
        signature: Signature,
        now: float,
        draw: float,
        declined: frozenset[JobId] | None,
    ) -> Assignment | None:
        """Bind to the one request that the device may serve, or to none if that one needs no device now."""
        while self._extend(queue):
            pass
        if not queue.offers:
            return None
        entry, _ = queue.offers[pick(device, draw, [entry.request.job for entry, _ in queue.offers])]
        request = entry.request
        tenant = request.tenant
        barred = tenant is not None and not tenant.quota.borrow and tenant.exhausted(now)
        if barred or request.needs <= 0 or (declined and request.job in declined):
            return None
        return self._bind(entry, device, signature, now)

    def _bind_by_quota(
        self,
        queue: _Queue,
        device: DeviceId,
        signature: Signature,
        now: float,
        response_s: float,
        declined: frozenset[JobId] | None,
    ) -> Assignment | None:
        """Bind to the first offer of a tenant within its quota, or else to the first of one that may borrow.

        It looks at one offer of each tenant, and at those that are taken from the plan for the first time.
        """
        exhausted = {tenant for tenant in queue.lanes if tenant is not None and tenant.exhausted(now)}
        best = self._first(queue, exhausted, response_s, declined, within=True)
        while best is None and self._extend(queue):
            entry, offer = queue.offers[-1]
            tenant = entry.request.tenant
            if tenant is not None and tenant.exhausted(now):
                exhausted.add(tenant)
            elif _usable(entry.request, offer, response_s, declined):
                best = entry
        best = best or self._first(queue, exhausted, response_s, declined, within=False)
        return None if best is None else self._bind(best, device, signature, now)

    def _first(
        self,
        queue: _Queue,
        exhausted: set[Tenant],
        response_s: float,
        declined: frozenset[JobId] | None,
        *,
        within: bool,
    ) -> _Entry | None:
        """The first usable offer among the tenants within their quotas, or among those that borrow beyond them."""
        best = len(queue.offers)
        for tenant, lane in queue.lanes.items():
            is_within = tenant is None or tenant not in exhausted
            if is_within is not within or not (is_within or tenant is None or tenant.quota.borrow):
                continue
            if lane.epoch != self._epoch:
                lane.cursor, lane.epoch = 0, self._epoch
            passed_over = False
            for index in range(lane.cursor, len(lane.places)):
                place = lane.places[index]
                if place >= best:
                    break
                entry, offer = queue.offers[place]
                if _usable(entry.request, offer, response_s, declined):
                    best = place
                elif entry.request.needs > 0:
                    passed_over = True
                elif not passed_over:
                    lane.cursor = index + 1
        return queue.offers[best][0] if best < len(queue.offers) else None

    def _extend(self, queue: _Queue) -> bool:
        """Take the plan's next offer for an open attempt into the queue; False when there is none."""
        for offer in queue.rest:
            entry = self._entries.get(offer.attempt)
            if entry is not None:
                queue.offers.append((entry, offer))
                if self._quotas:
                    lane = queue.lanes.setdefault(entry.request.tenant, _Lane(self._epoch))
                    lane.places.append(len(queue.offers) - 1)
                return True
        return False

    def _end(self, assignment: Assignment) -> None:
        del self._by_device[assignment.device]
        tenant = assignment.request.tenant
        if tenant is not None:
            del tenant.live[assignment.id]
        self._bound_expiries()

    def _push_expiry(self, assignment: Assignment) -> None:
        self._sequence += 1
        expires_at = assignment.expires_at
        heapq.heappush(self._expiries, (expires_at, self._sequence, assignment))
        if expires_at < self.wake_at:
            self.wake_at = expires_at

    def _bound_expiries(self) -> None:
        """Drop the expiries of settled assignments once they prevail, so that what is in flight bounds the heap."""
        if len(self._expiries) <= 64 + 2 * len(self._by_device):
            return
        self._expiries = [
            item
            for item in self._expiries
            if self._by_device.get(item[2].device) is item[2] and item[0] == item[2].expires_at
        ]
        heapq.heapify(self._expiries)

    def _drop_queues(self) -> None:
        self._queues.clear()


def _usable(request: Request, offer: Offer, response_s: float, declined: frozenset[JobId] | None) -> bool:
    """Whether a device with this expected response time may take an offer, and the offer needs one."""
    if request.needs <= 0 or (declined and request.job in declined):
        return False
    return offer.tier is None or offer.tier.admits(response_s)
