"""SIGKILL at fifty random moments, a quarter of them while the server starts: nothing is lost that anybody was told.

Two jobs that run round after round, owners that submit one small job after the other, and devices whose updates are
random all use the SDK against a real server process. What each was told is written down by whoever was told it, and is
held against what the server says once it is left alone.
"""

import itertools
import random
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import vennue
from tests.e2e.calls import until
from tests.e2e.server_process import COMMAND, ServerProcess, environment
from tests.faults.test_kill_restart import SIZE, update_of
from vennue.sdk.retry import Retry
from vennue.tensors.model import load

KILLS = 50
DEVICES = 12
UNDISTURBED_S = 0.5
"""For how long at most a server that answers is left alone."""
PATIENT = Retry(attempts=100_000, first_s=0.05, most_s=0.2, total_s=300)
ZERO = {"w": np.zeros(SIZE, np.float32)}


class Told:
    """What owners and devices were told, by themselves."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        """Assignments whose reports were acknowledged."""
        self.late: list[str] = []
        """Assignments whose reports were refused as too late."""
        self.commits: dict[tuple[str, int], bytes] = {}
        """The aggregates that owners were given, by job and round."""
        self.accepted: dict[str, str] = {}
        """Submissions that were accepted: the job of each key."""
        self.failures: list[BaseException] = []


class World:
    """Everybody who uses the server, each in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.told = Told()
        self._url = url
        self._last_round = threading.Event()
        self._go_home = threading.Event()
        self._owners = [
            self._thread(self._owner, {"name": "plain", "demand": 5}),
            self._thread(self._owner, {"name": "scarce", "demand": 3, "requirement": "device.ram_gb >= 5"}),
            self._thread(self._small_jobs),
        ]
        self._devices = [self._thread(self._device, number) for number in range(DEVICES)]

    def end(self) -> None:
        """Have the owners finish their rounds, and then the devices go home."""
        self._last_round.set()
        for owner in self._owners:
            owner.join(120)
        self._go_home.set()
        for thread in (*self._owners, *self._devices):
            thread.join(120)
            assert not thread.is_alive()

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        def watched() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.told.failures.append(error)
                raise

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        return thread

    def _device(self, number: int) -> None:
        rng = random.Random(number)
        attributes = {"ram_gb": 2 + number % 8}
        with vennue.Device(self._url, device_id=f"d{number}", attributes=attributes, retry=PATIENT) as device:
            for task in device.tasks(stop=self._go_home):
                time.sleep(rng.uniform(0.0, 0.05))
                weights, examples = update_of(task.id)
                counted = task.report({"w": weights}, examples=examples)
                (self.told.counted if counted else self.told.late).append(task.id)

    def _owner(self, spec: dict[str, Any]) -> None:
        with vennue.Job(self._url, key=spec["name"], retry=PATIENT, **spec) as job:
            self.told.accepted[spec["name"]] = job.id
            model: dict[str, Any] = ZERO
            for turn in job.rounds():
                model = turn.run(model)
                self.told.commits[job.id, turn.number] = model["w"].tobytes()
                if self._last_round.is_set():
                    return

    def _small_jobs(self) -> None:
        for number in itertools.count():
            if self._last_round.is_set():
                return
            key = f"small-{number}"
            with vennue.Job(self._url, name=key, key=key, demand=1, rounds=1, retry=PATIENT) as job:
                self.told.accepted[key] = job.id
                for turn in job.rounds():
                    self.told.commits[job.id, turn.number] = turn.run(ZERO)["w"].tobytes()


def kill_while_it_starts(data_dir: Path, port: int, after_s: float) -> None:
    process = subprocess.Popen(
        COMMAND, env=environment(data_dir, port=port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(after_s)
    process.kill()
    process.wait()


@pytest.mark.slow_suite
@pytest.mark.timeout(900)
def test_nothing_that_was_told_is_lost_by_fifty_kills_at_random_moments(tmp_path):
    rng = random.Random(2012)
    data_dir = tmp_path / "data"
    with ServerProcess(data_dir) as server:
        port, world = server.port, World(server.url)
        time.sleep(UNDISTURBED_S)
        server.kill()
    start_s = 1.0
    for _ in range(KILLS - 1):
        if rng.random() < 0.25:
            kill_while_it_starts(data_dir, port, rng.uniform(0.0, start_s))
            continue
        began = time.monotonic()
        with ServerProcess(data_dir, port=port) as server:
            start_s = time.monotonic() - began
            time.sleep(rng.uniform(0.0, UNDISTURBED_S))
            server.kill()
    with ServerProcess(data_dir, port=port) as server, server.client() as client:
        until(lambda: len(world.told.commits) > KILLS)
        world.end()
        assert world.told.failures == []
        check(client, world.told)
        assert server.stop() == 0, server.log


def check(client: httpx.Client, told: Told) -> None:
    """What the server keeps is what everybody was told, and each aggregate is the mean of the acknowledged reports."""
    by_attempt: dict[str, list[str]] = defaultdict(list)
    for assignment in told.counted:
        by_attempt[assignment.rpartition(".")[0]].append(assignment)
    assert len(set(told.counted)) == len(told.counted)
    jobs = listed(client)
    assert {job["spec"]["name"]: job["id"] for job in jobs} == told.accepted
    assert len(jobs) == len(told.accepted)
    assert {job["state"] for job in jobs} == {"completed"}
    assert {(job["id"], number) for job in jobs for number in range(1, job["committed_rounds"] + 1)} == set(
        told.commits
    )
    assert len(told.commits) > KILLS
    for (job, number), aggregate in told.commits.items():
        view = client.get(f"/v1/jobs/{job}/rounds/{number}").json()
        reports = by_attempt.pop(f"{job}.{number}.{view['attempt']}")
        assert (view["state"], view["reported"]) == ("committed", len(reports))
        # One that lost its place as the server died counts, too: nobody can tell any more which were acknowledged.
        assert len(reports) >= view["demand"]
        updates, examples = zip(*map(update_of, reports), strict=True)
        assert view["weight"] == sum(examples)
        assert load(client.get(f"/v1/blobs/{view['result']}").content)["w"].tobytes() == aggregate
        expected = np.average(np.array(updates, np.float64), axis=0, weights=examples)
        np.testing.assert_allclose(np.frombuffer(aggregate, np.float32), expected, rtol=1e-5, atol=1e-6)
    assert by_attempt == {}  # no report was acknowledged and then left out


def listed(client: httpx.Client) -> list[dict[str, Any]]:
    """All jobs, page by page."""
    jobs: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/v1/jobs", params={"limit": 500, **after}).json()
        jobs += page["jobs"]
        if page["next"] is None:
            return jobs
        after = {"after": page["next"]}
