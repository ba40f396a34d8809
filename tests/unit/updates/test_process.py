"""What only a process of its own shows: acknowledged updates outlive SIGKILL, and memory stays flat."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vennue.core.ids import AttemptId
from vennue.updates.spool import Spool

UPLOADS = """
import sys
from pathlib import Path
from vennue.core.ids import AttemptId
from vennue.updates.spool import Spool
spool = Spool(Path(sys.argv[1]), AttemptId("job.1.1"))
for number in range(1_000_000):
    with spool.begin() as writer, spool.begin() as unfinished:
        unfinished.write(b"never acknowledged")
        for _ in range(5):
            writer.write(b"%020d" % number)
        writer.finish(f"u{number}", {"number": number})
        print(number, flush=True)
"""

ROUND = """
import sys
from pathlib import Path
import numpy as np
from vennue.core.ids import AssignmentId, AttemptId
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.tensors.layout import ModelLayout
from vennue.updates.plan import RoundPlan
from vennue.updates.strategies import FedAdam

def high_water_bytes():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

root, elements = Path(sys.argv[1]), 8_000_000
layout = ModelLayout.of([("w", "F32", (elements,))])
chunk = np.full(65536, 0.5, np.float32).tobytes()
def chunks():
    yield layout.header
    for start in range(0, 4 * elements, len(chunk)):
        yield chunk[: 4 * elements - start]
blobs = DirectoryBlobs(root / "blobs", durable=False)
with blobs.create() as writer:
    for piece in chunks():
        writer.write(piece)
    base = writer.commit()
before = high_water_bytes()
aggregator = RoundAggregator(AttemptId("job.1.1"), base, blobs, root / "spool", plan=RoundPlan(FedAdam()))
for number in range(12):
    with aggregator.start_update(AssignmentId(f"job.1.1.{number}"), 1.0) as sink:
        for piece in chunks():
            sink.write(piece)
        sink.finish()
    if number % 4 == 3:
        for earlier in range(number - 3, number + 1):
            aggregator.fold(AssignmentId(f"job.1.1.{earlier}"))
first = aggregator.aggregate()
aggregator.aggregate(memory=first.memory)
aggregator.close()
print((high_water_bytes() - before) / (4 * elements))
"""


def test_every_update_acknowledged_before_sigkill_is_there_afterwards(tmp_path):
    with subprocess.Popen([sys.executable, "-c", UPLOADS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
    records = {record.key: record for record in Spool(tmp_path, AttemptId("job.1.1")).records()}
    assert len(acknowledged) >= 50
    assert len(records) - len(acknowledged) in {0, 1}  # one may have been finished, but not yet acknowledged
    for number in acknowledged:
        record = records[f"u{number}"]
        assert record.meta == {"number": number}
        assert record.path.read_bytes()[: record.body_bytes] == b"%020d" % number * 5


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_a_round_takes_the_memory_of_one_model_and_a_few_blocks(tmp_path):
    """Case M1, scaled: twelve updates of 32 MB, folded and stepped by a strategy with two slots."""
    done = subprocess.run(
        [sys.executable, "-c", ROUND, str(tmp_path)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2.5  # one sum, and up to 8 MiB each of base, two slots and four updates
