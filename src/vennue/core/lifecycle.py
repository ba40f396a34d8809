"""What happens to jobs: how they, their rounds and the attempts at these begin, go on and end.

`Lifecycle` is the half of the pool that owners and the clock drive; `vennue.core.pool` adds the half that devices
drive. Every transition says what the world must do (the outbox) and tells the job's story; every limit has a timer.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from vennue.core.assignment import Assignment, Outcome
from vennue.core.binding import BindingTable
from vennue.core.effects import (
    AssignmentEnded,
    AttemptClosed,
    AttemptOpened,
    Commit,
    Effect,
    JobEnded,
    SaveAttempt,
    SaveJob,
)
from vennue.core.errors import Conflict, IllegalTransition, NotFound, TooLate
from vennue.core.errors import JobEnded as JobHasEnded
from vennue.core.events import CancelJob, CommitFailed, Committed, CompleteJob, Contact, OpenRound, SubmitJob
from vennue.core.ids import AttemptId, Digest, JobId, attempt_id, job_of
from vennue.core.job import Job, JobState, Setting, unended_predecessors
from vennue.core.losses import Losses
from vennue.core.plan import Planner, Request
from vennue.core.planning import Planning
from vennue.core.records import attempt_record, job_record
from vennue.core.region import RequirementRegistry
from vennue.core.requirement import AttributeSchema
from vennue.core.round import Attempt, AttemptState, lottery
from vennue.core.supply import Supply
from vennue.core.tenant import OTHERS, Quota, Tenant
from vennue.core.timers import Timers

_ANYWAY = "; submit this one again after another job, or with `when: ended` to have it begin whatever that job's end"
_NO_LOSS = frozenset({Outcome.DECLINED, Outcome.DISPLACED})
"""Ends that say nothing of how reliable the device is."""

ATTEMPT, JOB, BATCH = range(3)
"""What a timer is for. Of one moment, attempts' timers come up first, and collected check-ins are bound last."""


class Lifecycle:
    """The jobs of a pool, and everything that follows from their rounds and the time. Use it as a `Pool`."""

    def __init__(
        self,
        planner: Planner,
        *,
        schema: AttributeSchema,
        seed: int,
        replan_interval_s: float,
        plan_lag_s: float,
        accept_lease_s: float,
        supply: Supply,
        quotas: Mapping[str, Quota],
        once_per_round: bool,
    ) -> None:
        self.schema = schema
        self.registry = RequirementRegistry(schema)
        self.supply = supply
        self.table = BindingTable(once_per_round=once_per_round)
        self.planning = Planning(
            planner,
            table=self.table,
            supply=supply,
            registry=self.registry,
            interval_s=replan_interval_s,
            lag_s=plan_lag_s,
        )
        self.losses = Losses()
        self.jobs: dict[JobId, Job] = {}
        self.tenants: dict[str, Tenant] = {}
        """The tenants that have a quota and have had a job."""
        self.now = 0.0
        self._seed = seed
        self._accept_lease_s = accept_lease_s
        self._quotas = quotas
        self._arrivals = 0
        self._attempts: dict[AttemptId, Attempt] = {}
        self._followers: dict[JobId, list[JobId]] = {}
        self._timers: Timers[tuple[int, str]] = Timers()
        self._outbox: list[Effect] = []

    # -- looking ------------------------------------------------------------------------------------------------------

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
        return self._timers.at((ATTEMPT if isinstance(subject, Attempt) else JOB, subject.id))

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _submit(self, event: SubmitJob, now: float) -> Job:
        if event.job in self.jobs:
            raise Conflict(f"job {event.job} exists already", field="job", value=event.job)
        requirement, private = event.spec.check(self.schema)
        waits_for = unended_predecessors(event.job, event.spec, self.jobs)
        bit = self.registry.register(requirement)
        job = Job(event.job, event.spec, requirement, private, bit, arrival=self._arrivals, submitted_at=now)
        self._arrivals += 1
        self.jobs[job.id] = job
        self._follow(job, waits_for)
        self._arm(job)
        self._tell(job, now, "submitted")
        self._save(job)
        return job

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

    # -- commits ------------------------------------------------------------------------------------------------------

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
            self.planning.later("needs no more devices", attempt.id)
        self._tell(job, now, f"attempt {attempt.id} commits {len(attempt.committing)} reports")
        self._outbox.append(Commit(attempt.id, attempt.committing))

    def _committed(self, event: Committed, now: float) -> Job:
        job, attempt = self._committing(event.attempt)
        job.committed += 1
        job.model = event.result
        delay_s, collection_s = attempt.had_devices_at - attempt.since, now - attempt.had_devices_at
        job.scheduling_delay_s += delay_s
        job.collection_s += collection_s
        attempt.result = event.result
        if attempt.spec.mode == "async":
            self._next_version(job, attempt, now)
            return job
        attempt.move(AttemptState.COMMITTED, now, job.tell())
        if self.planning.learns:
            self.planning.learned.observe_round(job.id, delay_s, collection_s)
        self._close_attempt(job, attempt, now)
        if job.rounds_left == 0:
            self._end_job(job, JobState.COMPLETED, now, None)
        else:
            self._save(job)
        return job

    def _next_version(self, job: Job, attempt: Attempt, now: float) -> None:
        attempt.version += 1
        attempt.since = now
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
        job, attempt = self._committing(event.attempt)
        self._retry(job, attempt, now, f"the aggregate failed: {event.reason}")
        return job

    def _committing(self, id: AttemptId) -> tuple[Job, Attempt]:
        """An attempt whose aggregate is in the making, and its job."""
        job = self._known(job_of(id))
        attempt = self._attempts.get(id)
        if attempt is None or not attempt.committing:
            raise TooLate(f"attempt {id} is not committing", field="attempt", value=id)
        return job, attempt

    # -- attempts -----------------------------------------------------------------------------------------------------

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
        restarts: int = 0,
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
            wanted=self._wanted(job),
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
        attempt = Attempt(
            job.id, spec, round_number, number, model, config, request, now, state=state, restarts=restarts
        )
        if restarts and asynchronous:
            attempt.version = attempt.version_at_restart = job.committed + 1 - round_number
        self._attempts[attempt.id] = attempt
        job.attempt = attempt
        self._arm(job)
        if state is AttemptState.OPEN:
            self._begin(job, attempt, now)
        else:
            self._tell(job, now, f"attempt {attempt.id} waits for {', '.join(sorted(job.waits_for))}")
            self._outbox.append(SaveAttempt(attempt_record(attempt)))
        return attempt

    def _wanted(self, job: Job) -> int:
        """How many devices to bind to the job's next attempt."""
        spec = job.spec
        if spec.mode == "async":
            return spec.demand
        if spec.overcommit != "auto":
            return spec.wanted
        rates = self.supply.region_rates(self.registry, self.now)
        return spec.wanted_at(self.losses.overcommit(job.id, job.bit, rates))

    def _begin(self, job: Job, attempt: Attempt, now: float) -> None:
        """An attempt needs devices from now on."""
        self.table.open(
            attempt.request,
            lease_s=job.spec.effective_lease_s,
            accept_lease_s=self._accept_lease_s if job.private is not None else None,
            restarts=attempt.restarts,
            version=attempt.version,
        )
        self._arm(attempt)
        self._tell(job, now, f"attempt {attempt.id} opened for {attempt.request.wanted} devices")
        self._outbox.append(SaveAttempt(attempt_record(attempt)))
        self._outbox.append(AttemptOpened(attempt.id, attempt.model))
        self.planning.soon("needs devices", attempt.id)

    def _close_attempt(self, job: Job, attempt: Attempt, now: float) -> None:
        """Forget an attempt that has just moved to a closed state, and say so."""
        if self.table.request(attempt.id) is not None:
            job.attained += attempt.request.bound
            self._end_assignments(self.table.close(attempt.id))
            self.planning.later("needs no more devices", attempt.id)
        del self._attempts[attempt.id]
        self._timers.cancel((ATTEMPT, attempt.id))
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

    # -- ends of jobs -------------------------------------------------------------------------------------------------

    def _end_job(self, job: Job, state: JobState, now: float, reason: str | None) -> None:
        """End a job, begin those that waited for it, and cancel those that cannot begin without its success."""
        first, because = job, f" is {state}" + (f": {reason}" if reason else "")
        endings = deque([(job, state, reason)])
        while endings:
            job, state, reason = endings.popleft()
            if job.state.terminal:
                continue
            self._end_alone(job, state, now, reason)
            # Of a long chain, only its first end is told, or each reason would hold all those before it.
            how = because if job is first else f" is {state}, since job {first.id}{because}"
            why = f"job {job.id}, which had to complete before,{how}{_ANYWAY}"
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
        self.planning.learned.forget(job.id)
        self.registry.release(job.bit)
        if job.bit not in self.registry.bits():
            self.losses.forget_requirement(job.bit)
        self.losses.forget_job(job.id)
        self._timers.cancel((JOB, job.id))
        self._tell(job, now, f"{state}" + (f": {reason}" if reason else ""))
        self._save(job)
        self._outbox.append(JobEnded(job.id, state))
        self.planning.later("has ended", job.id)

    def _start(self, job: Job, now: float) -> None:
        """The last of the jobs that this one waited for has ended."""
        job.started_at = job.quiet_since = now
        self._arm(job)
        self._tell(job, now, "waits for no other job any more")
        if job.attempt is not None:
            job.attempt.request.wanted = self._wanted(job)
            job.attempt.move(AttemptState.OPEN, now, job.tell())
            self._begin(job, job.attempt, now)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _attempt_due(self, attempt: Attempt, now: float) -> None:
        job = self.jobs[attempt.job]
        if attempt.state is AttemptState.OPEN:
            self._count_overdue(attempt, now)
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

    def _count_overdue(self, attempt: Attempt, now: float) -> None:
        """At a deadline, the devices count as lost that had half of its time for the task and have not reported.

        Their leases often run as long as the deadline, so that they would never be seen to run out.
        """
        for assignment in attempt.request.live.values():
            if now - assignment.bound_at >= attempt.limit_s / 2:
                self.losses.observe(attempt.job, assignment.signature, lost=True)

    def _job_due(self, job: Job, now: float) -> None:
        reason = job.overdue(now)
        if reason is None:
            self._arm(job)
        else:
            self._end_job(job, JobState.FAILED, now, reason)

    def _arm(self, subject: Attempt | Job) -> None:
        """Have a timer fire when an attempt's or a job's time is up. A job's may fire early, to be armed again."""
        if isinstance(subject, Attempt):
            self._timers.set((ATTEMPT, subject.id), subject.deadline_at)
            return
        key = JOB, subject.id
        limit_at = min(subject.time_limit_at, subject.silence_limit_at)
        if limit_at == math.inf:
            self._timers.cancel(key)
        elif limit_at < self._timers.at(key):
            self._timers.set(key, limit_at)

    # -- helpers ------------------------------------------------------------------------------------------------------

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

    def _given_back(self, assignment: Assignment, outcome: Outcome, now: float, reason: str) -> None:
        attempt = self._attempts[assignment.attempt]
        if attempt.filled:
            attempt.filled = False
            self.planning.soon("takes another device", attempt.id)
        why = f": {reason}" if reason else ""
        self._tell(self.jobs[assignment.job], now, f"assignment {assignment.id} {outcome}{why}")
        self._outbox.append(AssignmentEnded(assignment.id, outcome))
        if outcome not in _NO_LOSS:
            self.losses.observe(assignment.job, assignment.signature, lost=True)

    def _end_assignments(self, ended: list[Assignment]) -> None:
        self._outbox.extend(AssignmentEnded(assignment.id, Outcome.CLOSED) for assignment in ended)

    def _tell(self, job: Job, now: float, text: str) -> None:
        job.story.append((now, text))

    def _save(self, job: Job) -> None:
        self._outbox.append(SaveJob(job_record(job)))
