"""The coordinator: real time, real storage and real devices around the pool, which stays pure.

It owns the pool, the ledger and the data plane, and lives in one event loop, so events reach the pool one by one. Its
promise is the order of things: an event is applied, what it made durable is in the ledger, its other effects are
carried out, and only then is anybody answered.

When the ledger fails, memory has run ahead of it. The coordinator then forgets memory: whoever waits gets the error,
every call is refused with the reason, and the pool is rebuilt from the ledger, exactly as after a crash, as soon as
the ledger works again. Open rounds go on with the reports that were acknowledged.
"""

import asyncio
import functools
import hashlib
import logging
import math
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from vennue.control.admission import admit
from vennue.control.clock import Clock, pool_clock
from vennue.control.counters import Counters
from vennue.control.dataplane import DataPlane
from vennue.control.endings import Endings
from vennue.control.explain import STALL_GRACE_S, Explainer
from vennue.control.explanation import explanation
from vennue.control.gathering import Gathering
from vennue.control.journal import Journal
from vennue.control.managed import ManagedJobs, check_managed
from vennue.control.notes import PolicyChoice, note_policy, note_usage, recall_policy, recall_usage
from vennue.control.recovery import find_reports
from vennue.control.snapshot import snapshot
from vennue.control.tokens import Tokens
from vennue.control.views import (
    closed_round_view,
    committed_round_view,
    job_view,
    open_round_view,
    plan_history,
    plan_view,
    pool_view,
)
from vennue.control.waiters import Waiters
from vennue.core.effects import (
    Answered,
    AssignmentEnded,
    AttemptClosed,
    AttemptOpened,
    Commit,
    Effect,
    JobEnded,
    PolicyFailed,
)
from vennue.core.errors import Conflict, InvalidInput, NotFound, StorageError, TooLate, VennueError
from vennue.core.events import (
    CancelJob,
    CommitFailed,
    Committed,
    CompleteJob,
    Contact,
    Event,
    OpenRound,
    SubmitJob,
    Tick,
)
from vennue.core.ids import AttemptId, Digest, JobId, job_of
from vennue.core.invariants import Auditor
from vennue.core.job import Job, JobSpec, Setting
from vennue.core.plan import Planner
from vennue.core.pool import ACCEPT_LEASE_S, Pool
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema
from vennue.core.round import AttemptState
from vennue.core.tenant import Quota
from vennue.policies import get_policy
from vennue.protocol import Explanation, JobView, Managed, PlanHistory, PlanView, PoolSnapshot, PoolView, RoundView
from vennue.state.ledger import Batch, CommitRecord, KeyRecord, Ledger, Recovered
from vennue.updates.plan import RoundPlan

log = logging.getLogger("vennue.control")

RETRY_LEDGER_S: Final = 1.0
MAX_KEY: Final = 200
MAX_CONFIG_BYTES: Final = 16 * 1024
"""Settings travel with every task, so a page of them is the limit."""
REMEMBERED_ENDS: Final = 65_536
"""Ended assignments whose reason is kept for the device's next contact."""

NOTE_USAGE_S: Final = 60.0
"""What tenants have used of their day is saved along with other things, at most so often."""


class Coordinator:
    """One pool, in real time. All methods belong to one event loop.

    Args:
        ledger: where promises are kept.
        data: where models and reports are.
        planner: the configured policy, and ``policy`` and ``parameters`` what names it. An operator's choice, which the
            ledger remembers, takes its place.
        schema: the device attributes that requirements may use.
        seed: of the lottery that ``random-order`` uses.
        replan_interval_s: least time between two plans.
        accept_lease_s: how long a device may take to answer to a private requirement.
        admission_window_s: jobs above all supply are refused once the pool was observed for this long.
        stall_grace_s: a job for which no device has checked in for this long counts as stalled.
        quotas: of tenants, by name; ``"*"`` for those not named.
        batch_window_s: how long check-ins may wait to be bound together; 0 binds each at once.
        max_waiters: long polls at once.
        make_clock: makes pool time, given the latest that is on record; by default the wall's at the start plus
            monotonic time since.
        new_suffix: what tells jobs of one name apart; at random by default.
        validate: check the core's invariants after every event.
    """

    def __init__(
        self,
        ledger: Ledger,
        data: DataPlane,
        planner: Planner,
        *,
        policy: str,
        parameters: Mapping[str, Setting] | None = None,
        schema: AttributeSchema = DEFAULT_SCHEMA,
        seed: int = 0,
        replan_interval_s: float = 0.0,
        accept_lease_s: float = ACCEPT_LEASE_S,
        admission_window_s: float = 86_400.0,
        stall_grace_s: float = STALL_GRACE_S,
        quotas: Mapping[str, Quota] | None = None,
        batch_window_s: float = 0.0,
        max_waiters: int = 10_000,
        make_clock: Callable[[float], Clock] = pool_clock,
        new_suffix: Callable[[], str] | None = None,
        validate: bool = False,
    ) -> None:
        self.data = data
        self._configured = PolicyChoice(policy, dict(parameters or {})), planner
        self._chosen = self._configured[0]
        self.counters = Counters()
        self.waiters = Waiters(max_waiters)
        self.gathering = Gathering()
        self.managed = ManagedJobs(self)
        self.secret = b""
        """The pool's secret, once started."""
        self._ledger = ledger
        self._planner = planner
        self._make_pool = functools.partial(
            Pool,
            schema=schema,
            seed=seed,
            replan_interval_s=replan_interval_s,
            accept_lease_s=accept_lease_s,
            quotas=quotas,
            batch_window_s=batch_window_s,
        )
        self._admission_window_s = admission_window_s
        self._stall_grace_s = stall_grace_s
        self._validate = validate
        self._auditor: Auditor | None = None
        self._make_clock = make_clock
        self._clock: Clock | None = None
        self._new_suffix = new_suffix or functools.partial(secrets.token_hex, 3)
        self._started_at = 0.0
        self._note_usage_at = -math.inf
        self._keys: dict[str, KeyRecord] = {}
        self.endings = Endings(REMEMBERED_ENDS)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: str | None = None
        self.pool = self._make_pool(planner)
        self._journal = Journal(ledger, self._carry_out, self._ledger_failed)
        self._writer: asyncio.Task[None] | None = None
        self.stopping = False

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the ledger and go on where the last server stopped.

        Raises:
            StorageError: the ledger cannot be used.
        """
        await self._ledger.open()
        self.secret = await self._ledger.secret()
        await self._rebuild()
        self._started_at = self.now()

    async def stop(self, drain_s: float) -> None:
        """Let commits finish for at most ``drain_s`` seconds, make everything durable, and close it."""
        self.announce_stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=drain_s)
        try:
            if self.pool.tenants and self._failure is None:
                note_usage(self.pool, self._journal.batch.notes)
            await self.settled()
        except StorageError:
            log.exception("at the stop, the last changes could not be saved")
        for task in (*self._tasks, self._writer):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        if self._timer is not None:
            self._timer.cancel()
        await self.data.stop()
        await self._ledger.close()

    def announce_stop(self) -> None:
        """The end is near: long polls are answered now."""
        self.stopping = True
        self.waiters.wake_all()
        self.gathering.dismiss()

    def now(self) -> float:
        """Pool time, seconds."""
        assert self._clock is not None, "the coordinator has not started"
        return self._clock()

    @property
    def policy(self) -> str:
        """The name of the policy in force."""
        return self._chosen.policy

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return self.now() - self._started_at

    @property
    def failure(self) -> str | None:
        """Why the coordinator cannot work at this moment, or None."""
        return self._failure

    async def _rebuild(self) -> None:
        """Make the pool anew from the ledger; the supply that was observed stays."""
        recovered = await self._ledger.load()
        if self._clock is None:
            self._clock = self._make_clock(recovered.latest)
        self._recall_policy(recovered.notes)
        pool = self._make_pool(self._planner, supply=self.pool.supply)
        pool.restore(recovered.jobs, recovered.open_attempts, self.now())
        recall_usage(pool, recovered.notes)
        self._auditor = self._audit(pool, recovered) if self._validate else None
        effects = (self._auditor or pool).drain()
        batch = Batch()
        others = [effect for effect in effects if not batch.add(effect)]
        await self._ledger.save(batch)
        going_on = [attempt.id for attempt in pool.attempts() if attempt.state is AttemptState.OPEN]
        await self.data.reset(keep=going_on)
        self.pool = pool
        self._keys = {record.key: record for record in recovered.keys}
        self.managed.recall(recovered.notes)
        self._journal = Journal(self._ledger, self._carry_out, self._ledger_failed)
        self._writer = asyncio.get_running_loop().create_task(self._journal.run(), name="journal")
        for effect in others:
            self._carry_out(effect)
        tokens = Tokens(self.secret)
        found = [await find_reports(self.data, tokens, attempt) for attempt in going_on]
        self._failure = None
        for one in found:  # at once, before anybody is bound to a place that a report had
            self.apply(one.event)
            for receipt in one.receipts:
                self.data.count(receipt)
        self._arm()
        for id in self.managed.active():
            self._spawn(self.managed.advance(id), f"the next round of {id}")

    def _recall_policy(self, notes: Mapping[str, str]) -> None:
        """Have the policy in force that the ledger tells of; the configured one if that is gone."""
        configured, planner = self._configured
        chosen = recall_policy(configured, notes)
        if chosen == self._chosen:
            return
        if chosen != configured:
            try:
                planner = get_policy(chosen.policy, **chosen.parameters)
            except InvalidInput as error:
                log.error("the policy chosen last cannot be used, so the configured one is: %s", error)  # noqa: TRY400
                chosen = configured
        self._chosen, self._planner = chosen, planner

    def _audit(self, pool: Pool, recovered: Recovered) -> Auditor:
        auditor = Auditor(pool, recovered.jobs, recovered.open_attempts)
        auditor.work_conserving = False  # a policy may leave requests out, and plans may wait for their interval
        return auditor

    def _ledger_failed(self, error: StorageError) -> None:
        log.error("the ledger failed, everything is refused until it works again: %s", error)
        self.counters.ledger_failures += 1
        self._failure = str(error)
        self.waiters.wake_all()
        self.gathering.fail(error)
        self._spawn(self._recover(), "recovery")

    async def _recover(self) -> None:
        while not self.stopping:
            await asyncio.sleep(RETRY_LEDGER_S)
            try:
                await self._rebuild()
            except StorageError as error:
                self._failure = str(error)
            else:
                log.warning("the ledger works again: the pool was rebuilt from it")
                return

    # -- events -----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> Any:
        """Apply an event to the pool: its answer, which nobody may be told before `settled`.

        Raises:
            StorageError: the ledger has failed, and works no more yet.
            VennueError: the event makes no sense; nothing was changed by it.
        """
        self._check_working()
        driven = self._auditor or self.pool
        try:
            return driven.handle(event, self.now())
        finally:
            effects = driven.drain()
            if effects:
                self._journal.add(effects)
                if self.pool.tenants and not self._journal.clean and self.pool.now >= self._note_usage_at:
                    self._note_usage_at = self.pool.now + NOTE_USAGE_S
                    note_usage(self.pool, self._journal.batch.notes)
            self._arm()

    async def settled(self) -> None:
        """Return when all that was applied so far is durable and carried out.

        Raises:
            StorageError: the ledger failed; what was applied has been forgotten.
        """
        self._check_working()
        pending = self._journal.settled()
        if pending is not None:
            await pending

    def unsaved(self, attempt: AttemptId) -> asyncio.Future[None] | None:
        """Done when the attempt's record is durable; None when it is already."""
        return self._journal.settled() if self._journal.holds(attempt) else None

    def _check_working(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"the server cannot save anything at this moment: {self._failure}", field="ledger", fix="try again soon"
            )

    def _arm(self) -> None:
        """Have the pool's next timer fire in time. One that comes too early costs an idle tick."""
        wake = self.pool.next_wake()
        if wake is None or wake >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wake - self.now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        try:
            self.apply(Tick())
        except StorageError:
            log.debug("no tick: the ledger has failed, and the pool will be rebuilt")

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case AttemptOpened(attempt=attempt, model=model):
                self._expect(attempt, model)
            case Commit():
                self._spawn(self._commit(effect), f"the commit of {effect.attempt}")
            case AttemptClosed(attempt=attempt):
                self._spawn(self.data.close(attempt), f"the end of {attempt}")
                self.waiters.wake(job_of(attempt))
            case JobEnded(job=job):
                self.waiters.wake(job)
            case Answered(device=device, assignment=bound):
                self.gathering.answer(device, bound)
            case AssignmentEnded(assignment=assignment, outcome=outcome):
                self.endings.note(assignment, outcome)
            case PolicyFailed(reason=reason):
                self.counters.policy_failures += 1
                log.error("the policy failed, the last plan stays in force: %s", reason)

    def _expect(self, attempt: AttemptId, model: Digest) -> None:
        job = self.pool.jobs[job_of(attempt)]
        try:
            self.data.expect(attempt, model, job.spec)
        except InvalidInput as error:
            # It was checked when the job came: what it names was removed from this machine since.
            log.error("job %s cannot go on: %s", job.id, error)  # noqa: TRY400 - the reason says it all
            asyncio.get_running_loop().call_soon(self._give_up, job.id, str(error))

    def _give_up(self, job: JobId, reason: str) -> None:
        try:
            self.apply(CancelJob(job, reason))
        except StorageError:
            log.debug("job %s is not cancelled: the ledger has failed, and the pool will be rebuilt", job)

    async def _commit(self, effect: Commit) -> None:
        attempt, pool = effect.attempt, self.pool
        try:
            committed = self.pool.jobs[job_of(attempt)].committed
            memory = None
            if committed and self.data.plan(attempt).strategy.slots():
                last = await self._ledger.commit(job_of(attempt), committed)
                memory = None if last is None else last.memory
            outcome = await self.data.aggregate(attempt, effect.assignments, round_number=committed + 1, memory=memory)
        except Exception as error:
            if self.pool is not pool:
                return
            log.exception("the aggregate of %s failed", attempt)
            self.counters.failed_commits += 1
            self._apply_if_open(CommitFailed(attempt, str(error)))
            return
        # A pool that was rebuilt meanwhile has asked for an aggregate of its own.
        job = self._apply_if_open(Committed(attempt, outcome.result)) if self.pool is pool else None
        if job is None:
            return
        self.counters.commits += 1
        self._journal.batch.commits.append(
            CommitRecord(
                job=job.id,
                round=job.committed,
                attempt=attempt,
                result=outcome.result,
                reports=outcome.reports,
                weight=outcome.weight,
                metrics=outcome.metrics,
                memory=outcome.memory,
                committed_at=self.now(),
            )
        )
        await self.settled()
        self.waiters.wake(job.id)
        await self.managed.advance(job.id)

    def _apply_if_open(self, event: Committed | CommitFailed) -> Job | None:
        try:
            job: Job = self.apply(event)
        except (TooLate, NotFound, StorageError) as error:
            log.warning("the aggregate of %s came to nothing: %s", event.attempt, error)
            return None
        return job

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        async def watched() -> None:
            try:
                await work
            except VennueError as error:
                log.warning("%s: %s", name, error)
            except Exception:
                log.exception("%s failed", name)

        task = asyncio.get_running_loop().create_task(watched(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- jobs -------------------------------------------------------------------------------------------------------

    async def submit(
        self, spec: JobSpec, key: str | None = None, managed: Managed | None = None
    ) -> tuple[JobView, bool]:
        """A new job, or the one that this idempotency key made; and whether it is new.

        With ``managed``, the platform runs its rounds.

        Raises:
            InvalidInput: the spec makes no sense, or (`Infeasible`) this pool can never run it.
            Conflict: the key was used with another spec.
        """
        if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            raise InvalidInput(
                f"must be 1 to {MAX_KEY} printable ASCII characters", field="Idempotency-Key", value=key[:MAX_KEY]
            )
        self._check_working()
        if managed is not None:
            check_managed(managed, spec)
            await self.data.check_model(Digest(managed.model))
        asked = msgspec.json.encode(spec) + (b"" if managed is None else msgspec.json.encode(managed))
        fingerprint = hashlib.sha256(asked).hexdigest()
        earlier = None if key is None else self._keys.get(key)
        if earlier is not None:
            if earlier.fingerprint != fingerprint:
                raise Conflict(
                    f"this key made job {earlier.job} from another description",
                    field="Idempotency-Key",
                    value=key,
                    fix="use a new key for a new job",
                )
            return await self.job(earlier.job), False
        seen = admit(self.pool, spec, self.now(), window_s=self._admission_window_s)
        job: Job = self.apply(SubmitJob(self._new_id(spec.name), spec))
        log.info("job %s is let in: %s", job.id, seen)
        if key is not None:
            self._keys[key] = KeyRecord(key=key, fingerprint=fingerprint, job=job.id)
            self._journal.batch.keys.append(self._keys[key])
        if managed is not None:
            self.managed.take(job.id, managed, self._journal.batch.notes)
            await self.settled()
            await self.managed.advance(job.id)
        return await self.job(job.id), True

    async def open_round(self, id: JobId, round_number: int, model: Digest, config: dict[str, Setting]) -> RoundView:
        """Open the job's next round on a model; repeating it changes nothing.

        Raises:
            NotFound: there is no such job or model.
            InvalidModel: the blob is no model that can be aggregated.
            IllegalTransition: it is not this round's turn.
        """
        job = self._known(id)
        self.managed.refuse(id)
        size_bytes = len(msgspec.json.encode(config))
        if size_bytes > MAX_CONFIG_BYTES:
            raise InvalidInput("too long", field="config", value=size_bytes, limit=MAX_CONFIG_BYTES)
        await self.data.check_model(model)
        # Only now, since the round may have committed while the model was looked at.
        if round_number <= job.committed:
            closed = await self.round(id, round_number)
            if closed.model == model:  # a repeat whose first answer was lost
                return closed
        self.apply(OpenRound(id, round_number, model, {**RoundPlan.of(job.spec).strategy.device_config(), **config}))
        return await self.round(job.id, round_number)

    async def cancel(self, id: JobId, reason: str) -> JobView:
        """End a job now. Cancelling one that has ended changes nothing."""
        self.apply(CancelJob(id, reason))
        return await self.job(id)

    async def complete(self, id: JobId) -> JobView:
        """End a job well. Repeating it changes nothing."""
        self.apply(CompleteJob(id))
        return await self.job(id)

    # -- looking ----------------------------------------------------------------------------------------------------

    async def job(self, id: JobId) -> JobView:
        """A job as it is durable, for its owner, who is thereby heard of."""
        self._hear_of(id)
        await self.settled()
        now = self.now()
        view = job_view(self._known(id), self.explainer(), now, late_reports=self.endings.late[id])
        return msgspec.structs.replace(view, managed=self.managed.get(id))

    async def explain(self, id: JobId) -> Explanation:
        """Why a job is where it is, when it may end, and what would change that."""
        self._hear_of(id)
        await self.settled()
        return explanation(self.pool, self.explainer(), self._known(id), self.now())

    async def jobs(self) -> list[JobView]:
        """All jobs, oldest first."""
        await self.settled()
        now = self.now()
        explainer = self.explainer()
        late = self.endings.late
        return [job_view(job, explainer, now, late_reports=late[job.id]) for job in self.pool.jobs.values()]

    async def round(self, id: JobId, round_number: int, wait_s: float = 0.0) -> RoundView:
        """A round's latest attempt. While the round is open, wait for it up to ``wait_s`` seconds.

        Raises:
            NotFound: there is no such job, or the round has not been opened.
            Overloaded: too many wait already.
        """
        self._hear_of(id)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            await self.settled()
            job = self._known(id)
            if job.attempt is None or round_number != job.committed + 1:
                return await self._closed_round(job, round_number)
            left_s = until - loop.time()
            if left_s <= 0 or self.stopping:
                return open_round_view(job, job.attempt, self.now())
            await self.waiters.wait(id, left_s)

    async def _closed_round(self, job: Job, round_number: int) -> RoundView:
        commit = await self._ledger.commit(job.id, round_number)
        # An asynchronous job commits many model updates from one attempt, whose id tells the round it opened as.
        opened_as = round_number if commit is None else int(commit.attempt.split(".")[-2])
        attempt = await self._ledger.latest_attempt(job.id, opened_as)
        if attempt is None:
            raise NotFound(
                f"round {round_number} of job {job.id} has not been opened",
                field="round",
                value=round_number,
                limit=job.committed + 1,
            )
        if commit is None:
            return closed_round_view(attempt, job.spec)
        return committed_round_view(commit, attempt, job.spec)

    async def commit(self, id: JobId, round_number: int) -> CommitRecord | None:
        """A round's commit, as it is durable."""
        return await self._ledger.commit(id, round_number)

    async def pool_view(self) -> PoolView:
        """The pool as operators see it."""
        await self.settled()
        now = self.now()
        return pool_view(
            self.pool,
            self.explainer(),
            policy=self.policy,
            now=now,
            started_at=self._started_at,
            check_ins=self.counters.check_ins,
        )

    async def snapshot(self) -> PoolSnapshot:
        """The pool for a simulation that goes on from it."""
        await self.settled()
        return snapshot(self.pool, policy=self.policy, planner=self._planner, now=self.now())

    async def plan_history(self) -> PlanHistory:
        """The latest plans."""
        await self.settled()
        return plan_history(self.pool, self.explainer())

    async def plan_view(self) -> PlanView:
        """The plan in force."""
        await self.settled()
        return plan_view(self.pool, self.explainer(), policy=self.policy)

    async def set_policy(self, choice: PolicyChoice) -> None:
        """Change the policy, for this server and those after it; no job is lost.

        Raises:
            InvalidInput: there is no such policy, it does not import, or a parameter makes no sense.
        """
        planner = get_policy(choice.policy, **choice.parameters)
        self._check_working()
        self._chosen, self._planner = choice, planner
        self.pool.set_planner(planner)
        note_policy(choice, self._configured[0], self._journal.batch.notes)
        await self.settled()

    def explainer(self) -> Explainer:
        """Explains jobs as they are now."""
        return Explainer(self.pool, self.now(), window_s=self._admission_window_s, stall_grace_s=self._stall_grace_s)

    def _hear_of(self, id: JobId) -> None:
        if not self._known(id).state.terminal:
            self.apply(Contact(id))

    def _known(self, id: JobId) -> Job:
        job = self.pool.jobs.get(id)
        if job is None:
            raise NotFound(f"there is no job {id[:80]}", field="job", value=id[:80])
        return job

    def _new_id(self, name: str) -> JobId:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-") or "job"
        while (id := JobId(f"{slug}-{self._new_suffix()}")) in self.pool.jobs:
            pass
        return id
