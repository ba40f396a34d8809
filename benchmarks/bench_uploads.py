"""Five hundred reports of 20 MB that all come at once: what they take of the server's memory, and of others' patience.

The server has one core, the devices the other. They send as fast as they are let, so that all but a few wait for the
disk; meanwhile one device after the other checks in. The reports are broken off after some seconds: their bytes would
fill a disk to no end.
"""

import hashlib
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.bench_report_http import report_head
from benchmarks.harness import Result
from benchmarks.http_server import Served, served
from vennue.tensors.model import save

UPLOADS = 500
ELEMENTS = 5_000_000
SECONDS = 5.0
GATE_MB = 400.0
PIECE_BYTES = 256 * 1024
LOOK_S = 0.05


def bench_uploads() -> Iterator[Result]:
    """Resident memory at its highest, and the longest that a check-in took."""
    model = save({"w": np.random.default_rng(0).normal(size=ELEMENTS).astype(np.float32)})
    with (
        tempfile.TemporaryDirectory() as data_dir,
        served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=data_dir) as server,
    ):
        heads = _heads(server, model)
        with _checking_in(server) as latencies_s:
            most_mb, received_mb = _send(server, heads, model)
    print(f"  {received_mb:.0f} MB of {UPLOADS} reports were received")
    yield Result(name="uploads/memory", value=most_mb, unit="MB", gate=GATE_MB, higher_is_better=False)
    yield Result(name="uploads/slowest_check_in", value=1e3 * max(latencies_s), unit="ms", higher_is_better=False)


def _heads(server: Served, model: bytes) -> list[bytes]:
    """The heads of reports of devices that were given tasks."""
    digest = hashlib.sha256(model).hexdigest()
    with httpx.Client(base_url=server.url, timeout=120) as client:
        client.put(f"/v1/blobs/{digest}", content=model).raise_for_status()
        job = client.post("/v1/jobs", json={"spec": {"name": "bench", "demand": UPLOADS}}).json()["id"]
        client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest}).raise_for_status()
        tasks = [client.post("/v1/check-ins", json={"device": f"d{number}"}).json() for number in range(UPLOADS)]
    return [report_head(task["task"], model).encode() for task in tasks]


@contextmanager
def _checking_in(server: Served) -> Iterator[list[float]]:
    """As long as the block, a device checks in ten times per second: how long each takes."""
    latencies_s: list[float] = []
    over = threading.Event()

    def run() -> None:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            while not over.wait(0.1):
                began = time.perf_counter()
                client.post("/v1/check-ins", json={"device": f"other-{len(latencies_s)}"}).raise_for_status()
                latencies_s.append(time.perf_counter() - began)

    device = threading.Thread(target=run)
    device.start()
    try:
        yield latencies_s
    finally:
        over.set()
        device.join()


def _send(server: Served, heads: list[bytes], model: bytes) -> tuple[float, float]:
    """Send all at once for a while: the most memory that the server had resident, and how much was sent, in MB."""
    address = urlsplit(server.url)
    epoll = select.epoll()
    unsent: dict[int, memoryview] = {}
    devices: dict[int, socket.socket] = {}
    for head in heads:
        device = socket.create_connection((address.hostname, address.port))
        device.sendall(head)
        device.setblocking(False)
        devices[device.fileno()] = device
        unsent[device.fileno()] = memoryview(model)
        epoll.register(device, select.EPOLLOUT)
    sent_bytes = 0
    most_mb = 0.0
    look_at = began = time.perf_counter()
    while (now := time.perf_counter()) < began + SECONDS:
        for fd, _ in epoll.poll(LOOK_S):
            try:
                taken = devices[fd].send(unsent[fd][:PIECE_BYTES])
            except BlockingIOError:
                continue
            sent_bytes += taken
            unsent[fd] = unsent[fd][taken:]
            if not unsent[fd]:
                epoll.unregister(fd)
        if now >= look_at:
            most_mb = max(most_mb, _resident_mb(server.pid))
            look_at = now + LOOK_S
    for device in devices.values():
        device.close()
    return most_mb, sent_bytes / 1e6


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6
