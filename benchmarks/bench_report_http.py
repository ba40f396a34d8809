"""Reports over HTTP on loopback: received, checked, spooled, counted, folded; and the round's result after the last.

The server has one core, the devices the other: four connections send models of 1 MB and of 10 MB.
"""

import hashlib
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.harness import Result
from benchmarks.http_server import served
from vennue.tensors.model import save

CONNECTIONS = 4
TOTAL_MB = 400
GATE_MB_PER_S = 500.0
GATE_RESULT_MS = 50.0


def bench_report_http() -> Iterator[Result]:
    """Megabytes of reports per second, from the first byte sent to the last acknowledgement."""
    for size_mb in (1, 10):
        with (
            tempfile.TemporaryDirectory() as data_dir,
            served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=data_dir) as server,
        ):
            began_cpu_s = server.cpu_s()
            mb_per_s, result_ms = _round(server.url, size_mb)
            cpu_s = server.cpu_s() - began_cpu_s
        yield Result(name=f"report_http/{size_mb}_MB", value=mb_per_s, unit="MB/s", gate=GATE_MB_PER_S)
        # Neighbours on the core do not change it. It has the check-ins, the last fold and the commit in it, too.
        yield Result(
            name=f"report_http/{size_mb}_MB_per_cpu_second", value=TOTAL_MB / cpu_s, unit="MB/s", gate=GATE_MB_PER_S
        )
        yield Result(
            name=f"report_http/result_after_{size_mb}_MB",
            value=result_ms,
            unit="ms",
            gate=GATE_RESULT_MS,
            higher_is_better=False,
        )


def _round(url: str, size_mb: int) -> tuple[float, float]:
    """One round: its speed in MB/s, and how long after the last acknowledgement its result was there."""
    model = save({"w": np.random.default_rng(0).normal(size=size_mb * 250_000).astype(np.float32)})
    digest = hashlib.sha256(model).hexdigest()
    demand = TOTAL_MB // size_mb
    with httpx.Client(base_url=url, timeout=120) as client:
        client.put(f"/v1/blobs/{digest}", content=model).raise_for_status()
        job = (
            client.post("/v1/jobs", json={"spec": {"name": "bench", "demand": demand}}).raise_for_status().json()["id"]
        )
        client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest}).raise_for_status()
        tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for number in range(demand):
            tasks.put(client.post("/v1/check-ins", json={"device": f"d{number}"}).raise_for_status().json()["task"])
        finished_at: list[float] = []

        def wait() -> None:
            client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 60}).raise_for_status()
            finished_at.append(time.perf_counter())

        waiter = threading.Thread(target=wait)
        waiter.start()
        devices = [threading.Thread(target=_send, args=(url, tasks, model)) for _ in range(CONNECTIONS)]
        began = time.perf_counter()
        for device in devices:
            device.start()
        for device in devices:
            device.join()
        ended = time.perf_counter()
        waiter.join()
        view = client.get(f"/v1/jobs/{job}/rounds/1").json()
    if (view["state"], view["reported"]) != ("committed", demand):
        raise RuntimeError(f"the round is {view['state']} with {view['reported']} of {demand} reports")
    return demand * len(model) / 1e6 / (ended - began), 1e3 * max(0.0, finished_at[0] - ended)


def _send(url: str, tasks: "queue.SimpleQueue[dict[str, Any]]", model: bytes) -> None:
    """A device that reports the model itself, over and over: what it costs is all the server's."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        while True:
            try:
                task = tasks.get_nowait()
            except queue.Empty:
                return
            head = (
                f"PUT /v1/assignments/{task['assignment']}/report HTTP/1.1\r\nhost: bench\r\n"
                f"authorization: Bearer {task['token']}\r\ncontent-length: {len(model)}\r\n\r\n"
            )
            connection.sendall(head.encode())
            connection.sendall(model)
            answer = connection.recv(65_536)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer.decode())
