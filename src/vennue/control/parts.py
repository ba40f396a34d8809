"""Uploads in parts: of models, and of devices' reports over links that break. What has arrived is kept, and goes on.

A part is written to the blob store's incoming files as it arrives, up to the byte at which its connection broke; the
next one begins there, perhaps after a restart. Models become blobs. A report is handed on when it is whole, as if it
had come at once: whoever takes it need not know.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import Body
from vennue.control.selector import live_assignment
from vennue.control.tokens import Tokens
from vennue.control.uploads import Uploads
from vennue.core.errors import Conflict, NotFound, Overloaded, StorageError, TooLate, Unavailable, VennueError
from vennue.core.ids import AssignmentId, Digest, attempt_of, job_of
from vennue.updates.blobs import BlobStore, BlobWriter, Buffer

T = TypeVar("T")

SLACK_BYTES: Final = 2**20
ENDING_S: Final = 1.0


class _Part:
    """A writer that keeps what it has when the body breaks off."""

    def __init__(self, writer: BlobWriter) -> None:
        self.writer = writer

    def write(self, chunk: Buffer) -> None:
        self.writer.write(chunk)

    def abort(self) -> None:
        self.writer.suspend()


class Parts:
    """The uploads in parts of one server. All methods belong to one event loop.

    Args:
        blobs: where they are collected.
        uploads: how they are received.
        make_room: awaited before a part of so many bytes is taken, where something else must give way to it.
    """

    def __init__(
        self, blobs: BlobStore, uploads: Uploads, make_room: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._make_room = make_room
        self._receiving: dict[tuple[Digest, str], tuple[asyncio.Task[object], asyncio.Event]] = {}
        self._superseded: set[asyncio.Task[object]] = set()

    async def received(self, digest: Digest, owner: str = "") -> int:
        """How many bytes of an upload are here.

        Who asks is about to send the next part. One that is being received has most likely broken off, and gets a
        moment to end, for more of it may be on its way to the disk. After that, an owner's is given up; others may be
        somebody else's.
        """
        here = self._receiving.get((digest, owner))
        if here is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDING_S):
                    await here[1].wait()
            if owner:
                await self._supersede((digest, owner))
        return self._blobs.received(digest, owner=owner)

    async def append(
        self,
        digest: Digest,
        chunks: AsyncIterator[bytes],
        *,
        offset: int,
        part_bytes: int = 0,
        size_bytes: int | None = None,
        owner: str = "",
        publish: bool = False,
    ) -> int:
        """Take a part as it arrives; how many bytes there are now. One that breaks off counts up to where it did.

        Args:
            digest: of the whole.
            chunks: the part.
            offset: where it begins, which must be where the last one ended.
            part_bytes: of the part, as far as its sender says so; room is made for so many.
            size_bytes: of the whole, where the sender knows it.
            owner: of this upload, where one digest may have several. The caller is the owner: a part of its that
                is still being received is given up, for its connection has broken, unnoticed so far. An owner has one
                upload: where another digest begins, what was there of the last one is removed.
            publish: whether this is the last part, and the whole is a blob from now on.

        Raises:
            Conflict: another part is on its way, or this one begins elsewhere.
            InvalidInput: the whole has another digest, or size; it begins anew.
            TooLarge: it is larger than the store takes, or than announced; it begins anew.
            OutOfSpace: the quota is used up.
            Overloaded: too many uploads are under way.
        """
        if self._make_room is not None:
            await self._make_room(part_bytes)
        if owner:
            for upload in [upload for upload in self._receiving if upload[1] == owner]:
                await self._supersede(upload)
        there = self._blobs.received(digest, owner=owner)
        if offset > there:  # that more is here may be because a part is still being written, which `resume` says
            raise _elsewhere(offset, there)

        def start() -> _Part:
            writer = self._blobs.resume(digest, size_bytes=size_bytes, owner=owner)
            if writer.offset != offset:
                there = writer.offset
                writer.suspend()
                raise _elsewhere(offset, there)
            return _Part(writer)

        def finish(part: _Part) -> int:
            end = part.writer.offset
            if publish:
                part.writer.commit()
            else:
                part.writer.suspend()
            return end

        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        here = self._receiving[digest, owner] = task, asyncio.Event()
        try:
            return await self._uploads.receive(start, finish, chunks, keep=True, model=not owner)
        except asyncio.CancelledError:
            if task not in self._superseded:
                raise
            task.uncancel()
            raise Conflict("the upload goes on over another connection", field="Upload-Offset") from None
        finally:
            self._superseded.discard(task)
            here[1].set()
            if self._receiving.get((digest, owner)) is here:
                del self._receiving[digest, owner]

    async def _supersede(self, upload: tuple[Digest, str]) -> None:
        """Have a part that is being received written as far as it came, and given up."""
        here = self._receiving.get(upload)
        if here is not None:
            task, ended = here
            self._superseded.add(task)
            task.cancel()
            await ended.wait()

    async def deliver(self, digest: Digest, owner: str, take: Callable[[Body], Awaitable[T]]) -> T:
        """Hand a whole on to whoever takes it, as a body, and remove it here, unless it may be asked for again.

        Raises:
            Exception: whatever ``take`` raises.
        """
        writer = await self._uploads.in_thread(functools.partial(self._blobs.resume, digest, owner=owner))
        try:
            outcome = await take(lambda _: _chunks(writer))
        except (Overloaded, StorageError, Unavailable, asyncio.CancelledError):
            writer.suspend()
            raise
        except BaseException:
            writer.abort()
            raise
        writer.abort()
        return outcome


async def expected_report(coordinator: Coordinator, id: AssignmentId, token: str) -> int | None:
    """How large an assignment's report may be; None if it is here already.

    Raises:
        NotFound: there is no such assignment.
        Forbidden: it is somebody else's.
        TooLate: it has ended.
    """
    if job_of(attempt_of(id)) not in coordinator.pool.jobs:
        raise NotFound(f"there is no assignment {id[:200]}", field="assignment", value=id[:200])
    Tokens(coordinator.secret).device(id, token)
    try:
        live_assignment(coordinator, id)
    except TooLate:
        if await coordinator.data.old_receipt(id) is not None:
            return None
        if coordinator.pool.awaits(id) is None or coordinator.data.is_refused(id):
            await coordinator.data.refuse(attempt_of(id), [id])
            await coordinator.settled()
            raise
    attempt = coordinator.pool.jobs[job_of(attempt_of(id))].attempt
    if attempt is None:
        raise TooLate(f"assignment {id} is over", field="assignment", value=id)
    return most_bytes(coordinator.data.blobs, attempt.model)


def most_bytes(blobs: BlobStore, model: Digest) -> int:
    """More than a report on a model can have, whatever its codec: what is refused for good is so when it is whole."""
    return 3 * blobs.size(model) + SLACK_BYTES


async def _chunks(writer: BlobWriter) -> AsyncIterator[bytes]:
    reading = writer.read()
    while chunk := await asyncio.to_thread(next, reading, b""):
        yield chunk


def _elsewhere(offset: int, there: int) -> VennueError:
    return Conflict(
        f"{there} bytes of this upload are here, so the next part begins there",
        field="Upload-Offset",
        value=offset,
        limit=there,
        fix="ask how far it is, and go on from there",
    )
