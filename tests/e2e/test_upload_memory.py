"""The memory of a real server under many uploads at once: bounded, whatever they are and however slowly they come."""

import hashlib
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.e2e.calls import closed
from tests.e2e.server_process import ServerProcess
from vennue.protocol import EXAMPLES_HEADER
from vennue.tensors.model import save

DEVICES = 40
MODEL_BYTES = 25_000_000
LIMIT_BYTES = 400e6
"""64 MB of chunks that wait for their block, a block for each upload, the sum and some more models; all the uploads
together are 1 GB."""


def most_memory_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * int(fields["VmHWM"].split()[0])


@pytest.mark.slow_suite
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_a_gigabyte_of_uploads_at_once_takes_a_fraction_of_it_in_memory_and_all_of_them_count(tmp_path):
    """Case M7, at a tenth: 40 uploads of 25 MB, each held back in its middle until all the others are there, too."""
    body = save({"w": np.full(MODEL_BYTES // 4, 2.0, np.float32)})
    all_there = threading.Barrier(DEVICES)
    answers: list[int] = []

    def upload(url: str, task: dict[str, str]) -> None:
        def chunks():
            for start in range(0, len(body), 2**16):
                if start == 200 * 2**16:
                    all_there.wait(300)
                yield body[start : start + 2**16]

        headers = {"authorization": f"Bearer {task['token']}", EXAMPLES_HEADER: "1"}
        path = f"{url}/v1/assignments/{task['assignment']}/report"
        answers.append(httpx.put(path, headers=headers, content=chunks(), timeout=300).status_code)

    # None of them is given up while it waits for the others.
    patient = ServerProcess(tmp_path, validate=False, durable_blobs="0", limits_idle_body_s="300")
    with patient as server, server.client() as client:
        spec = {"name": "job", "demand": DEVICES, "strategy": "fedavg"}
        job = client.post("/v1/jobs", json={"spec": spec}).json()["id"]
        model = save({"w": np.zeros(MODEL_BYTES // 4, np.float32)})
        digest = hashlib.sha256(model).hexdigest()
        client.put(f"/v1/blobs/{digest}", content=model).raise_for_status()
        client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest}).raise_for_status()
        before = most_memory_bytes(server.process.pid)
        tasks = [client.post("/v1/check-ins", json={"device": f"d{n}"}).json()["task"] for n in range(DEVICES)]
        uploads = [threading.Thread(target=upload, args=(server.url, task)) for task in tasks]
        for thread in uploads:
            thread.start()
        for thread in uploads:
            thread.join()
        assert answers == [200] * DEVICES
        view = closed(client, job)
        assert (view["state"], view["reported"]) == ("committed", DEVICES)
        assert most_memory_bytes(server.process.pid) - before < LIMIT_BYTES
        assert server.stop() == 0
