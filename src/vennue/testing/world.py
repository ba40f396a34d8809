"""The world of a simulation: a pool, its owners and devices, the network between them, and what befalls each of them.

Everybody is a process of their own on one virtual loop, so each can be killed at any moment. What everybody does is
drawn from generators of their own, seeded by the scenario, and all that passes between them is noted in the history.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import httpx

from vennue.control.pacing import Pacing
from vennue.core.errors import (
    InvariantViolated,
    Overloaded,
    StorageError,
    Unavailable,
)
from vennue.core.ids import JobId
from vennue.sdk.job import AsyncJob
from vennue.sdk.transport import Timing
from vennue.testing.actors import PATIENCE, Line, Owner, SimulatedDevice
from vennue.testing.ledgers import FaultyLedger, MemoryLedger
from vennue.testing.pool import EPOCH_S, URL, LocalPool
from vennue.testing.scenario import POLICIES, Chaos, Scenario
from vennue.testing.transport import FaultyTransport
from vennue.testing.witness import Witness

PACING: Final = Pacing(short_s=2.0, busy_s=5.0, idle_s=30.0)
DOWN_S: Final = (0.1, 10.0)
"""How long a server that died stays away."""
HOUR_S: Final = 3600.0


class History:
    """What happened, line by line."""

    def __init__(self, *, print_it: bool = False) -> None:
        self.lines: list[str] = []
        self._print_it = print_it

    def note(self, text: str) -> None:
        """Something happened now."""
        line = f"{asyncio.get_running_loop().time():10.3f} {text}"
        self.lines.append(line)
        if self._print_it:
            print(line)  # noqa: T201 - asked for on the command line


class Disk:
    """The server's disk: slow, failing, and now and then the last thing that the server touched.

    Args:
        plan: how bad it is.
    """

    def __init__(self, plan: Scenario) -> None:
        self.crash: Callable[[], object] | None = None
        """Kills the server."""
        self._plan = plan
        self._rng = random.Random(f"disk {plan.seed}")
        self._is_healed = False

    def heal(self) -> None:
        """Nothing fails any more."""
        self._is_healed = True

    def work_s(self) -> float:
        """How long a piece of work takes.

        Raises:
            StorageError: it fails.
        """
        plan, rng = self._plan, self._rng
        delay_s = rng.uniform(0.0, plan.disk_s)
        crashes, fails, after = rng.random(), rng.random(), rng.random() < 0.5
        if self._is_healed:
            return delay_s
        if self.crash is not None and crashes < plan.disk_crash_rate:
            asyncio.get_running_loop().call_later(delay_s + 1e-6 if after else 0.0, self.crash)
        if fails < plan.disk_fail_rate:
            raise StorageError("cannot write: on purpose", field="path", fix="try again")
        return delay_s


class World:
    """A scenario in progress. It belongs to the virtual loop that runs.

    Args:
        plan: what is going to happen.
        root: an empty directory.
        disk: that of the loop.
        history: where it is noted.
    """

    def __init__(self, plan: Scenario, root: Path, disk: Disk, history: History) -> None:
        loop = asyncio.get_running_loop()
        self.plan = plan
        self.calm = False
        """Whether nothing goes wrong any more."""
        self.note = history.note
        self.witness = Witness()
        self.kept = MemoryLedger()
        """What the ledger holds, whatever goes wrong with it."""
        self.ledger = FaultyLedger(self.kept, crash=self.crash, seed=plan.seed, **plan.ledger)
        self.ledger.plan = dict(plan.ledger_faults)
        self._turned_s = self._frozen_s = 0.0
        self.pool = LocalPool(
            root,
            ledger=self.ledger,
            wall=lambda: EPOCH_S + loop.time() + self._turned_s,
            monotonic=lambda: loop.time() + self._frozen_s,
            seed=plan.seed,
            policy=plan.policy,
            pacing=PACING,
            **plan.settings,
        )
        self.network = FaultyTransport(self.pool.transport(), seed=plan.seed, **plan.network)
        self.owners = [Owner(self, job) for job in plan.jobs]
        self.devices = [SimulatedDevice(self, device, f"{plan.seed} {device.name}") for device in plan.devices]
        self.doubles: list[SimulatedDevice] = []
        self.meddled: set[JobId] = set()
        """Jobs that somebody else cancelled, or tried to."""
        self._rng = random.Random(f"world {plan.seed}")
        self._disk = disk
        self._disk.crash = self.crash
        self._down = asyncio.Event()
        self._broken = asyncio.Event()
        self._failures: list[str] = []
        self._helpers: list[asyncio.Task[None]] = []

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self, liveness_s: float) -> None:
        """Run to the end, and check what can be checked there.

        Raises:
            InvariantViolated: something was promised and not kept.
            TimeoutError: a job did not finish within ``liveness_s`` after the last misfortune.
        """
        course = asyncio.create_task(self._run(liveness_s), name="the course of things")
        broken = asyncio.create_task(self._broken.wait(), name="the first failure")
        try:
            await asyncio.wait((course, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(broken, course)
        if self._failures:
            raise InvariantViolated("; ".join(self._failures))
        course.result()

    async def _end(self, *tasks: "asyncio.Task[Any]") -> None:
        """Whatever has happened, nothing goes on."""
        for task in (*tasks, *self._helpers):
            task.cancel()
        await asyncio.wait((*tasks, *self._helpers))
        for actor in (*self.owners, *self.devices, *self.doubles):
            await actor.kill()
        self.pool.kill()
        await self.pool.gone()

    async def _run(self, liveness_s: float) -> None:
        keeping = self._help(self._keep_running(), "who keeps the server running")
        for actor in (*self.owners, *self.devices):
            actor.start()
        await self._misfortunes()
        self.note("-- nothing goes wrong any more")
        self.calm = True
        self.network.heal()
        self.ledger.heal()
        self._disk.heal()
        for actor in (*self.owners, *self.devices):
            await actor.restart()
        async with asyncio.timeout(liveness_s):
            for owner in self.owners:
                await owner.finished.wait()
            while not self.pool.running:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(1.0)
        for actor in (*self.owners, *self.devices):
            await actor.kill()
        keeping.cancel()
        await asyncio.wait((keeping,))
        await self.pool.stop()
        self.check()

    def _help(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        self._helpers.append(task)
        self.watch(task, name)
        return task

    def check(self) -> None:
        """Hold what was told against what is kept."""
        self.witness.check(self.kept, self.pool.blobs)

    def leftovers(self) -> list[str]:
        """What should be gone by now: tasks, reports in the spool, answers that tell of a defect."""
        me = asyncio.current_task()
        found = [f"{task} is left" for task in asyncio.all_tasks() if task is not me]
        if not self.plan.disk_fail_rate:  # what could not be removed is removed at the next start
            found += [f"{path.name} is left in the spool" for path in self.pool.spool.iterdir()]
        if self.pool.responses[500]:
            found.append(f"{self.pool.responses[500]} requests were answered with 500")
        return found

    def crash(self) -> None:
        """The server dies, now."""
        if self.pool.running:
            self.note("server: killed")
        self.pool.kill()
        self._down.set()

    def watch(self, task: "asyncio.Task[Any]", who: str) -> None:
        """Somebody's program must not end by an error."""

        def ended(done: "asyncio.Task[Any]") -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                self._failures.append(f"{who} ended with {type(error).__name__}: {error}")
                self.note(self._failures[-1])
                self._broken.set()

        task.add_done_callback(ended)

    async def _keep_running(self) -> None:
        self._down.set()
        while True:
            await self._down.wait()
            self._down.clear()
            while not self.pool.running:
                await self.pool.gone()
                await asyncio.sleep(self._rng.uniform(*DOWN_S) if asyncio.get_running_loop().time() else 0.0)
                try:
                    await self.pool.start()
                except (StorageError, Unavailable) as error:
                    self.note(f"server: does not start: {error}")
                    self.pool.kill()
            self.note("server: runs")
            self.check()

    # -- misfortunes ------------------------------------------------------------------------------------------------

    async def _misfortunes(self) -> None:
        loop = asyncio.get_running_loop()
        passing = []
        for chaos in self.plan.chaos:
            await asyncio.sleep(chaos.at_s - loop.time())
            self.note(f"-- {chaos.kind} ({chaos.pick:.3f}, {chaos.for_s:.1f} s)")
            passing.append(self._help(self._happen(chaos), f"the misfortune {chaos.kind!r}"))
        await asyncio.sleep(self.plan.chaos_s - loop.time())
        if passing:
            await asyncio.wait(passing)

    async def _happen(self, chaos: Chaos) -> None:
        device = self.devices[int(chaos.pick * len(self.devices))]
        owner = self.owners[int(chaos.pick * len(self.owners))]
        match chaos.kind:
            case "kill the server":
                self.crash()
            case "stop the server":
                await self._stop()
            case "break the ledger":
                usual, self.ledger.fail_rate = self.ledger.fail_rate, 1.0
                await asyncio.sleep(chaos.for_s)
                self.ledger.fail_rate = usual
            case "turn the wall's clock":
                self._turned_s += (chaos.pick - 0.5) * HOUR_S
            case "freeze the server":
                self._frozen_s += chaos.for_s
            case "kill a device":
                await device.kill()
                await asyncio.sleep(chaos.for_s)
                await device.restart()
            case "double a device":
                double = SimulatedDevice(
                    self, device.plan, f"{self.plan.seed} double of {device.plan.name} at {chaos.at_s}"
                )
                self.doubles.append(double)
                double.start()
                await asyncio.sleep(chaos.for_s)
                await double.kill()
            case "cut a device off":
                device.line.up = False
                await asyncio.sleep(chaos.for_s)
                device.line.up = True
            case "kill an owner":
                await owner.kill()
                await asyncio.sleep(chaos.for_s)
                await owner.restart()
            case "cancel a job":
                await self._cancel(owner)
            case "change the policy":
                await self._change_policy(POLICIES[int(chaos.pick * len(POLICIES))])

    async def _stop(self) -> None:
        if not self.pool.running:
            return
        try:
            await self.pool.stop()
        except Unavailable:
            self.note("server: killed as it stopped")
        self._down.set()

    async def _cancel(self, owner: Owner) -> None:
        if not owner.accepted.done():
            return
        name = owner.accepted.result()
        self.meddled.add(name)
        job = AsyncJob.attach(
            URL, name, transport=Line(self, "operator"), timing=self.timing("operator"), retry=PATIENCE
        )
        with contextlib.suppress(Unavailable, Overloaded):
            await job.cancel("on purpose")
            self.witness.ended(name, (await job.status()).state)

    async def _change_policy(self, policy: str) -> None:
        async with httpx.AsyncClient(base_url=URL, transport=Line(self, "operator")) as client:
            with contextlib.suppress(httpx.TransportError):
                await client.put("/v1/policy", json={"policy": policy})

    def timing(self, who: str) -> Timing:
        """The world's time, and chance of one's own."""
        return Timing(clock=asyncio.get_running_loop().time, rng=random.Random(f"timing {self.plan.seed} {who}"))
