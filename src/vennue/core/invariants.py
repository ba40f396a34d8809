"""The thirteen invariants of the design (section 5) as checkable functions.

Those that a single state can show are functions from a pool to the complaints about it; `check` runs them all and
raises with every complaint. Those that only a history can show (absorbing states, counted once, nothing forgotten by
the ledger) are kept by an `Auditor`, which watches a pool event by event. Property tests, the simulator's
``--validate`` and the server under ``VENNUE_VALIDATE=1`` use both.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vennue.core.assignment import Assignment
from vennue.core.effects import (
    AttemptClosed,
    AttemptRecord,
    Commit,
    Effect,
    JobEnded,
    JobRecord,
    SaveAttempt,
    SaveJob,
)
from vennue.core.errors import InvariantViolated, VennueError
from vennue.core.events import CheckIn, Decline, Event, Recover, Report, ReportTogether
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature, attempt_of
from vennue.core.job import Job, JobState
from vennue.core.plan import Request
from vennue.core.pool import Pool
from vennue.core.records import job_record
from vennue.core.round import AttemptState

Complaints = Iterator[str]


# -- what one state shows --------------------------------------------------------------------------------------------


def one_live_assignment_per_device(pool: Pool) -> Complaints:
    """1. A device holds at most one live assignment."""
    held = Counter(assignment.device for assignment in pool.table.assignments())
    for device, count in held.items():
        if count > 1:
            yield f"device {device} holds {count} live assignments"
    for assignment in pool.table.assignments():
        if pool.table.holds(assignment.device) is not assignment:
            yield f"assignment {assignment.id} is live, but its device {assignment.device} does not hold it"


def assignments_are_eligible(pool: Pool) -> Complaints:
    """2. Every assignment is eligible: the region's signature includes the request's requirement."""
    for request in pool.table.requests():
        for assignment in (*request.live.values(), *request.reported.values()):
            if not assignment.signature >> request.bit & 1:
                yield f"assignment {assignment.id} is in region {assignment.signature:x} without bit {request.bit}"


def demand_is_not_exceeded(pool: Pool) -> Complaints:
    """3. Live + reported assignments of an attempt ≤ demand × overcommit (live ones alone, when asynchronous)."""
    for request in pool.table.requests():
        used = len(request.live) if request.continuous else request.bound
        if used > request.wanted:
            yield f"attempt {request.attempt} holds {used} assignments, it wants {request.wanted}"


def devices_serve_a_round_once(pool: Pool) -> Complaints:
    """No device holds, or has reported, two assignments of one attempt; asynchronous ones take it again and again."""
    for request in pool.table.requests() if pool.table.once_per_round else ():
        seen: set[DeviceId] = set()
        for assignment in () if request.continuous else (*request.live.values(), *request.reported.values()):
            if assignment.device in seen:
                yield f"device {assignment.device} serves attempt {request.attempt} twice"
            seen.add(assignment.device)


def counters_are_derived(pool: Pool) -> Complaints:
    """4. Counters are derived from assignments: the request's tables and the table of live ones agree exactly."""
    counted = 0
    for request in pool.table.requests():
        counted += len(request.live)
        for name in request.live:
            if attempt_of(name) != request.attempt:
                yield f"assignment {name} is counted under attempt {request.attempt}"
        for name in request.live.keys() & request.reported.keys():
            yield f"assignment {name} is both live and reported"
    live = len(pool.table.assignments())
    if live != counted:
        yield f"{live} assignments are live, but the requests count {counted}"


def open_attempts_have_a_timer(pool: Pool) -> Complaints:
    """7. Every open attempt has a live timer, so that it closes even if nothing else ever happens; so have limits."""
    wake = pool.next_wake()
    for attempt in pool.attempts():
        if pool.due_at(attempt) != attempt.deadline_at:
            yield f"attempt {attempt.id} is {attempt.state} without a timer"
        elif attempt.deadline_at < math.inf and (wake is None or wake > attempt.deadline_at):
            yield f"attempt {attempt.id} is due at {attempt.deadline_at}, but the pool wakes at {wake}"
    for job in pool.jobs.values():
        limit_at = math.inf if job.state.terminal else min(job.time_limit_at, job.silence_limit_at)
        if pool.due_at(job) > limit_at:
            yield f"job {job.id} reaches a limit at {limit_at}, without a timer"


def jobs_wait_for_living_ones(pool: Pool) -> Complaints:
    """A job waits only for jobs that have not ended; while it does, it holds no devices and asks for none."""
    for job in pool.jobs.values():
        for name in () if job.state.terminal else job.waits_for:
            if pool.jobs[name].state.terminal:
                yield f"job {job.id} waits for job {name}, which is {pool.jobs[name].state}"
    for attempt in pool.attempts():
        waits = bool(pool.jobs[attempt.job].waits_for)
        if waits != (attempt.state is AttemptState.WAITING):
            yield f"attempt {attempt.id} is {attempt.state}, while its job {'waits' if waits else 'does not wait'}"
        if waits and (attempt.request.bound or pool.table.request(attempt.id) is not None):
            yield f"attempt {attempt.id} asks for devices, while its job waits for another"


def memory_follows_what_is_in_flight(pool: Pool) -> Complaints:
    """11. Memory grows with jobs, regions and models in flight, never with devices seen or updates folded."""
    for name, size, bound in pool.sizes():
        if size > bound:
            yield f"{name} holds {size} entries, its bound is {bound}"


def quotas_are_kept(pool: Pool) -> Complaints:
    """What a tenant is counted with is what its jobs have; one that may not borrow has no more than its quota."""
    used: dict[str, set[str]] = {name: set() for name in pool.tenants}
    for assignment in pool.table.assignments():
        tenant = assignment.request.tenant
        if tenant is not None:
            used[tenant.name].add(assignment.id)
    for name, tenant in pool.tenants.items():
        if tenant.live.keys() != used[name]:
            yield f"4. tenant {name} is counted with {tenant.in_flight} devices, its jobs have {len(used[name])}"
        quota = tenant.quota
        if not quota.borrow and quota.devices is not None and tenant.in_flight > quota.devices:
            yield f"tenant {name} has {tenant.in_flight} devices in flight, its quota is {quota.devices}"


def waiting_devices_hold_nothing(pool: Pool) -> Complaints:
    """A device that waits to be bound holds no assignment, and is bound in time even if nothing else ever happens."""
    for device in pool.batch.devices:
        if pool.table.holds(device) is not None:
            yield f"device {device} waits to be bound, and holds {pool.table.holds(device)}"
    wake = pool.next_wake()
    if len(pool.batch) and (wake is None or wake > pool.batch.due_at):
        yield f"{len(pool.batch)} devices are to be bound at {pool.batch.due_at}, but the pool wakes at {wake}"


def active_jobs_are_consistent(pool: Pool) -> Complaints:
    """5. (state part) A job that has ended has no attempt; an attempt belongs to an active job and is not closed."""
    for job in pool.jobs.values():
        if job.state.terminal and job.attempt is not None:
            yield f"job {job.id} is {job.state}, but attempt {job.attempt.id} is {job.attempt.state}"
    for attempt in pool.attempts():
        if attempt.state.closed or pool.jobs[attempt.job].attempt is not attempt:
            yield f"attempt {attempt.id} ({attempt.state}) is not its job's attempt in progress"


def pending_jobs_have_a_reason(pool: Pool, explain: Callable[[Pool, Job], Any]) -> Complaints:
    """13. Every pending job has a machine-readable reason with numbers. ``explain`` is the server's."""
    for job in pool.jobs.values():
        reason = explain(pool, job)
        if not reason.code or not reason.text:
            yield f"job {job.id} ({job.state}) has no reason"
        if not job.state.terminal and job.waits_for and not reason.blocking:
            yield f"job {job.id} waits for other jobs, its reason {reason.code} does not name them"
        request = None if job.attempt is None else pool.table.request(job.attempt.id)
        if request is not None and request.needs > 0:
            missing = [name for name in ("needs", "supply_per_s", "demand_ahead") if getattr(reason, name) is None]
            if missing:
                yield f"job {job.id} waits for devices, its reason {reason.code} lacks {', '.join(missing)}"


STATE_INVARIANTS: tuple[Callable[[Pool], Complaints], ...] = (
    one_live_assignment_per_device,
    assignments_are_eligible,
    demand_is_not_exceeded,
    devices_serve_a_round_once,
    counters_are_derived,
    active_jobs_are_consistent,
    jobs_wait_for_living_ones,
    quotas_are_kept,
    waiting_devices_hold_nothing,
    open_attempts_have_a_timer,
    memory_follows_what_is_in_flight,
)


def check(pool: Pool) -> None:
    """Check every invariant that a single state can show.

    Raises:
        InvariantViolated: with all complaints.
    """
    _raise([complaint for invariant in STATE_INVARIANTS for complaint in invariant(pool)])


def _raise(complaints: list[str]) -> None:
    if complaints:
        raise InvariantViolated("; ".join(complaints))


# -- what a history shows --------------------------------------------------------------------------------------------


def snapshot(pool: Pool) -> dict[str, Any]:
    """Everything that events change, as plain comparable values (supply and plans aside, which are soft)."""
    return {
        "jobs": {id: job_record(job) for id, job in pool.jobs.items()},
        "attempts": {
            attempt.id: (
                attempt.state, attempt.model, attempt.deadline_at, attempt.version, attempt.committing,
                sorted(attempt.request.live), sorted(attempt.request.reported),
            )
            for attempt in pool.attempts()
        },
        "waiting": pool.batch.devices,
        "assignments": {a.id: (a.device, a.accepted, a.expires_at) for a in pool.table.assignments()},
    }  # fmt: skip


class Auditor:
    """Watches one pool and keeps the invariants that only a history can show.

    Use `handle` and `drain` instead of the pool's own. ``ledger_jobs`` and ``ledger_attempts`` are what a ledger would
    hold after each call: the newest records of the ``Save…`` effects. The auditor of a recovered pool is given what
    the pool was recovered from. It remembers every report and every attempt: it is for tests, not for months.
    """

    def __init__(self, pool: Pool, jobs: Iterable[JobRecord] = (), attempts: Iterable[AttemptRecord] = ()) -> None:
        self.pool = pool
        self.ledger_jobs: dict[JobId, JobRecord] = {record.id: record for record in jobs}
        self.ledger_attempts: dict[AttemptId, AttemptRecord] = {record.id: record for record in attempts}
        self.work_conserving = True
        """Whether the plan in force lists every request that a region may serve; else 8 is held for those it lists."""
        self._counted: dict[AssignmentId, DeviceId] = {}
        self._in_commits: set[AssignmentId] = set()
        self._closed: dict[AttemptId, AttemptState] = {}
        self._ended: dict[JobId, JobState] = {}
        self._pending: list[Effect] = []

    def handle(self, event: Event, now: float) -> Any:
        """`Pool.handle`, watched.

        Raises:
            VennueError: what the pool raised; it was checked that the event changed nothing.
            InvariantViolated: an invariant does not hold.
        """
        pool = self.pool
        clock = pool.now
        pool.fire(max(now, clock))  # what time alone does, apart from what the event does
        self._absorb()
        before = snapshot(pool)
        try:
            answer = pool.handle(event, now)
        except VennueError:
            complaints = list(self._changed(event, before, snapshot(pool)))
            self._absorb()
            _raise([*complaints, *self._complaints(clock)])
            raise
        complaints = list(self._after(event, answer, before))
        self._absorb()
        _raise([*complaints, *self._complaints(clock)])
        return answer

    @staticmethod
    def _changed(event: Event, before: dict[str, Any], after: dict[str, Any]) -> Complaints:
        """What is refused changes nothing; except that an assignment ends whose report is too stale."""
        if isinstance(event, Report):
            before["assignments"].pop(event.assignment, None)
            after["assignments"].pop(event.assignment, None)
            for state in (before, after):
                *_, live, _ = state["attempts"].get(attempt_of(event.assignment), ([], []))
                if event.assignment in live:
                    live.remove(event.assignment)
        if after != before:
            yield "an event that was refused changed the pool"

    def drain(self) -> list[Effect]:
        """The effects since the last call."""
        self._absorb()
        effects, self._pending = self._pending, []
        return effects

    def open_in_ledger(self) -> list[AttemptRecord]:
        """The attempts that recovery would find open."""
        return [record for record in self.ledger_attempts.values() if not record.state.closed]

    def _after(self, event: Event, answer: Any, before: dict[str, Any]) -> Complaints:
        if isinstance(event, Recover):
            self._counted |= {report.assignment: report.device for report in event.reports}
        reports = event.reports if isinstance(event, ReportTogether) else (event,)
        for report in reports:
            if isinstance(report, Report) and answer:
                if report.assignment in self._counted:
                    yield f"6. the report of {report.assignment} was counted twice"
                self._counted[report.assignment] = report.device
        if isinstance(event, CheckIn) and answer is None:
            yield from self._turned_away(self.pool.registry.signature(event.profile), self._closed_to(event))
        is_new = isinstance(answer, Assignment) and answer.id not in before["assignments"]
        if is_new and isinstance(event, CheckIn | Decline):
            yield from self._borrowed(answer, self._closed_to(event))
        if isinstance(event, Decline) and answer is not None and answer.job in (event.declined or ()):
            yield f"device {event.device} was offered job {answer.job}, which it declined"

    def _closed_to(self, event: CheckIn | Decline) -> frozenset[JobId]:
        """The jobs that a device has declined, and those in whose rounds it has reported."""
        return (event.declined or frozenset()) | self.pool.table.served(event.device)

    def _turned_away(self, signature: Signature, declined: frozenset[JobId] | None) -> Complaints:
        """8. Work conserving, tiers aside: the plan lists every request that needs devices, and binding uses it."""
        for request in self._could_use(signature, declined):
            if request.tenant is None or request.tenant.quota.borrow or not request.tenant.exhausted(self.pool.now):
                yield f"8. region {signature:x} was turned away while attempt {request.attempt} needs {request.needs}"

    def _borrowed(self, given: Assignment, declined: frozenset[JobId] | None) -> Complaints:
        """A tenant beyond its quota gets a device only if nobody within a quota could use it."""
        tenant, now = given.request.tenant, self.pool.now
        if tenant is None:
            return
        quota, bound = tenant.quota, tenant.bound_in_a_day(now)
        beyond = (quota.devices is not None and tenant.in_flight > quota.devices) or (
            quota.devices_per_day is not None and bound > quota.devices_per_day
        )
        if beyond and not quota.borrow:
            yield f"tenant {tenant.name} has {tenant.in_flight} devices, {bound} in a day, beyond {quota}"
        for request in self._could_use(given.signature, declined) if beyond else ():
            if request.tenant is None or not request.tenant.exhausted(now):
                yield f"tenant {tenant.name} borrowed a device that attempt {request.attempt} could use"

    def _could_use(self, signature: Signature, declined: frozenset[JobId] | None) -> Iterator[Request]:
        """The requests that need a device of the region, tiers aside: all, or else those that the plan lists for it.

        None where each device may serve one job only.
        """
        if callable(self.pool.plan().choice):
            return
        listed = {offer.attempt: offer.tier is not None for offer in self.pool.plan().offers(signature)}
        for request in self.pool.table.requests():
            is_tiered = listed.get(request.attempt, not self.work_conserving)
            open_to_it = not is_tiered and request.job not in (declined or ())
            if open_to_it and request.needs > 0 and signature >> request.bit & 1:
                yield request

    def _absorb(self) -> None:
        """Take the pool's effects into the ledger, keeping 5 and 6."""
        complaints: list[str] = []
        for effect in self.pool.drain():
            self._pending.append(effect)
            match effect:
                case SaveJob(record):
                    self.ledger_jobs[record.id] = record
                case SaveAttempt(record):
                    earlier = self._closed.get(record.id)
                    if earlier is not None:
                        complaints.append(f"5. attempt {record.id} was {earlier} and is saved as {record.state}")
                    self.ledger_attempts[record.id] = record
                case AttemptClosed(attempt, state):
                    self._closed[attempt] = state
                case JobEnded(job, state):
                    if job in self._ended:
                        complaints.append(f"5. job {job} ended twice: {self._ended[job]}, then {state}")
                    self._ended[job] = state
                case Commit(attempt, assignments):
                    complaints.extend(self._commit(attempt, assignments))
                case _:
                    pass
        _raise(complaints)

    def _commit(self, attempt: AttemptId, assignments: tuple[AssignmentId, ...]) -> Complaints:
        for assignment in assignments:
            if assignment not in self._counted:
                yield f"6. {attempt} commits {assignment}, which never reported"
            if attempt_of(assignment) != attempt:
                yield f"6. {attempt} commits {assignment}, a report for another attempt"
            if assignment in self._in_commits:
                yield f"6. {assignment} is part of two commits"
            self._in_commits.add(assignment)

    def _complaints(self, clock: float) -> Complaints:
        pool = self.pool
        for invariant in STATE_INVARIANTS:
            yield from invariant(pool)
        if pool.now < clock:
            yield f"12. the pool's time went back from {clock} to {pool.now}"
        for id, state in self._ended.items():
            if pool.jobs[id].state is not state:
                yield f"5. job {id} was {state} and is {pool.jobs[id].state}"
        yield from self._ledger_agrees()

    def _ledger_agrees(self) -> Complaints:
        """10. What recovery would rebuild equals what is there, up to soft state."""
        for job in self.pool.jobs.values():
            record = self.ledger_jobs.get(job.id)
            if record is None:
                yield f"10. job {job.id} is not in the ledger"
            elif (record.state, record.committed, record.model) != (job.state, job.committed, job.model):
                yield f"10. the ledger has job {job.id} as {record.state}, {record.committed} rounds"
        open_in_ledger = {record.id for record in self.open_in_ledger()}
        open_in_pool = {attempt.id for attempt in self.pool.attempts()}
        if open_in_ledger != open_in_pool:
            yield f"10. open in the ledger but not in the pool, or the reverse: {open_in_ledger ^ open_in_pool}"
