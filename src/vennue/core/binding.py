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
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature, attempt_of
from vennue.core.plan import EMPTY_PLAN, Offer, Plan, Request


class Outcome(StrEnum):
    """How an assignment ends."""

    REPORTED = "reported"
    DECLINED = "declined"
    ABORTED = "aborted"
    LOST = "lost"
    CLOSED = "closed"


class Assignment:
    """A device given to an attempt: one lease, with an expiry.

    ``accepted`` is False while a private requirement awaits the device's answer; until then the lease is the short
    one that covers an answer, not a training task.
    """

    __slots__ = ("accepted", "bound_at", "device", "expires_at", "id", "request", "signature", "version")

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

    __slots__ = ("accept_lease_s", "count", "lease_s", "request", "version")

    def __init__(self, request: Request, lease_s: float, accept_lease_s: float | None) -> None:
        self.request = request
        self.lease_s = lease_s
        self.accept_lease_s = accept_lease_s
        self.count = 0
        self.version = 0


class _Queue:
    """A region's open offers under the plan in force, taken from the plan as they are needed.

    ``cursor`` is past the offers that are filled. ``epoch`` is the table's when the cursor was last right: a slot that
    comes back moves the epoch on, and the queue then starts over.
    """

    __slots__ = ("cursor", "epoch", "offers", "rest")

    def __init__(self, rest: Iterator[Offer], epoch: int) -> None:
        self.offers: list[tuple[_Entry, Offer]] = []
        self.rest = rest
        self.cursor = 0
        self.epoch = epoch


class BindingTable:
    """The in-memory binding table. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._entries: dict[AttemptId, _Entry] = {}
        self._by_device: dict[DeviceId, Assignment] = {}
        self._expiries: list[tuple[float, int, Assignment]] = []
        self._sequence = 0
        self.wake_at = math.inf
        """No lease runs out before this time. It may be early, since the assignment may have been settled."""
        self._plan: Plan = EMPTY_PLAN
        self._queues: dict[Signature, _Queue] = {}
        self._epoch = 0

    # -- requests ---------------------------------------------------------------------------------------------------

    def open(self, request: Request, *, lease_s: float, accept_lease_s: float | None = None) -> None:
        """Add a request. ``accept_lease_s`` is set when devices must accept (a private requirement).

        Raises:
            Conflict: the attempt is open already.
        """
        if request.attempt in self._entries:
            raise Conflict(f"attempt {request.attempt} is open already", field="attempt")
        self._entries[request.attempt] = _Entry(request, lease_s, accept_lease_s)

    def close(self, attempt: AttemptId) -> list[Assignment]:
        """Remove a request and end its live assignments, which are returned. Closing twice returns nothing."""
        entry = self._entries.pop(attempt, None)
        if entry is None:
            return []
        ended = cast(list[Assignment], list(entry.request.live.values()))
        for assignment in ended:
            self._end(assignment)
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
        queue = self._queues.get(signature)
        if queue is None:
            queue = self._queues[signature] = _Queue(self._plan.walk(signature), self._epoch)
        elif queue.epoch != self._epoch:
            queue.cursor = 0
            queue.epoch = self._epoch
        if self._plan.choice == "uniform":
            return self._bind_uniform(queue, device, signature, now, draw, declined)
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

    def settle(self, id: AssignmentId, outcome: Outcome) -> Assignment:
        """End a live assignment. A report keeps its slot; every other outcome gives the slot back.

        Raises:
            NotFound: no live assignment has this id.
        """
        assignment = self.live(id)
        request = self._entries[assignment.attempt].request
        del request.live[id]
        self._end(assignment)
        if outcome is Outcome.REPORTED:
            request.reported[id] = assignment
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
            ("lease expiries", len(self._expiries), 64 + 2 * len(self._by_device)),
        ]

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _bind(self, entry: _Entry, device: DeviceId, signature: Signature, now: float) -> Assignment:
        request = entry.request
        entry.count += 1
        id = AssignmentId(f"{request.attempt}.{entry.count}")
        accept_lease_s = entry.accept_lease_s
        lease_s = entry.lease_s if accept_lease_s is None else accept_lease_s
        assignment = Assignment(
            id, device, request, signature, now, now + lease_s, accepted=accept_lease_s is None, version=entry.version
        )
        request.live[id] = assignment
        self._by_device[device] = assignment
        self._push_expiry(assignment)
        return assignment

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
        open_entries = [
            entry for entry, _ in queue.offers if entry.request.needs > 0 and entry.request.job not in (declined or ())
        ]
        if not open_entries:
            return None
        return self._bind(open_entries[int(draw * len(open_entries))], device, signature, now)

    def _extend(self, queue: _Queue) -> bool:
        """Take the plan's next offer for an open attempt into the queue; False when there is none."""
        for offer in queue.rest:
            entry = self._entries.get(offer.attempt)
            if entry is not None:
                queue.offers.append((entry, offer))
                return True
        return False

    def _end(self, assignment: Assignment) -> None:
        del self._by_device[assignment.device]
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
