"""SIGKILL in the middle of a round: after a restart every job finishes, and every aggregate is exactly its reports.

Two jobs share twenty devices that use the SDK against a real server process. Every update is random, and every
acknowledgement is written down by the device that got it; from these the aggregates are computed again.
"""

import threading
import zlib
from collections import defaultdict
from typing import Self

import httpx
import numpy as np
import pytest

import vennue
from tests.e2e.server_process import ServerProcess
from vennue.sdk.retry import Retry

DEVICES = 20
ROUNDS = 3
SIZE = 500
PERSISTENT = Retry(attempts=100_000, first_s=0.05, most_s=0.2, total_s=300)


def update_of(assignment: str) -> tuple[np.ndarray, int]:
    """What the device that holds this assignment reports: its numbers and how many examples they stand for."""
    rng = np.random.default_rng(zlib.crc32(assignment.encode()))
    return rng.normal(size=SIZE).astype(np.float32), int(rng.integers(1, 1000))


class Fleet:
    """Devices that train at once, until ``hold_after`` reports are acknowledged; then they wait for ``go_on``."""

    def __init__(self, url: str, hold_after: int) -> None:
        self.acknowledged: list[str] = []
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.failures: list[BaseException] = []
        self._hold_after = hold_after
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(url, number), daemon=True) for number in range(DEVICES)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self.go_on.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, url: str, number: int) -> None:
        try:
            attributes = {"ram_gb": 2 + number % 8}
            with vennue.Device(url, device_id=f"d{number}", attributes=attributes, retry=PERSISTENT) as device:
                for task in device.tasks(stop=self._stop):
                    self._train(task)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _train(self, task: vennue.Task) -> None:
        weights, examples = update_of(task.id)
        with self._lock:
            # One report at a time up to the hold, so that the kill falls where the test wants it.
            if len(self.acknowledged) < self._hold_after:
                self._report(task, weights, examples)
                return
            self.held.set()
        self.go_on.wait()
        self._report(task, weights, examples)

    def _report(self, task: vennue.Task, weights: np.ndarray, examples: int) -> None:
        if task.report({"w": weights}, examples=examples):
            self.acknowledged.append(task.id)


def run_job(url: str, results: dict[str, str], **spec: object) -> None:
    """A job of a few rounds; notes its id, or what went wrong."""
    name = str(spec["name"])
    try:
        with vennue.Job(url, rounds=ROUNDS, retry=PERSISTENT, **spec) as job:  # type: ignore[arg-type]  # varies by job
            model = {"w": np.zeros(SIZE, np.float32)}
            for each in job.rounds():
                model = each.run(model)
            results[name] = job.id
    except BaseException as error:
        results[name] = repr(error)
        raise


@pytest.mark.parametrize("hold_after", [4, 17], ids=["in the first round", "in a later round"])
def test_after_a_kill_both_jobs_finish_and_aggregates_equal_the_acknowledged_reports(tmp_path, hold_after):
    results: dict[str, str] = {}
    with ServerProcess(tmp_path / "data") as server:
        url, port = server.url, server.port
        jobs = [
            threading.Thread(target=run_job, args=(url, results), kwargs=spec, daemon=True)
            for spec in (
                {"name": "plain", "demand": 7},
                {"name": "scarce", "demand": 5, "requirement": "device.ram_gb >= 5"},
            )
        ]
        for job in jobs:
            job.start()
        with Fleet(url, hold_after) as fleet:
            assert fleet.held.wait(100)
            server.kill()
            before = list(fleet.acknowledged)
            assert len(before) == hold_after
            with ServerProcess(tmp_path / "data", port=port) as restarted, restarted.client() as client:
                fleet.go_on.set()
                for job in jobs:
                    job.join()
                check(client, results, fleet.acknowledged)
                # No round was tried again: the kill cost nothing that was acknowledged.
                assert attempts_of(client, results) == 2 * ROUNDS
                fleet._stop.set()
                for thread in fleet._threads:
                    thread.join()
                assert restarted.stop() == 0, restarted.log
        assert fleet.failures == []


def check(client: httpx.Client, results: dict[str, str], acknowledged: list[str]) -> None:
    """Every round of both jobs is committed, and is the weighted mean of what was acknowledged in its attempt."""
    by_attempt: dict[str, list[str]] = defaultdict(list)
    for assignment in acknowledged:
        by_attempt[assignment.rpartition(".")[0]].append(assignment)
    assert sorted(results) == ["plain", "scarce"]
    for name, demand in (("plain", 7), ("scarce", 5)):
        job = client.get(f"/v1/jobs/{results[name]}").json()
        assert (job["state"], job["committed_rounds"]) == ("completed", ROUNDS), results
        for number in range(1, ROUNDS + 1):
            view = client.get(f"/v1/jobs/{job['id']}/rounds/{number}").json()
            reports = by_attempt[f"{job['id']}.{number}.{view['attempt']}"]
            assert (view["state"], view["reported"]) == ("committed", len(reports))
            assert len(reports) >= demand  # one that lost its place as the server died counts, too
            updates, examples = zip(*map(update_of, reports), strict=True)
            expected = np.average(np.array(updates, np.float64), axis=0, weights=examples)
            blob = client.get(f"/v1/blobs/{view['result']}").content
            actual = np.frombuffer(blob[-4 * SIZE :], np.float32)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
            assert view["weight"] == sum(examples)


def attempts_of(client: httpx.Client, results: dict[str, str]) -> int:
    """How many attempts all rounds of both jobs took."""
    views = [
        client.get(f"/v1/jobs/{id}/rounds/{number}").json()
        for id in results.values()
        for number in range(1, ROUNDS + 1)
    ]
    return sum(view["attempt"] for view in views)
