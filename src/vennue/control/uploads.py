"""Bodies on their way to disk: written by threads, and bounded in number and in memory, however many come at once.

A body is collected into a block and handed to a thread, which writes it; while that lasts, nothing more of the body is
read, so a disk that is slow slows its senders down. When all blocks together take too much memory, each is written as
it comes. Whoever finds all places taken is told when to come back, before any of its body is read; models never take
more than half of the places, so that who sends them slowly keeps no report out.
"""

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from vennue.control.crew import Crew
from vennue.control.together import Together
from vennue.core.errors import Overloaded

BLOCK_BYTES: Final = 2**20
"""Chunks are handed to a thread by the megabyte: the hop then costs less than a tenth of the write."""
SMALL_BYTES: Final = 2**16
"""Bodies up to this size are handed over together: to write one takes no longer than to hand it over."""
BUFFER_BYTES: Final = 64 * 2**20
MOST_THREADS: Final = 8
SPARE_THREADS: Final = 2
"""More threads than processors, since some wait for disks. With eight on one processor, which take the interpreter from
each other, reports of 1 MB took a fifth more of its time than with three, and came in a third more slowly."""
RETRY_AFTER_S: Final = 2.0


class _Sink(Protocol):
    def write(self, chunk: bytes, /) -> None: ...

    def abort(self) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")
Sink = TypeVar("Sink", bound=_Sink)


class Uploads:
    """The uploads of one server. All methods belong to one event loop.

    Args:
        most: uploads at once.
        buffer_bytes: how much of all bodies together may wait in memory for its block to fill.
    """

    def __init__(self, most: int, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.active = 0
        """Bodies being received at this moment."""
        self.buffered_bytes = 0
        """How much of them is in memory."""
        self._models = 0
        self._most = most
        self._buffer_bytes = buffer_bytes
        threads = min(MOST_THREADS, processors() + SPARE_THREADS)
        self._threads = Crew(threads, "vennue-data")
        self._groups_at_once = threads - 1  # one is left for other owners, whose work may be quicker
        self._together: dict[Hashable, Together] = {}
        self._is_over = False

    async def receive(
        self,
        start: Callable[[], Sink],
        finish: Callable[[Sink], T],
        chunks: AsyncIterator[bytes],
        *,
        keep: bool = False,
        model: bool = False,
        owner: Hashable = None,
    ) -> T:
        """Write a body to a sink, by the block, and finish it; or abort it.

        Args:
            start: opens the sink, in a thread, when the first block is there.
            finish: what to do with the sink in the end, in a thread.
            chunks: the body.
            keep: whether what came of a body that breaks off is written to the sink before that is aborted.
            model: whether it is a model, for which anybody may ask; half of the places are for reports alone.
            owner: small bodies of one owner are handed over together. By default, each by itself.

        Raises:
            Overloaded: all places are taken.
            Exception: whatever the sink or the body raises.
        """
        if self.active >= self._most or (model and self._models >= max(1, self._most // 2)):
            raise Overloaded("too many uploads are under way", limit=self._most, retry_after_s=RETRY_AFTER_S)
        sink: Sink | None = None

        def write(block: list[bytes]) -> Sink:
            nonlocal sink
            if sink is None:
                sink = start()
            if block:  # at once: a write costs more than a copy
                sink.write(b"".join(block))
            return sink

        loop = asyncio.get_running_loop()
        writing: asyncio.Future[Any] | None = None
        finishing: asyncio.Future[T] | None = None
        block: list[bytes] = []
        size_bytes = 0
        self.active += 1
        self._models += model
        try:
            async for chunk in chunks:
                block.append(chunk)
                size_bytes += len(chunk)
                self.buffered_bytes += len(chunk)
                if size_bytes >= BLOCK_BYTES or self.buffered_bytes > self._buffer_bytes:
                    writing, block = loop.run_in_executor(self._threads, write, block), []
                    await asyncio.shield(writing)  # a thread goes on, whatever becomes of who waits for it
                    self.buffered_bytes -= size_bytes
                    size_bytes = 0
            writing = finishing = self._hand_over(lambda: finish(write(block)), size_bytes, owner)
            return await asyncio.shield(finishing)
        except BaseException:
            if writing is not None and not writing.done():
                if self._is_over:  # its thread is stuck, and may never let go of the sink
                    raise
                await asyncio.wait((writing,))  # a sink belongs to one thread at a time
            if keep and block and finishing is None:
                keeping = loop.run_in_executor(self._threads, write, block)
                await asyncio.wait((keeping,))
                keeping.exception()  # what broke the body off is what is told
            if sink is not None:
                sink.abort()
            raise
        finally:
            self.active -= 1
            self._models -= model
            self.buffered_bytes -= size_bytes

    def _hand_over(self, work: Callable[[], T], size_bytes: int, owner: Hashable) -> "asyncio.Future[T]":
        if owner is None or size_bytes > SMALL_BYTES:
            return asyncio.get_running_loop().run_in_executor(self._threads, work)
        together = self._together.get(owner)
        if together is None:
            together = self._together[owner] = Together(self._threads, self._groups_at_once)
        future = together.do(work)
        future.add_done_callback(lambda _: self._forget_if_idle(owner))
        return future

    def _forget_if_idle(self, owner: Hashable) -> None:
        together = self._together.get(owner)
        if together is not None and together.is_idle:
            del self._together[owner]

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do other work on the same disks."""
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def stop(self) -> None:
        """Let the threads end, but for those that are stuck."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._is_over = True


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
