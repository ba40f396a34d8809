"""The binding table: open requests, the plan in force, live assignments and their expiries.

This is the seam between the job and round state machines above it and one or many machines below it. Its contract is
a handful of operations (open, close, publish, bind, settle, expire), each with time passed in, each atomic. This is
the in-memory table that the simulator and the embedded server use. It holds nothing for devices that are not bound
right now, so its memory grows with the assignments in flight and never with the devices seen.
"""

import math
from heapq import heapify, heappop, heappush
from typing import cast

from vennue.core.assignment import Assignment, Outcome
from vennue.core.errors import Conflict, NotFound
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature, attempt_of
from vennue.core.offers import OpenRequest, RegionOffers
from vennue.core.plan import EMPTY_PLAN, Plan, Request


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
        self._open: dict[AttemptId, OpenRequest] = {}
        self._by_device: dict[DeviceId, Assignment] = {}
        self._expiries: list[tuple[float, int, Assignment]] = []
        self._sequence = 0
        self.wake_at = math.inf
        """No lease runs out before this time. It may be early, since the assignment may have been settled."""
        self._plan: Plan = EMPTY_PLAN
        self._offers: dict[Signature, RegionOffers] = {}
        self._epoch = 0
        """How often a slot has come back."""
        self._quotas = False
        """Whether a request of a tenant with a quota was ever open."""

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
        if request.attempt in self._open:
            raise Conflict(f"attempt {request.attempt} is open already", field="attempt")
        self._open[request.attempt] = OpenRequest(
            request, lease_s=lease_s, accept_lease_s=accept_lease_s, restarts=restarts, version=version
        )
        if request.tenant is not None and not self._quotas:
            self._quotas = True
            self._offers.clear()

    def close(self, attempt: AttemptId) -> list[Assignment]:
        """Remove a request and end its live assignments, which are returned. Closing twice returns nothing."""
        open_request = self._open.pop(attempt, None)
        if open_request is None:
            return []
        ended = list(open_request.request.live.values())
        for assignment in ended:
            self._end(assignment)
        for reported in open_request.request.reported.values():
            served = self._served.pop(reported.device, ())
            others = tuple(request for request in served if request is not open_request.request)
            if others:
                self._served[reported.device] = others
        self._offers.clear()
        return ended

    def publish(self, plan: Plan) -> None:
        """Put a plan in force. Offers for attempts that are not open are passed over."""
        self._plan = plan
        self._offers.clear()

    def take_reported(self, attempt: AttemptId) -> tuple[AssignmentId, ...]:
        """The assignments that have reported, in the order of their reports; an asynchronous attempt starts afresh."""
        request = self._open[attempt].request
        taken = tuple(request.reported)
        if request.continuous:
            request.attained += len(taken)
            request.reported.clear()
        return taken

    def advance(self, attempt: AttemptId) -> None:
        """Later binds of this asynchronous attempt carry the next model version."""
        self._open[attempt].version += 1

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
        if device in self._served:
            return self._bind_again(device, signature, now, draw, response_s, declined)
        offers = self._offers.get(signature)
        if offers is None:
            offers = self._offers[signature] = RegionOffers(
                self._plan.walk(signature), self._open, by_tenant=self._quotas, epoch=self._epoch
            )
        elif offers.epoch != self._epoch:
            offers.start_over(self._epoch)
        choice = self._plan.choice
        if choice == "first":
            if self._quotas:
                chosen = offers.first_by_quota(now, response_s, declined)
            else:
                chosen = offers.first(response_s, declined)
        elif choice == "uniform":
            chosen = offers.uniform(now, draw, declined)
        else:
            chosen = offers.picked(choice, device, now, draw, declined)
        return None if chosen is None else self._bind(chosen, device, signature, now)

    def accept(self, id: AssignmentId, now: float) -> Assignment:
        """The device takes the task: the lease now covers the work. Accepting twice changes nothing.

        Raises:
            NotFound: no live assignment has this id.
        """
        assignment = self.live(id)
        if not assignment.accepted:
            open_request = self._open[assignment.attempt]
            assignment.accepted = True
            assignment.expires_at = now + open_request.lease_s
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
        request = self._open[assignment.attempt].request
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
            _, _, assignment = heappop(self._expiries)
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
        open_request = self._open.get(attempt_of(id))
        assignment = None if open_request is None else open_request.request.live.get(id)
        if assignment is None:
            raise NotFound(f"no live assignment {id}", field="assignment", value=id)
        return assignment

    def holds(self, device: DeviceId) -> Assignment | None:
        """The device's live assignment, if any."""
        return self._by_device.get(device)

    def served(self, device: DeviceId) -> frozenset[JobId]:
        """The jobs in whose open rounds the device has reported, and which it therefore is not bound to."""
        return frozenset(request.job for request in self._served.get(device, ()))

    def requests(self) -> list[Request]:
        """All open requests, in the order in which they opened."""
        return [open_request.request for open_request in self._open.values()]

    def request(self, attempt: AttemptId) -> Request | None:
        """The open request of an attempt, if it is open."""
        open_request = self._open.get(attempt)
        return None if open_request is None else open_request.request

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
            (
                "assignments",
                len(self._by_device),
                sum(open_request.request.wanted for open_request in self._open.values()),
            ),
            (
                "devices that have reported",
                len(self._served),
                sum(len(e.request.reported) for e in self._open.values()),
            ),
            ("lease expiries", len(self._expiries), 64 + 2 * len(self._by_device)),
        ]

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _bind(self, open_request: OpenRequest, device: DeviceId, signature: Signature, now: float) -> Assignment:
        request = open_request.request
        request.repeats = 0
        open_request.bound_so_far += 1
        # A cast costs half of what a NewType does, at every bind.
        id = cast(AssignmentId, open_request.id_prefix + str(open_request.bound_so_far))
        accept_lease_s = open_request.accept_lease_s
        lease_s = open_request.lease_s if accept_lease_s is None else accept_lease_s
        assignment = Assignment(
            id,
            device,
            request,
            signature,
            now,
            now + lease_s,
            accepted=accept_lease_s is None,
            version=open_request.version,
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

    def _end(self, assignment: Assignment) -> None:
        del self._by_device[assignment.device]
        tenant = assignment.request.tenant
        if tenant is not None:
            del tenant.live[assignment.id]
        self._bound_expiries()

    def _push_expiry(self, assignment: Assignment) -> None:
        self._sequence += 1
        expires_at = assignment.expires_at
        heappush(self._expiries, (expires_at, self._sequence, assignment))
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
        heapify(self._expiries)
