"""Runs as a timeline that Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open: jobs as threads, rounds as slices.

The file is in the JSON form of Chrome's trace events ("Trace Event Format", the Chromium project): one process per run,
one thread per job, a slice per attempt (``X``) with its waiting and its collection inside, and counters (``C``) of the
devices online and at work. A virtual second is a second there. Written as it is made, so that its size does not matter.
"""

import gzip
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np

from vennue.simulation.result import ABORTED, OUTCOMES, RunResult
from vennue.simulation.tables import categories, starved
from vennue.simulation.traces.columns import replacing

_US = 1e6
_COLOURS = {"committed": "good", "too few reports": "terrible"}
"""Reserved names of the format's palette."""


def write_perfetto(path: Path, runs: Sequence[RunResult]) -> None:
    """Write the runs to a file; one whose name ends in ``.gz`` is compressed, which Perfetto reads as it is.

    Raises:
        StorageError: the file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    with replacing(path) as raw:
        packed = path.name.endswith(".gz")
        file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=5, mtime=0) if packed else raw)
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for number, event in enumerate(events(runs)):
            file.write(b",\n" if number else b"\n")
            file.write(encoder.encode(event))
        file.write(b"\n]}\n")
        if packed:
            file.close()


def events(runs: Iterable[RunResult]) -> Iterator[dict[str, Any]]:
    """The trace events of some runs, with times in microseconds."""
    for process, run in enumerate(runs, start=1):
        name = f"{run.policy}, seed {run.seed}"
        yield _meta(process, 0, "process_name", {"name": name if run.complete else f"{name} (partial)"})
        yield _meta(process, 0, "process_sort_index", {"sort_index": process})
        yield from _threads(run, process)
        yield from _slices(run, process)
        yield from _counters(run, process)


def _meta(process: int, thread: int, name: str, arguments: dict[str, object]) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "ts": 0, "name": name, "args": arguments}


def _threads(run: RunResult, process: int) -> Iterator[dict[str, Any]]:
    for job, (name, category) in enumerate(zip(run.jobs["name"].tolist(), categories(run).tolist(), strict=True), 1):
        yield _meta(process, job, "thread_name", {"name": f"{name} ({category})"})
        yield _meta(process, job, "thread_sort_index", {"sort_index": job})


def _slices(run: RunResult, process: int) -> Iterator[dict[str, Any]]:
    attempts = run.attempts
    without = starved(run).tolist()
    columns = (attempts[name].tolist() for name in (
        "job", "round", "number", "opened_s", "scheduling_delay_s", "closed_s", "outcome", "bound", "reported",
    ))  # fmt: skip
    for row, (job, round, number, opened_s, delay_s, closed_s, outcome, bound, reported) in enumerate(
        zip(*columns, strict=True)
    ):
        why = OUTCOMES[outcome]
        if outcome == ABORTED:
            why = "too few devices" if without[row] else "too few reports"
        where: dict[str, object] = {"ph": "X", "pid": process, "tid": job + 1}
        begins, ends = _us(opened_s), _us(closed_s)
        yield {
            **where, "name": f"round {round}" + (f", attempt {number}" if number > 1 else ""), "cat": "attempt",
            "cname": _COLOURS.get(why, "grey"), "ts": begins, "dur": ends - begins,
            "args": {"ended": why, "devices bound": bound, "reports": reported},
        }  # fmt: skip
        if not without[row] and not math.isnan(delay_s):
            full = min(_us(opened_s + delay_s), ends)
            yield {**where, "name": "waiting", "cat": "phase", "ts": begins, "dur": full - begins}
            yield {**where, "name": "collecting", "cat": "phase", "ts": full, "dur": ends - full}


def _counters(run: RunResult, process: int) -> Iterator[dict[str, Any]]:
    start_s = run.usage["start_s"]
    if len(start_s) < 2:
        return
    bin_s = float(start_s[1] - start_s[0])
    for name, column in (("devices online", "online_s"), ("devices at work", "busy_s")):
        for at_s, mean in zip(start_s.tolist(), np.round(run.usage[column] / bin_s, 1).tolist(), strict=True):
            yield {"ph": "C", "pid": process, "tid": 0, "name": name, "ts": _us(at_s), "args": {"devices": mean}}


def _us(seconds: float) -> int:
    return round(seconds * _US)
