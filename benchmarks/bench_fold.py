"""The data plane at the speed of memory: folding per codec, checking, spooling, and an update's whole way in process.

Sizes are those of the decoded float32 model, 100 MB, so that codecs compare: a codec's figure is how much model it
folds per second. The baseline of a fold is a plain copy of as many bytes between two warm arrays, run in turn with it.
A fold is counted in processor time, as is its baseline: nothing in it waits.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, seconds_per_call
from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.codecs import CODECS, TopK
from vennue.tensors.model import MappedModel, layout_of, save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.fold import Fold, Term
from vennue.updates.running import FOLD_TOGETHER
from vennue.updates.spool import Spool

MODEL_BYTES = 100_000_000
CHUNK_BYTES = 256 * 1024
GATE_GB_PER_S = 2.0


def _model() -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(1).standard_normal(MODEL_BYTES // 4, dtype=np.float32)}


def _gb_per_s(function: Callable[[], object]) -> float:
    return MODEL_BYTES / 1e9 / seconds_per_call(function)


def _against_copy(
    name: str,
    models: int,
    function: Callable[[], object],
    *,
    gate: float | None = GATE_GB_PER_S,
    ratio_gate: float | None = None,
) -> Result:
    """GB of decoded model per second, and those of a copy, the better of two runs of each in turn."""
    source, target = np.ones(MODEL_BYTES // 4, np.float32), np.ones(MODEL_BYTES // 4, np.float32)
    runs = [(_gb_per_s(function) * models, _gb_per_s(lambda: np.copyto(target, source))) for _ in range(2)]
    return Result(
        name=name,
        value=max(speed for speed, _ in runs),
        unit="GB/s",
        gate=gate,
        baseline=max(copy for _, copy in runs),
        ratio_gate=ratio_gate,
    )


def bench_fold() -> Iterator[Result]:
    """A weighted sum of updates read from files in the page cache."""
    model = _model()
    with tempfile.TemporaryDirectory() as folder:
        for name, codec in CODECS.items():
            path = Path(folder) / name
            path.write_bytes((TopK(0.01) if name == "top-k" else codec).encode(model))
            fold = Fold(layout_of(model))
            updates = [Term(MappedModel(path), codec, 3.0, 3.0)]
            yield _against_copy(f"fold/{name}", 1, lambda: fold.add(*updates))  # noqa: B023 - called at once

        path = Path(folder) / "plain"
        copies = [path.with_name(f"plain-{number}") for number in range(FOLD_TOGETHER)]
        for copy in copies:
            copy.write_bytes(path.read_bytes())
        updates = [Term(MappedModel(copy), CODECS["plain"], 3.0, 3.0) for copy in copies]
        yield _against_copy("fold/plain-together", len(updates), lambda: fold.add(*updates), ratio_gate=0.5)
        wide = Fold(layout_of(model), "float64")
        yield _against_copy("fold/plain-into-float64", 1, lambda: wide.add(updates[0]), gate=None)
        tensor = layout_of(model).tensors[0]
        yield _against_copy("fold/check", 1, lambda: CODECS["plain"].peak(updates[0].update, tensor))


def bench_spool() -> Iterator[Result]:
    """An update's way onto the disk's cache, and its whole way from chunks to the sum."""
    body = save(_model())
    chunks = [memoryview(body)[start : start + CHUNK_BYTES] for start in range(0, len(body), CHUNK_BYTES)]
    with tempfile.TemporaryDirectory() as folder:
        plain_path = Path(folder) / "plain"

        def write_plainly() -> None:
            with plain_path.open("wb", buffering=0) as file:
                for chunk in chunks:
                    file.write(chunk)

        spool = Spool(Path(folder) / "spool", AttemptId("job.1.1"))

        def append() -> None:
            with spool.begin() as writer:
                for chunk in chunks:
                    writer.write(chunk)
                writer.finish("update", {})
            spool.remove("update")

        def per_s(function: Callable[[], object]) -> float:
            return len(body) / 1e6 / seconds_per_call(function, repeats=3, clock=time.perf_counter)

        baseline = per_s(write_plainly)
        yield Result(name="spool/append", value=per_s(append), unit="MB/s", baseline=baseline)

        blobs = DirectoryBlobs(Path(folder) / "blobs", durable=False)
        base = blobs.put(body)
        for with_sha256 in (True, False):
            aggregator = RoundAggregator(
                AttemptId("job.1.2"), base, blobs, Path(folder) / "spool", with_sha256=with_sha256
            )
            numbers = itertools.count()

            def report() -> None:
                assignment = AssignmentId(f"job.1.2.{next(numbers)}")  # noqa: B023 - called at once
                with aggregator.start_update(assignment) as sink:  # noqa: B023
                    for chunk in chunks:
                        sink.write(chunk)
                    sink.finish()
                aggregator.fold(assignment)  # noqa: B023

            yield Result(
                name="spool/report" if with_sha256 else "spool/report-without-sha256",
                value=per_s(report),
                unit="MB/s",
                gate=500,
                baseline=baseline,
            )
            aggregator.close()
