"""Small pieces of work for threads, handed over together: what comes while others are at work waits for the next group.

To hand a piece of work to a thread and to have its outcome back costs some 15 µs, a sixth of what it takes to check and
spool a report of a few hundred bytes. So those that come at once share it, and the busier a server is, the less each
of them costs. Work of different owners must not share: where it may never end, only its owner's waits for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, TypeVar

MOST_TOGETHER: Final = 16
"""Pieces of work in a group: its first one has its outcome when the last one is done."""

T = TypeVar("T")

_Piece = tuple[asyncio.Future[Any], Callable[[], Any]]


class Together:
    """Hands over small pieces of work. All methods belong to one event loop.

    Args:
        executor: whose threads do the work.
        most: groups under way at once.
    """

    def __init__(self, executor: Executor, most: int) -> None:
        self._executor = executor
        self._most = most
        self._under_way = 0
        self._waiting: list[_Piece] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is under way."""
        return not self._waiting and not self._under_way

    def do(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Have a piece of work done: its outcome. It is begun, whatever becomes of who waits for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._hand_over)  # and with it what else comes in this turn of the loop
        self._waiting.append((future, work))
        return future

    def _hand_over(self) -> None:
        while self._waiting and self._under_way < self._most:
            group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            futures = [future for future, _ in group]
            try:
                done = asyncio.get_running_loop().run_in_executor(self._executor, _do_all, [work for _, work in group])
            except RuntimeError as error:  # the threads have been dismissed
                _fail(futures, error)
                continue
            self._under_way += 1
            done.add_done_callback(partial(self._tell, futures))

    def _tell(self, futures: list[asyncio.Future[Any]], done: "asyncio.Future[list[_Outcome]]") -> None:
        self._under_way -= 1
        self._hand_over()
        if done.cancelled():
            for future in futures:
                future.cancel()
            return
        failure = done.exception()
        if failure is not None:
            _fail(futures, failure)
            return
        for future, (result, error) in zip(futures, done.result(), strict=True):
            if error is not None:
                _fail([future], error)
            elif not future.cancelled():
                future.set_result(result)


_Outcome = tuple[Any, BaseException | None]


def _fail(futures: list[asyncio.Future[Any]], error: BaseException) -> None:
    for future in futures:
        if not future.cancelled():
            future.set_exception(error)


def _do_all(group: list[Callable[[], Any]]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for work in group:
        try:
            outcomes.append((work(), None))
        except Exception as error:  # noqa: BLE001 - it is told to who waits
            outcomes.append((None, error))
    return outcomes
