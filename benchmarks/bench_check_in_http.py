"""Check-ins over HTTP on loopback, all checks on, against a raw handler's echo of the same requests in the same run.

The server has one core, the load generator the other: 64 jobs with 8 overlapping requirements, 60 000 devices of 64
kinds, about half of whose check-ins are answered with a task (token and all) and half with when to come back. A
machine with a single core measures both on it, which is less than either alone could do.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import httpx
import numpy as np

from benchmarks.harness import Result
from benchmarks.http_server import Served, on_core, served
from vennue.tensors.model import save

CONNECTIONS = 32
SECONDS = 4.0
DEVICES = 60_000
JOBS = 64
DEMAND = 480
"""Per job: half of the devices, together."""
GATE_PER_S = 10_000
GATE_RATIO = 0.6
GATE_P99_MS = 10.0


def bench_check_in_http() -> Iterator[Result]:
    """Check-ins per second on one core, and their latency at half of that load."""
    requests = [_request(f"device-{number}", number) for number in range(DEVICES)]
    with tempfile.TemporaryDirectory() as data_dir:
        with served("benchmarks.http_server") as server:
            echo = _load(server, requests)
        with served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=data_dir) as server:
            _open_rounds(server.url)
            full = _load(server, requests)
            half = _load(server, requests, rate_per_s=full["per_s"] / 2)
    print(f"  {full['tasks']:.0%} were given a task; the echo ran at {echo['per_s']:.0f}/s")
    yield Result(
        name="check_in_http",
        value=full["per_s"],
        unit="/s",
        gate=GATE_PER_S,
        baseline=echo["per_s"],
        ratio_gate=GATE_RATIO,
    )
    # On a machine that others use too, this is what one core to itself could do.
    yield Result(
        name="check_in_http/per_cpu_second",
        value=full["per_cpu_s"],
        unit="/s",
        gate=GATE_PER_S,
        baseline=echo["per_cpu_s"],
    )
    yield Result(name="check_in_http/p50_half_load", value=half["p50_ms"], unit="ms", higher_is_better=False)
    yield Result(
        name="check_in_http/p99_half_load", value=half["p99_ms"], unit="ms", higher_is_better=False, gate=GATE_P99_MS
    )


def _request(device: str, kind: int) -> str:
    attributes = {
        "ram_gb": 2 + kind % 8,
        "cpu_score": 20.5 + kind % 64,
        "android": 8 + kind % 5,
        "network": "wifi",
        "charging": True,
        "data": ["keyboard"],
    }
    body = json.dumps({"device": device, "attributes": attributes}, separators=(",", ":"))
    head = (
        f"POST /v1/check-ins HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    return f"{head}\r\n\r\n{body}"


def _open_rounds(url: str) -> None:
    model = save({"w": np.zeros(16, np.float32)})
    digest = hashlib.sha256(model).hexdigest()
    with httpx.Client(base_url=url) as client:
        client.put(f"/v1/blobs/{digest}", content=model).raise_for_status()
        for number in range(JOBS):
            requirement = f"device.ram_gb >= {2 + number % 4} && device.cpu_score >= {20 * (number % 2)}"
            spec = {"name": f"job {number}", "demand": DEMAND, "requirement": requirement}
            job = client.post("/v1/jobs", json={"spec": spec}).raise_for_status().json()["id"]
            client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest}).raise_for_status()


def _load(server: Served, requests: list[str], *, rate_per_s: float = 0.0) -> dict[str, float]:
    orders = {
        "url": server.url,
        "requests": requests,
        "connections": CONNECTIONS,
        "seconds": SECONDS,
        "rate_per_s": rate_per_s,
    }
    before_s = server.cpu_s()
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
    seen["per_cpu_s"] = seen["sent"] / (server.cpu_s() - before_s)
    return seen
