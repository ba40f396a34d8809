"""Asynchronous jobs whose server is killed at any moment: each report that is acknowledged is in one model update.

Every report adds a one at a place of its own, so each model update shows which reports are in it. At the end, as many
wait for the next one as were acknowledged and are in none.
"""

import asyncio
import contextlib
import functools
import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from vennue.core.errors import StorageError, Unavailable
from vennue.protocol import EXAMPLES_HEADER, IDEMPOTENCY_HEADER
from vennue.tensors.codecs import CONTENT_KEY
from vennue.tensors.model import load, save
from vennue.testing.ledgers import FaultyLedger, MemoryLedger
from vennue.testing.pool import URL, LocalPool
from vennue.testing.transport import FaultyTransport
from vennue.testing.virtual import VirtualLoop, run_virtual

SEEDS = 40
MORE_SEEDS = 160
REPORTS = 13
BUFFER = 2
DEVICES = 4
PLACES = 64
PATIENCE_S = 3600.0
SETTLING_S = 120


class Story:
    """One seed's pool, its devices, and what they are told."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"asynchronous {seed}")
        self.crash_rate = self.rng.choice((0.0, 0.02, 0.05))
        self.pool: LocalPool | None = None
        self.kills = 0
        self.tickets = REPORTS
        self.place = itertools.count()
        self.places: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        self.seed = seed

    def work_s(self) -> float:
        """How long the disk takes; it may be the last thing that the server does."""
        delay_s, dies, before = self.rng.uniform(0, 0.2), self.rng.random() < self.crash_rate, self.rng.random() < 0.5
        if dies:
            asyncio.get_running_loop().call_later(0.0 if before else delay_s + 1e-6, self.kill)
        return delay_s

    def kill(self) -> None:
        if self.pool is not None:
            self.kills += 1
            self.pool.kill()

    async def run(self, root: Path) -> None:
        kept = MemoryLedger()
        ledger = FaultyLedger(kept, crash=self.kill, crash_rate=self.crash_rate, fail_rate=0.02, seed=self.seed)
        self.pool = LocalPool(root, ledger=ledger, seed=self.seed, policy="fifo")
        network = FaultyTransport(
            self.pool.transport(), drop=0.05, delay=0.5, duplicate=0.1, replay=0.1, disconnect=0.05, seed=self.seed
        )
        keeper = asyncio.create_task(self.keep_running(self.pool))
        async with httpx.AsyncClient(base_url=URL, transport=network) as client, asyncio.timeout(PATIENCE_S):
            job = await self.submit(client, self.pool)
            await asyncio.gather(*(self.device(client, f"d{number}") for number in range(DEVICES)))
            models, waiting = await self.outcome(client, job)
        keeper.cancel()
        await asyncio.wait((keeper,))
        self.pool.kill()
        await self.pool.gone()
        self.check([load(self.pool.blobs.path(digest))["w"] for digest in models], waiting)

    async def outcome(self, client: httpx.AsyncClient, job: str) -> tuple[list[Any], int]:
        """The models of all updates, and how many reports wait, once nothing is left to be done."""
        models: list[Any] = []
        waiting = 0
        for _ in range(SETTLING_S):
            number, models, reports = 1, [], 0
            while (view := await asked(client, "GET", f"/v1/jobs/{job}/rounds/{number}"))["state"] == "committed":
                models.append(view["result"])
                reports += view["reported"]
                number += 1
            waiting = view["reported"]
            if reports + waiting >= REPORTS:
                break
            await asyncio.sleep(1.0)
        return models, waiting

    def check(self, models: list[Any], waiting: int) -> None:
        """Each model adds the mean of some reports, none of which was in an earlier one; none is lost."""
        earlier, counted = np.zeros(PLACES), set[int]()
        for model in models:
            places = set(np.flatnonzero(model != earlier).tolist())
            assert len(places) >= BUFFER
            assert counted.isdisjoint(places)
            np.testing.assert_allclose((model - earlier)[sorted(places)], 1 / len(places), rtol=1e-6)
            earlier, counted = model, counted | places
        assert self.acknowledged == set(self.places)
        assert counted <= set(self.places.values())
        assert len(counted) + waiting == REPORTS

    async def keep_running(self, pool: LocalPool) -> None:
        while True:
            if not pool.running:
                await asyncio.sleep(self.rng.uniform(0.1, 3.0))
                with contextlib.suppress(StorageError, Unavailable):
                    await pool.start()
                if not pool.running:
                    pool.kill()
                    await pool.gone()
            await asyncio.sleep(0.1)

    async def submit(self, client: httpx.AsyncClient, pool: LocalPool) -> str:
        spec = {"name": "job", "demand": DEVICES, "mode": "async", "buffer_size": BUFFER}
        spec |= {"weighting": "uniform", "lease_s": 600.0, "round_limit_s": 1e6}
        view = await asked(client, "POST", "/v1/jobs", json={"spec": spec}, headers={IDEMPOTENCY_HEADER: "key"})
        model = pool.blobs.put(save({"w": np.zeros(PLACES, np.float32)}))
        await asked(client, "POST", f"/v1/jobs/{view['id']}/rounds", json={"round": 1, "model": model})
        return str(view["id"])

    async def device(self, client: httpx.AsyncClient, name: str) -> None:
        while self.tickets:
            self.tickets -= 1
            task: dict[str, Any] | None = None
            while task is None:
                await asyncio.sleep(0.5)
                task = (await asked(client, "POST", "/v1/check-ins", json={"device": name})).get("task")
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            assignment = task["assignment"]
            place = self.places[assignment] = next(self.place)
            change = np.zeros(PLACES, np.float32)
            change[place] = 1.0
            answer = await asked(
                client, "PUT", f"/v1/assignments/{assignment}/report",
                headers={"Authorization": f"Bearer {task['token']}", EXAMPLES_HEADER: "1"},
                content=save({"w": change}, {CONTENT_KEY: "change"}),
            )  # fmt: skip
            if answer.get("status") == 409:
                del self.places[assignment]
                self.tickets += 1
            else:
                self.acknowledged.add(assignment)


async def asked(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Ask until there is an answer that does not say: come back."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            response = await client.request(method, path, **options)
            if response.status_code not in {429, 503}:
                answer: dict[str, Any] = response.json()
                return answer
        await asyncio.sleep(0.5)


def simulate(seed: int) -> None:
    story = Story(seed)

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="vennue-") as root:
            await story.run(Path(root))

    run_virtual(main(), functools.partial(VirtualLoop, work_s=story.work_s))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_an_asynchronous_job_acknowledges_is_in_its_model_once_whenever_the_server_dies(seed):
    simulate(seed)


@pytest.mark.slow_suite
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + MORE_SEEDS, 20))
def test_what_an_asynchronous_job_acknowledges_is_in_its_model_once_in_further_histories(first):
    for seed in range(first, first + 20):
        simulate(seed)
