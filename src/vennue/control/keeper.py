"""The keeper: removes models that no job needs any more, by itself, and sooner when the disk's quota is nearly used up.

A model is needed while the ledger names it as something that is still to be used: what an open round trains, what an
active job's next round starts from and what its strategy remembers, a job's latest results, whether it has ended or
not. Everything else is removed once it has not been touched for a while: an upload is stored before a job names it, and
whoever names a model touches it first, so what is about to be needed is never removed.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vennue.control.coordinator import Coordinator
from vennue.core.errors import StorageError
from vennue.core.ids import Digest, JobId
from vennue.core.job import Job
from vennue.protocol import Managed, StorageView
from vennue.state.ledger import CommitRecord

log = logging.getLogger("vennue.control")

HURRIED_GRACE_S: Final = 300.0
"""When the quota is nearly used up, what was not touched for so long is removed, unfinished uploads as well: a device
may begin one for every task that it is given, and give the task back."""
NEARLY: Final = 0.9
LOOK_S: Final = 5.0
"""How often it is looked whether the quota is nearly used up."""


class Keeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When models that no job needs are removed. Durations in seconds."""

    interval_s: float = 600.0
    """How often."""
    grace_s: float = 3600.0
    """What was stored or named more recently than this stays."""
    upload_grace_s: float = 6 * 3600.0
    """An upload in parts to which nothing has come for this long is given up."""
    rounds: int = 2
    """How many of a job's latest models stay."""


class Keeper:
    """Removes what no job needs. All methods belong to the coordinator's event loop.

    Args:
        coordinator: whose models.
        keeping: when.
    """

    def __init__(self, coordinator: Coordinator, keeping: Keeping) -> None:
        self._coordinator = coordinator
        self._keeping = keeping
        self._collecting = asyncio.Lock()
        self._collected_at: float | None = None
        self._needed: int | None = None
        self.freed_bytes = 0

    async def run(self) -> None:
        """Collect now and then, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._keeping.interval_s
        hurried_at = -LOOK_S
        while True:
            await asyncio.sleep(min(LOOK_S, max(0.0, due - loop.time())))
            hurried = self._is_nearly_full() and loop.time() >= hurried_at + HURRIED_GRACE_S / 10
            if not hurried and loop.time() < due:
                continue
            hurried_at = loop.time() if hurried else hurried_at
            due = loop.time() + self._keeping.interval_s
            try:
                await self.collect(hurried=hurried)
            except StorageError as error:
                log.warning("models that no job needs are not removed: %s", error)
            except Exception:
                log.exception("models that no job needs are not removed")

    async def collect(self, *, hurried: bool = False) -> int:
        """Remove what no job needs; how many bytes that freed. Nothing, while the coordinator cannot work.

        Args:
            hurried: whether space is short, so that the grace is.

        Raises:
            StorageError: the ledger cannot be read, or the disk written.
        """
        coordinator, keeping = self._coordinator, self._keeping
        if coordinator.failure is not None:
            return 0
        async with self._collecting:
            await coordinator.settled()
            commits = await coordinator.latest_commits(keeping.rounds)
            # From here to the set of digests nothing is awaited, so that no round is opened in between.
            needed = frozenset(needed_models(coordinator.pool.jobs, commits, coordinator.managed.all()))
            at_most_s = HURRIED_GRACE_S if hurried else math.inf
            grace_s, upload_grace_s = min(keeping.grace_s, at_most_s), min(keeping.upload_grace_s, at_most_s)
            data = coordinator.data

            def collect() -> int:
                freed = data.blobs.gc(needed, grace_s=grace_s, parts_grace_s=upload_grace_s)
                data.distribution.prune()
                return freed

            freed_bytes = await asyncio.to_thread(collect)
            self._collected_at = asyncio.get_running_loop().time()
            self._needed = len(needed)
            self.freed_bytes += freed_bytes
            if freed_bytes:
                log.info("removed %d bytes of models that no job needs", freed_bytes)
            return freed_bytes

    def view(self) -> StorageView:
        """What there is, and what was removed."""
        data = self._coordinator.data
        variants = data.distribution.variants
        at = self._collected_at
        return StorageView(
            used_bytes=data.blobs.used_bytes,
            quota_bytes=data.blobs.quota_bytes,
            variant_bytes=0 if variants is None else variants.used_bytes,
            needed_models=self._needed,
            collected_s_ago=None if at is None else asyncio.get_running_loop().time() - at,
            freed_bytes=self.freed_bytes,
        )

    def _is_nearly_full(self) -> bool:
        blobs = self._coordinator.data.blobs
        return blobs.quota_bytes is not None and blobs.used_bytes > NEARLY * blobs.quota_bytes


def needed_models(
    jobs: Mapping[JobId, Job], commits: Iterable[CommitRecord], managed: Mapping[JobId, Managed]
) -> Iterator[Digest]:
    """The blobs that jobs still need.

    Args:
        jobs: all of them.
        commits: the latest of each.
        managed: what the owners of managed jobs asked for.
    """
    for job in jobs.values():
        if job.model is not None:
            yield job.model
        if job.attempt is not None:
            yield job.attempt.model
        if not job.state.terminal and job.id in managed:
            yield Digest(managed[job.id].model)
    for commit in commits:
        yield commit.result
        job_of_it = jobs.get(commit.job)
        if job_of_it is None or not job_of_it.state.terminal:
            yield from commit.memory.values()
