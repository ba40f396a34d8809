"""What devices are told of reports that nothing else tells of any more, durable before anybody is told.

A report that counted has its receipt here once its round has its aggregate. One that was refused as too late while its
attempt goes on is remembered, too: after a crash nobody knows the leases any more, and a device that shows its token is
taken at its word. Whatever was refused stays out, by whatever way it comes again.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vennue.control.uploads import Uploads
from vennue.core.ids import AssignmentId, AttemptId, attempt_of
from vennue.updates.sums import Receipt
from vennue.updates.tombstones import Tombstones

MOST_REFUSED: Final = 65_536
"""Refusals remembered for an attempt, the latest: a round has not so many, but an asynchronous job may never end."""


@dataclass(slots=True)
class _Refused:
    """What was refused of an attempt."""

    all: dict[AssignmentId, None] = field(default_factory=dict)
    unwritten: dict[AssignmentId, None] = field(default_factory=dict)
    """Those of which that is not durable yet."""


class Answers:
    """The answers of one server, in a directory. All methods belong to one event loop.

    Args:
        uploads: whose threads are used.
        directory: created where missing.
        durable: whether they survive a power loss.
    """

    def __init__(self, uploads: Uploads, directory: Path, *, durable: bool = False) -> None:
        self._uploads = uploads
        self._directory = directory
        self._durable = durable
        self._tombstones: Tombstones | None = None
        self._turn = asyncio.Lock()  # one thread at a time uses them
        self._refused: dict[AttemptId, _Refused] = {}

    async def keep(self, attempt: AttemptId, receipts: Collection[Receipt], round_number: int = 0) -> None:
        """From now on, repeats of these reports find their receipts here.

        Args:
            attempt: whose.
            receipts: of counted reports.
            round_number: the round whose aggregate they go into; 0 for none.

        Raises:
            StorageError: they cannot be written.
        """
        if receipts:
            async with self._turn:
                await self._uploads.in_thread(lambda: self._stones().bury(attempt, receipts, round_number=round_number))

    async def receipt(self, assignment: AssignmentId) -> Receipt | None:
        """The receipt of a report that is in an aggregate.

        Raises:
            StorageError: it cannot be read.
        """
        async with self._turn:
            return await self._uploads.in_thread(lambda: self._stones().find(assignment))

    async def those_kept(self, assignments: Iterable[AssignmentId]) -> list[AssignmentId]:
        """Those of which there is a receipt here."""
        async with self._turn:
            return await self._uploads.in_thread(
                lambda: [each for each in assignments if self._stones().find(each) is not None]
            )

    def is_refused(self, assignment: AssignmentId) -> bool:
        """Whether a report must not count, whatever the pool knows of its assignment."""
        refused = self._refused.get(attempt_of(assignment))
        return refused is not None and assignment in refused.all

    async def refuse(self, attempt: AttemptId, assignments: Iterable[AssignmentId]) -> None:
        """These do not count from now on; when this returns, nor after a crash. Those that come together share a write.

        Raises:
            StorageError: that cannot be written, and nobody may be told.
        """
        refused = self._refused.setdefault(attempt, _Refused())
        for assignment in assignments:
            if assignment not in refused.all:
                refused.all[assignment] = refused.unwritten[assignment] = None
        async with self._turn:
            unwritten = list(refused.unwritten)
            if unwritten:
                await self._uploads.in_thread(lambda: self._stones().refuse(attempt, unwritten))
                for assignment in unwritten:
                    del refused.unwritten[assignment]
        while len(refused.all) > MOST_REFUSED:
            del refused.all[next(iter(refused.all))]

    async def recover(self, attempt: AttemptId, committed: int) -> None:
        """After a crash: forget what was kept for a commit that never was, and know again what was refused.

        Args:
            attempt: one that goes on.
            committed: its job's last committed round.

        Raises:
            StorageError: the directory cannot be used.
        """

        def settle() -> list[AssignmentId]:
            self._stones().settle(attempt, committed)
            return self._stones().refused(attempt)

        async with self._turn:
            written = await self._uploads.in_thread(settle)
        refused = self._refused.setdefault(attempt, _Refused())  # it is there if only the ledger had failed
        refused.all = dict.fromkeys(written[-MOST_REFUSED:]) | refused.all

    def forget(self, attempt: AttemptId) -> None:
        """The attempt is over for good, so all that comes for it is too late."""
        self._refused.pop(attempt, None)

    def _stones(self) -> Tombstones:
        if self._tombstones is None:
            self._tombstones = Tombstones(self._directory, durable=self._durable)
        return self._tombstones
