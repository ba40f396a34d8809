"""Reports over HTTP on loopback: received, checked, spooled, counted, folded; and the round's result after the last.

The server has one core, the devices the other: four connections send models of 1 MB and of 10 MB. Two yardsticks,
served in the same way, tell what of that is the price of HTTP and of the disk: one drops what it receives, one writes
each body to a file of its own.
"""

import hashlib
import queue
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.harness import Result
from benchmarks.http_server import Served, served
from vennue.tensors.model import save

CONNECTIONS = 4
TOTAL_MB = 400
ROUNDS = 4
"""The first creates the files that the next ones write over, so it has a figure of its own; theirs are medians."""
GATE_MB_PER_S = 500.0
GATE_RESULT_MS = 50.0


class _Figures(NamedTuple):
    mb_per_s: float
    mb_per_cpu_s: float
    result_ms: float


def bench_report_http() -> Iterator[Result]:
    """Megabytes of reports per second, from the first byte sent to the last acknowledgement."""
    for size_mb in (1, 10):
        model = save({"w": np.random.default_rng(0).normal(size=size_mb * 250_000).astype(np.float32)})
        with (
            tempfile.TemporaryDirectory() as data_dir,
            served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=data_dir) as server,
        ):
            first, *others = _rounds(server, model)
        # Only now: for five seconds, ext4 looks at each inode that was removed for every file that it creates, and the
        # yardstick's files made the first round a third dearer.
        dropped, written = _yardsticks(model)
        name = f"report_http/{size_mb}_MB"
        steady = _Figures(*(statistics.median(figures) for figures in zip(*others, strict=True)))
        yield Result(name=name, value=steady.mb_per_s, unit="MB/s", gate=GATE_MB_PER_S)
        # The last fold and the commit are in it, too; the check-ins are not.
        yield Result(
            name=f"{name}_per_cpu_second",
            value=steady.mb_per_cpu_s,
            unit="MB/s",
            gate=GATE_MB_PER_S,
            baseline=dropped,
        )
        yield Result(name=f"{name}_first_round_per_cpu_second", value=first.mb_per_cpu_s, unit="MB/s", baseline=written)
        yield Result(
            name=f"report_http/result_after_{size_mb}_MB",
            value=steady.result_ms,
            unit="ms",
            gate=GATE_RESULT_MS,
            higher_is_better=False,
        )


def _yardsticks(model: bytes) -> tuple[float, float]:
    """What a raw handler receives and drops, and what it receives and writes to new files, per processor second."""
    speeds = []
    with tempfile.TemporaryDirectory() as directory:
        for take_in in ("drop", directory):
            with served("benchmarks.http_server", TAKE_IN=take_in) as server:
                heads = [f"PUT / HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(model)}\r\n\r\n"]
                began_s = server.cpu_s()
                send_all(server.url, heads * (TOTAL_MB * 1_000_000 // len(model)), model)
                speeds.append(TOTAL_MB / (server.cpu_s() - began_s))
    dropped, written = speeds
    return dropped, written


def _rounds(server: Served, model: bytes) -> Iterator[_Figures]:
    """Rounds of one job, each with as many devices as make up the total."""
    demand = TOTAL_MB * 1_000_000 // len(model)
    digest = hashlib.sha256(model).hexdigest()
    with httpx.Client(base_url=server.url, timeout=120) as client:
        client.put(f"/v1/blobs/{digest}", content=model).raise_for_status()
        spec = {"name": "bench", "demand": demand}
        job = client.post("/v1/jobs", json={"spec": spec}).raise_for_status().json()["id"]
        for number in range(1, ROUNDS + 1):
            yield _round(server, client, job, number, digest, demand, model)


def _round(
    server: Served, client: httpx.Client, job: str, number: int, digest: str, demand: int, model: bytes
) -> _Figures:
    client.post(f"/v1/jobs/{job}/rounds", json={"round": number, "model": digest}).raise_for_status()
    heads = [
        report_head(
            client.post("/v1/check-ins", json={"device": f"d{device}"}).raise_for_status().json()["task"], model
        )
        for device in range(demand)
    ]
    finished_at: list[float] = []

    def wait() -> None:
        client.get(f"/v1/jobs/{job}/rounds/{number}", params={"wait": 60}).raise_for_status()
        finished_at.append(time.perf_counter())

    waiter = threading.Thread(target=wait)
    waiter.start()
    began_cpu_s = server.cpu_s()
    began = time.perf_counter()
    send_all(server.url, heads, model)
    ended = time.perf_counter()
    waiter.join()
    cpu_s = server.cpu_s() - began_cpu_s
    view = client.get(f"/v1/jobs/{job}/rounds/{number}").json()
    if (view["state"], view["reported"]) != ("committed", demand):
        raise RuntimeError(f"the round is {view['state']} with {view['reported']} of {demand} reports")
    megabytes = demand * len(model) / 1e6
    return _Figures(megabytes / (ended - began), megabytes / cpu_s, 1e3 * max(0.0, finished_at[0] - ended))


def report_head(task: dict[str, Any], model: bytes) -> str:
    """The beginning of the request in which a task's device reports."""
    return (
        f"PUT /v1/assignments/{task['assignment']}/report HTTP/1.1\r\nhost: bench\r\n"
        f"authorization: Bearer {task['token']}\r\ncontent-length: {len(model)}\r\n\r\n"
    )


def send_all(url: str, heads: list[str], model: bytes, *, connections: int = CONNECTIONS) -> None:
    """Devices that report the model itself: what it costs is all the server's."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for head in heads:
        waiting.put(head)
    failures: list[str] = []
    devices = [threading.Thread(target=_send, args=(url, waiting, model, failures)) for _ in range(connections)]
    for device in devices:
        device.start()
    for device in devices:
        device.join()
    if failures:
        raise RuntimeError(failures[0])


def _send(url: str, waiting: "queue.SimpleQueue[str]", model: bytes, failures: list[str]) -> None:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        while not failures:
            try:
                head = waiting.get_nowait()
            except queue.Empty:
                return
            connection.sendall(head.encode())
            connection.sendall(model)
            answer = connection.recv(65_536)
            if not answer.startswith(b"HTTP/1.1 200"):
                failures.append(answer.decode())
