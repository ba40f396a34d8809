"""A whole server under the loads of its milestone: check-ins and reports per second from one job to a thousand.

Over HTTP on loopback, the server on one core and the load generator on the other: check-ins with 1 job and 4
requirements and with 1000 jobs and 64, small reports, and ten thousand devices that reconnect within five seconds after
a restart. In process, because a million requests take long: memory over a million check-ins of a million devices.
"""

import asyncio
import atexit
import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import msgspec
import numpy as np

from benchmarks.harness import Result
from benchmarks.http_server import Served, on_core, served
from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import DataPlane
from vennue.control.pacing import Pacing
from vennue.control.selector import Selector
from vennue.core.job import JobSpec
from vennue.policies import get_policy
from vennue.protocol import CheckInRequest
from vennue.state.ledger import SqlLedger
from vennue.tensors.model import save
from vennue.updates.blob_directory import DirectoryBlobs

SECONDS: Final = 3.0
DEVICES: Final = 40_000
KINDS: Final = 480
GATE_PER_CPU_S: Final = 10_000
REPORTS: Final = 8_000
HERD: Final = 10_000
HERD_S: Final = 5.0
MILLION: Final = 1_000_000
WARM: Final = 200_000
GATE_GROWTH_MB: Final = 16.0
_MODEL: Final = save({"w": np.zeros(16, np.float32)})


def bench_load() -> Iterator[Result]:
    """Throughput and latency by the number of jobs, reports, a herd, and memory."""
    for jobs, requirements in ((1, 4), (1000, 64)):
        yield from _check_ins(jobs, requirements)
    yield from _reports()
    yield from _herd()
    yield from _memory()


def _check_ins(jobs: int, requirements: int) -> Iterator[Result]:
    requests = [check_in_of(f"device-{number}", number) for number in range(DEVICES)]
    name = f"load/{jobs}_jobs_{requirements}_requirements"
    with server_alone() as server:
        open_jobs(server.url, jobs, requirements, DEVICES // 2)
        before_s = server.cpu_s()
        full = load(server, requests)
        per_cpu_s = full["sent"] / (server.cpu_s() - before_s)
        half = load(server, requests, rate_per_s=full["per_s"] / 2)
    print(f"  {name}: {full['tasks']:.0%} of the check-ins were bound to a task")
    yield Result(name=f"{name}/check_ins", value=full["per_s"], unit="/s")
    yield Result(name=f"{name}/binds", value=full["per_s"] * full["tasks"], unit="/s")
    yield Result(name=f"{name}/per_cpu_second", value=per_cpu_s, unit="/s", gate=GATE_PER_CPU_S)
    yield Result(name=f"{name}/p50_half_load", value=half["p50_ms"], unit="ms", higher_is_better=False)
    yield Result(name=f"{name}/p99_half_load", value=half["p99_ms"], unit="ms", higher_is_better=False, gate=10.0)


def _reports() -> Iterator[Result]:
    """Small reports: what is not bytes costs what it costs however small the update is."""
    with server_alone() as server:
        open_jobs(server.url, 1, 1, 4 * REPORTS)
        requests = []
        with httpx.Client(base_url=server.url) as client:
            for number in range(REPORTS):
                body = {"device": f"d{number}", "attributes": attributes_of(number)}
                requests.append(report_of(client.post("/v1/check-ins", json=body).json()["task"]))
        before_s = server.cpu_s()
        seen = load(server, requests, seconds=1.0, once=True)
        per_cpu_s = seen["sent"] / (server.cpu_s() - before_s)
    yield Result(name="load/small_reports", value=seen["per_s"], unit="/s")
    yield Result(name="load/small_reports/per_cpu_second", value=per_cpu_s, unit="/s")
    yield Result(name="load/small_reports/p99", value=seen["p99_ms"], unit="ms", higher_is_better=False)


def _herd() -> Iterator[Result]:
    """Ten thousand devices in five seconds, all answered by a server that has just been started again."""
    requests = [check_in_of(f"device-{number}", number) for number in range(HERD)]
    with server_alone() as server:
        seen = load(server, requests, rate_per_s=HERD / HERD_S, seconds=HERD_S, connections=256)
    yield Result(name="load/herd_10000/p99", value=seen["p99_ms"], unit="ms", higher_is_better=False, gate=1000.0)


def _memory() -> Iterator[Result]:
    """Growth of the resident set from the first 200 000 devices to a million, all different."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_load"], stdout=subprocess.PIPE, text=True, check=True
    )
    seen = json.loads(done.stdout)
    yield Result(
        name="load/memory_growth_1M_devices",
        value=seen["growth_mb"],
        unit="MB",
        higher_is_better=False,
        gate=GATE_GROWTH_MB,
    )
    yield Result(name="load/selector_in_process", value=seen["per_s"], unit="/s")


def server_alone() -> "_Serving":
    """A server on a directory of its own, as long as the block."""
    return _Serving()


class _Serving:
    def __enter__(self) -> Served:
        self._directory = tempfile.TemporaryDirectory()
        # Not before the end: for five seconds, ext4 looks at each inode that was removed for every file that it
        # creates, and the next server's reports cost up to twice as much.
        atexit.register(self._directory.cleanup)
        self._served = served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=self._directory.name)
        return self._served.__enter__()

    def __exit__(self, *error: object) -> None:
        self._served.__exit__(None, None, None)


def attributes_of(kind: int) -> dict[str, object]:
    """What a device of this kind tells."""
    kind %= KINDS
    return {"ram_gb": 1 + kind % 12, "cpu_score": 1 + kind // 12 % 8, "android": 9 + kind % 5, "data": ["keyboard"]}


def check_in_of(device: str, kind: int) -> str:
    """A device's check-in, ready to be sent."""
    body = json.dumps({"device": device, "attributes": attributes_of(kind)}, separators=(",", ":"))
    return f"POST /v1/check-ins HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n{body}"


def report_of(task: dict[str, str]) -> str:
    """A small report on a task, ready to be sent."""
    # A model of zeros is ASCII, and the load generator takes text.
    return (
        f"PUT /v1/assignments/{task['assignment']}/report HTTP/1.1\r\nhost: bench\r\n"
        f"authorization: Bearer {task['token']}\r\ncontent-length: {len(_MODEL)}\r\n\r\n{_MODEL.decode('ascii')}"
    )


def open_jobs(url: str, jobs: int, requirements: int, demand: int) -> None:
    """Submit so many jobs with so many requirements, and open a round of each that counts."""
    digest = hashlib.sha256(_MODEL).hexdigest()
    with httpx.Client(base_url=url) as client:
        client.put(f"/v1/blobs/{digest}", content=_MODEL).raise_for_status()
        for number in range(max(jobs, requirements)):
            step = number % requirements
            requirement = f"device.ram_gb >= {step % 8} && device.cpu_score >= {step // 8}"
            spec = {"name": f"job {number}", "demand": max(1, demand // jobs), "requirement": requirement}
            job = client.post("/v1/jobs", json={"spec": spec}).raise_for_status().json()["id"]
            if number < jobs:
                client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest}).raise_for_status()


def load(
    server: Served,
    requests: list[str],
    *,
    rate_per_s: float = 0.0,
    seconds: float = SECONDS,
    connections: int = 32,
    once: bool = False,
) -> dict[str, float]:
    """Send requests, as fast as they are answered or at a rate, from the last core; what was seen."""
    orders = {
        "url": server.url,
        "requests": requests,
        "connections": connections,
        "seconds": seconds,
        "rate_per_s": rate_per_s,
        "once": once,
    }
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.http_load"],
        input=json.dumps(orders),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=on_core(-1),
    )
    seen: dict[str, float] = json.loads(result.stdout)
    if seen["errors"]:
        raise RuntimeError(f"{seen['errors']} requests were not answered with 200")
    return seen


async def _million() -> dict[str, float]:
    """A million devices check in once each, in process: how much memory grows after the first 200 000."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        blobs = DirectoryBlobs(root / "blobs", durable=False)
        coordinator = Coordinator(
            SqlLedger.at(root / "ledger.sqlite"), DataPlane(blobs, root / "spool"), get_policy("venn-sched"),
            policy="venn-sched",
        )  # fmt: skip
        await coordinator.start()
        selector = Selector(coordinator, Pacing(), random.Random(0))
        for number in range(8):
            await coordinator.submit(JobSpec(name=f"job {number}", demand=10, requirement=f"device.ram_gb >= {number}"))
        bodies = [msgspec.Raw(msgspec.json.encode(attributes_of(kind))) for kind in range(KINDS)]
        loop = asyncio.get_running_loop()
        before_mb, began_at = 0.0, loop.time()
        for number in range(MILLION):
            device = base64.b32encode(number.to_bytes(10, "big")).decode()
            selector.check_in(CheckInRequest(device=device, attributes=bodies[number % KINDS]))
            if number == WARM:
                before_mb, began_at = _rss_mb(), loop.time()
            if number % 1000 == 0:
                await asyncio.sleep(0)
        seen = {"growth_mb": _rss_mb() - before_mb, "per_s": (MILLION - WARM) / (loop.time() - began_at)}
        await coordinator.stop(1.0)
        return seen


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_million())))
