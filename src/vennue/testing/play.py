"""Runs a world of a scenario in virtual time, to its end, and says what was promised there and not kept."""

import asyncio
import gc
import hashlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from vennue.core.errors import InvariantViolated
from vennue.testing.scenario import Scenario
from vennue.testing.virtual import VirtualLoop, run_virtual
from vennue.testing.world import Disk, History, World

LIVENESS_S: Final = 2 * 3600.0
"""Virtual seconds in which every job must finish once nothing goes wrong any more."""
SHOWN: Final = 40
"""Lines of the history that a failure shows."""
_INJECTED: Final = "on purpose"
"""What the server logs as an error with these words is an injected fault."""

AnyWorld = TypeVar("AnyWorld", bound=World)


class SimulationFailed(AssertionError):
    """A seed under which something that was promised was not kept."""


@dataclass(frozen=True)
class Run(Generic[AnyWorld]):
    """A simulation that kept every promise."""

    plan: Scenario
    history: list[str]
    virtual_s: float
    commits: int
    writes: int
    """How often something was written to the ledger."""
    restarts: int
    faults: dict[str, int]
    world: AnyWorld
    """As it is in the end."""

    @property
    def fingerprint(self) -> str:
        """The same for the same history."""
        return hashlib.sha256("\n".join(self.history).encode()).hexdigest()[:16]


def play(
    plan: Scenario,
    make: Callable[[Scenario, Path, Disk, History], AnyWorld],
    *,
    repeat: str = "",
    verbose: bool = False,
) -> Run[AnyWorld]:
    """Run a scenario to its end.

    Args:
        plan: the scenario.
        make: makes its world, in the virtual loop, given an empty directory and where to note what happens.
        repeat: the command that repeats it.
        verbose: print what happens.

    Raises:
        SimulationFailed: with the complaints, the end of the history and the command that repeats it.
    """
    disk, history = Disk(plan), History(print_it=verbose)

    async def main() -> AnyWorld:
        problems: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(_told(context)))
        with tempfile.TemporaryDirectory(prefix="vennue-") as root, _logged(problems, verbose=verbose):
            world = make(plan, Path(root), disk, history)
            try:
                await world.run(LIVENESS_S)
            except TimeoutError:
                problems.append(f"not finished {LIVENESS_S / 3600:g} h after the last misfortune: {_unfinished(world)}")
            else:
                problems += world.leftovers()
        if problems:
            raise InvariantViolated("; ".join(problems))
        return world

    try:
        world = run_virtual(main(), lambda: VirtualLoop(work_s=disk.work_s))
    except Exception as error:
        raise SimulationFailed(_report(plan.seed, error, history, repeat)) from error
    finally:
        gc.collect()
    return Run(
        plan=plan,
        history=history.lines,
        virtual_s=float(history.lines[-1].split()[0]),
        commits=len(world.kept.commits()),
        writes=world.ledger.writes,
        restarts=sum("server: runs" in line for line in history.lines) - 1,
        faults=dict(Counter[str](world.network.injected) + Counter[str](world.ledger.injected)),
        world=world,
    )


def _unfinished(world: World) -> str:
    jobs = world.pool.coordinator.pool.jobs
    return "; ".join(
        f"{owner.who}: "
        + (" | ".join(jobs[owner.accepted.result()].tell()[-8:]) if owner.accepted.done() else "never accepted")
        for owner in world.owners
        if not owner.finished.is_set()
    )


def _told(context: dict[str, Any]) -> str:
    return f"{context['message']}: {context.get('exception')!r}"


def _report(seed: int, error: Exception, history: History, repeat: str) -> str:
    lines = "\n".join(history.lines[-SHOWN:])
    told = f"seed {seed}: {type(error).__name__}: {error}\n\nthe last of what happened:\n{lines}"
    return f"{told}\n\nto repeat it: {repeat}" if repeat else told


@contextmanager
def _logged(problems: list[str], *, verbose: bool) -> Iterator[None]:
    """What the server logs as an error is a problem, unless it is the answer to an injected fault."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if verbose:
                print(f"           {record.levelname.lower()}: {text}")  # noqa: T201 - asked for on the command line
            if record.exc_info:
                text += f": {record.exc_info[1]!r}"
            if record.levelno >= logging.ERROR and _INJECTED not in text:
                problems.append(f"logged: {text}")

    logger = logging.getLogger("vennue")
    level, propagate = logger.level, logger.propagate
    handler = Handler()
    logger.setLevel(logging.INFO if verbose else logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)  # the attribute alone would not tell the loggers below, which remember what to pass over
        logger.propagate = propagate
