"""Rounds of any length and models of any size: memory and open files stay as they are, and digests are right."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import load, save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs

BLOCK_BYTES = 2**20
HUGE_BYTES = 2_200_000_000
"""More than 2³¹ bytes in a single tensor."""


def memory_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmRSS"].split()[0])


@pytest.mark.slow_suite
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_a_thousand_rounds_leave_neither_memory_nor_open_files_behind(tmp_path):
    """Case M2: a thousand rounds of three updates of 400 kB. A tensor kept per round would be 400 MB."""
    blobs = DirectoryBlobs(tmp_path / "blobs", durable=False)
    size = 100_000
    model = blobs.put(save({"w": np.zeros(size, np.float32)}))
    bodies = [save({"w": np.full(size, value, np.float32)}) for value in (1.0, 2.0, 6.0)]
    measured = []
    for number in range(1, 1001):
        aggregator = RoundAggregator(AttemptId(f"job.{number}.1"), model, blobs, tmp_path / "spool")
        for device, body in enumerate(bodies, 1):
            assignment = AssignmentId(f"job.{number}.1.{device}")
            with aggregator.start_update(assignment) as sink:
                sink.write(body)
                sink.finish()
            aggregator.fold(assignment)
        made = aggregator.aggregate(round_number=number)
        aggregator.close()
        if made.model != model:
            blobs.delete(model)
            model = made.model
        if number in {200, 1000}:
            measured.append((memory_bytes(), len(list(Path("/proc/self/fd").iterdir()))))
    assert load(blobs.path(model))["w"][0] == 3.0
    (early_bytes, early_files), (late_bytes, late_files) = measured
    assert late_files <= early_files  # fewer where files of other tests have been collected
    assert late_bytes - early_bytes < 8e6  # 800 rounds: not 10 kB a round


@pytest.mark.parametrize("size_bytes", [1, 2**20 - 1, 2**20, 2**20 + 1, 10 * 2**20 + 7])
def test_a_blob_has_the_same_digest_whatever_its_size(tmp_path, size_bytes):
    """Case M3, the small sizes; one tensor of more than two gigabytes is below."""
    blobs = DirectoryBlobs(tmp_path, durable=False)
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    digest = hashlib.sha256(body[:size_bytes]).hexdigest()
    with blobs.create() as writer:
        for start in range(0, size_bytes, 65_536):
            writer.write(body[start : min(start + 65_536, size_bytes)])
        assert writer.commit() == digest
    assert blobs.path(Digest(digest)).stat().st_size == size_bytes


@pytest.mark.slow_suite
@pytest.mark.timeout(600)
def test_a_tensor_of_more_than_two_gigabytes_goes_through_a_leaf_to_the_root_and_into_the_next_model(tmp_path):
    """Cases M3 and M5 (Case M5: the same over leaf and root), at 2.2 GB; 8 GB would only take longer."""
    layout = ModelLayout.of([("w", "F32", (HUGE_BYTES // 4,))], keep_order=True)
    blobs = DirectoryBlobs(tmp_path / "blobs", durable=False)

    def chunks(value: float):
        block = np.full(BLOCK_BYTES // 4, value, np.float32).tobytes()
        yield layout.header
        for start in range(0, layout.data_bytes, BLOCK_BYTES):
            yield block[: layout.data_bytes - start]

    announced = hashlib.sha256()
    with blobs.create() as writer:
        for chunk in chunks(1.0):
            announced.update(chunk)
            writer.write(chunk)
        base = writer.commit()
    assert base == announced.hexdigest()

    attempt, device = AttemptId("job.1.1"), AssignmentId("job.1.1.1")
    leaf = RoundAggregator(attempt, base, blobs, tmp_path / "leaf")
    with leaf.start_update(device, 2.0) as sink:
        for chunk in chunks(3.0):
            sink.write(chunk)
        assert sink.finish().body_bytes == layout.total_bytes
    with (tmp_path / "sum").open("wb") as file:
        partial = leaf.partial("p", [device], file.write)
    leaf.close()

    root = RoundAggregator(attempt, base, blobs, tmp_path / "root")
    with root.start_partial(partial) as arriving, (tmp_path / "sum").open("rb") as file:
        while chunk := file.read(BLOCK_BYTES):
            arriving.write(chunk)
        assert arriving.finish()
    (tmp_path / "sum").unlink()
    root.take("p")
    made = root.aggregate()
    path = blobs.path(made.model)
    assert path.stat().st_size == layout.total_bytes
    numbers = np.memmap(path, np.float32, "r", offset=len(layout.header))
    assert numbers[[0, 2**29 - 1, 2**29, -1]].tolist() == [3.0, 3.0, 3.0, 3.0]
