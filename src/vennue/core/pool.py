"""The pool: the whole resource manager as one state machine without I/O.

Events go in through `Pool.handle` with the time at which they happen; the answer comes back at once and what the
outside world must do is taken with `Pool.drain`. The pool owns the jobs, their attempts, the registered requirements,
the supply and the binding table, asks the policy for a plan when job-side events have made the last one stale, and
keeps every promise of the design's section 5 (`vennue.core.invariants` checks them). The simulator, the server and
the fault tests all drive this class and nothing else.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from vennue.core.assignment import Assignment, Outcome
from vennue.core.batch import MAX_BATCH, Batch, Collected
from vennue.core.effects import Answered, Effect
from vennue.core.errors import Conflict, Forbidden, NotFound, TooLate
from vennue.core.events import (
    Abort,
    Accept,
    CancelJob,
    CheckIn,
    CommitFailed,
    Committed,
    CompleteJob,
    Contact,
    Decline,
    Event,
    OpenRound,
    Recover,
    Report,
    ReportTogether,
    SubmitJob,
    Tick,
)
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature, attempt_of, job_of
from vennue.core.lifecycle import ATTEMPT, BATCH, JOB
from vennue.core.losses import MAX_REGIONS
from vennue.core.plan import Plan, Planner
from vennue.core.recovery import SERVED, Recovery
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema
from vennue.core.round import Attempt
from vennue.core.supply import Supply
from vennue.core.tenant import Quota

ACCEPT_LEASE_S = 30.0
"""How long a device may take to evaluate a private requirement and answer."""

_BATCH_TIMER = BATCH, ""


class Pool(Recovery):
    """One pool of devices shared by many jobs. Not thread-safe: one owner drives it.

    Args:
        planner: the policy.
        schema: the device attributes that requirements may use.
        seed: of the lottery that ``random-order`` uses; the same seed gives the same draws under every policy.
        replan_interval_s: least time between two plans; 0 plans at the first check-in after each change.
        plan_lag_s: how long a plan may stay in force that lacks only the news that requests need devices no more.
        supply: where check-ins are counted; by default one with the design's window of 24 h.
        quotas: by tenant's name, or ``"*"`` for those not named; without one, a tenant may use any number of devices.
        batch_window_s: how long check-ins may wait to be bound together. They are then answered by a `Collected`, and
            later by an effect, `Answered`. 0 binds each at once.
        once_per_round: a device that has reported in a round is not bound to it again.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        schema: AttributeSchema = DEFAULT_SCHEMA,
        seed: int = 0,
        replan_interval_s: float = 0.0,
        plan_lag_s: float = 0.0,
        accept_lease_s: float = ACCEPT_LEASE_S,
        supply: Supply | None = None,
        quotas: Mapping[str, Quota] | None = None,
        batch_window_s: float = 0.0,
        once_per_round: bool = True,
    ) -> None:
        super().__init__(
            planner,
            schema=schema,
            seed=seed,
            replan_interval_s=replan_interval_s,
            plan_lag_s=plan_lag_s,
            accept_lease_s=accept_lease_s,
            supply=Supply() if supply is None else supply,
            quotas=quotas or {},
            once_per_round=once_per_round,
        )
        self.batch = Batch(batch_window_s)
        """The check-ins that wait to be bound together."""
        self._handlers: dict[type[Event], Callable[[Any, float], Any]] = {
            CheckIn: self._check_in,
            Accept: self._accept,
            Decline: self._decline,
            Abort: self._abort,
            Report: self._report,
            Recover: self._recover,
            ReportTogether: self._report_together,
            SubmitJob: self._submit,
            OpenRound: self._open_round,
            CompleteJob: self._complete,
            CancelJob: self._cancel,
            Contact: self._contact,
            Committed: self._committed,
            CommitFailed: self._commit_failed,
            Tick: self._tick,
        }

    def __repr__(self) -> str:
        active = sum(not job.state.terminal for job in self.jobs.values())
        return (
            f"<{type(self).__name__} at {self.now:.3f} s: {active} of {len(self.jobs)} jobs active, "
            f"{len(self.attempts())} attempts, {len(self.table.assignments())} devices at work>"
        )

    # -- driving ------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> Any:
        """Apply an event at ``now`` (pool time, seconds) and return its answer.

        Timers that are due by ``now`` fire first. A step backwards in time counts as no time having passed.

        Raises:
            VennueError: the event makes no sense; nothing was changed by it. (Only a report that is too stale ends
                its assignment.)
        """
        now = self.now if now < self.now else now
        self.now = now
        if now >= self._timers.wake_at or now >= self.table.wake_at:
            self.fire(now)
        return self._handlers[type(event)](event, now)

    def fire(self, now: float) -> None:
        """Fire the timers due by ``now``, in the order in which they fell due; a lease before a deadline of its moment.

        What they start (a next attempt) starts at ``now``, so that a long pause costs no round its whole deadline.
        """
        while (wake := min(self._timers.wake_at, self.table.wake_at)) <= now:
            for assignment in self.table.expire(wake):
                self._given_back(assignment, Outcome.LOST, now, "its lease ran out")
            while (due := self._timers.pop(wake)) is not None:
                kind, name = due
                if kind == ATTEMPT:
                    self._attempt_due(self._attempts[AttemptId(name)], now)
                elif kind == JOB:
                    self._job_due(self.jobs[JobId(name)], now)
                else:
                    self._bind_collected(now)

    def drain(self) -> list[Effect]:
        """The effects since the last call, in order. Call it after `handle` even when that raised."""
        effects, self._outbox = self._outbox, []
        return effects

    def next_wake(self) -> float | None:
        """When the next timer may be due (send a `Tick` then), or None."""
        wake = min(self._timers.wake_at, self.table.wake_at)
        return None if wake == math.inf else wake

    def set_planner(self, planner: Planner) -> None:
        """Change the policy; jobs, rounds and assignments stay as they are."""
        self.planning.set_planner(planner)

    @property
    def plans(self) -> int:
        """Plans made so far."""
        return self.planning.made

    def plan(self) -> Plan:
        """The plan in force, brought up to date."""
        if self.now >= self.planning.stale_at:
            self._replan(self.now)
        return self.table.plan

    def sizes(self) -> list[tuple[str, int, int]]:
        """What the pool holds that could grow: name, entries, and the bound by what is in flight."""
        return [
            ("attempts", len(self._attempts), len(self.jobs)),
            ("waiting devices", len(self.batch), MAX_BATCH),
            ("timers", len(self._timers), self._timers.bound),
            ("regions with losses", self.losses.regions, MAX_REGIONS),
            ("jobs with losses", self.losses.jobs, len(self.jobs)),
            *self.table.sizes(),
        ]

    # -- devices ------------------------------------------------------------------------------------------------------

    def _check_in(self, event: CheckIn, now: float) -> Assignment | Collected | None:
        profile = event.profile
        self.supply.observe(profile, now)
        if self.planning.learns:
            self.planning.learned.capabilities.observe(profile, event.response_s)
        if self.batch.window_s and self.table.holds(event.device) is None:
            return self._collect(event, now)
        signature = self.registry.signature(profile)
        assignment = self._bind(event, event.device, signature, now)
        if assignment is not None and not signature >> assignment.request.bit & 1:
            self._release(assignment.id, Outcome.LOST, now, "its attributes no longer meet the requirement")
            return self._collect(event, now) if self.batch.window_s else self._bind(event, event.device, signature, now)
        return assignment

    def _collect(self, event: CheckIn, now: float) -> Collected:
        """Have a device wait for others. It is told by an `Answered`."""
        collected = self.batch.add(event, now)
        self._timers.set(_BATCH_TIMER, self.batch.due_at)
        if self.batch.full:
            self._timers.cancel(_BATCH_TIMER)
            self._bind_collected(now)
        return collected

    def _bind_collected(self, now: float) -> None:
        """Bind all devices that wait, under one plan."""
        if now >= self.planning.stale_at:
            self._replan(now)
        needy = 0
        for request in self.table.requests():
            if request.needs > 0:
                needy |= 1 << request.bit
        for event in self.batch.take(self.registry.signature, Signature(needy)):
            signature = self.registry.signature(event.profile)
            self._outbox.append(Answered(event.device, self._give(event, event.device, signature, now)))

    def _bind(self, event: CheckIn | Decline, device: DeviceId, signature: Signature, now: float) -> Assignment | None:
        if now >= self.planning.stale_at:
            self._replan(now)
        return self._give(event, device, signature, now)

    def _give(self, event: CheckIn | Decline, device: DeviceId, signature: Signature, now: float) -> Assignment | None:
        assignment = self.table.bind(
            device, signature, now, draw=event.draw, response_s=event.response_s, declined=event.declined
        )
        if assignment is not None and assignment.bound_at == now:
            request = assignment.request
            attempt = self._attempts[request.attempt]
            attempt.note_bound(now)
            assignment.response_s = event.response_s
            if attempt.filled:
                self._tell(self.jobs[attempt.job], now, f"attempt {attempt.id} has all its devices")
                self.planning.later("has all its devices", attempt.id)
        return assignment

    def _accept(self, event: Accept, now: float) -> Assignment:
        self._held(event.assignment, event.device)
        return self.table.accept(event.assignment, now)

    def _decline(self, event: Decline, now: float) -> Assignment | None:
        assignment = self._held(event.assignment, event.device)
        self._release(assignment.id, Outcome.DECLINED, now, event.reason)
        return self._bind(event, event.device, assignment.signature, now)

    def _abort(self, event: Abort, now: float) -> None:
        self._held(event.assignment, event.device)
        self._release(event.assignment, Outcome.ABORTED, now, event.reason)

    def _report(self, event: Report, now: float) -> bool:
        """True when the report was counted now, False when it had been counted before."""
        attempt = self._attempts.get(attempt_of(event.assignment))
        if attempt is not None:
            earlier = attempt.request.reported.get(event.assignment)
            if earlier is not None:
                self._check_owner(earlier, event.device)
                return False
        assignment = self._claimed(event)
        attempt = self._attempts[assignment.attempt]
        if assignment.job in self.table.served(event.device):
            raise TooLate(SERVED, field="assignment", value=assignment.id)
        staleness = attempt.version - assignment.version
        limit = attempt.spec.max_staleness
        if limit is not None and staleness > limit:
            if assignment.id in attempt.request.live:
                self._release(assignment.id, Outcome.LOST, now, "stale")
            raise TooLate(
                f"the update is {staleness} model versions old", field="assignment", value=staleness, limit=limit
            )
        self._count(assignment, attempt, now)
        if attempt.request.continuous and attempt.filled:
            attempt.filled = False
            self.planning.soon("takes another device", attempt.id)
        if attempt.ready:
            self._start_commit(attempt, now)
        return True

    def _report_together(self, event: ReportTogether, now: float) -> int:
        assignments = {report.assignment: self._claimed(report) for report in event.reports}
        attempts = {assignment.attempt for assignment in assignments.values()}
        if len(attempts) != 1 or len(assignments) < len(event.reports):
            raise Conflict(
                "a sum must be of different reports of one attempt", field="reports", value=", ".join(sorted(attempts))
            )
        attempt = self._attempts[attempts.pop()]
        if attempt.request.continuous:
            raise Conflict("each update of an asynchronous job counts by itself", field="reports", value=attempt.id)
        for id, reason in self.without_place(attempt, event.reports).items():
            raise TooLate(reason, field="assignment", value=id)
        # Those that hold a place first: one that returns must not take the place of another one in the same sum.
        for assignment in sorted(assignments.values(), key=lambda one: one.id not in attempt.request.live):
            self._count(assignment, attempt, now)
        if attempt.ready:
            self._start_commit(attempt, now)
        return len(assignments)

    def _count(self, assignment: Assignment, attempt: Attempt, now: float) -> None:
        request = attempt.request
        if assignment.id not in request.live:
            held = self.table.holds(assignment.device)
            if held is not None and held.request is request and not request.continuous:
                self._release(held.id, Outcome.DISPLACED, now, "its device has reported with what it trained before")
            if not request.continuous and request.needs <= 0:
                latest = next(reversed(request.live))
                self._release(latest, Outcome.DISPLACED, now, "a device from before the restart has reported")
            self._admit(attempt, assignment)
            attempt.filled = request.needs <= 0
            return
        self.table.settle(assignment.id, Outcome.REPORTED)
        self.losses.observe(assignment.job, assignment.signature, lost=False)
        if self.planning.learns:
            self.planning.learned.observe_report(attempt.job, assignment.response_s, now - assignment.bound_at)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: float) -> None:
        """`handle` has fired the timers already."""

    def _replan(self, now: float) -> None:
        failed = self.planning.replan(now)
        if failed is not None:
            self._outbox.append(failed)

    def _claimed(self, report: Report) -> Assignment:
        """The assignment that a report is for: a live one, or one from before a crash."""
        attempt = self.awaits(report.assignment)
        if attempt is not None:
            return self._returning(attempt, report.assignment, report.device)
        return self._held(report.assignment, report.device)

    def _held(self, id: AssignmentId, device: DeviceId) -> Assignment:
        """The live assignment, if it is the device's."""
        try:
            assignment = self.table.live(id)
        except NotFound:
            if job_of(attempt_of(id)) in self.jobs:
                raise TooLate(
                    f"assignment {id} is over: it expired, was declined, or its round has closed", field="assignment"
                ) from None
            raise
        self._check_owner(assignment, device)
        return assignment

    def _check_owner(self, assignment: Assignment, device: DeviceId) -> None:
        if assignment.device != device:
            raise Forbidden(f"assignment {assignment.id} belongs to another device", field="device", value=device)

    def _release(self, id: AssignmentId, outcome: Outcome, now: float, reason: str) -> None:
        self._given_back(self.table.settle(id, outcome), outcome, now, reason)
