"""Files of the data directory that somebody else cuts off are told by name; touching them would end the process."""

import os

import numpy as np
import pytest

from vennue.core.errors import FileDamaged
from vennue.core.ids import AssignmentId, AttemptId
from vennue.core.job import JobSpec
from vennue.tensors.model import save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.plan import RoundPlan

ATTEMPT = AttemptId("job.1.1")
MODEL = save({"w": np.ones(100_000, np.float32)})


@pytest.mark.parametrize("strategy", ["fedavg", "median"])
@pytest.mark.parametrize("what", ["the model", "an update"])
def test_a_round_of_which_a_file_was_cut_off_fails_with_its_name(tmp_path, strategy, what):
    blobs = DirectoryBlobs(tmp_path / "blobs", durable=False)
    base = blobs.put(MODEL)
    plan = RoundPlan.of(JobSpec(name="x", demand=1, strategy=strategy))
    aggregator = RoundAggregator(ATTEMPT, base, blobs, tmp_path / "spool", plan=plan)
    with aggregator.start_update(AssignmentId(f"{ATTEMPT}.1")) as sink:
        sink.write(MODEL)
        sink.finish()
    damaged = blobs.path(base) if what == "the model" else next((tmp_path / "spool" / ATTEMPT).iterdir())
    os.truncate(damaged, 1000)
    with pytest.raises(FileDamaged) as failure:
        aggregator.aggregate()
    assert f"the file {damaged.name} was cut off" in failure.value.message
    assert failure.value.value == str(damaged)
