"""What a run leaves behind: tidy columns of jobs and attempts, counters, and how busy the devices were over time.

Both engines fill the same columns, and a run's are equal whichever engine made them. `vennue.simulation.metrics`
derives the figures that people compare from them.
"""

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S
from vennue.simulation.options import Options
from vennue.simulation.traces.model import FloatArray
from vennue.simulation.world import Batch, World

Columns = dict[str, npt.NDArray[Any]]
"""Equally long columns by name."""

End = Literal["finished", "horizon", "stopped"]
"""Why a run ended: all jobs ended, the horizon was reached, or somebody stopped it."""

COMMITTED, ABORTED, CANCELLED = range(3)
OUTCOMES = ("committed", "aborted", "cancelled")
"""How attempts end: the values of the attempts' column ``outcome`` are indices here."""

FATES = ("used", "aborted", "straggling", "failed")
"""What becomes of device-rounds. Used: the report is part of a commit. Aborted: it was counted, but its attempt
aborted. Straggling: the device had finished, or would have, but too late. Failed: its session ended before its task."""
USED, REPORT_ABORTED, STRAGGLING, FAILED = range(4)

ATTEMPT_COLUMNS: dict[str, str] = {
    "job": "i4", "round": "i4", "number": "i4", "opened_s": "f8", "scheduling_delay_s": "f8", "closed_s": "f8",
    "outcome": "i1", "bound": "i4", "reported": "i4",
}  # fmt: skip
ASSIGNMENT_COLUMNS: dict[str, str] = {"session": "i8", "job": "i4", "round": "i4", "number": "i4", "bound_s": "f8"}

MAX_ATTEMPTS = 5_000_000
"""Sixty times the rounds of the paper's largest workload. Where devices are missing, every deadline adds a row."""

_LEAST_BIN_S = 3600.0
_MOST_BINS = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one workload under one policy.

    Attributes:
        workload: its name.
        policy: its name, with the parameters that are not the defaults.
        seed: of the run.
        engine: ``reference`` or ``kernel``.
        options: what the run assumed.
        ended: why it ended. Unless ``finished``, some jobs are not done and averages are lower bounds.
        end_s: virtual time at its end.
        jobs: a row per job, in the order of arrival: ``id``, ``name``, ``category``, ``requirement`` (text),
            ``config`` (0: none), ``mode``, ``demand``, ``rounds``, ``workload_s``, ``arrival_s``, ``ended_s`` (nan
            while it is not), ``state`` (``completed``, ``failed``, ``unfinished``), ``committed`` rounds,
            ``attempts``, ``scheduling_delay_s`` and ``collection_s`` summed over committed rounds (over the model
            updates of an asynchronous job, which waits until its slots are first all filled), ``bound`` device-rounds
            and what became of them: ``used``, ``aborted``, ``straggling``, ``failed`` (see `FATES`).
        attempts: a row per closed attempt (per model update, for asynchronous jobs), in the order in which they
            closed: ``job`` (row in ``jobs``), ``round``, ``number``, ``opened_s``, ``scheduling_delay_s`` (opening to
            the last device bound; nan for asynchronous jobs), ``closed_s``, ``outcome`` (index in `OUTCOMES`),
            ``bound`` and ``reported`` devices.
        usage: a row per hour: ``start_s``, ``online_s`` and ``busy_s`` (device-seconds), ``sessions`` that began.
        regions: a row per kind of device: ``signature`` (bit *q*: meets requirement *q*), ``check_ins``, ``share``
            (expected).
        requirements: text of each requirement, in the order of the bits.
        counters: ``sessions``, ``check_ins``, ``plans`` and the sums of the jobs' device-round columns.
        assignments: if they were kept, a row per device bound: ``session``, ``job``, ``round``, ``number``,
            ``bound_s``; in the order of binding.
        wall_s: real time that it took.
    """

    workload: str
    policy: str
    seed: int
    engine: str
    options: Options
    ended: End
    end_s: float
    jobs: Columns
    attempts: Columns
    usage: Columns
    regions: Columns
    requirements: list[str]
    counters: dict[str, int]
    assignments: Columns | None
    wall_s: float

    @property
    def complete(self) -> bool:
        """Whether every job ended."""
        return self.ended == "finished"

    def __repr__(self) -> str:
        completed = int((self.jobs["state"] == "completed").sum())
        return (
            f"<{type(self).__name__} of {self.workload!r} under {self.policy}, seed {self.seed}: "
            f"{self.ended} at {self.end_s:.0f} s, {completed} of {len(self.jobs['state'])} jobs completed>"
        )


def too_many_attempts(now: float, used: float) -> InvalidInput:
    """What to say of a run that has closed `MAX_ATTEMPTS` attempts, with its virtual time and its devices used."""
    return InvalidInput(
        f"the jobs made {MAX_ATTEMPTS:,} attempts in {now / DAY_S:,.0f} simulated days, more than a result can hold; "
        f"{used:,.0f} reports were used",
        field="attempts", value=MAX_ATTEMPTS, limit=MAX_ATTEMPTS,
        fix="simulate more devices, ask for fewer per round, or set horizon_s to see the beginning",
    )  # fmt: skip


class Usage:
    """Device-seconds online and busy in bins of time. An interval costs the same however many bins it spans."""

    def __init__(self, horizon_s: float) -> None:
        self.bin_s = max(_LEAST_BIN_S, horizon_s / _MOST_BINS)
        self.limit_s = (int(horizon_s // self.bin_s) + 1) * self.bin_s
        bins = round(self.limit_s / self.bin_s) + 2  # what ends at the limit, and the bin after an interval's last
        self.busy = np.zeros((2, bins))
        """See `add_interval`."""
        self._online = np.zeros((2, bins))
        self._sessions = np.zeros(bins, dtype=np.int64)

    def add_sessions(self, batch: Batch, count: int) -> None:
        """Count the first ``count`` sessions of a batch as online."""
        if not count:
            return
        begin_s = batch.time_s[:count]
        end_s = np.minimum(batch.end_s[:count], self.limit_s)
        first = (begin_s // self.bin_s).astype(np.int64)
        last = (end_s // self.bin_s).astype(np.int64)
        start = int(first[0])
        bins = int(last.max()) + 2 - start
        same = first == last
        in_first_s = np.where(same, end_s, (first + 1) * self.bin_s) - begin_s
        in_last_s = np.where(same, 0.0, end_s - last * self.bin_s)
        first -= start
        last -= start
        here = slice(start, start + bins)
        self._online[0, here] += np.bincount(first, in_first_s, bins) + np.bincount(last, in_last_s, bins)
        began = np.bincount(first, minlength=bins)
        self._sessions[here] += began
        self._online[1, here] -= np.bincount(last, ~same, bins)
        self._online[1, start + 1 : start + bins] += np.bincount(first, ~same, bins)[:-1]

    def columns(self, end_s: float) -> Columns:
        """Up to the end of the run; the last bin is left out when the run ended within it, unless it is the only."""
        bins = max(1, int(end_s // self.bin_s))
        return {
            "start_s": np.arange(bins) * self.bin_s,
            "online_s": _fill(self._online, self.bin_s)[:bins],
            "busy_s": _fill(self.busy, self.bin_s)[:bins],
            "sessions": self._sessions[:bins],
        }


def add_interval(bins: FloatArray, bin_s: float, begin_s: float, end_s: float) -> None:
    """Add an interval to bins of time.

    Row 0 of ``bins`` takes what lies in its first and its last bin; row 1 where the bins between begin and end, which
    it fills.
    """
    first = int(begin_s // bin_s)
    last = int(end_s // bin_s)
    if first == last:
        bins[0, first] += end_s - begin_s
        return
    bins[0, first] += (first + 1) * bin_s - begin_s
    bins[0, last] += end_s - last * bin_s
    bins[1, first + 1] += 1.0
    bins[1, last] -= 1.0


def job_columns(world: World) -> Columns:
    """The columns of ``RunResult.jobs`` that are known before the run."""
    jobs = world.jobs
    return {
        "id": np.array([job.id for job in jobs]),
        "name": np.array([job.spec.name for job in jobs]),
        "category": np.array([job.category or "" for job in jobs]),
        "requirement": np.array([world.requirements[job.requirement].text for job in jobs]),
        "config": np.array([job.config or 0 for job in jobs]),
        "mode": np.array([job.spec.mode for job in jobs]),
        "demand": np.array([job.spec.demand for job in jobs]),
        "rounds": np.array([job.spec.rounds or 0 for job in jobs]),
        "workload_s": np.array([job.workload_s for job in jobs]),
        "arrival_s": np.array([job.arrival_s for job in jobs]),
    }


def in_order(attempts: Columns) -> Columns:
    """Attempts in the order in which they closed; of one moment, in the order of jobs and rounds."""
    order = np.lexsort((attempts["number"], attempts["round"], attempts["job"], attempts["closed_s"]))
    return {name: column[order] for name, column in attempts.items()}


def region_columns(world: World, check_ins: npt.NDArray[np.int64]) -> Columns:
    """The columns of ``RunResult.regions``. Signatures are Python ints, since there may be any number of bits."""
    signatures = np.empty(len(world.signatures), dtype=object)
    signatures[:] = world.signatures
    return {"signature": signatures, "check_ins": check_ins, "share": world.shares}


def _fill(bins: FloatArray, bin_s: float) -> FloatArray:
    filled: FloatArray = bins[0] + np.cumsum(bins[1]) * bin_s
    return filled
