"""Where an experiment's runs are made side by side: in processes of this machine, or on a Ray cluster.

Runs are independent. One whose process dies (for want of memory, say) is tried once more by itself, and then counts as
failed; no other is lost. Processes are spawned, so nothing leaks from this one into them; they leave Ctrl-C to it, and
end when it does, however that comes.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from multiprocessing.synchronize import Event
from typing import Any

from vennue.core.errors import InvalidInput
from vennue.policies import get_policy
from vennue.simulation.experiment import Experiment, Failure, Outcome, Run, Told

_LOOK_S = 0.2
_NOT_BEGUN = -1.0

Fractions = Any
"""Shared by all processes: how much of each run is done, `_NOT_BEGUN` before it begins. (A ctypes array.)"""


def in_processes(
    experiment: Experiment, runs: Sequence[Run], workers: int, told: Told, stop: Callable[[], bool]
) -> list[Outcome]:
    """Make the runs in so many processes; see `run_experiment`."""
    fractions = multiprocessing.get_context("spawn").RawArray("d", [_NOT_BEGUN] * len(runs))
    outcomes: dict[int, Outcome] = {}

    def look() -> bool:
        done = sum(1.0 if index in outcomes else max(fractions[index], 0.0) for index in range(len(runs)))
        told(done / len(runs), len(outcomes))
        return stop()

    waiting = list(range(len(runs)))
    suspects: list[int] = []
    while waiting or suspects:
        together = waiting or [suspects.pop()]
        lost = _in_pool(experiment, runs, together, workers if waiting else 1, fractions, outcomes, look)
        if not waiting and lost:
            (index,) = lost
            reason = "its process was killed, twice: perhaps the memory did not suffice"
            outcomes[index] = Failure(runs[index].policy.label, runs[index].seed, reason)
        elif waiting:
            # A pool breaks as a whole. Any of the runs that had begun may have done it: they go on one by one.
            suspects += [index for index in lost if fractions[index] != _NOT_BEGUN]
            waiting = [index for index in lost if fractions[index] == _NOT_BEGUN]
        if stop():
            break
    told(1.0, len(outcomes))
    return [outcomes.get(index) for index in range(len(runs))]


def on_cluster(experiment: Experiment, runs: Sequence[Run], told: Told, stop: Callable[[], bool]) -> list[Outcome]:
    """Make the runs as Ray tasks: on the cluster that ``RAY_ADDRESS`` names or that runs here, else on this machine.

    Vennue, and the files that the experiment names, must be there on every node. When it is stopped, runs that have
    not ended are given up.

    Raises:
        InvalidInput: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise InvalidInput(
            "a cluster needs Ray, which is not installed", field="ray", fix="pip install 'vennue[ray]'"
        ) from error
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        task = ray.remote(max_retries=1)(_on_node)
        index_of = {task.remote(experiment, run): index for index, run in enumerate(runs)}
        outcomes: list[Outcome] = [None] * len(runs)
        pending = list(index_of)
        while pending and not stop():
            ended, pending = ray.wait(pending, timeout=_LOOK_S)
            for reference in ended:
                index = index_of[reference]
                try:
                    outcomes[index] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    first_line = str(error).strip().partition("\n")[0]
                    outcomes[index] = Failure(runs[index].policy.label, runs[index].seed, first_line)
            told(1 - len(pending) / len(runs), len(runs) - len(pending))
        for reference in pending:
            ray.cancel(reference, force=True)
        return outcomes
    finally:
        if started_here:
            ray.shutdown()


def _in_pool(
    experiment: Experiment,
    runs: Sequence[Run],
    indices: Sequence[int],
    workers: int,
    fractions: Fractions,
    outcomes: dict[int, Outcome],
    look: Callable[[], bool],
) -> list[int]:
    """Make some runs in a pool of processes, put what became of them into ``outcomes``; returns those that were lost.

    When ``look`` says to stop, those under way end early, and the others are not begun.
    """
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    for index in indices:
        fractions[index] = _NOT_BEGUN
    lost: list[int] = []
    defined_in = {type(get_policy(choice.name, **choice.parameters)).__module__ for choice in experiment.policies}
    importable = sys.modules.keys() - {"__main__"}  # what comes from the experiment's files is no module's
    executor = ProcessPoolExecutor(
        min(workers, len(indices)), context, _begin, (fractions, stopping, defined_in & importable)
    )
    try:
        with _uninterrupted():  # the processes start with the first of these, and inherit what is blocked
            index_of: dict[Future[Outcome], int] = {
                executor.submit(_in_process, experiment, runs[index], index): index for index in indices
            }
        pending = set(index_of)
        while pending:
            ended, pending = wait(pending, _LOOK_S, FIRST_COMPLETED)
            for future in ended:
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    lost.append(index_of[future])
                else:
                    if outcome is not None:
                        outcomes[index_of[future]] = outcome
            if look():
                stopping.set()
    finally:
        stopping.set()
        executor.shutdown(cancel_futures=True)
    return sorted(lost)


_fractions: Fractions = None
_stopping: Event | None = None


def _begin(fractions: Fractions, stopping: Event, policies: Iterable[str]) -> None:
    """Make a spawned process ready, with the modules whose import registers the experiment's policies."""
    global _fractions, _stopping
    _fractions, _stopping = fractions, stopping
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # how a pool ends its processes when one has died
    for module in policies:
        importlib.import_module(module)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A process of a pool whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _in_process(experiment: Experiment, run: Run, index: int) -> Outcome:
    """A run in a spawned process; None when it is not to begin any more."""
    stopping = _stopping
    assert stopping is not None
    if stopping.is_set():
        return None
    _fractions[index] = 0.0
    looked_at = time.monotonic()

    def progress(part: float) -> None:
        _fractions[index] = part

    def stop() -> bool:
        nonlocal looked_at
        now = time.monotonic()
        if now < looked_at + _LOOK_S:
            return False
        looked_at = now
        return stopping.is_set()

    return experiment.simulate(run, progress, stop)


def _on_node(experiment: Experiment, run: Run) -> Outcome:
    return experiment.simulate(run, lambda _part: None, lambda: False)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM here meanwhile, and for good in processes that are started meanwhile."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
