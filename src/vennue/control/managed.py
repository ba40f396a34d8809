"""Managed jobs: the platform opens their rounds itself, one after the other, until they are done.

All that it needs is in the ledger: what the owner asked for (a note), the last commit (the model that the next round
starts from, the metrics that a target is judged by), and the strategy's memory, which is kept beside each commit. So
after a restart, whatever was going on, the next step is found anew, and taking it twice changes nothing.
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from vennue.core.errors import Conflict, IllegalTransition, InvalidInput, JobEnded, NotFound, StorageError
from vennue.core.events import CancelJob, CompleteJob, OpenRound
from vennue.core.ids import Digest, JobId
from vennue.core.job import Job, JobSpec, Setting
from vennue.protocol import Managed, Target
from vennue.updates.blobs import check_digest
from vennue.updates.plan import RoundPlan

if TYPE_CHECKING:
    from vennue.control.coordinator import Coordinator

log = logging.getLogger("vennue.control")

EVALUATE: Final = "evaluate"
"""The setting by which devices are told to evaluate the model that they were given, before they train it."""
RETRY_S: Final = 5.0
"""How long a job waits for a disk that has failed."""
_NOTE: Final = "managed/"


def check_managed(managed: Managed, spec: JobSpec) -> None:
    """Make sure that a managed job can be run, and ends.

    Raises:
        InvalidInput: it cannot; the error names the field.
    """
    try:
        check_digest(managed.model)
    except InvalidInput as error:
        error.field = "managed.model"
        raise
    if managed.evaluate_every < 1:
        raise _bad("managed.evaluate_every", managed.evaluate_every, "must be at least 1", "1 evaluates every round")
    if spec.mode == "async" and managed.evaluate_every != 1:
        raise _bad(
            "managed.evaluate_every", managed.evaluate_every, "an asynchronous job tells all its devices the same",
            "leave it out: each of them evaluates the model that it is given",
        )  # fmt: skip
    target = managed.target
    if target is None:
        if spec.rounds is None:
            raise _bad("rounds", None, "a managed job without a target must say how many", "give rounds or a target")
        return
    if (target.at_least is None) == (target.at_most is None):
        raise _bad("managed.target", target.metric, "needs at_least or at_most", "give one of the two")
    limit = target.at_most if target.at_least is None else target.at_least
    if limit is None or not math.isfinite(limit):
        raise _bad("managed.target", limit, "must be a finite number", "give a number that the metric can reach")


class ManagedJobs:
    """The managed jobs of one coordinator, in its event loop."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator
        self._jobs: dict[JobId, Managed] = {}

    def recall(self, notes: Mapping[str, str]) -> None:
        """Know the jobs again that former servers took, from the ledger's notes."""
        self._jobs = {
            JobId(name.removeprefix(_NOTE)): msgspec.json.decode(text, type=Managed)
            for name, text in notes.items()
            if name.startswith(_NOTE)
        }

    def take(self, job: JobId, managed: Managed, notes: dict[str, str]) -> None:
        """Run a job from now on; ``notes`` become durable together with it."""
        self._jobs[job] = managed
        notes[_NOTE + job] = msgspec.json.encode(managed).decode()

    def get(self, job: JobId) -> Managed | None:
        """What a job's owner asked for, if the platform runs it."""
        return self._jobs.get(job)

    def all(self) -> Mapping[JobId, Managed]:
        """What their owners asked for, of all that there were."""
        return self._jobs

    def refuse(self, job: JobId) -> None:
        """Nobody else opens the rounds of a managed job.

        Raises:
            Conflict: it is one.
        """
        if job in self._jobs:
            raise Conflict(
                f"the platform runs the rounds of job {job}", field="job", value=job,
                fix="watch its rounds, or submit a job without a model to run the rounds yourself",
            )  # fmt: skip

    def active(self) -> list[JobId]:
        """The managed jobs that have not ended."""
        jobs = self._coordinator.pool.jobs
        return [id for id in self._jobs if id in jobs and not jobs[id].state.terminal]

    async def advance(self, id: JobId) -> None:
        """Take a job's next step, if it is due: complete it, or open its next round. A full disk delays it."""
        managed = self._jobs.get(id)
        if managed is None:
            return
        try:
            job = self._coordinator.pool.jobs[id]
            if job.state.terminal or (job.attempt is not None and job.spec.mode == "sync"):
                return
            if await self._reached(job, managed):
                log.info("job %s has reached its target", id)
                self._coordinator.apply(CompleteJob(id))
            elif job.attempt is None:
                await self._open_next(job, managed)
        except (JobEnded, IllegalTransition) as error:  # somebody was faster: it was cancelled meanwhile, say
            log.info("job %s: %s", id, error)
        except StorageError as error:
            log.warning("job %s has to wait: %s", id, error)
            self._advance_later(id)
        except (InvalidInput, NotFound) as error:
            log.error("job %s cannot go on: %s", id, error)  # noqa: TRY400 - the reason says it all
            self._coordinator.apply(CancelJob(id, f"it cannot go on: {error}"))

    def _advance_later(self, id: JobId) -> None:
        coordinator = self._coordinator

        def again() -> None:
            if not coordinator.stopping:
                coordinator.spawn(self.advance(id), f"the next round of {id}")

        # Should it be the ledger that failed: every job is looked at again once it works, and twice does no harm.
        asyncio.get_running_loop().call_later(RETRY_S, again)

    async def _open_next(self, job: Job, managed: Managed) -> None:
        model = job.model or Digest(managed.model)
        await self._coordinator.data.models.check(model)
        config: dict[str, Setting] = {**RoundPlan.of(job.spec).strategy.device_config(), **managed.config}
        if (job.committed + 1) % managed.evaluate_every == 0:
            config[EVALUATE] = True
        self._coordinator.apply(OpenRound(job.id, job.committed + 1, model, config))

    async def _reached(self, job: Job, managed: Managed) -> bool:
        """Whether the last evaluation found the target reached."""
        target = managed.target
        if target is None or job.committed == 0 or job.committed % managed.evaluate_every:
            return False
        commit = await self._coordinator.commit(job.id, job.committed)
        return commit is not None and meets(target, commit.metrics)


def meets(target: Target, metrics: Mapping[str, float]) -> bool:
    """Whether a round's metrics reach the target. A round without the metric does not."""
    value = metrics.get(target.metric)
    if value is None:
        return False
    return value >= target.at_least if target.at_least is not None else value <= (target.at_most or 0.0)


def _bad(field: str, value: object, message: str, fix: str) -> InvalidInput:
    return InvalidInput(f"{message}, got {value!r}", field=field, value=value, fix=fix)
