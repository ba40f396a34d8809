"""SIGKILL of a real root and a real leaf at random moments, while devices report through both of them.

Twenty rounds, one kill at least in each: of the leaf, of the root, or of both. Devices do with their reports what bad
networks do: they cut uploads off in the middle, send them twice at once, send them again to the other server, and send
old ones of earlier rounds once more. Each asks until it is told whether its report counts. Then every aggregate must be
the weighted mean of precisely the acknowledged reports, computed anew with `math.fsum`.
"""

import contextlib
import json
import math
import random
import socket
import threading
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

import vennue
from tests.e2e.server_process import ServerProcess
from vennue.protocol import EXAMPLES_HEADER, METRICS_HEADER
from vennue.sdk.retry import Retry
from vennue.tensors.model import load, save

SEED = 3
DEVICES = 9
DEMAND = 6
ROUNDS = 20
SIZE = 5_000
KEY = "a secret of thirty-two letters.."
PERSISTENT = Retry(attempts=10_000, first_s=0.05, most_s=0.2, total_s=300)


def report_of(assignment: str) -> tuple[np.ndarray, int]:
    """What the device that holds this assignment reports: its numbers and how many examples they stand for."""
    rng = np.random.default_rng(zlib.crc32(assignment.encode()))
    return rng.normal(size=SIZE).astype(np.float32), int(rng.integers(1, 1000))


class Pool:
    """A root and a leaf, each of which is killed and started again under its address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {"root": 0, "leaf": 0}
        self._running: dict[str, ServerProcess] = {}

    def __enter__(self) -> Self:
        self._start("root")
        self._start("leaf")
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._running.values():
            server.kill()

    def url(self, role: str) -> str:
        return f"http://127.0.0.1:{self._ports[role]}"

    def kill(self, *roles: str) -> None:
        """End them at once, and start them again."""
        for role in roles:
            self._running.pop(role).kill()
        for role in roles:
            self._start(role)

    def stop(self) -> list[int]:
        """Their exit codes after an orderly end, the leaf's first."""
        return [self._running.pop(role).stop() for role in ("leaf", "root")]

    def _start(self, role: str) -> None:
        settings: dict[str, Any] = {"leaf_key": KEY, "durable_blobs": "0"}
        if role == "leaf":
            settings |= {"role": "leaf", "root": self.url("root"), "leaf_flush_s": "0.05", "leaf_answer_s": "2"}
        server = self._running[role] = ServerProcess(self._directory / role, port=self._ports[role], **settings)
        server.__enter__()
        self._ports[role] = server.port


class Device(threading.Thread):
    """Takes tasks and reports, by all the ways that there are; notes what it is told in the end."""

    def __init__(self, pool: Pool, number: int, acknowledged: list[str], over: threading.Event) -> None:
        super().__init__(name=f"d{number}", daemon=True)
        self.failure: BaseException | None = None
        self.refused: list[str] = []
        self._pool = pool
        self._rng = random.Random(f"{SEED} {number}")
        self._acknowledged = acknowledged
        self._over = over
        self._earlier: list[tuple[str, dict[str, str], bytes]] = []

    def run(self) -> None:
        try:
            with httpx.Client(timeout=30) as client:
                while not self._over.is_set():
                    task = self._check_in(client)
                    if task is None:
                        self._over.wait(0.02)
                    else:
                        self._report(client, task)
        except BaseException as error:
            self.failure = error
            raise

    def _check_in(self, client: httpx.Client) -> dict[str, Any] | None:
        with contextlib.suppress(httpx.TransportError):
            answer = client.post(f"{self._somewhere()}/v1/check-ins", json={"device": self.name})
            if answer.status_code == 200:
                task: dict[str, Any] | None = answer.json().get("task")
                return task
        return None

    def _report(self, client: httpx.Client, task: dict[str, Any]) -> None:
        weights, examples = report_of(task["assignment"])
        path = f"/v1/assignments/{task['assignment']}/report"
        headers = {
            "authorization": f"Bearer {task['token']}",
            EXAMPLES_HEADER: str(examples),
            METRICS_HEADER: json.dumps({"loss": float(examples % 7)}),
        }
        body = save({"w": weights})
        while True:
            with contextlib.suppress(httpx.TransportError, OSError):
                self._misbehave(client, path, headers, body)
                answer = client.put(f"{self._somewhere()}{path}", headers=headers, content=body)
                if answer.status_code == 200:
                    self._acknowledged.append(task["assignment"])
                    break
                if answer.status_code == 409:
                    self.refused.append(task["assignment"])
                    break
                assert answer.status_code in {429, 503, 507}, answer.text
            # Even when all is over: the report may count, and nobody would know.
            time.sleep(0.05)
        self._earlier.append((path, headers, body))

    def _misbehave(self, client: httpx.Client, path: str, headers: dict[str, str], body: bytes) -> None:
        match self._rng.choice(("nothing", "nothing", "cut off", "twice at once", "an old one")):
            case "cut off":
                self._half_sent(path, headers, body).close()
            case "twice at once":
                # Not waited for: it is on its way while the other one is.
                half = self._half_sent(path, headers, body)
                half.sendall(body[len(body) // 2 :])
                threading.Timer(0.5, half.close).start()
            case "an old one" if self._earlier:
                old_path, old_headers, old_body = self._rng.choice(self._earlier)
                client.put(f"{self._somewhere()}{old_path}", headers=old_headers, content=old_body)

    def _half_sent(self, path: str, headers: dict[str, str], body: bytes) -> socket.socket:
        at = urlsplit(self._somewhere())
        connection = socket.create_connection((at.hostname, at.port), timeout=30)
        lines = [f"PUT {path} HTTP/1.1", "host: test", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body[: len(body) // 2])
        return connection

    def _somewhere(self) -> str:
        return self._pool.url(self._rng.choice(("leaf", "leaf", "root")))


def run_job(url: str, result: dict[str, Any], go_on: threading.Semaphore) -> None:
    """A job each of whose rounds begins when it may."""
    try:
        with vennue.Job(url, name="mean", demand=DEMAND, rounds=ROUNDS, lease_s=300, retry=PERSISTENT) as job:
            result["id"] = job.id
            model = {"w": np.zeros(SIZE, np.float32)}
            for each in job.rounds():
                go_on.acquire()
                model = each.run(model)
                result["rounds"] = each.number
    except BaseException as error:
        result["error"] = error
        raise


@pytest.mark.slow_suite
@pytest.mark.timeout(600)
def test_aggregates_are_what_was_acknowledged_though_root_and_leaf_are_killed_in_every_round(tmp_path):
    rng = random.Random(SEED)
    acknowledged: list[str] = []
    over = threading.Event()
    result: dict[str, Any] = {"rounds": 0}
    with Pool(tmp_path) as pool:
        go_on = threading.Semaphore(0)
        job = threading.Thread(target=run_job, args=(pool.url("root"), result, go_on))
        devices = [Device(pool, number, acknowledged, over) for number in range(DEVICES)]
        for thread in (job, *devices):
            thread.start()
        try:
            for number in range(1, ROUNDS + 1):
                go_on.release()
                enough = len(acknowledged) + rng.randint(0, DEMAND)
                while job.is_alive() and result["rounds"] < number and len(acknowledged) < enough:
                    job.join(0.002)
                job.join(rng.uniform(0.0, 0.02))
                pool.kill(*rng.choice((("leaf",), ("root",), ("leaf", "root"))))
                while job.is_alive() and result["rounds"] < number:
                    job.join(0.01)
            over.set()
            for device in devices:
                device.join(120)
                assert (device.failure, device.is_alive()) == (None, False)
            assert result["rounds"] == ROUNDS, result
            with httpx.Client(base_url=pool.url("root"), timeout=60) as client:
                check(client, result["id"], acknowledged)
            assert pool.stop() == [0, 0]
        finally:
            over.set()


def check(client: httpx.Client, job: str, acknowledged: list[str]) -> None:
    """Every round is the weighted mean of precisely what was acknowledged in its attempt."""
    by_attempt: dict[str, list[str]] = defaultdict(list)
    for assignment in acknowledged:
        by_attempt[assignment.rpartition(".")[0]].append(assignment)
    for number in range(1, ROUNDS + 1):
        view = client.get(f"/v1/jobs/{job}/rounds/{number}").json()
        reports = sorted(by_attempt[f"{job}.{number}.{view['attempt']}"])
        assert (view["state"], view["reported"]) == ("committed", len(reports))
        assert len(set(reports)) == len(reports)
        updates, examples = zip(*map(report_of, reports), strict=True)
        assert view["weight"] == sum(examples)
        wide = [update.astype(np.float64) * weight for update, weight in zip(updates, examples, strict=True)]
        exact = [math.fsum(column) / sum(examples) for column in np.transpose(wide)[:200]]
        actual = load(client.get(f"/v1/blobs/{view['result']}").content)["w"]
        np.testing.assert_allclose(actual[:200], exact, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(actual, np.sum(wide, axis=0) / sum(examples), rtol=1e-5, atol=1e-6)
        losses = [float(weight % 7) * weight for weight in examples]
        assert view["metrics"]["loss"] == pytest.approx(math.fsum(losses) / sum(examples))
