"""A simulated pool with leaves: trees of one to three of them, through whose links devices' reports reach the root.

It is the world of `vennue.testing.simulate` with more servers in it, each of which is killed, stopped and started again
by itself, and with devices that take another way to the pool whenever it pleases them, even between two tries of one
report. Every link drops, delays, repeats, replays, reorders and cuts off what passes.

Beside what the witness of any simulation checks, this one holds what servers say of reports against the aggregates, to
the letter: each report that somebody was told to count is in its round's aggregate, each that is in an aggregate is
acknowledged when its device asks for long enough, and one that anybody was told to be too late is in none.
"""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any, Final, cast

import httpx
import numpy as np

from vennue.control.branch import Flush
from vennue.control.distribution import Distribution
from vennue.control.leaf import Leaf
from vennue.core.errors import StorageError, Unavailable
from vennue.core.ids import AssignmentId
from vennue.server.config import Limits
from vennue.server.leaf import LeafApp
from vennue.server.upstream import HttpUpstream
from vennue.tensors.model import load
from vennue.testing.pool import URL, LocalPool
from vennue.testing.scenario import Chaos, ChaosKind, DevicePlan, JobPlan, Scenario
from vennue.testing.transport import FaultyTransport
from vennue.testing.witness import assignment_at
from vennue.testing.world import DOWN_S, Disk, History, World
from vennue.updates.cache import BlobCache

KEY: Final = "the key of all leaves of a test"
TREES: Final = (
    ("root",),
    ("root", "root"),
    ("root", 0),
    ("root", 0, 0),
)
"""Trees, as the place above of each leaf: the root, or an earlier leaf."""
ASKED_AGAIN: Final = 60
"""How often a device asks in the end what became of its report, at most, once a second."""

TIDY_S: Final = 60.0
"""After which a leaf that has started must have removed what it had spooled for rounds that are over."""


class LocalLeaf(LocalPool):
    """A leaf without a port, in virtual time: as a `LocalPool`, it is started, stopped, killed and asked."""

    def __init__(self, root: Path, up: httpx.AsyncBaseTransport, name: str, flush: Flush, *, seed: int) -> None:
        super().__init__(root, seed=seed)
        self.name = name
        self._up = up
        self._flush = flush

    @property
    def leaf(self) -> Leaf:
        """The running one, or the last one."""
        return cast(Leaf, self.coordinator)

    async def _assemble(self) -> None:
        blobs = self.blobs
        upstream = HttpUpstream(URL, KEY, BlobCache(blobs), transport=self._up)
        leaf = Leaf(upstream, blobs, self.spool, flush=self._flush, answer_s=5.0)
        upstream.pinned = leaf.models
        await leaf.start()
        self.coordinator = leaf  # type: ignore[assignment] # it is announced a stop, and stopped, in the same way
        self.app = LeafApp(leaf, upstream, Distribution(blobs), Limits(), "1", leaf_key=KEY)  # type: ignore[assignment]
        self.app.rng = self._rng
        self._watching = asyncio.get_running_loop().create_task(self.app.watch.run(), name="stalled bodies")


class Ways(httpx.AsyncBaseTransport):
    """Every caller's way to the pool: owners ask the root, devices ask whom they like. It notes what is answered."""

    def __init__(self, pool: LocalPool, leaves: list[LocalLeaf], seed: int) -> None:
        self.counted: dict[AssignmentId, str] = {}
        """Of which a server said that they count, and which one."""
        self.reports: dict[AssignmentId, httpx.Request] = {}
        """What a device sends to have its report counted."""
        self.refused: dict[AssignmentId, str] = {}
        """Of which a server said that they are too late."""
        self._pool = pool
        self._leaves = leaves
        self._rng = random.Random(f"ways {seed}")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        is_device_s = path.startswith(("/v1/check-ins", "/v1/assignments/", "/v1/blobs/")) and request.method != "HEAD"
        server = self._pool
        if is_device_s and not (path.startswith("/v1/blobs/") and request.method == "PUT"):
            server = self._rng.choice([*self._leaves, *self._leaves, self._pool])
        if not path.endswith("/report"):
            return await server.answer(request)
        name = AssignmentId(path.split("/")[3])
        if isinstance(request.stream, httpx.ByteStream):  # one that is not cut off
            self.reports[name] = request
        response = await server.answer(request)
        who = f"{getattr(server, 'name', 'the root')}: {response.status_code}"
        if response.status_code == 200:
            self.counted.setdefault(name, who)
        elif response.status_code == 409:
            self.refused.setdefault(name, who)
        return response


class Network(FaultyTransport):
    """The links of devices and owners, with those between servers, which heal together."""

    def __init__(self, ways: Ways, links: list[FaultyTransport], **options: Any) -> None:
        super().__init__(ways, **options)
        self._links = links

    def heal(self) -> None:
        super().heal()
        for link in self._links:
            link.heal()


class LeafWorld(World):
    """A world with leaves."""

    def __init__(self, plan: Scenario, root: Path, disk: Disk, history: History) -> None:
        super().__init__(plan, root / "root", disk, history)
        rng = random.Random(f"leaves {plan.seed}")
        self.leaves: list[LocalLeaf] = []
        links = []
        for number, above in enumerate(rng.choice(TREES)):
            upper = self.pool if above == "root" else self.leaves[cast(int, above)]
            link = FaultyTransport(upper.transport(), seed=rng.getrandbits(32), **plan.network)
            flush = Flush(
                reports=rng.randint(1, 4),
                bytes=2**30,
                age_s=rng.choice((0.0, 0.5, 5.0)),
                margin_s=rng.choice((0.0, 5.0)),
            )
            links.append(link)
            name = f"leaf {number}"
            self.leaves.append(LocalLeaf(root / name, link, name, flush, seed=rng.getrandbits(32)))
        self.ways = Ways(self.pool, self.leaves, plan.seed)
        self.network = Network(self.ways, links, seed=plan.seed, **plan.network)
        self.sums = self.starts = 0
        """Sums that leaves delivered, and starts of leaves."""
        self._ups = {leaf.name: asyncio.Event() for leaf in self.leaves}
        self._disk.crash = self._crash_whoever_writes

    async def _run(self, liveness_s: float) -> None:
        keeping = [self._help(self._keep(leaf), f"who keeps {leaf.name} running") for leaf in self.leaves]
        await super()._run(liveness_s)
        await self.pool.start()
        await self._ask_again()
        for task in keeping:
            task.cancel()
        await asyncio.wait(keeping)
        for leaf in self.leaves:  # which find out that all rounds are over, and keep nothing
            self.sums += leaf.leaf.counters.partials
            await leaf.stop()
            await leaf.restart()
        await asyncio.sleep(TIDY_S)
        for leaf in reversed(self.leaves):
            await leaf.stop()
        await self.pool.stop()

    async def _end(self, *tasks: "asyncio.Task[Any]") -> None:
        await super()._end(*tasks)
        for leaf in self.leaves:
            leaf.kill()
            await leaf.gone()

    async def _keep(self, leaf: LocalLeaf) -> None:
        rng = random.Random(f"keeper of {leaf.name} {self.plan.seed}")
        down = self._ups[leaf.name]
        while True:
            while not leaf.running:
                await leaf.gone()
                await asyncio.sleep(rng.uniform(*DOWN_S) if asyncio.get_running_loop().time() else 0.0)
                try:
                    await leaf.start()
                except (StorageError, Unavailable) as error:
                    self.note(f"{leaf.name}: does not start: {error}")
                    self._kill(leaf)
                else:
                    self.starts += 1
                    self.note(f"{leaf.name}: runs")
            down.clear()
            await down.wait()

    def _kill(self, leaf: LocalLeaf) -> None:
        if leaf.running:
            self.note(f"{leaf.name}: killed")
        leaf.kill()
        self._ups[leaf.name].set()

    def _crash_whoever_writes(self) -> None:
        for leaf in self.leaves:
            if leaf.is_current:
                self._kill(leaf)
                return
        self.crash()

    async def _happen(self, chaos: Chaos) -> None:
        kind: str = chaos.kind
        leaf = self.leaves[int(chaos.pick * len(self.leaves))]
        if kind == "kill a leaf":
            self._kill(leaf)
        elif kind == "stop a leaf":
            if leaf.running:
                try:
                    await leaf.stop()
                except Unavailable:
                    self.note(f"{leaf.name}: killed as it stopped")
                self._ups[leaf.name].set()
        else:
            await super()._happen(chaos)

    async def _ask_again(self) -> None:
        """Every device whose report is in an aggregate asks until it is told so, by somebody."""
        for name in sorted(self.held()):
            for _ in range(ASKED_AGAIN):
                with contextlib.suppress(httpx.ConnectError):  # a leaf that is not up again yet
                    response = await self.ways.handle_async_request(self.ways.reports[name])
                    if response.status_code == 200:
                        break
                await asyncio.sleep(1.0)

    def held(self) -> set[AssignmentId]:
        """The reports that are in aggregates."""
        found = set()
        for commit in self.kept.commits():
            marks = np.flatnonzero(load(self.pool.blobs.path(commit.result))["marks"])
            found |= {assignment_at(commit.attempt, int(place)) for place in marks}
        return found

    def complaints(self) -> list[str]:
        """What servers said of reports, and is not so."""
        held = self.held()
        found = []
        found += [
            f"{name} is in an aggregate, and was refused by {self.ways.refused[name]}"
            for name in held & set(self.ways.refused)
        ]
        found += [f"{name} is in an aggregate, and nobody says so" for name in held - set(self.ways.counted)]
        committed = {commit.attempt for commit in self.kept.commits()}
        for name, who in self.ways.counted.items():
            if name.rpartition(".")[0] in committed and name not in held:
                found.append(f"{name} counts, as was said by {who}, and is in no aggregate")
        return found

    def leftovers(self) -> list[str]:
        found = [*super().leftovers(), *self.complaints()]
        if not self.plan.disk_fail_rate:
            for leaf in self.leaves:
                found += [f"{path.name} is left in the spool of {leaf.name}" for path in leaf.spool.rglob("*.*e*")]
        return found


def leaf_scenario(seed: int) -> Scenario:
    """A short scenario, full of reports."""
    rng = random.Random(f"leaf scenario {seed}")
    devices = tuple(
        DevicePlan(name=f"d{number}", attributes={"ram_gb": 4}, private={}) for number in range(rng.randint(3, 6))
    )
    spec: dict[str, Any] = {
        "name": "job",
        "demand": rng.randint(2, len(devices)),
        "rounds": rng.randint(1, 3),
        "lease_s": rng.choice((20.0, 60.0)),
    }
    if rng.random() < 0.4:
        spec["deadline_s"] = rng.choice((40.0, 200.0))
    if rng.random() < 0.3:
        spec["overcommit"] = 1.5
    if rng.random() < 0.2:
        spec["min_reports"] = rng.randint(1, spec["demand"])
    badness = rng.choice((0.3, 1.0, 2.0))
    chaos_s = rng.uniform(20, 60)
    kinds = ("kill a leaf", "kill the server", "stop a leaf", "stop the server", "kill a device", "cut a device off")
    chaos = [
        Chaos(
            at_s=rng.uniform(0, chaos_s),
            kind=cast(ChaosKind, rng.choices(kinds, (5, 3, 2, 1, 1, 1))[0]),
            pick=rng.random(),
            for_s=rng.choice((0.1, 2.0, 20.0)),
        )
        for _ in range(rng.randint(0, round(5 * badness)))
    ]
    return Scenario(
        seed=seed,
        policy="fifo",
        settings={"leaf_key": KEY},
        jobs=(JobPlan(key="key 0", starts_at_s=0.0, spec=spec),),
        devices=devices,
        chaos_s=chaos_s,
        chaos=tuple(sorted(chaos, key=lambda one: one.at_s)),
        network={
            "drop": badness * rng.uniform(0, 0.1),
            "delay": rng.uniform(0.2, 1.0),
            "delay_s": (0.001, rng.choice((0.05, 0.5, 5.0))),
            "duplicate": badness * rng.uniform(0, 0.2),
            "replay": badness * rng.uniform(0, 0.2),
            "disconnect": badness * rng.uniform(0, 0.1),
        },
        ledger={"crash_rate": badness * rng.uniform(0, 0.05), "fail_rate": badness * rng.choice((0.0, 0.05))},
        disk_s=rng.choice((0.0, 0.01, 1.0)),
        disk_fail_rate=rng.choice((0.0, badness * rng.uniform(0, 0.05))),
        disk_crash_rate=badness * rng.uniform(0, 0.03),
        misbehaving=badness * rng.uniform(0, 0.1),
    )
