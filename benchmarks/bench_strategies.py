"""From a round's last report to its next model: what each strategy still has to do, and how long that takes.

Strategies over the sum have folded all reports by then; those over the set of updates begin. Figures are GB of reports
in float32 per second of processor time. For the latter the baseline is numpy's median of the same numbers in memory,
in the same run.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import Result, seconds_per_call
from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.tensors.model import save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.plan import RoundPlan
from vennue.updates.strategies import strategy

NUMBERS = 500_000
UPDATES = 100
OVER_THE_SUM = ("fedavg", "fedadam", "norm-clipping")
OVER_THE_SET = ("median", "trimmed-mean", "krum", "multi-krum")


def bench_strategies() -> Iterator[Result]:
    """A hundred updates of 2 MB each."""
    rng = np.random.default_rng(0)
    base = np.zeros(NUMBERS, np.float32)
    changes = rng.normal(size=(UPDATES, NUMBERS)).astype(np.float32)
    gb = changes.nbytes / 1e9
    numpy_s = seconds_per_call(lambda: np.median(changes, axis=0), repeats=1)
    for name in (*OVER_THE_SUM, *OVER_THE_SET):
        with tempfile.TemporaryDirectory() as folder, threadpool_limits(1, user_api="blas"):  # as a server has it
            blobs = DirectoryBlobs(Path(folder) / "blobs", durable=False)
            with blobs.create() as writer:
                writer.write(save({"w": base}))
                model = writer.commit()
            aggregator = _reported(name, model, blobs, Path(folder), changes)
            seconds = seconds_per_call(aggregator.aggregate, repeats=2)
        over_set = name in OVER_THE_SET
        yield Result(
            name=f"strategies/{name}", value=gb / seconds, unit="GB/s", baseline=gb / numpy_s if over_set else None
        )


def _reported(name: str, model: Digest, blobs: DirectoryBlobs, folder: Path, changes: np.ndarray) -> RoundAggregator:
    """A round whose reports are all there, and folded as far as its strategy has them folded."""
    plan = RoundPlan(strategy=strategy(name))
    aggregator = RoundAggregator(AttemptId("job.1.1"), model, blobs, folder / "spool", plan=plan)
    assignments = [AssignmentId(f"job.1.1.{number}") for number in range(1, UPDATES + 1)]
    for assignment, change in zip(assignments, changes, strict=True):
        with aggregator.start_update(assignment) as sink:
            sink.write(save({"w": change}))
            sink.finish()
    aggregator.fold(*assignments)
    return aggregator
