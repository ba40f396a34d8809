"""Threads for work that may never end: a disk that hangs, or a strategy of somebody's own that loops for ever.

Such work keeps its thread, which nothing can end. But others do not wait for it: after a while another thread takes its
place, and when the process stops, it is not waited for.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

log = logging.getLogger("vennue.control")

PATIENCE_S: Final = 30.0
"""How long a piece of work may take before another thread takes the place of its own."""
MOST_STUCK: Final = 64
"""Threads that are replaced; from then on, the others must do."""
END_S: Final = 5.0
"""How long the end waits for work that has begun."""

P = ParamSpec("P")
T = TypeVar("T")


class Crew(Executor):
    """An executor of daemon threads, some of which may be stuck.

    Args:
        size: threads that are not stuck, at most.
        name: the beginning of the threads' names.
        patience_s: after how long work counts as stuck.
    """

    def __init__(self, size: int, name: str, *, patience_s: float = PATIENCE_S) -> None:
        self.stuck = 0
        """Threads whose work has taken too long, and still does."""
        self._size = size
        self._name = name
        self._patience_s = patience_s
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards these
        self._pending = 0  # pieces of work that are waiting, or being done by those that are not stuck
        self._workers: dict[threading.Thread, float | None] = {}  # and since when each is at work
        self._closed = threading.Event()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the crew has been dismissed")
            if not self._workers:
                threading.Thread(target=self._watch, name=f"{self._name}-watch", daemon=True).start()
            self._waiting.put((future, partial(fn, *args, **kwargs)))
            self._pending += 1
            if len(self._workers) < min(self._pending, self._size):
                self._hire()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base's
        """Take no more work. With ``wait``, that which has begun may end, unless that takes too long."""
        with self._lock:
            self._closed.set()
            workers = list(self._workers)
        if cancel_futures:
            try:
                while True:
                    if (waiting := self._waiting.get_nowait()) is not None:
                        waiting[0].cancel()
            except Empty:
                pass
        for _ in workers:
            self._waiting.put(None)
        if wait:
            until = time.monotonic() + END_S
            for worker in workers:
                worker.join(max(0.0, until - time.monotonic()))

    def _hire(self) -> None:
        worker = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._workers[worker] = None
        worker.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while (work := self._waiting.get()) is not None:
            with self._lock:
                self._workers[me] = time.monotonic()
            _do(*work)
            del work  # and what it holds
            with self._lock:
                if me not in self._workers:  # it was replaced
                    self.stuck -= 1
                    return
                self._workers[me] = None
                self._pending -= 1

    def _watch(self) -> None:
        while not self._closed.wait(self._patience_s / 4):
            stuck_since = time.monotonic() - self._patience_s
            with self._lock:
                for worker, since in list(self._workers.items()):
                    if since is not None and since < stuck_since and self.stuck < MOST_STUCK:
                        log.warning("a thread has been at one piece of work for %g s: it is replaced", self._patience_s)
                        del self._workers[worker]
                        self.stuck += 1
                        self._pending -= 1
                        self._hire()


def _do(future: "Future[Any]", work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except (SystemExit, KeyboardInterrupt) as error:  # which end a program, but none that others depend on
        failure = RuntimeError(f"{type(error).__name__} was raised in a thread")
        failure.__cause__ = error
        future.set_exception(failure)
    except BaseException as error:  # noqa: BLE001 - it is told to who waits
        future.set_exception(error)
    else:
        future.set_result(result)
