"""The coordinator: what job owners and operators ask of a pool, and are told once it is durable.

The order of things is that of `vennue.control.shell`: an event is applied, made durable and carried out before anybody
is answered, and whoever asks is shown what is durable.
"""

import asyncio
import functools
import hashlib
import itertools
import logging
import re
import secrets
from collections.abc import Callable
from typing import Final, Unpack

import msgspec

from vennue.control.admission import admit
from vennue.control.dataplane import DataPlane
from vennue.control.explain import STALL_GRACE_S, Explainer
from vennue.control.explanation import explanation
from vennue.control.foresight import foreseen
from vennue.control.managed import ManagedJobs, check_managed
from vennue.control.notes import PolicyChoice, note_policy
from vennue.control.shell import Shell, ShellOptions
from vennue.control.snapshot import snapshot
from vennue.control.views import (
    closed_round_view,
    committed_round_view,
    job_view,
    open_round_view,
    plan_history,
    plan_view,
    pool_view,
)
from vennue.core.errors import Conflict, InvalidInput, NotFound, Overloaded
from vennue.core.events import (
    CancelJob,
    CompleteJob,
    Contact,
    OpenRound,
    SubmitJob,
)
from vennue.core.ids import Digest, JobId
from vennue.core.job import Job, JobSpec, Setting
from vennue.core.plan import Planner
from vennue.policies import get_policy
from vennue.protocol import (
    Explanation,
    JobList,
    JobView,
    Managed,
    PlanHistory,
    PlanView,
    PoolSnapshot,
    PoolView,
    RoundView,
)
from vennue.state.ledger import CommitRecord, KeyRecord, Ledger
from vennue.updates.plan import RoundPlan

log = logging.getLogger("vennue.control")

MAX_KEY: Final = 200
FULL_S: Final = 60.0
"""After how long to submit again when too many jobs are active."""
MAX_CONFIG_BYTES: Final = 16 * 1024
"""Settings travel with every task, so a page of them is the limit."""


class Coordinator(Shell):
    """One pool, for its job owners and operators. All methods belong to one event loop.

    Args:
        ledger: where promises are kept.
        data: where models and reports are.
        planner: the configured policy.
        admission_window_s: jobs above all supply are refused once the pool was observed for this long.
        stall_grace_s: a job for which no device has checked in for this long counts as stalled.
        max_jobs: active jobs at once.
        new_suffix: what tells jobs of one name apart; at random by default.
        **options: those of `Shell`.
    """

    def __init__(
        self,
        ledger: Ledger,
        data: DataPlane,
        planner: Planner,
        *,
        admission_window_s: float = 86_400.0,
        stall_grace_s: float = STALL_GRACE_S,
        max_jobs: int = 10_000,
        new_suffix: Callable[[], str] | None = None,
        **options: Unpack[ShellOptions],
    ) -> None:
        super().__init__(ledger, data, planner, **options)
        self.managed = ManagedJobs(self)
        self._admission_window_s = admission_window_s
        self._stall_grace_s = stall_grace_s
        self._max_jobs = max_jobs
        self._new_suffix = new_suffix or functools.partial(secrets.token_hex, 3)

    # -- jobs -------------------------------------------------------------------------------------------------------

    async def submit(
        self, spec: JobSpec, key: str | None = None, managed: Managed | None = None
    ) -> tuple[JobView, bool]:
        """A new job, or the one that this idempotency key made; and whether it is new.

        With ``managed``, the platform runs its rounds.

        Raises:
            InvalidInput: the spec makes no sense, or (`Infeasible`) this pool can never run it.
            Conflict: the key was used with another spec.
            Overloaded: too many jobs are active.
        """
        if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            raise InvalidInput(
                f"must be 1 to {MAX_KEY} printable ASCII characters", field="Idempotency-Key", value=key[:MAX_KEY]
            )
        self.check_working()
        if managed is not None:
            check_managed(managed, spec)
            await self.data.models.check(Digest(managed.model))
        asked = msgspec.json.encode(spec) + (b"" if managed is None else msgspec.json.encode(managed))
        fingerprint = hashlib.sha256(asked).hexdigest()
        requirement, _ = spec.check(self.pool.schema)
        async with foreseen(self.pool, requirement, self.now()):
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
            self._check_room()
            now = self.now()
            seen = admit(self.pool, spec, now, window_s=self._admission_window_s, requirement=requirement)
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
        await self.data.models.check(model)
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
        return msgspec.structs.replace(view, managed=self.managed.get(id), setbacks=self.setbacks.of(self._known(id)))

    async def explain(self, id: JobId) -> Explanation:
        """Why a job is where it is, when it may end, and what would change that."""
        self._hear_of(id)
        await self.settled()
        job = self._known(id)
        rest = explanation(self.pool, self.explainer(), job, self.now(), setbacks=self.setbacks.of(job))
        return await asyncio.to_thread(rest)

    async def jobs(self, limit: int, after: JobId | None = None) -> JobList:
        """At most ``limit`` jobs, oldest first: the first ones, or those that came after this one.

        Raises:
            InvalidInput: there is no such job to come after.
        """
        await self.settled()
        last = None if after is None else self.pool.jobs.get(after)
        if after is not None and last is None:
            raise InvalidInput(
                "there is no such job", field="after", value=after[:80], fix="take the `next` of the page before"
            )
        arrival = -1 if last is None else last.arrival
        page = list(itertools.islice((job for job in self.pool.jobs.values() if job.arrival > arrival), limit + 1))
        now, explainer, late = self.now(), self.explainer(), self.endings.late
        views = [job_view(job, explainer, now, late_reports=late[job.id]) for job in page[:limit]]
        return JobList(jobs=views, next=page[limit - 1].id if len(page) > limit else None)

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
                return open_round_view(job, job.attempt, self.now(), self.setbacks.here(job))
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
                fix=self._rounds_there(job),
            )
        if commit is None:
            return closed_round_view(attempt, job.spec)
        before = await self._ledger.commit(job.id, round_number - 1) if round_number > opened_as else None
        return committed_round_view(commit, attempt, job.spec, before)

    async def commit(self, id: JobId, round_number: int) -> CommitRecord | None:
        """A round's commit, as it is durable."""
        return await self._ledger.commit(id, round_number)

    async def latest_commits(self, number: int) -> list[CommitRecord]:
        """The latest commits of each job, so many at most, as they are durable."""
        return await self._ledger.latest_commits(number)

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
        self.check_working()
        self._chosen, self._planner = choice, planner
        self.pool.set_planner(planner)
        note_policy(choice, self._configured[0], self._journal.batch.notes)
        await self.settled()

    def explainer(self) -> Explainer:
        """Explains jobs as they are now."""
        return Explainer(
            self.pool,
            self.now(),
            window_s=self._admission_window_s,
            stall_grace_s=self._stall_grace_s,
            managed=self.managed.all(),
            setbacks=self.setbacks.here,
        )

    def _hear_of(self, id: JobId) -> None:
        if not self._known(id).state.terminal:
            self.apply(Contact(id))

    def _known(self, id: JobId) -> Job:
        job = self.pool.jobs.get(id)
        if job is None:
            raise NotFound(f"there is no job {id[:80]}", field="job", value=id[:80])
        return job

    def _check_room(self) -> None:
        active = self.pool.registry.users
        if active >= self._max_jobs:
            raise Overloaded(
                f"{active} jobs are active, and no more are taken",
                retry_after_s=FULL_S,
                field="jobs",
                value=active,
                limit=self._max_jobs,
                fix="try again when some have ended, or have VENNUE_LIMITS_JOBS raised",
            )

    @staticmethod
    def _rounds_there(job: Job) -> str:
        last = job.committed + (job.attempt is not None)
        if last == 0:
            return "none has been opened yet"
        return "name round 1, the only one so far" if last == 1 else f"name one from 1 to {last}"

    def _new_id(self, name: str) -> JobId:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-") or "job"
        while (id := JobId(f"{slug}-{self._new_suffix()}")) in self.pool.jobs:
            pass
        return id
