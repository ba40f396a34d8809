"""The data plane in the coordinator's event loop: what touches disks or many numbers runs in threads, in its order.

An attempt's aggregator is opened with its first report, so that opening a round costs nothing. A report goes to the
spool in blocks as it arrives; once the pool has counted it, it is folded into the running sum in the background, so
that little is left to do when the last one is in. A leaf's partial sum comes in the same way; that it counts is made
durable in its turn, and until it is, no receipt for any report in it is given to anybody.
"""

import asyncio
import functools
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from vennue.control.answers import Answers
from vennue.control.crew import PATIENCE_S
from vennue.control.distribution import Distribution
from vennue.control.models import Models
from vennue.control.open_attempt import OpenAttempt, Outcome
from vennue.control.uploads import Uploads
from vennue.core.errors import InvalidInput, InvalidModel, Overloaded, StorageError, TooLate
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.core.job import JobSpec
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blobs import BlobStore
from vennue.updates.commit import Aggregate
from vennue.updates.intake import PartialSink, UpdateSink
from vennue.updates.plan import RoundPlan
from vennue.updates.spares import MAX_BYTES, Spares
from vennue.updates.sums import Partial, Receipt
from vennue.updates.variants import Variants

log = logging.getLogger("vennue.control")

RETRY_S: Final = 1.0

Body = Callable[[int], AsyncIterator[bytes]]
"""Gives a body's chunks, once it is told the most bytes that it may have."""


class DataPlane:
    """Models and reports of one server. All methods belong to one event loop.

    Args:
        blobs: where models and aggregates are.
        spool: the directory where reports wait.
        receipts: the directory where answers to later repeats are kept; beside the spool by default.
        max_uploads: models and reports being received at once.
        durable: whether an acknowledged report survives a power loss, not only a crash of the process.
        variants: other forms of models, for devices that ask for them.
        spare_bytes: how much of the disk `Spares` may take.
    """

    def __init__(
        self,
        blobs: BlobStore,
        spool: Path,
        *,
        receipts: Path | None = None,
        max_uploads: int = 1024,
        durable: bool = False,
        variants: Variants | None = None,
        spare_bytes: int = MAX_BYTES,
    ) -> None:
        self.blobs = blobs
        self.distribution = Distribution(blobs, variants)
        self.uploads = Uploads(max_uploads)
        self.models = Models(self.distribution, self.uploads)
        self._refused_bytes = 0
        self._spool = spool
        self._spares = Spares(spool.with_name("spares"), max_bytes=spare_bytes)
        self._durable = durable
        self._answers = Answers(self.uploads, receipts or spool.with_name("receipts"), durable=durable)
        self._open: dict[AttemptId, OpenAttempt] = {}
        self._ending: set[asyncio.Task[None]] = set()

    # -- attempts -----------------------------------------------------------------------------------------------------

    def expect(self, attempt: AttemptId, model: Digest, spec: JobSpec) -> None:
        """Take reports for an attempt from now on. Those that are in its spool are there again.

        Raises:
            InvalidInput: the job's strategy is not here.
        """
        self._open[attempt] = OpenAttempt(attempt, model, RoundPlan.of(spec))

    def plan(self, attempt: AttemptId) -> RoundPlan:
        """How an attempt's reports are taken.

        Raises:
            TooLate: it is over.
        """
        return self._entry(attempt).plan

    async def aggregate(
        self,
        attempt: AttemptId,
        assignments: Iterable[AssignmentId],
        *,
        round_number: int = 1,
        memory: Mapping[str, Digest] | None = None,
    ) -> Outcome:
        """Make the durable aggregate of exactly these counted reports.

        Args:
            attempt: whose.
            assignments: the reports.
            round_number: which round this ends, from 1.
            memory: the strategy's, from the job's last commit.

        The reports stay in the spool until `committed` says that they are of no use any more.

        Raises:
            TooLate: the attempt is over, or has begun anew meanwhile, and knows nothing of this aggregate.
            Exception: whatever the strategy or the storage raises; it may be tried again.
        """
        entry = self._entry(attempt)
        async with entry.aggregating:
            if self._entry(attempt) is not entry:
                raise TooLate(f"attempt {attempt} has begun anew", field="assignment", value=attempt)
            return await self._aggregate(entry, tuple(assignments), round_number, memory)

    async def _aggregate(
        self,
        entry: OpenAttempt,
        assignments: tuple[AssignmentId, ...],
        round_number: int,
        memory: Mapping[str, Digest] | None,
    ) -> Outcome:
        aggregator = await self._aggregator(entry)
        await self.committed(entry.attempt)  # one aggregate follows the other only when that is a commit
        for assignment in assignments:
            await self._taken(entry, assignment)
        await self.distribution.check(entry.model)
        if memory is not None and not all([await self.distribution.holds(each) for each in memory.values()]):
            log.warning("what the strategy of %s remembers is lost, so it begins anew", entry.attempt)
            memory = None

        def make(memory: Mapping[str, Digest] | None) -> Aggregate:
            return aggregator.aggregate(assignments=assignments, round_number=round_number, memory=memory)

        try:
            made = await self.uploads.in_thread(make, memory)
        except InvalidInput as error:
            if memory is None or not (error.field or "").startswith("memory."):
                raise
            log.warning("the model of %s has another form now: the strategy begins anew: %s", entry.attempt, error)
            made = await self.uploads.in_thread(make, None)
        await self._bury(entry, assignments, round_number)
        outcome = Outcome(
            result=made.model,
            memory=dict(made.memory),
            reports=len(made.assignments),
            weight=made.weight,
            metrics=dict(made.metrics),
        )
        if entry.plan.asynchronous:
            entry.made, entry.in_it = outcome, assignments
        return outcome

    async def committed(self, attempt: AttemptId) -> None:
        """An attempt's last aggregate is a commit on record: if it goes on, it does so from there."""
        entry = self._open.get(attempt)
        if entry is None or entry.aggregator is None:
            return
        async with entry.going_on:
            if entry.made is None:
                return
            outcome, entry.made = entry.made, None
            entry.model = outcome.result
            try:
                await self.uploads.in_thread(entry.aggregator.go_on, outcome.result, entry.in_it)
            except StorageError as error:
                log.warning("%s", error)

    async def close(self, attempt: AttemptId, *, discard: bool = True) -> None:
        """Take no more reports for an attempt, and remove those that it has; their receipts stay.

        Without ``discard`` the reports stay in their place, for `recover`.
        """
        entry = self._open.pop(attempt, None)
        if entry is None:
            return
        if discard:
            self._answers.forget(attempt)
        async with entry.aggregating, entry.opening:
            if entry.taking:
                await asyncio.wait(entry.taking.values())
            if entry.aggregator is not None:
                await self.uploads.in_thread(entry.aggregator.close, discard=discard)
                self._refused_bytes += entry.aggregator.refused_bytes
        if discard:
            try:
                await self._bury(entry, tuple(entry.counted), 0)
                await self.uploads.in_thread(self.blobs.give_up, attempt)
            except StorageError as error:
                log.warning("%s", error)

    async def reset(self, keep: Collection[AttemptId] = ()) -> frozenset[AttemptId]:
        """Forget all attempts, and remove what a crash has left of them, except the spools of those to ``keep``.

        Returns:
            Those that are stuck, as a strategy is that loops for ever: they cannot go on. What still works on their
            reports might note later that some have counted, and that must not pass for what becomes of them now.
        """
        loop = asyncio.get_running_loop()
        ends = {each: loop.create_task(self.close(each, discard=each not in keep)) for each in list(self._open)}
        for end in ends.values():
            self._ending.add(end)
            end.add_done_callback(self._ending.discard)
        if ends:
            await asyncio.wait(ends.values(), timeout=PATIENCE_S)
        stuck = frozenset(attempt for attempt, end in ends.items() if not end.done())
        for attempt, end in ends.items():
            if attempt in stuck:
                end.add_done_callback(_retrieved)
            else:
                end.result()
        await self.uploads.in_thread(self._spares.clear)
        await self.uploads.in_thread(_empty, self._spool, frozenset(keep) - stuck)
        return stuck

    async def recover(self, attempt: AttemptId, committed: int) -> list[Receipt]:
        """The reports of an expected attempt that count since before a crash, and are not in a commit.

        A partial sum that was not taken is dropped: nobody was told that it counts, so its leaf will send it again. So
        is a report that was refused while it arrived another time.

        Args:
            attempt: whose.
            committed: the job's last committed round.

        Raises:
            TooLate: the attempt is not expected.
            StorageError: the spool cannot be read.
        """
        aggregator = await self._aggregator(self._entry(attempt))
        await self._answers.recover(attempt, committed)
        # What an asynchronous job has committed from this attempt: only its removal was cut off.
        committed_before = await self._answers.those_kept(aggregator.finished)

        def settle() -> list[Receipt]:
            for partial in aggregator.waiting:
                aggregator.drop_partial(partial.id)
            aggregator.release(committed_before)
            for assignment in filter(self._answers.is_refused, aggregator.finished):
                aggregator.drop(assignment)
            return list(aggregator.finished.values())

        return await self.uploads.in_thread(settle)

    async def stop(self) -> None:
        """Let the threads end. Reports of open attempts stay on the disk."""
        for end in self._ending:
            end.cancel()
        await self.uploads.stop()
        await asyncio.to_thread(self._spares.clear)

    # -- reports ------------------------------------------------------------------------------------------------------

    @property
    def refused_bytes(self) -> int:
        """How much was received of reports that were refused, or broken off."""
        aggregators = (entry.aggregator for entry in self._open.values())
        return self._refused_bytes + sum(one.refused_bytes for one in aggregators if one is not None)

    async def receipt(self, assignment: AssignmentId) -> Receipt | None:
        """The receipt of an assignment's report that was counted, and awaits its aggregate; durably, once it is given.

        Raises:
            StorageError: it counts as part of a sum, and that cannot be made durable.
        """
        entry = self._open.get(attempt_of(assignment))
        if entry is None:
            return None
        await self._taken(entry, assignment)
        return entry.counted.get(assignment)

    async def old_receipt(self, assignment: AssignmentId) -> Receipt | None:
        """The receipt of an assignment's report that was counted, whether it awaits its aggregate or that was made."""
        receipt = await self.receipt(assignment)
        if receipt is not None:
            return receipt
        return await self._answers.receipt(assignment)

    def is_refused(self, assignment: AssignmentId) -> bool:
        """Whether it was said, or is about to be said, that a report does not count: so it never does."""
        return self._answers.is_refused(assignment)

    async def refuse(self, attempt: AttemptId, assignments: Collection[AssignmentId]) -> None:
        """Reports of an attempt do not count, and never will: durably, once this returns. Then they may be told.

        Of an attempt that is over there is nothing to note.

        Raises:
            Overloaded: one of them was counted meanwhile; whoever sent it asks again.
            StorageError: it cannot be made durable.
        """
        entry = self._open.get(attempt)
        if entry is None:
            return
        for assignment in assignments:
            if assignment in entry.counted or assignment in entry.untaken:
                raise Overloaded("it was counted this very moment", retry_after_s=RETRY_S, fix="send it again")
        await self._answers.refuse(attempt, assignments)

    async def receive(
        self,
        assignment: AssignmentId,
        weight: float,
        metrics: Mapping[str, float],
        body: Body,
        *,
        sha256: Digest | None = None,
        token: str = "",
        version: int = 0,
    ) -> Receipt:
        """Make a report durable as it arrives. What is refused or broken off leaves nothing behind.

        Args:
            assignment: whose report it is.
            weight: the number of examples that it was trained on.
            metrics: names and finite numbers, to be averaged beside the model.
            body: gives the report's chunks.
            sha256: the digest that it must have, where the device announced one.
            token: what proves that the assignment is the device's, kept with the report.
            version: that of the model that the device was given, kept with the report.

        Raises:
            TooLate: its attempt is over.
            InvalidUpdate: it does not fit the round's model, or holds what is not finite.
            InvalidInput: it has another digest.
            Overloaded: too many uploads are under way.
            StorageError: the spool cannot be written.
        """
        attempt = attempt_of(assignment)
        aggregator = await self._aggregator(self._entry(attempt))
        start = functools.partial(
            aggregator.start_update,
            assignment,
            weight,
            metrics=metrics,
            sha256=sha256,
            token=token,
            version=version,
        )
        return await self.uploads.receive(start, UpdateSink.finish, body(aggregator.max_update_bytes), owner=attempt)

    def count(self, receipt: Receipt, *, staleness: int = 0) -> None:
        """A durable report counts: remember its receipt, and fold it soon.

        Args:
            receipt: of the report.
            staleness: how many model updates older than the present model its base is.
        """
        entry = self._entry(attempt_of(receipt.assignment))
        self._count(entry, {receipt.assignment: receipt}, staleness)

    async def drop(self, assignment: AssignmentId) -> None:
        """A durable report does not count after all: remove it."""
        entry = self._open.get(attempt_of(assignment))
        if entry is not None and entry.aggregator is not None and assignment not in entry.counted:
            await self.uploads.in_thread(entry.aggregator.drop, assignment)

    async def receive_partial(self, attempt: AttemptId, partial: Partial, body: Body) -> bool:
        """Make a leaf's partial sum durable as it arrives; whether it is new. It counts once it was taken.

        Raises:
            TooLate: its attempt is over.
            InvalidUpdate: it does not fit the round's model, or holds what is not finite.
            Conflict: the attempt needs every update by itself.
            Overloaded: too many uploads are under way.
            StorageError: the spool cannot be written.
        """
        aggregator = await self._aggregator(self._entry(attempt))
        start = functools.partial(aggregator.start_partial, partial)
        return await self.uploads.receive(start, PartialSink.finish, body(aggregator.max_partial_bytes))

    async def take(self, attempt: AttemptId, partial: Partial) -> None:
        """A durable partial sum counts: make that durable, too, and fold it soon. Call it as soon as it counts.

        The round may be complete by now: its aggregate waits for this, as does every receipt for a report in the sum.

        Raises:
            StorageError: it cannot be made durable. It counts until a crash, and whoever needs to know tries again.
        """
        entry = self._entry(attempt)
        entry.untaken |= dict.fromkeys(partial.receipts, partial)
        await self._taken(entry, next(iter(partial.receipts)))

    async def _taken(self, entry: OpenAttempt, assignment: AssignmentId) -> None:
        """Return when it is durable that a counted report counts."""
        partial = entry.untaken.get(assignment)
        if partial is None:
            return
        taking = entry.taking.get(partial.id)
        if taking is None:
            taking = asyncio.get_running_loop().create_task(self._take(entry, partial), name=f"take {partial.id}")
            taking.add_done_callback(_retrieved)
            entry.taking[partial.id] = taking
        await asyncio.shield(taking)

    async def _take(self, entry: OpenAttempt, partial: Partial) -> None:
        assert entry.aggregator is not None, "a partial sum is durable in an aggregator"
        try:
            await self.uploads.in_thread(entry.aggregator.take, partial.id)
        finally:
            del entry.taking[partial.id]
        for assignment in partial.receipts:
            entry.untaken.pop(assignment, None)
        self._count(entry, partial.receipts, 0)

    async def drop_partial(self, attempt: AttemptId, id: str) -> None:
        """A durable partial sum does not count: remove it. Nothing happens to one that does."""
        entry = self._open.get(attempt)
        if entry is None or entry.aggregator is None or any(one.id == id for one in entry.untaken.values()):
            return
        await self.uploads.in_thread(entry.aggregator.drop_partial, id)

    def _count(self, entry: OpenAttempt, receipts: Mapping[AssignmentId, Receipt], staleness: int) -> None:
        entry.counted |= receipts
        entry.to_fold |= dict.fromkeys(receipts, staleness)
        if entry.folding is None:
            entry.folding = asyncio.get_running_loop().create_task(self._fold(entry), name=f"fold {entry.attempt}")

    async def _fold(self, entry: OpenAttempt) -> None:
        assert entry.aggregator is not None, "a report was counted without an aggregator"
        try:
            while entry.to_fold and self._open.get(entry.attempt) is entry:
                waiting, entry.to_fold = entry.to_fold, {}
                await self.uploads.in_thread(entry.aggregator.fold, *waiting, staleness=waiting)
        except Exception as error:  # noqa: BLE001 - a strategy of somebody's own may raise anything
            # The attempt was closed meanwhile; or its strategy or the disk fails, which the commit will find.
            log.debug("reports of %s wait for their aggregate: %s", entry.attempt, error)
            entry.to_fold.clear()
        finally:
            entry.folding = None

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _entry(self, attempt: AttemptId) -> OpenAttempt:
        entry = self._open.get(attempt)
        if entry is None:
            raise TooLate(f"attempt {attempt} is over", field="assignment", value=attempt)
        return entry

    async def _aggregator(self, entry: OpenAttempt) -> RoundAggregator:
        async with entry.opening:
            if entry.aggregator is None:
                open_it = functools.partial(
                    RoundAggregator,
                    entry.attempt,
                    entry.model,
                    self.blobs,
                    self._spool,
                    plan=entry.plan,
                    durable=self._durable,
                    spares=self._spares,
                )
                try:
                    entry.aggregator = await self.uploads.in_thread(open_it)
                except InvalidModel:  # it was checked when the round opened
                    await self.distribution.check(entry.model)
                    raise
            return entry.aggregator

    async def _bury(self, entry: OpenAttempt, assignments: Iterable[AssignmentId], round_number: int) -> None:
        """From now on, a repeat of these finds its answer on the disk."""
        receipts = [receipt for each in assignments if (receipt := entry.counted.get(each)) is not None]
        await self._answers.keep(entry.attempt, receipts, round_number)
        for receipt in receipts:
            entry.counted.pop(receipt.assignment, None)


def _retrieved(done: asyncio.Task[None]) -> None:
    """Whoever waited for it may be gone: its failure is told to who asks next."""
    if not done.cancelled():
        done.exception()


def _empty(directory: Path, keep: frozenset[str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.iterdir():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"the spool cannot be written: {error.strerror}",
            field="data_dir",
            value=str(directory),
            fix="make the data directory writable",
        ) from error
