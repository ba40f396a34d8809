"""The server's shell around the pool, which stays pure: real time, real storage, and everything in its order.

`Shell` owns the pool, the ledger and the data plane, and lives in one event loop, so events reach the pool one by one.
Its promise is the order of things: an event is applied, what it made durable is in the ledger, its other effects are
carried out, and only then is anybody answered.

When the ledger fails, memory has run ahead of it. The shell then forgets memory: whoever waits gets the error, every
call is refused with the reason, and the pool is rebuilt from the ledger, exactly as after a crash, as soon as the
ledger works again. Open rounds go on with the reports that were acknowledged.
"""

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Required, TypedDict

import msgspec

from vennue.control.clock import Clock, pool_clock
from vennue.control.commits import Commits
from vennue.control.counters import Counters
from vennue.control.dataplane import DataPlane
from vennue.control.endings import Endings
from vennue.control.gathering import Gathering
from vennue.control.journal import Journal
from vennue.control.managed import ManagedJobs
from vennue.control.notes import PolicyChoice, note_usage, recall_policy, recall_usage
from vennue.control.recovery import Found, find_reports
from vennue.control.setbacks import SetbackLog
from vennue.control.tokens import Tokens
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
from vennue.core.errors import InvalidInput, NotFound, StorageError, VennueError
from vennue.core.events import (
    CancelJob,
    Event,
    Recover,
    Tick,
)
from vennue.core.ids import AttemptId, Digest, JobId, job_of
from vennue.core.invariants import Auditor
from vennue.core.job import Setting
from vennue.core.plan import Planner
from vennue.core.pool import ACCEPT_LEASE_S, Pool
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema
from vennue.core.round import AttemptState
from vennue.core.tenant import Quota
from vennue.policies import get_policy
from vennue.state.ledger import Batch, CommitRecord, KeyRecord, Ledger, Recovered
from vennue.state.schema import senseless

log = logging.getLogger("vennue.control")

RETRY_LEDGER_S: Final = 1.0
PLAN_LAG_S: Final = 0.02
"""At full load, a thousand jobs' requests fill hundreds of times per second, and each plan takes a millisecond."""
NOTE_USAGE_S: Final = 60.0
"""What tenants have used of their day is saved along with other things, at most so often."""
STUCK: Final = "what its strategy does with them had not ended when the ledger worked again"
REMEMBERED_ENDS: Final = 65_536
"""Ended assignments whose reason is kept for the device's next contact."""


class ShellOptions(TypedDict, total=False):
    """The options of a `Shell`, which documents them."""

    policy: Required[str]
    parameters: Mapping[str, Setting] | None
    schema: AttributeSchema
    seed: int
    replan_interval_s: float
    accept_lease_s: float
    quotas: Mapping[str, Quota] | None
    batch_window_s: float
    max_waiters: int
    make_clock: Callable[[float], Clock]
    validate: bool


class Shell:
    """One pool, in real time. All methods belong to one event loop. Use it as a `Coordinator`.

    Args:
        ledger: where promises are kept.
        data: where models and reports are.
        planner: the configured policy, and ``policy`` and ``parameters`` what names it. An operator's choice, which the
            ledger remembers, takes its place.
        schema: the device attributes that requirements may use.
        seed: of the lottery that ``random-order`` uses.
        replan_interval_s: least time between two plans.
        accept_lease_s: how long a device may take to answer to a private requirement.
        quotas: of tenants, by name; ``"*"`` for those not named.
        batch_window_s: how long check-ins may wait to be bound together; 0 binds each at once.
        max_waiters: long polls at once.
        make_clock: makes pool time, given the latest that is on record; by default the wall's at the start plus
            monotonic time since.
        validate: check the core's invariants after every event.
    """

    managed: ManagedJobs

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
        quotas: Mapping[str, Quota] | None = None,
        batch_window_s: float = 0.0,
        max_waiters: int = 10_000,
        make_clock: Callable[[float], Clock] = pool_clock,
        validate: bool = False,
    ) -> None:
        self.data = data
        data.distribution.on_damage = self._model_gone
        self._configured = PolicyChoice(policy, dict(parameters or {})), planner
        self._chosen = self._configured[0]
        self.counters = Counters()
        self.waiters = Waiters(max_waiters)
        self.gathering = Gathering()
        self.secret = b""
        """The pool's secret, once started."""
        self._ledger = ledger
        self._planner = planner
        self._make_pool = functools.partial(
            Pool,
            schema=schema,
            seed=seed,
            replan_interval_s=replan_interval_s,
            plan_lag_s=PLAN_LAG_S,
            accept_lease_s=accept_lease_s,
            quotas=quotas,
            batch_window_s=batch_window_s,
        )
        self._validate = validate
        self._auditor: Auditor | None = None
        self._make_clock = make_clock
        self._clock: Clock | None = None
        self._started_at = 0.0
        self._note_usage_at = -math.inf
        self._keys: dict[str, KeyRecord] = {}
        self.endings = Endings(REMEMBERED_ENDS)
        self.setbacks = SetbackLog()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: str | None = None
        self.pool = self._make_pool(planner)
        self._commits = Commits(self, ledger)
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
        pool = self._restored(recovered)
        self._auditor = self._audit(pool, recovered) if self._validate else None
        effects = (self._auditor or pool).drain()
        batch = Batch()
        others = [effect for effect in effects if not batch.add(effect)]
        await self._ledger.save(batch)
        going_on = [attempt.id for attempt in pool.attempts() if attempt.state is AttemptState.OPEN]
        stuck = await self.data.reset(keep=going_on)
        self.pool = pool
        self._keys = {record.key: record for record in recovered.keys}
        self._journal = Journal(self._ledger, self._carry_out, self._ledger_failed)
        self._writer = asyncio.get_running_loop().create_task(self._journal.run(), name="journal")
        for effect in others:
            self._carry_out(effect)
        tokens = Tokens(self.secret)
        found = [
            Found(Recover(each, failure=STUCK), [])
            if each in stuck
            else await find_reports(self.data, tokens, each, pool.jobs[job_of(each)].committed)
            for each in going_on
        ]
        self._failure = None
        for one in found:  # at once, before anybody is bound to a place that a report had
            attempt = pool.jobs[job_of(one.event.attempt)].attempt
            if attempt is None or attempt.id != one.event.attempt:  # its model, say, was found damaged meanwhile
                continue
            self.apply(one.event)
            for receipt in one.receipts:
                self.data.count(receipt, staleness=max(0, attempt.version - receipt.version))
        self._arm()
        for id in self.managed.active():
            self.spawn(self.managed.advance(id), f"the next round of {id}")

    def _restored(self, recovered: Recovered) -> Pool:
        """The pool that the ledger tells of, with the policy and the managed jobs that go with it.

        Raises:
            StorageError: it makes no sense.
            InvalidInput: a job cannot go on under this configuration.
        """
        try:
            self._recall_policy(recovered.notes)
            pool = self._make_pool(self._planner, supply=self.pool.supply)
            pool.restore(recovered.jobs, recovered.open_attempts, self.now())
            recall_usage(pool, recovered.notes)
            self.managed.recall(recovered.notes)
        except msgspec.DecodeError as error:
            raise senseless(f"it holds a note that makes no sense: {error}") from error
        except KeyError as error:
            raise senseless(f"it tells of job {error}, which it does not hold") from error
        self._check_any_model(pool)
        return pool

    def _check_any_model(self, pool: Pool) -> None:
        """Have no job end for want of its model where all are gone at once: a volume may not be mounted, say.

        Raises:
            StorageError: there has never been a model where models are.
        """
        needing = {attempt.job for attempt in pool.attempts()}
        needing |= {id for id in self.managed.all() if not pool.jobs[id].state.terminal}
        if needing and self.data.blobs.is_new:
            raise StorageError(
                f"the directory of models is empty, and jobs need what was in it: {', '.join(sorted(needing)[:3])}"
                + (f" and {len(needing) - 3} more" if len(needing) > 3 else ""),
                field="data_dir",
                fix="mount or restore its `blobs`; or name another data directory to begin anew",
            )

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
        self.spawn(self._recover(), "recovery")

    async def _recover(self) -> None:
        while not self.stopping:
            await asyncio.sleep(RETRY_LEDGER_S)
            try:
                await self._rebuild()
            except StorageError as error:
                self._failure = str(error)
            except Exception as error:
                log.exception("the pool could not be rebuilt from the ledger, which is tried again")
                self._failure = f"the pool cannot be rebuilt: {error!r}"
                if self._writer is not None:
                    self._writer.cancel()
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
        self.check_working()
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
        self.check_working()
        pending = self._journal.settled()
        if pending is not None:
            await pending

    def unsaved(self, attempt: AttemptId) -> asyncio.Future[None] | None:
        """Done when the attempt's record is durable; None when it is already."""
        return self._journal.settled() if self._journal.holds(attempt) else None

    def check_working(self) -> None:
        """While the pool is rebuilt, nobody knows what is too late, or was counted before.

        Raises:
            StorageError: the ledger has failed, and works no more yet.
        """
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
                self.spawn(self._commits.make(effect), f"the commit of {effect.attempt}")
            case AttemptClosed(attempt=attempt):
                self.spawn(self.data.close(attempt), f"the end of {attempt}")
                self.waiters.wake(job_of(attempt))
            case JobEnded(job=job):
                self.setbacks.forget(job)
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
            asyncio.get_running_loop().call_soon(self._give_up, job.id, str(error))
        if not self.data.distribution.is_checked(model):
            self.spawn(self._check(model), f"the check of the model of {attempt}")

    async def _check(self, model: Digest) -> None:
        try:
            await self.data.distribution.check(model)
        except NotFound as error:
            self._model_gone(model, error.message)

    def _model_gone(self, model: Digest, how: str = "it was damaged on the disk") -> None:
        """Nothing can come of rounds on this model any more: no device must train it in vain."""
        for attempt in self.pool.attempts():
            if attempt.model == model:
                self._give_up(attempt.job, f"model: the model of its round is gone: {model} ({how})")

    def _give_up(self, job: JobId, reason: str) -> None:
        if self.pool.jobs[job].state.terminal:
            return
        log.error("job %s cannot go on: %s", job, reason)
        try:
            self.apply(CancelJob(job, reason))
        except StorageError:
            log.debug("job %s is not cancelled: the ledger has failed, and the pool will be rebuilt", job)

    def note_refusal(self, attempt: AttemptId, error: VennueError) -> None:
        """A report of an attempt is refused, for which its job's owner may want to know."""
        self.counters.refused_reports += 1
        job = self.pool.jobs.get(job_of(attempt))
        if job is not None:
            self.setbacks.refused(job, attempt, error, self.now())

    def note_commit(self, commit: CommitRecord) -> None:
        """Have a commit made durable together with what `apply` said of it."""
        self._journal.batch.commits.append(commit)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Have something done beside everything else. Its failures are logged; a stop lets it finish."""

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
        task.add_done_callback(lambda _: work.close())  # which it may never have begun, at a stop
        return task
