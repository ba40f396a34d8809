"""Commits: from what a round's reports come to, to its durable record, or to the reason why nothing came of it.

One task makes one commit, beside everything else. If the pool is rebuilt meanwhile, the new one has asked for a commit
of its own, and nothing is heard of this one.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from vennue.control.open_attempt import Outcome
from vennue.core.effects import Commit
from vennue.core.errors import FileDamaged, NotFound, StorageError, TooLate, VennueError
from vennue.core.events import CommitFailed, Committed
from vennue.core.ids import Digest, job_of
from vennue.core.job import Job
from vennue.state.ledger import CommitRecord, Ledger

if TYPE_CHECKING:
    from vennue.control.shell import Shell

log = logging.getLogger("vennue.control")

RETRY_S: Final = 1.0


class Commits:
    """Makes the commits of one pool, in its coordinator's event loop.

    Args:
        coordinator: whose.
        ledger: the coordinator's.
    """

    def __init__(self, coordinator: "Shell", ledger: Ledger) -> None:
        self._coordinator = coordinator
        self._ledger = ledger

    async def make(self, effect: Commit) -> None:
        """Make an attempt's aggregate a commit, or tell the pool why it could not be made.

        Args:
            effect: what the pool asks for.
        """
        coordinator = self._coordinator
        attempt, pool = effect.attempt, coordinator.pool
        try:
            committed = pool.jobs[job_of(attempt)].committed
            memory = None
            if committed and coordinator.data.plan(attempt).strategy.slots():
                last = await self._ledger.commit(job_of(attempt), committed)
                memory = None if last is None else last.memory
            outcome = await self._aggregate(effect, committed + 1, memory)
        except Exception as error:
            if coordinator.pool is not pool:
                return
            # Our own errors say what is wrong and what to do; of any other one, the log has all that there is.
            log.error(  # noqa: TRY400
                "job %s: the aggregate of attempt %s failed: %s", job_of(attempt), attempt, error,
                exc_info=None if isinstance(error, VennueError) else error,
            )  # fmt: skip
            coordinator.counters.failed_commits += 1
            self._apply_if_open(CommitFailed(attempt, str(error)))
            return
        # A pool that was rebuilt meanwhile has asked for an aggregate of its own.
        job = self._apply_if_open(Committed(attempt, outcome.result)) if coordinator.pool is pool else None
        if job is None:
            return
        coordinator.counters.commits += 1
        coordinator.note_commit(
            CommitRecord(
                job=job.id,
                round=job.committed,
                attempt=attempt,
                result=outcome.result,
                reports=outcome.reports,
                weight=outcome.weight,
                metrics=outcome.metrics,
                memory=outcome.memory,
                committed_at=coordinator.now(),
            )
        )
        await coordinator.settled()
        await coordinator.data.committed(attempt)
        coordinator.waiters.wake(job.id)
        await coordinator.managed.advance(job.id)

    async def _aggregate(self, effect: Commit, round_number: int, memory: Mapping[str, Digest] | None) -> Outcome:
        """A round's aggregate. A full disk is waited for, as long as the attempt may take: its reports are promised."""
        coordinator = self._coordinator
        pool = coordinator.pool
        while True:
            try:
                return await coordinator.data.aggregate(
                    effect.attempt, effect.assignments, round_number=round_number, memory=memory
                )
            except FileDamaged:
                raise
            except StorageError as error:
                log.warning("the aggregate of %s waits: %s", effect.attempt, error)
                coordinator.counters.failed_commits += 1
                await asyncio.sleep(RETRY_S)
                current = pool.jobs[job_of(effect.attempt)].attempt
                is_wanted = current is not None and current.id == effect.attempt and current.committing
                if coordinator.pool is not pool or not is_wanted:
                    raise

    def _apply_if_open(self, event: Committed | CommitFailed) -> Job | None:
        try:
            job: Job = self._coordinator.apply(event)
        except (TooLate, NotFound, StorageError) as error:
            log.warning("the aggregate of %s came to nothing: %s", event.attempt, error)
            return None
        return job
