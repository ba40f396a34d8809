"""The pool: the whole resource manager as one state machine without I/O.

Events go in through `Pool.handle` with the time at which they happen; the answer comes back at once and what the
outside world must do is taken with `Pool.drain`. The pool owns the jobs, their attempts, the registered requirements,
the supply and the binding table, asks the policy for a plan when job-side events have made the last one stale, and
keeps every promise of the design's section 5 (`vennue.core.invariants` checks them). The simulator, the server and
the fault tests all drive this class and nothing else.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from vennue.core.binding import Assignment, BindingTable, Outcome
from vennue.core.effects import (
    AssignmentEnded,
    AttemptClosed,
    AttemptOpened,
    AttemptRecord,
    Commit,
    Effect,
    JobEnded,
    JobRecord,
    PolicyFailed,
    SaveAttempt,
    SaveJob,
)
from vennue.core.errors import Conflict, Forbidden, IllegalTransition, InvalidInput, NotFound, TooLate
from vennue.core.errors import JobEnded as JobHasEnded
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
    Report,
    SubmitJob,
    Tick,
)
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest, JobId, Signature, attempt_id, attempt_of, job_of
from vennue.core.job import Job, JobSpec, JobState, Setting
from vennue.core.plan import Plan, Planner, PoolView, Request
from vennue.core.profile import Learned
from vennue.core.records import attempt_record, job_of_record, job_record
from vennue.core.region import RequirementRegistry
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema, Profile
from vennue.core.round import Attempt, AttemptState
from vennue.core.supply import Supply
from vennue.core.tenant import OTHERS, Quota, Tenant
from vennue.core.timers import Timers

ACCEPT_LEASE_S = 30.0
"""How long a device may take to evaluate a private requirement and answer."""

_ATTEMPT, _JOB = range(2)
"""What a timer is for. Of one moment, attempts' timers come up before jobs'."""


class Pool:
    """One pool of devices shared by many jobs. Not thread-safe: one owner drives it.

    Args:
        planner: the policy.
        schema: the device attributes that requirements may use.
        seed: of the lottery that ``random-order`` uses; the same seed gives the same draws under every policy.
        replan_interval_s: least time between two plans; 0 plans at the first check-in after each change.
        supply: where check-ins are counted; by default one with the design's window of 24 h.
        quotas: by tenant's name, or ``"*"`` for those not named; without one, a tenant may use any number of devices.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        schema: AttributeSchema = DEFAULT_SCHEMA,
        seed: int = 0,
        replan_interval_s: float = 0.0,
        accept_lease_s: float = ACCEPT_LEASE_S,
        supply: Supply | None = None,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self.schema = schema
        self.registry = RequirementRegistry(schema)
        self.supply = Supply() if supply is None else supply
        self.table = BindingTable()
        self.jobs: dict[JobId, Job] = {}
        self.tenants: dict[str, Tenant] = {}
        """The tenants that have a quota and have had a job."""
        self.now = 0.0
        self.plans = 0
        """Plans made so far."""
        self.learned: Learned[Profile] = Learned()
        """What reports and check-ins have taught, while the policy learns from them."""
        self._planner = planner
        self._learns = _learns(planner)
        self._seed = seed
        self._replan_interval_s = replan_interval_s
        self._accept_lease_s = accept_lease_s
        self._quotas = quotas or {}
        self._arrivals = 0
        self._attempts: dict[AttemptId, Attempt] = {}
        self._followers: dict[JobId, list[JobId]] = {}
        self._timers: Timers[tuple[int, str]] = Timers()
        self._outbox: list[Effect] = []
        self._stale_at = math.inf
        """From this pool time on, the plan in force is out of date."""
        self._planned_at = -math.inf
        self._handlers: dict[type[Event], Callable[[Any, float], Any]] = {
            CheckIn: self._check_in,
            Accept: self._accept,
            Decline: self._decline,
            Abort: self._abort,
            Report: self._report,
            SubmitJob: self._submit,
            OpenRound: self._open_round,
            CompleteJob: self._complete,
            CancelJob: self._cancel,
            Contact: self._contact,
            Committed: self._committed,
            CommitFailed: self._commit_failed,
            Tick: self._tick,
        }

    # -- driving ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> Any:
        """Apply an event at ``now`` (pool time, seconds) and return its answer.

        Timers that are due by ``now`` fire first. A step backwards in time counts as no time having passed.

        Raises:
            VennueError: the event makes no sense; nothing was changed by it.
        """
        now = self.now if now < self.now else now
        self.now = now
        if now >= self._timers.wake_at or now >= self.table.wake_at:
            self.fire(now)
        return self._handlers[type(event)](event, now)

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
        self._planner = planner
        self._learns = _learns(planner)
        self._replan_soon()

    def plan(self) -> Plan:
        """The plan in force, brought up to date."""
        if self.now >= self._stale_at:
            self._replan(self.now)
        return self.table.plan

    def tenant(self, name: str) -> Tenant | None:
        """The tenant's quota and what is used of it, if it has one."""
        tenant = self.tenants.get(name)
        quota = self._quotas.get(name, self._quotas.get(OTHERS))
        if tenant is None and quota is not None:
            tenant = self.tenants[name] = Tenant(name, quota)
        return tenant

    def attempts(self) -> list[Attempt]:
        """The attempts that are not closed."""
        return list(self._attempts.values())

    def due_at(self, subject: Attempt | Job) -> float:
        """When the timer of an attempt or a job fires; infinity when it has none."""
        return self._timers.at((_ATTEMPT if isinstance(subject, Attempt) else _JOB, subject.id))

    def sizes(self) -> list[tuple[str, int, int]]:
        """What the pool holds that could grow: name, entries, and the bound by what is in flight."""
        return [
            ("attempts", len(self._attempts), len(self.jobs)),
            ("timers", len(self._timers), self._timers.bound),
            *self.table.sizes(),
        ]

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _submit(self, event: SubmitJob, now: float) -> Job:
        if event.job in self.jobs:
            raise Conflict(f"job {event.job} exists already", field="job", value=event.job)
        requirement, private = event.spec.check(self.schema)
        waits_for = self._unended(event.job, event.spec)
        bit = self.registry.register(requirement)
        job = Job(event.job, event.spec, requirement, private, bit, arrival=self._arrivals, submitted_at=now)
        self._arrivals += 1
        self.jobs[job.id] = job
        self._follow(job, waits_for)
        self._arm(job)
        self._tell(job, now, "submitted")
        self._save(job)
        return job

    def _unended(self, id: JobId, spec: JobSpec) -> list[JobId]:
        """The jobs that a new one must wait for. They are there already, so it can close no circle but with itself."""
        waits_for = []
        for name, when in spec.predecessors.items():
            if name == id:
                raise InvalidInput(
                    f"the jobs would wait for each other in a circle: {id} → {id}", field="after", value=id,
                    fix="name jobs that were submitted before",
                )  # fmt: skip
            earlier = self.jobs.get(name)
            if earlier is None:
                raise InvalidInput(
                    f"there is no job {name}", field="after", value=name, fix="name jobs that were submitted before"
                )
            if not earlier.state.terminal:
                waits_for.append(name)
            elif when == "completed" and earlier.state is not JobState.COMPLETED:
                raise Conflict(
                    f"job {name} can no longer complete, it is {earlier.state}", field="after", value=name,
                    fix="write {job: …, when: ended} to begin whatever its end",
                )  # fmt: skip
        return waits_for

    def _follow(self, job: Job, waits_for: Iterable[JobId]) -> None:
        for name in waits_for:
            job.waits_for.add(name)
            self._followers.setdefault(name, []).append(job.id)

    def _contact(self, event: Contact, now: float) -> None:
        self._known(event.job).quiet_since = now

    def _open_round(self, event: OpenRound, now: float) -> Attempt:
        job = self._active(event.job)
        attempt = job.attempt
        if attempt is not None and event.round == attempt.round:
            if event.model == attempt.model:
                return attempt
            raise Conflict(
                f"round {event.round} is open on another model", field="model", value=event.model, limit=attempt.model
            )
        if attempt is not None or event.round != job.committed + 1:
            expected = job.committed + 1
            raise IllegalTransition(
                f"the next round of job {job.id} is {expected}, not {event.round}"
                if attempt is None
                else f"round {attempt.round} of job {job.id} is still {attempt.state}",
                story=job.tell(),
                field="round",
                value=event.round,
                limit=expected,
            )
        return self._open_attempt(job, event.round, 1, event.model, event.config, now)

    def _complete(self, event: CompleteJob, now: float) -> Job:
        job = self._known(event.job)
        if job.state is JobState.COMPLETED:
            return job
        self._active(event.job)
        if job.attempt is not None and job.spec.mode == "sync":
            raise IllegalTransition(
                f"round {job.attempt.round} of job {job.id} is still {job.attempt.state}",
                story=job.tell(),
                fix="wait for the round, or cancel the job",
            )
        self._end_job(job, JobState.COMPLETED, now, None)
        return job

    def _cancel(self, event: CancelJob, now: float) -> Job:
        job = self._known(event.job)
        if not job.state.terminal:
            self._end_job(job, JobState.CANCELLED, now, event.reason)
        return job

    # -- devices ----------------------------------------------------------------------------------------------------

    def _check_in(self, event: CheckIn, now: float) -> Assignment | None:
        profile = event.profile
        self.supply.observe(profile, now)
        if self._learns:
            self.learned.capabilities.observe(profile, event.response_s)
        signature = self.registry.signature(profile)
        assignment = self._bind(event, event.device, signature, now)
        if assignment is not None and not signature >> assignment.request.bit & 1:
            self._release(assignment.id, Outcome.LOST, now, "its attributes no longer meet the requirement")
            return self._bind(event, event.device, signature, now)
        return assignment

    def _bind(self, event: CheckIn | Decline, device: DeviceId, signature: Signature, now: float) -> Assignment | None:
        if now >= self._stale_at:
            self._replan(now)
        assignment = self.table.bind(
            device, signature, now, draw=event.draw, response_s=event.response_s, declined=event.declined
        )
        if assignment is not None and assignment.bound_at == now:
            request = assignment.request
            attempt = self._attempts[request.attempt]
            attempt.last_bound_at = now
            assignment.response_s = event.response_s
            if request.needs <= 0:
                attempt.filled = True
                self._tell(self.jobs[attempt.job], now, f"attempt {attempt.id} has all its devices")
                self._replan_soon()
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
            if isinstance(earlier, Assignment):
                self._check_owner(earlier, event.device)
                return False
        assignment = self._held(event.assignment, event.device)
        attempt = self._attempts[assignment.attempt]
        staleness = attempt.version - assignment.version
        limit = attempt.spec.max_staleness
        if limit is not None and staleness > limit:
            self._release(assignment.id, Outcome.LOST, now, "stale")
            raise TooLate(
                f"the update is {staleness} model versions old", field="assignment", value=staleness, limit=limit
            )
        self.table.settle(assignment.id, Outcome.REPORTED)
        if self._learns:
            self.learned.observe_report(attempt.job, assignment.response_s, now - assignment.bound_at)
        if attempt.request.continuous and attempt.filled:
            attempt.filled = False
            self._replan_soon()
        if attempt.ready:
            self._start_commit(attempt, now)
        return True

    # -- commits ----------------------------------------------------------------------------------------------------

    def _start_commit(self, attempt: Attempt, now: float) -> None:
        job = self.jobs[attempt.job]
        if attempt.spec.mode == "async":
            if attempt.committing:
                return
            attempt.committing = self.table.take_reported(attempt.id)
        else:
            attempt.move(AttemptState.COMMITTING, now, job.tell())
            attempt.committing = self.table.take_reported(attempt.id)
            job.attained += attempt.request.bound
            self._end_assignments(self.table.close(attempt.id))
            self._arm(attempt)
            self._replan_soon()
        self._tell(job, now, f"attempt {attempt.id} commits {len(attempt.committing)} reports")
        self._outbox.append(Commit(attempt.id, _ids(attempt.committing)))

    def _committed(self, event: Committed, now: float) -> Job:
        attempt = self._attempts.get(event.attempt)
        job = self._known(job_of(event.attempt))
        if attempt is None or not attempt.committing:
            raise TooLate(f"attempt {event.attempt} is not committing", field="attempt", value=event.attempt)
        job.committed += 1
        job.model = event.result
        job.scheduling_delay_s += attempt.scheduling_delay_s
        attempt.result = event.result
        if attempt.spec.mode == "async":
            self._next_version(job, attempt, now)
            return job
        attempt.move(AttemptState.COMMITTED, now, job.tell())
        job.collection_s += attempt.collection_s or 0.0
        if self._learns:
            self.learned.observe_round(job.id, attempt.scheduling_delay_s, attempt.collection_s or 0.0)
        self._close_attempt(job, attempt, now)
        if job.rounds_left == 0:
            self._end_job(job, JobState.COMPLETED, now, None)
        else:
            self._save(job)
        return job

    def _next_version(self, job: Job, attempt: Attempt, now: float) -> None:
        attempt.version += 1
        attempt.committing = ()
        attempt.model = attempt.result or attempt.model
        attempt.deadline_at = now + attempt.limit_s
        self._arm(attempt)
        self.table.advance(attempt.id)
        request = attempt.request
        request.rounds_left = job.rounds_left
        request.committed = job.committed
        self._tell(job, now, f"model update {job.committed} committed")
        self._outbox.append(SaveAttempt(attempt_record(attempt)))
        if job.rounds_left == 0:
            self._end_job(job, JobState.COMPLETED, now, None)
            return
        self._save(job)
        if attempt.ready:
            self._start_commit(attempt, now)

    def _commit_failed(self, event: CommitFailed, now: float) -> Job:
        attempt = self._attempts.get(event.attempt)
        job = self._known(job_of(event.attempt))
        if attempt is None or not attempt.committing:
            raise TooLate(f"attempt {event.attempt} is not committing", field="attempt", value=event.attempt)
        self._retry(job, attempt, now, f"the aggregate failed: {event.reason}")
        return job

    # -- attempts ---------------------------------------------------------------------------------------------------

    def _open_attempt(
        self,
        job: Job,
        round_number: int,
        number: int,
        model: Digest,
        config: dict[str, Setting],
        now: float,
        *,
        waiting_since: float | None = None,
    ) -> Attempt:
        """Begin an attempt; or only note it, as long as its job waits for another."""
        spec = job.spec
        asynchronous = spec.mode == "async"
        attempt_name = attempt_id(job.id, round_number, number)
        request = Request(
            attempt_name,
            job.id,
            job.bit,
            demand=spec.demand,
            wanted=spec.demand if asynchronous else spec.wanted,
            opened_at=now,
            deadline_at=None if spec.deadline_s is None else now + spec.deadline_s,
            arrival=job.arrival,
            rounds_left=job.rounds_left,
            attained=job.attained,
            lottery=lottery(self._seed, attempt_name),
            weight=spec.weight,
            continuous=asynchronous,
            arrived_at=job.started_at,
            committed=job.committed,
            waiting_since=waiting_since,
            tenant=self.tenant(spec.tenant),
        )
        state = AttemptState.WAITING if job.waits_for else AttemptState.OPEN
        attempt = Attempt(job.id, spec, round_number, number, model, config, request, now, state=state)
        self._attempts[attempt.id] = attempt
        job.attempt = attempt
        self._arm(job)
        if state is AttemptState.OPEN:
            self._begin(job, attempt, now)
        else:
            self._tell(job, now, f"attempt {attempt.id} waits for {', '.join(sorted(job.waits_for))}")
            self._outbox.append(SaveAttempt(attempt_record(attempt)))
        return attempt

    def _begin(self, job: Job, attempt: Attempt, now: float) -> None:
        """An attempt needs devices from now on."""
        self.table.open(
            attempt.request,
            lease_s=job.spec.effective_lease_s,
            accept_lease_s=self._accept_lease_s if job.private is not None else None,
        )
        self._arm(attempt)
        self._tell(job, now, f"attempt {attempt.id} opened for {attempt.request.wanted} devices")
        self._outbox.append(SaveAttempt(attempt_record(attempt)))
        self._outbox.append(AttemptOpened(attempt.id, attempt.model))
        self._replan_soon()

    def _close_attempt(self, job: Job, attempt: Attempt, now: float) -> None:
        """Forget an attempt that has just moved to a closed state, and say so."""
        if self.table.request(attempt.id) is not None:
            job.attained += attempt.request.bound
            self._end_assignments(self.table.close(attempt.id))
            self._replan_soon()
        del self._attempts[attempt.id]
        self._timers.cancel((_ATTEMPT, attempt.id))
        job.attempt = None
        job.quiet_since = now
        self._arm(job)
        self._tell(
            job, now, f"attempt {attempt.id} {attempt.state}" + (f": {attempt.reason}" if attempt.reason else "")
        )
        self._outbox.append(SaveAttempt(attempt_record(attempt)))
        self._outbox.append(AttemptClosed(attempt.id, attempt.state))

    def _retry(self, job: Job, attempt: Attempt, now: float, reason: str) -> None:
        """Abort an attempt and open the round's next one, from the same model."""
        attempt.move(AttemptState.ABORTED, now, job.tell(), reason)
        self._close_attempt(job, attempt, now)
        limit = job.spec.max_attempts
        if limit is not None and attempt.number >= limit:
            self._end_job(job, JobState.FAILED, now, f"round {attempt.round} failed {limit} times; the last: {reason}")
            return
        round_number = attempt.round
        number = attempt.number + 1
        if attempt.spec.mode == "async" and attempt.version:
            round_number, number = job.committed + 1, 1
        waiting_since = attempt.request.waiting_since if round_number == attempt.round else None
        self._open_attempt(job, round_number, number, attempt.model, attempt.config, now, waiting_since=waiting_since)
        self._save(job)

    def _end_job(self, job: Job, state: JobState, now: float, reason: str | None) -> None:
        """End a job, begin those that waited for it, and cancel those that cannot begin without its success."""
        endings = deque([(job, state, reason)])
        while endings:
            job, state, reason = endings.popleft()
            if job.state.terminal:
                continue
            self._end_alone(job, state, now, reason)
            why = f"job {job.id}, which had to complete before, is {state}" + (f": {reason}" if reason else "")
            for name in self._followers.pop(job.id, ()):
                follower = self.jobs[name]
                if follower.state.terminal:
                    continue
                if state is JobState.COMPLETED or follower.spec.predecessors[job.id] == "ended":
                    follower.waits_for.discard(job.id)
                    if not follower.waits_for:
                        self._start(follower, now)
                else:
                    endings.append((follower, JobState.CANCELLED, why))

    def _end_alone(self, job: Job, state: JobState, now: float, reason: str | None) -> None:
        attempt = job.attempt
        if attempt is not None:
            closing = AttemptState.COMMITTED if attempt.version and state is JobState.COMPLETED else None
            if closing is not None:
                attempt.move(AttemptState.COMMITTING, now, job.tell())
            attempt.move(closing or AttemptState.CANCELLED, now, job.tell(), reason)
            self._close_attempt(job, attempt, now)
        job.state = state
        job.reason = reason
        job.ended_at = now
        self.learned.forget(job.id)
        self.registry.release(job.bit)
        self._timers.cancel((_JOB, job.id))
        self._tell(job, now, f"{state}" + (f": {reason}" if reason else ""))
        self._save(job)
        self._outbox.append(JobEnded(job.id, state))
        self._replan_soon()

    def _start(self, job: Job, now: float) -> None:
        """The last of the jobs that this one waited for has ended."""
        job.started_at = job.quiet_since = now
        self._arm(job)
        self._tell(job, now, "waits for no other job any more")
        if job.attempt is not None:
            job.attempt.move(AttemptState.OPEN, now, job.tell())
            self._begin(job, job.attempt, now)

    # -- time -------------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: float) -> None:
        """`handle` has fired the timers already."""

    def fire(self, now: float) -> None:
        """Fire the timers due by ``now``, in the order in which they fell due; a lease before a deadline of its moment.

        What they start (a next attempt) starts at ``now``, so that a long pause costs no round its whole deadline.
        """
        while (wake := min(self._timers.wake_at, self.table.wake_at)) <= now:
            for assignment in self.table.expire(wake):
                self._given_back(assignment, Outcome.LOST, now, "its lease ran out")
            while (due := self._timers.pop(wake)) is not None:
                kind, name = due
                if kind == _ATTEMPT:
                    self._attempt_due(self._attempts[AttemptId(name)], now)
                else:
                    self._job_due(self.jobs[JobId(name)], now)

    def _attempt_due(self, attempt: Attempt, now: float) -> None:
        job = self.jobs[attempt.job]
        if attempt.state is AttemptState.COMMITTING:
            self._retry(job, attempt, now, "the aggregate did not become durable in time")
        elif attempt.enough_at_deadline:
            self._start_commit(attempt, now)
        else:
            request = attempt.request
            self._retry(
                job,
                attempt,
                now,
                f"at its deadline {request.bound} were bound and {len(request.reported)} had reported",
            )

    def _job_due(self, job: Job, now: float) -> None:
        reason = job.overdue(now)
        if reason is None:
            self._arm(job)
        else:
            self._end_job(job, JobState.FAILED, now, reason)

    def _arm(self, subject: Attempt | Job) -> None:
        """Have a timer fire when an attempt's or a job's time is up. A job's may fire early, to be armed again."""
        if isinstance(subject, Attempt):
            self._timers.set((_ATTEMPT, subject.id), subject.deadline_at)
            return
        key = _JOB, subject.id
        limit_at = min(subject.time_limit_at, subject.silence_limit_at)
        if limit_at == math.inf:
            self._timers.cancel(key)
        elif limit_at < self._timers.at(key):
            self._timers.set(key, limit_at)

    # -- recovery ---------------------------------------------------------------------------------------------------

    def restore(self, jobs: Iterable[JobRecord], open_attempts: Iterable[AttemptRecord], now: float) -> None:
        """Rebuild from the ledger, into an empty pool: jobs as they were, open rounds as a new attempt.

        Assignments are soft state: they are gone, and the devices check in again.
        """
        self.now = max(self.now, now)
        for record in sorted(jobs, key=lambda r: r.arrival):
            requirement, private = record.spec.check(self.schema)
            bit = -1 if record.state.terminal else self.registry.register(requirement)
            job = job_of_record(record, requirement, private, bit)
            self.jobs[job.id] = job
            self._arrivals = max(self._arrivals, record.arrival + 1)
            if not job.state.terminal:
                self._take_up(job)
        for attempt in open_attempts:
            job = self.jobs[attempt.job]
            if job.state.terminal:
                continue
            number = attempt.number
            if attempt.state is not AttemptState.WAITING:
                reason = "the server restarted"
                number += 1
                job.attained += attempt.bound
                self._tell(job, self.now, f"attempt {attempt.id} aborted: {reason}")
                closed = msgspec.structs.replace(attempt, state=AttemptState.ABORTED, closed_at=self.now, reason=reason)
                self._outbox.append(SaveAttempt(closed))
            self._open_attempt(job, attempt.round, number, attempt.model, attempt.config, self.now)

    def _take_up(self, job: Job) -> None:
        """What follows from a recovered job's predecessors, and its limits. Its owner is heard of again."""
        earlier = [self.jobs[name] for name in job.spec.predecessors]
        self._follow(job, (one.id for one in earlier if not one.state.terminal))
        job.started_at = max([job.submitted_at, *(one.ended_at or 0.0 for one in earlier)])
        job.quiet_since = self.now
        self._arm(job)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _known(self, id: JobId) -> Job:
        job = self.jobs.get(id)
        if job is None:
            raise NotFound(f"there is no job {id}", field="job", value=id)
        return job

    def _active(self, id: JobId) -> Job:
        job = self._known(id)
        if job.state.terminal:
            raise JobHasEnded(f"job {id} is {job.state}" + (f": {job.reason}" if job.reason else ""), field="job")
        return job

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

    def _given_back(self, assignment: Assignment, outcome: Outcome, now: float, reason: str) -> None:
        attempt = self._attempts[assignment.attempt]
        if attempt.filled:
            attempt.filled = False
            self._replan_soon()
        why = f": {reason}" if reason else ""
        self._tell(self.jobs[assignment.job], now, f"assignment {assignment.id} {outcome}{why}")
        self._outbox.append(AssignmentEnded(assignment.id, outcome))

    def _end_assignments(self, ended: list[Assignment]) -> None:
        self._outbox.extend(AssignmentEnded(assignment.id, Outcome.CLOSED) for assignment in ended)

    def _replan_soon(self) -> None:
        self._stale_at = -math.inf

    def _view(self, now: float, needy: list[Request], rates: dict[Signature, float]) -> PoolView:
        if not self._learns:
            return PoolView(now, needy, rates, self.supply.rates_version)
        registry = self.registry
        capabilities = self.learned.capabilities.by_capability(registry.signature, registry.version)
        return PoolView(now, needy, rates, self.supply.rates_version, capabilities, self.learned.profiles)

    def _replan(self, now: float) -> None:
        if now - self._planned_at < self._replan_interval_s:
            return
        rates = self.supply.region_rates(self.registry, now)
        needy = [request for request in self.table.requests() if request.needs > 0]
        self._stale_at = math.inf
        try:
            plan = self._planner.plan(self._view(now, needy, rates))
            if plan.until > now:
                self._stale_at = plan.until
        except Exception as error:  # noqa: BLE001 - a third party's policy may raise anything; no job may suffer
            self._outbox.append(PolicyFailed(f"{type(error).__name__}: {error}"))
            plan = self.table.plan
        self.table.publish(plan)
        self.plans += 1
        self._planned_at = now

    def _tell(self, job: Job, now: float, text: str) -> None:
        job.story.append((now, text))

    def _save(self, job: Job) -> None:
        self._outbox.append(SaveJob(job_record(job)))


def lottery(seed: int, attempt: AttemptId) -> float:
    """The attempt's draw in [0, 1): the same for the same seed, whatever happened before."""
    digest = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2.0**56


def _ids(names: tuple[str, ...]) -> tuple[AssignmentId, ...]:
    return tuple(AssignmentId(name) for name in names)


def _learns(planner: Planner) -> bool:
    return bool(getattr(planner, "learns", False))
