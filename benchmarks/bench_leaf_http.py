"""Reports through a leaf: what they cost it, and what their sums cost the root, beside reports to the root itself.

Root and leaf share one core, the devices have the other. As devices do, each has a connection of its own, and waits
until the root has counted its report.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np

from benchmarks.bench_report_http import report_head, send_all
from benchmarks.harness import Result
from benchmarks.http_server import Served, served
from vennue.tensors.model import save

DEVICES = 200
MODEL_MB = 1
ROUNDS = 4
"""The first one creates files that the others write over; figures are of the others."""
KEY = "the key of leaves that are measured"


def bench_leaf_http() -> Iterator[Result]:
    """Rounds of 200 reports of 1 MB, to the root itself, and to a leaf."""
    model = save({"w": np.random.default_rng(0).normal(size=MODEL_MB * 250_000).astype(np.float32)})
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"VENNUE_PORT": "0", "VENNUE_LEAF_KEY": KEY}
        root = stack.enter_context(served("vennue.server", VENNUE_DATA_DIR=str(data / "root"), **settings))
        settings |= {"VENNUE_ROLE": "leaf", "VENNUE_ROOT": root.url}
        leaf = stack.enter_context(served("vennue.server", VENNUE_DATA_DIR=str(data / "leaf"), **settings))
        [direct_s] = _spent_s([root], root, model)
        root_s, leaf_s = _spent_s([root, leaf], leaf, model)
        sums = _sums(root)
    reports = (ROUNDS - 1) * DEVICES
    yield Result(name="leaf_http/leaf_per_cpu_second", value=reports * len(model) / 1e6 / leaf_s, unit="MB/s")
    yield Result(
        name="leaf_http/root_per_report",
        value=1e3 * root_s / reports,
        unit="ms",
        higher_is_better=False,
        baseline=1e3 * direct_s / reports,
        ratio_gate=0.1,
    )
    yield Result(name="leaf_http/reports_per_sum", value=ROUNDS * DEVICES / sums, unit="reports")


def _spent_s(servers: list[Served], door: Served, model: bytes) -> list[float]:
    """The processor time that a job's reports to one of the servers, and its commits, have cost each; in seconds."""
    root = servers[0]
    digest = hashlib.sha256(model).hexdigest()
    spent_s = [0.0] * len(servers)
    with httpx.Client(base_url=root.url, timeout=120) as client:
        client.put(f"/v1/blobs/{digest}", content=model).raise_for_status()
        spec = {"name": "bench", "demand": DEVICES, "rounds": ROUNDS}
        job = client.post("/v1/jobs", json={"spec": spec}).raise_for_status().json()["id"]
        for number in range(1, ROUNDS + 1):
            client.post(f"/v1/jobs/{job}/rounds", json={"round": number, "model": digest}).raise_for_status()
            tasks = [client.post("/v1/check-ins", json={"device": f"d{n}"}).json()["task"] for n in range(DEVICES)]
            before_s = [server.cpu_s() for server in servers]
            send_all(door.url, [report_head(task, model) for task in tasks], model, connections=DEVICES)
            view = client.get(f"/v1/jobs/{job}/rounds/{number}", params={"wait": 60}).raise_for_status().json()
            if (view["state"], view["reported"]) != ("committed", DEVICES):
                raise RuntimeError(f"the round is {view['state']} with {view['reported']} of {DEVICES} reports")
            if number > 1:
                after_s = [server.cpu_s() for server in servers]
                spent_s = [sum(each) for each in zip(spent_s, after_s, (-one for one in before_s), strict=True)]
    return spent_s


def _sums(root: Served) -> float:
    """How many leaves' sums the root has counted."""
    lines = httpx.get(f"{root.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("vennue_partials_total "))
