"""A whole pool under simulation: real coordinator, real SDK, virtual time, and all that can go wrong, from one seed.

Owners and devices work on a `LocalPool` through a network that loses, delays, repeats and breaks their calls. The
server dies at ledger writes and at other moments, ledgers fail, clocks jump, devices vanish. Every invariant of the
core is checked after every event, and what anybody was told is held against what is kept (`vennue.testing.witness`).
In the end nothing goes wrong any more, and every job must finish. The same seed gives the same history, step by step:

    python -m vennue.testing.simulate --seed 123 --verbose
"""

import argparse
import asyncio
import gc
import hashlib
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vennue.core.errors import InvariantViolated
from vennue.testing.scenario import Scenario, scenario
from vennue.testing.virtual import VirtualLoop, run_virtual
from vennue.testing.world import Disk, History, World

LIVENESS_S: Final = 2 * 3600.0
"""Virtual seconds in which every job must finish once nothing goes wrong any more."""
SHOWN: Final = 40
"""Lines of the history that a failure shows."""
_INJECTED: Final = "on purpose"
"""What the server logs as an error with these words is an injected fault."""


class SimulationFailed(AssertionError):
    """A seed under which something that was promised was not kept."""


@dataclass(frozen=True)
class Run:
    """A simulation that kept every promise."""

    plan: Scenario
    history: list[str]
    virtual_s: float
    commits: int
    writes: int
    """How often something was written to the ledger."""
    restarts: int
    faults: dict[str, int]

    @property
    def fingerprint(self) -> str:
        """The same for the same history."""
        return hashlib.sha256("\n".join(self.history).encode()).hexdigest()[:16]


def simulate(seed: int, *, verbose: bool = False) -> Run:
    """Run the seed's scenario.

    Raises:
        SimulationFailed: with the complaints, the end of the history and the command that repeats it.
    """
    return play(scenario(seed), verbose=verbose)


def play(plan: Scenario, *, verbose: bool = False) -> Run:
    """Run a scenario.

    Raises:
        SimulationFailed: as `simulate`.
    """
    disk, history = Disk(plan), History(print_it=verbose)

    async def main() -> World:
        problems: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(_told(context)))
        with tempfile.TemporaryDirectory(prefix="vennue-") as root, _logged(problems, verbose=verbose):
            world = World(plan, Path(root), disk, history)
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
        raise SimulationFailed(_report(plan.seed, error, history)) from error
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


def _report(seed: int, error: Exception, history: History) -> str:
    lines = "\n".join(history.lines[-SHOWN:])
    return (
        f"seed {seed}: {type(error).__name__}: {error}\n\nthe last of what happened:\n{lines}\n\n"
        f"to repeat it: python -m vennue.testing.simulate --seed {seed} --verbose"
    )


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
    before = logger.level, logger.propagate
    handler = Handler()
    logger.setLevel(logging.INFO if verbose else logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


# -- the command line ------------------------------------------------------------------------------------------------


def _attempt(seed: int) -> tuple[str, str | None]:
    try:
        return simulate(seed).fingerprint, None
    except SimulationFailed as failure:
        return "", str(failure)


def main(arguments: list[str] | None = None) -> int:
    """``python -m vennue.testing.simulate``: one seed, or many; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m vennue.testing.simulate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share them")
    parser.add_argument("--verbose", action="store_true", help="tell everything that happens")
    options = parser.parse_args(arguments)
    if options.seeds == 1:
        try:
            run = simulate(options.seed, verbose=options.verbose)
        except SimulationFailed as failure:
            print(failure)  # noqa: T201 - a command
            return 1
        print(  # noqa: T201 - a command
            f"seed {options.seed}: {run.commits} rounds, {run.restarts} restarts, {sum(run.faults.values())} faults in "
            f"{run.virtual_s:.0f} s of virtual time; history {run.fingerprint}"
        )
        return 0
    return _many(range(options.seed, options.seed + options.seeds), options.processes)


def _many(seeds: range, processes: int) -> int:
    began, failed, histories = time.monotonic(), 0, hashlib.sha256()
    with ProcessPoolExecutor(processes) as workers:
        for number, (fingerprint, failure) in enumerate(workers.map(_attempt, seeds, chunksize=4), 1):
            histories.update(fingerprint.encode())
            if failure is not None:
                failed += 1
                print(failure, end="\n\n")  # noqa: T201 - a command
            if number % 500 == 0:
                print(f"{number} seeds in {time.monotonic() - began:.0f} s, {failed} failed", flush=True)  # noqa: T201
    print(  # noqa: T201 - a command
        f"{len(seeds)} seeds in {time.monotonic() - began:.0f} s, {failed} failed; "
        f"histories {histories.hexdigest()[:16]}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
