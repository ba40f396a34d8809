"""The data plane in the coordinator's event loop: what touches disks or many numbers runs in threads, in its order.

An attempt's aggregator is opened with its first report, so that opening a round costs nothing. A report goes to the
spool in blocks as it arrives; once the pool has counted it, it is folded into the running sum in the background, so
that little is left to do when the last one is in.
"""

import asyncio
import functools
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec

from vennue.core.errors import InvalidModel, NotFound, Overloaded, StorageError, TooLate
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.tensors.model import check_model
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blobs import BlobStore, BlobWriter
from vennue.updates.intake import UpdateSink
from vennue.updates.sums import Receipt

BLOCK_BYTES: Final = 2**20
"""Chunks are handed to a thread by the megabyte: the hop then costs less than a tenth of the write."""
REMEMBERED_RECEIPTS: Final = 65_536
"""Counted reports of closed rounds that a repeated upload still gets its answer for."""
REMEMBERED_MODELS: Final = 1024
THREADS: Final = 8


class _Sink(Protocol):
    def write(self, chunk: bytes, /) -> None: ...

    def abort(self) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")
Sink = TypeVar("Sink", bound=_Sink)
Body = Callable[[int], AsyncIterator[bytes]]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A durable aggregate."""

    result: Digest
    reports: int
    weight: float
    metrics: dict[str, float]


class _Open:
    """An attempt that takes reports."""

    def __init__(self, attempt: AttemptId, model: Digest) -> None:
        self.attempt = attempt
        self.model = model
        self.opening = asyncio.Lock()
        self.aggregator: RoundAggregator | None = None
        self.counted: dict[AssignmentId, Receipt] = {}
        self.to_fold: list[AssignmentId] = []
        self.folding: asyncio.Task[None] | None = None


class DataPlane:
    """Models and reports of one server. All methods belong to one event loop.

    Args:
        blobs: where models and aggregates are.
        spool: the directory where reports wait; what a former server left in it is removed.
        max_uploads: models and reports being received at once.
    """

    def __init__(self, blobs: BlobStore, spool: Path, *, max_uploads: int = 256) -> None:
        self.blobs = blobs
        self.uploads = 0
        """Being received at this moment."""
        self._spool = spool
        self._max_uploads = max_uploads
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="vennue-data")
        self._open: dict[AttemptId, _Open] = {}
        self._receipts: OrderedDict[AssignmentId, Receipt] = OrderedDict()
        self._checked: OrderedDict[Digest, None] = OrderedDict()

    # -- attempts ---------------------------------------------------------------------------------------------------

    def expect(self, attempt: AttemptId, model: Digest) -> None:
        """Take reports for an attempt from now on."""
        self._open[attempt] = _Open(attempt, model)

    async def aggregate(self, attempt: AttemptId, assignments: Iterable[AssignmentId]) -> Outcome:
        """Make the durable aggregate of exactly these counted reports.

        Raises:
            Exception: whatever the strategy or the storage raises; it may be tried again.
        """
        entry = self._entry(attempt)
        aggregator = await self._aggregator(entry)
        made = await self._in_thread(aggregator.aggregate, assignments=assignments)
        return Outcome(result=made.model, reports=len(made.assignments), weight=made.weight, metrics=dict(made.metrics))

    async def close(self, attempt: AttemptId) -> None:
        """Take no more reports for an attempt, and remove those that it has."""
        entry = self._open.pop(attempt, None)
        if entry is None:
            return
        self._receipts |= entry.counted
        while len(self._receipts) > REMEMBERED_RECEIPTS:
            self._receipts.popitem(last=False)
        async with entry.opening:
            if entry.aggregator is not None:
                await self._in_thread(entry.aggregator.close)

    async def reset(self) -> None:
        """Forget all attempts, and remove what a crash has left of them."""
        for attempt in list(self._open):
            await self.close(attempt)
        await self._in_thread(_empty, self._spool)

    async def stop(self) -> None:
        """Let the threads end. Reports of open attempts stay on the disk."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    # -- reports ----------------------------------------------------------------------------------------------------

    def receipt(self, assignment: AssignmentId) -> Receipt | None:
        """The receipt of an assignment's report, if it was counted."""
        entry = self._open.get(attempt_of(assignment))
        return self._receipts.get(assignment) if entry is None else entry.counted.get(assignment)

    async def receive(
        self,
        assignment: AssignmentId,
        weight: float,
        metrics: Mapping[str, float],
        body: Body,
        *,
        sha256: Digest | None = None,
    ) -> Receipt:
        """Make a report durable as it arrives. What is refused or broken off leaves nothing behind.

        Args:
            assignment: whose report it is.
            weight: the number of examples that it was trained on.
            metrics: names and finite numbers, to be averaged beside the model.
            body: gives the report's chunks, once it is told the most bytes that it may have.
            sha256: the digest that it must have, where the device announced one.

        Raises:
            TooLate: its attempt is over.
            InvalidUpdate: it does not fit the round's model, or holds what is not finite.
            InvalidInput: it has another digest.
            Overloaded: too many uploads are under way.
            StorageError: the spool cannot be written.
        """
        aggregator = await self._aggregator(self._entry(attempt_of(assignment)))
        start = functools.partial(aggregator.start_update, assignment, weight, metrics=metrics, sha256=sha256)
        return await self._receive(start, UpdateSink.finish, body(aggregator.max_update_bytes))

    def count(self, receipt: Receipt) -> None:
        """A durable report counts: remember its receipt, and fold it soon."""
        entry = self._entry(attempt_of(receipt.assignment))
        entry.counted[receipt.assignment] = receipt
        entry.to_fold.append(receipt.assignment)
        if entry.folding is None:
            entry.folding = asyncio.get_running_loop().create_task(self._fold(entry), name=f"fold {entry.attempt}")

    async def drop(self, assignment: AssignmentId) -> None:
        """A durable report does not count after all: remove it."""
        entry = self._open.get(attempt_of(assignment))
        if entry is not None and entry.aggregator is not None and assignment not in entry.counted:
            await self._in_thread(entry.aggregator.drop, assignment)

    async def _fold(self, entry: _Open) -> None:
        assert entry.aggregator is not None, "a report was counted without an aggregator"
        try:
            while entry.to_fold and self._open.get(entry.attempt) is entry:
                waiting, entry.to_fold = entry.to_fold, []
                await self._in_thread(entry.aggregator.fold, *waiting)
        except (NotFound, StorageError):
            # The attempt was closed meanwhile; or the disk fails, which the commit will find and report.
            entry.to_fold.clear()
        finally:
            entry.folding = None

    # -- models -----------------------------------------------------------------------------------------------------

    async def check_model(self, digest: Digest) -> None:
        """Check that a model can be trained: it is there, well-formed, finite, and has numbers to learn.

        Raises:
            NotFound: there is no such blob.
            InvalidInput: it is not a digest, or (`InvalidModel`) not such a model.
        """
        if digest in self._checked:
            if self.blobs.exists(digest):
                return
            del self._checked[digest]
        try:
            layout = await self._in_thread(lambda: check_model(self.blobs.path(digest)))
        except NotFound:
            raise NotFound(
                "there is no such model", field="model", value=digest, fix=f"upload it first: PUT /v1/blobs/{digest}"
            ) from None
        except InvalidModel as error:
            error.field = "model" if error.field is None else f"model.{error.field}"
            raise
        if not layout.floating:
            raise InvalidModel("it has no floating tensor, so there is nothing to learn", field="model", value=digest)
        self._checked[digest] = None
        if len(self._checked) > REMEMBERED_MODELS:
            self._checked.popitem(last=False)

    async def store(self, digest: Digest, chunks: AsyncIterator[bytes], size_bytes: int | None) -> int:
        """Store a blob as it arrives, durably; its size. What is broken off leaves nothing behind.

        Raises:
            InvalidInput: the bytes have another digest.
            TooLarge: it is larger than the store takes.
            StorageError: it cannot be stored.
            Overloaded: too many uploads are under way.
        """
        start = functools.partial(self.blobs.create, expected=digest, size_bytes=size_bytes)

        def commit(writer: BlobWriter) -> int:
            writer.commit()
            return writer.offset

        return await self._receive(start, commit, chunks)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _entry(self, attempt: AttemptId) -> _Open:
        entry = self._open.get(attempt)
        if entry is None:
            raise TooLate(f"attempt {attempt} is over", field="assignment", value=attempt)
        return entry

    async def _aggregator(self, entry: _Open) -> RoundAggregator:
        async with entry.opening:
            if entry.aggregator is None:
                entry.aggregator = await self._in_thread(
                    RoundAggregator, entry.attempt, entry.model, self.blobs, self._spool
                )
            return entry.aggregator

    async def _receive(self, start: Callable[[], Sink], finish: Callable[[Sink], T], chunks: AsyncIterator[bytes]) -> T:
        """Write chunks to a sink, by the block, and finish it; or abort it."""
        if self.uploads >= self._max_uploads:
            raise Overloaded("too many uploads are under way", limit=self._max_uploads, retry_after_s=2.0)
        sink: Sink | None = None

        def write(block: list[bytes]) -> Sink:
            nonlocal sink
            if sink is None:
                sink = start()
            for chunk in block:
                sink.write(chunk)
            return sink

        loop = asyncio.get_running_loop()
        writing: asyncio.Future[Any] | None = None
        block: list[bytes] = []
        size_bytes = 0
        self.uploads += 1
        try:
            async for chunk in chunks:
                block.append(chunk)
                size_bytes += len(chunk)
                if size_bytes >= BLOCK_BYTES:
                    writing = loop.run_in_executor(self._threads, write, block)
                    await writing
                    block, size_bytes = [], 0
            finishing: asyncio.Future[T] = loop.run_in_executor(self._threads, lambda: finish(write(block)))
            writing = finishing
            return await finishing
        except BaseException:
            if writing is not None and not writing.done():
                await asyncio.wait((writing,))  # a sink belongs to one thread at a time
            if sink is not None:
                sink.abort()
            raise
        finally:
            self.uploads -= 1

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _empty(directory: Path) -> None:
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the spool cannot be written: {error.strerror}",
            field="data_dir",
            value=str(directory),
            fix="make the data directory writable",
        ) from error
