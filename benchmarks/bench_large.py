"""One large tensor all the way: uploaded, sent out, reported by two devices, averaged, committed.

It has 250 MB; with ``VENNUE_BENCH_FULL=1`` in the environment 2.5 GB, for which it needs 13 GB of disk. What no part
of the data plane may do is hold such a body in memory, or count its bytes in 32 bits. Bodies are streamed from a block
that is repeated, so the load generator holds none, either.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.harness import Result
from benchmarks.http_server import served
from vennue.tensors.layout import ModelLayout

ELEMENTS = 625_000_000 if os.environ.get("VENNUE_BENCH_FULL") else 62_500_000
BLOCK_BYTES = 1 << 20
GATE_MODELS = 3.0
"""Resident memory of the server at its highest, in models."""


class Body:
    """A model with one tensor, every element the same, in pieces."""

    def __init__(self, value: float, elements: int) -> None:
        self._layout = ModelLayout.of([("w", "F32", (elements,))])
        self._block = np.full(BLOCK_BYTES // 4, value, np.float32).tobytes()
        self.size_bytes = self._layout.total_bytes

    def __iter__(self) -> Iterator[bytes]:
        yield self._layout.header
        left = self.size_bytes - len(self._layout.header)
        while left > 0:
            yield self._block[:left]
            left -= len(self._block)

    def digest(self) -> str:
        """Its SHA-256."""
        digest = hashlib.sha256()
        for piece in self:
            digest.update(piece)
        return digest.hexdigest()


def bench_large(elements: int = ELEMENTS) -> Iterator[Result]:
    """A round of two devices on it: speed of a report, time to the result, and the server's memory."""
    with (
        tempfile.TemporaryDirectory() as data_dir,
        served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=data_dir, VENNUE_DURABLE_BLOBS="0") as server,
        httpx.Client(base_url=server.url, timeout=600) as client,
    ):
        base = Body(0.5, elements)
        began = time.perf_counter()
        _put(client, f"/v1/blobs/{base.digest()}", base, {})
        uploaded = time.perf_counter()
        spec = {"name": "large", "demand": 2}
        job = client.post("/v1/jobs", json={"spec": spec}).raise_for_status().json()["id"]
        client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": base.digest()}).raise_for_status()
        asked = time.perf_counter()
        for examples, value in ((1, 1.0), (3, 2.0)):
            task = client.post("/v1/check-ins", json={"device": f"d{examples}"}).raise_for_status().json()["task"]
            headers = {"authorization": f"Bearer {task['token']}", "vennue-examples": str(examples)}
            _put(client, f"/v1/assignments/{task['assignment']}/report", Body(value, elements), headers)
        reported = time.perf_counter()
        view = _committed(client, job)
        committed = time.perf_counter()
        expected = Body(1.75, elements)
        if view["result"] != expected.digest():
            raise RuntimeError(f"the result is {view['result']}, not the mean of the reports")
        peak_bytes = _peak_bytes(server.pid)
    size_mb = base.size_bytes / 1e6
    yield Result(name="large/upload", value=size_mb / (uploaded - began), unit="MB/s")
    yield Result(name="large/report", value=2 * size_mb / (reported - asked), unit="MB/s")
    yield Result(name="large/result", value=committed - reported, unit="s", higher_is_better=False)
    yield Result(
        name="large/memory", value=peak_bytes / base.size_bytes, unit="models", gate=GATE_MODELS,
        higher_is_better=False,
    )  # fmt: skip


def _put(client: httpx.Client, path: str, body: Body, headers: dict[str, str]) -> None:
    headers = {**headers, "content-length": str(body.size_bytes)}
    client.put(path, content=body, headers=headers).raise_for_status()


def _committed(client: httpx.Client, job: str) -> dict[str, Any]:
    while True:
        view: dict[str, Any] = client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 30}).raise_for_status().json()
        if view["state"] not in {"open", "committing"}:
            return view


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident, mapped files included."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
