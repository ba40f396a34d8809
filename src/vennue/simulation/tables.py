"""What an experiment's runs amount to: a line per policy, and tidy tables of everything.

Averages are over all jobs. While some are unfinished, their time so far takes the place of their completion time, so
averages are lower bounds, and are marked so. Comparisons are paired: each policy with the first one under the same
seed, which meets the same jobs, devices and chance; intervals are over seeds.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput, StorageError
from vennue.simulation.experiment import Results, as_document
from vennue.simulation.metrics import met_fair_share
from vennue.simulation.result import ABORTED, Columns, RunResult
from vennue.simulation.traces.columns import replacing, write_table
from vennue.simulation.traces.model import FloatArray

Mask = npt.NDArray[np.bool_]


class Estimate(msgspec.Struct, frozen=True):
    """A mean over seeds with its 95 % confidence interval (none with a single seed)."""

    mean: float
    low: float | None
    high: float | None
    each: tuple[float, ...]
    """The value under each seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """By Student's t distribution; None without a value."""
        if not values:
            return None
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean, None, None, tuple(values))
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        half = student_t(len(values) - 1) * deviation / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, tuple(values))


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's figures over all its runs. Times are in seconds; shares are of 1."""

    policy: str
    runs: int
    jobs: int
    unfinished: int
    failed: int
    """Jobs that gave up."""
    lower_bound: bool
    """Whether some job has not ended, so that times are at least what they say."""
    jct_mean_s: float
    jct_p50_s: float
    jct_p95_s: float
    speedup: Estimate | None
    """Of the average JCT over the first policy's, paired by seed."""
    scheduling_delay_s: float
    """Per committed round of a synchronous job: from its opening to the last device bound."""
    collection_s: float
    """Likewise: from the last device bound to its commit."""
    starved_s: float
    """Likewise: in attempts that aborted before they had all their devices."""
    retried_s: float
    """Likewise: in attempts that aborted although they had them."""
    fair: float
    """Share of the jobs that completed within their fair share (`vennue.simulation.metrics`)."""
    utilisation: float
    """Device-time busy over device-time online."""
    used: float
    """Share of the device-rounds that entered a commit; the rest was wasted, in the ways that follow."""
    aborted: float
    straggling: float
    lost: float
    check_ins: int
    wall_s: float


def summarise(results: Results) -> list[Summary]:
    """A summary per policy that has runs, in the experiment's order."""
    by_policy = {label: results.of(label) for label in results.experiment.labels}
    base = by_policy[results.experiment.labels[0]]
    return [_summary(policy, runs, base, results.alone_s) for policy, runs in by_policy.items() if runs]


def jct_s(run: RunResult) -> FloatArray:
    """Each job's completion time; of an unfinished one, its time so far."""
    ended_s = run.jobs["ended_s"]
    spent: FloatArray = np.maximum(np.where(np.isnan(ended_s), run.end_s, ended_s) - run.jobs["arrival_s"], 0.0)
    return spent


def unfinished(run: RunResult) -> Mask:
    """Which jobs have not ended."""
    missing: Mask = np.isnan(run.jobs["ended_s"])
    return missing


def categories(run: RunResult) -> npt.NDArray[np.str_]:
    """What each job is grouped by: its requirement class, or its requirement if it has none."""
    named = run.jobs["category"]
    found: npt.NDArray[np.str_] = np.where(named == "", run.jobs["requirement"], named)
    return found


def speedup(base: Sequence[RunResult], runs: Sequence[RunResult], category: str | None = None) -> Estimate | None:
    """How many times shorter the average JCT is than the base's, for the jobs of a category or for all."""
    base_of = {run.seed: run for run in base}
    ratios = []
    for run in runs:
        other = base_of.get(run.seed)
        if other is None:
            continue
        chosen = np.ones(len(run.jobs["id"]), dtype=bool) if category is None else categories(run) == category
        mean_s = float(jct_s(run)[chosen].mean()) if chosen.any() else 0.0
        if mean_s > 0:
            ratios.append(float(jct_s(other)[chosen].mean()) / mean_s)
    return Estimate.of(ratios)


def _summary(
    policy: str, runs: Sequence[RunResult], base: Sequence[RunResult], alone_s: Mapping[int, FloatArray]
) -> Summary:
    def total(column: str, mode: str | None = None) -> float:
        chosen = (run.jobs[column][(run.jobs["mode"] == mode) | (mode is None)] for run in runs)
        return float(sum(part.sum() for part in chosen))

    times_s = np.concatenate([jct_s(run) for run in runs])
    left = int(sum(unfinished(run).sum() for run in runs))
    rounds = max(total("committed", "sync"), 1.0)
    bound = max(total("bound"), 1.0)
    delay_s, collection_s = total("scheduling_delay_s", "sync"), total("collection_s", "sync")
    starved_s, retried_s = (sum(part) for part in zip(*(_in_vain_s(run) for run in runs), strict=True))
    online_s = sum(float(run.usage["online_s"].sum()) for run in runs)
    return Summary(
        policy=policy,
        runs=len(runs),
        jobs=len(times_s),
        unfinished=left,
        failed=sum(int((run.jobs["state"] == "failed").sum()) for run in runs),
        lower_bound=left > 0,
        jct_mean_s=float(np.mean([jct_s(run).mean() for run in runs])),
        jct_p50_s=float(np.percentile(times_s, 50)),
        jct_p95_s=float(np.percentile(times_s, 95)),
        speedup=speedup(base, runs),
        scheduling_delay_s=delay_s / rounds,
        collection_s=collection_s / rounds,
        starved_s=starved_s / rounds,
        retried_s=retried_s / rounds,
        fair=float(np.concatenate([met_fair_share(run, alone_s[run.seed]) for run in runs]).mean()),
        utilisation=sum(float(run.usage["busy_s"].sum()) for run in runs) / online_s if online_s else 0.0,
        used=total("used") / bound,
        aborted=total("aborted") / bound,
        straggling=total("straggling") / bound,
        lost=total("failed") / bound,
        check_ins=sum(run.counters["check_ins"] for run in runs),
        wall_s=sum(run.wall_s for run in runs),
    )


def starved(run: RunResult) -> Mask:
    """Which attempts aborted before they had all their devices."""
    aborted = run.attempts["outcome"] == ABORTED
    found: Mask = aborted & (run.attempts["bound"] < run.jobs["demand"][run.attempts["job"]])
    return found


def _in_vain_s(run: RunResult) -> tuple[float, float]:
    spent_s = run.attempts["closed_s"] - run.attempts["opened_s"]
    aborted = run.attempts["outcome"] == ABORTED
    without = starved(run)
    return float(spent_s[without].sum()), float(spent_s[aborted & ~without].sum())


def document(results: Results) -> dict[str, object]:
    """The experiment and its figures, for programs."""
    return {
        "experiment": as_document(results.experiment),
        "stopped": results.stopped,
        "policies": [msgspec.to_builtins(summary) for summary in summarise(results)],
        "runs": [
            {
                "policy": run.policy, "seed": run.seed, "ended": run.ended, "end_s": run.end_s, "engine": run.engine,
                "jct_mean_s": float(jct_s(run).mean()), "unfinished": int(unfinished(run).sum()), **run.counters,
                "wall_s": run.wall_s,
            }
            for run in results.runs
        ],
        "failures": [{"policy": f.policy, "seed": f.seed, "reason": f.reason} for f in results.failures],
        "missing": results.missing,
        "wall_s": results.wall_s,
    }  # fmt: skip


PARQUET_TABLES = ("runs", "jobs", "attempts", "usage", "regions")


def write_parquet(folder: Path, results: Results) -> list[Path]:
    """Write everything as Parquet files with a row per run, job, attempt, hour and kind of device.

    Each row begins with its run's ``policy`` and ``seed``; columns are those of `RunResult`. All that the experiment
    assumed is in ``experiment.json`` beside them.

    Raises:
        InvalidInput: pyarrow is missing (the extra ``sim``).
        StorageError: the folder cannot be written.
    """
    check_parquet(folder)
    written = []
    for name in PARQUET_TABLES:
        parts = [_keyed(run, _rows(run, name)) for run in results.runs]
        if parts:
            columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
            written.append(folder / f"{name}.parquet")
            write_table(written[-1], columns)
    written.append(folder / "experiment.json")
    with replacing(written[-1]) as file:
        file.write(msgspec.json.format(msgspec.json.encode(as_document(results.experiment)), indent=2))
    return written


def check_parquet(folder: Path) -> None:
    """Make sure that tables can be written there, and make the folder.

    Raises:
        InvalidInput: pyarrow is missing (the extra ``sim``).
        StorageError: the folder cannot be made.
    """
    try:
        import pyarrow as pa  # noqa: F401 - whether it is there
    except ImportError as error:
        raise InvalidInput(
            "Parquet files need pyarrow, which is not installed", field="parquet", fix="pip install 'vennue[sim]'"
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {folder}: {error.strerror}", field="parquet", value=str(folder),
            fix="choose another place",
        ) from error  # fmt: skip


def _rows(run: RunResult, table: str) -> Columns:
    if table == "runs":
        facts: dict[str, Any] = {
            "engine": run.engine, "ended": run.ended, "end_s": run.end_s, **run.counters, "wall_s": run.wall_s
        }  # fmt: skip
        return {name: np.array([value]) for name, value in facts.items()}
    columns: Columns = getattr(run, table)
    if table == "regions":  # signatures are Python integers of any size
        return columns | {"signature": np.array([f"{signature:x}" for signature in columns["signature"]])}
    return columns


def _keyed(run: RunResult, columns: Columns) -> Columns:
    rows = len(next(iter(columns.values())))
    return {"policy": np.full(rows, run.policy), "seed": np.full(rows, run.seed), **columns}


_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution; beyond 30 degrees of freedom by Fisher's expansion."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
