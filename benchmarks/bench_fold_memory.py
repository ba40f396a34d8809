"""What a round takes of memory: many updates of 100 MB, spooled, checked, folded and committed by one process.

A hundred of them, or a thousand with ``VENNUE_BENCH_FULL=1``, which takes minutes.

The figure is the most that the process ever had in memory, less what it had before the round, in models. Updates are
generated block by block, so they take none of it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.harness import Result

UPDATES = 1000 if os.environ.get("VENNUE_BENCH_FULL") else 100
MODEL_BYTES = 100_000_000
GATE_MODELS = 3.0

ROUND = r"""
import sys
from pathlib import Path

import numpy as np

from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.layout import ModelLayout
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs

root, updates, model_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
layout = ModelLayout.of([("w", "F32", (model_bytes // 4,))], keep_order=True)


def chunks(value):
    block = np.full(2**18, value, np.float32).tobytes()
    yield layout.header
    for start in range(0, layout.data_bytes, len(block)):
        yield block[: layout.data_bytes - start]


def memory_bytes(name):
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields[name].split()[0])


blobs = DirectoryBlobs(root / "blobs", durable=False)
with blobs.create() as writer:
    for chunk in chunks(0.0):
        writer.write(chunk)
    base = writer.commit()
before = memory_bytes("VmRSS")
aggregator = RoundAggregator(AttemptId("job.1.1"), base, blobs, root / "spool", spool_bytes=0)
for number in range(1, updates + 1):
    assignment = AssignmentId(f"job.1.1.{number}")
    with aggregator.start_update(assignment) as sink:
        for chunk in chunks(float(number % 2)):
            sink.write(chunk)
        sink.finish()
    aggregator.fold(assignment)
made = aggregator.aggregate()
with blobs.path(made.model).open("rb") as file:
    file.seek(len(layout.header))
    assert abs(np.frombuffer(file.read(4), np.float32)[0] - (updates + 1) // 2 / updates) < 1e-4
print((memory_bytes("VmHWM") - before) / model_bytes)
"""


def measure(updates: int, model_bytes: int) -> float:
    """The most memory that a round of so many updates takes, in models."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ROUND, folder, str(updates), str(model_bytes)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def bench_fold_memory() -> Iterator[Result]:
    """The memory of a round of large updates."""
    models = measure(UPDATES, MODEL_BYTES)
    yield Result(name="fold_memory", value=models, unit="models", gate=GATE_MODELS, higher_is_better=False)
