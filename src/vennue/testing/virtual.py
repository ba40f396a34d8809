"""Virtual time: an event loop whose clock jumps from timer to timer, and processes on it that can be killed.

Whatever is built on asyncio's own clock runs on it unchanged: an hour of retries and deadlines takes milliseconds, and
the same program takes the same steps every time. Work that asyncio would hand to threads is done in the loop, after a
virtual delay if one is asked for. Sockets and threads of others have no place here: nothing but timers moves the clock.

    async def patient():
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(patient()) == 3600.0
"""

import asyncio
import contextvars
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PROCESS: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("vennue_testing_process", default=None)

DYING_STEPS = 1000
"""Turns of the loop after which what is left of a killed process must be gone."""


LIVELOCK_TURNS = 1_000_000
"""Turns of the loop at one moment after which it is taken for one that never ends."""


class Deadlock(RuntimeError):
    """Nothing will ever happen again: everything waits and no timer is set, or all is busy at one moment for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only by being waited for.

    Args:
        work_s: asked for each piece of work that asyncio would hand to an executor other than its own, how long it
            takes, in virtual seconds; by default no time. What it raises is what becomes of the work.
        start_s: the loop's time at the beginning.
    """

    def __init__(self, *, work_s: Callable[[], float] | None = None, start_s: float = 0.0) -> None:
        self.now = start_s
        self._work_s = work_s
        super().__init__(_Jumping(self))
        self.set_task_factory(_in_its_process)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Do the work in the loop, at once or after ``work_s``; it is not part of the caller's step."""
        future: asyncio.Future[T] = self.create_future()
        process = _PROCESS.get()
        if process is not None:
            process.adopt(future)
        work: Callable[[], T] = functools.partial(func, *args)
        delay_s = 0.0
        if executor is not None and self._work_s is not None:
            try:
                delay_s = self._work_s()
            except Exception as error:  # noqa: BLE001 - it is the caller's
                work = functools.partial(_fail, error)
        self.call_at(self.now + delay_s, _work, future, work)
        return future

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio; the timers of a process end with it."""
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.unless_killed, functools.partial(callback, *args), context=context)


class Process:
    """Tasks, timers and work in threads that end all at once, as by SIGKILL.

    What they start belongs to the process, too. A `VirtualLoop` has to run, else they could not be followed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self._tasks: dict[asyncio.Future[Any], None] = {}
        self._context = contextvars.copy_context()
        self._context.run(_PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> "asyncio.Task[T]":
        """Start a task of the process, from outside."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "processes need a VirtualLoop"
        return loop.create_task(work, name=name, context=self._context.copy())

    def kill(self) -> None:
        """End it, as far as the world outside can see: no timer fires, no work begins, every wait is over.

        Python cannot abandon a coroutine, so each is cancelled and cleans up; `gone` is when they have.
        """
        self.alive = False
        for task in list(self._tasks):
            task.cancel()

    async def gone(self) -> None:
        """Return when nothing of the killed process is left."""
        assert not self.alive, "only a killed process goes"
        for _ in range(DYING_STEPS):
            if not self._tasks:
                return
            for task in list(self._tasks):
                task.cancel()
            await asyncio.sleep(0)
        raise AssertionError(f"still there after {self.name} was killed: {list(self._tasks)}")

    def adopt(self, future: "asyncio.Future[Any]") -> None:
        """For `VirtualLoop`: a task or a piece of work that ends with the process."""
        self._tasks[future] = None
        future.add_done_callback(self._forget)
        if not self.alive:
            future.cancel()

    def unless_killed(self, callback: Callable[[], object]) -> None:
        """For `VirtualLoop`: a timer that fires only as long as the process lives."""
        if self.alive:
            callback()

    def _forget(self, future: "asyncio.Future[Any]") -> None:
        self._tasks.pop(future, None)

    def __repr__(self) -> str:
        return f"<Process {self.name}, {'alive' if self.alive else 'killed'}>"


def current_process() -> Process | None:
    """The process that the caller belongs to, if any."""
    return _PROCESS.get()


def check_alive() -> None:
    """For what stands in for disks and networks: a killed process can reach neither any more.

    Raises:
        asyncio.CancelledError: the caller's process was killed.
    """
    process = _PROCESS.get()
    if process is not None and not process.alive:
        raise asyncio.CancelledError(f"{process.name} was killed")


def run_virtual(main: Coroutine[Any, Any, T], loop: Callable[[], VirtualLoop] = VirtualLoop) -> T:
    """Run a coroutine to its end in virtual time.

    Raises:
        Deadlock: it waits for what will never happen.
    """
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """A coroutine function as a plain one that runs in virtual time: for tests."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> T:
        return run_virtual(test(*args, **kwargs))

    return run


class _Jumping(selectors.BaseSelector):
    """Never waits: moves the loop's clock to where it would have waited until. Knows of nobody's sockets."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self._turns = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(
                f"at {self._loop.now:.3f} s everything waits and no timer is set: look for a future that nobody "
                f"resolves, or for a thread or a socket, which have no place here{self._waiting()}"
            )
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > LIVELOCK_TURNS:
            raise Deadlock(
                f"at {self._loop.now:.3f} s the loop has turned {LIVELOCK_TURNS} times, and time has not passed: look "
                f"for a loop that sleeps for 0 seconds until something happens{self._waiting()}"
            )
        self._loop.now += timeout
        return []

    def _waiting(self) -> str:
        tasks = sorted(str(task) for task in asyncio.all_tasks(self._loop))
        return "".join(f"\n  {task}" for task in tasks[:20])

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def _in_its_process(
    loop: asyncio.AbstractEventLoop,
    work: Any,
    context: contextvars.Context | None = None,
    **options: Any,
) -> "asyncio.Task[Any]":
    """A task factory: the task belongs to the process of its context."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context, **options)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        process.adopt(task)
    return task


def _fail(error: Exception) -> NoReturn:
    raise error


def _work(future: "asyncio.Future[T]", func: Callable[[], T]) -> None:
    if future.done():
        return
    try:
        result = func()
    except Exception as error:  # noqa: BLE001 - it is the caller's, as it would be from a thread
        future.set_exception(error)
    else:
        future.set_result(result)
