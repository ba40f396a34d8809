"""Who lives in a simulated world: owners and devices, whose programs are killed and started again at any moment."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import httpx
import msgspec
import numpy as np

from vennue.core.errors import (
    Conflict,
    InvalidUpdate,
    JobEnded,
    Overloaded,
    Unavailable,
)
from vennue.core.ids import JobId
from vennue.core.job import After, JobSpec
from vennue.protocol import IDEMPOTENCY_HEADER, JobView, Managed, SubmitRequest
from vennue.sdk import models
from vennue.sdk.device import AsyncDevice, AsyncTask
from vennue.sdk.job import AsyncJob
from vennue.sdk.retry import Retry
from vennue.sdk.transport import AsyncioTransport
from vennue.sdk.wire import Wire
from vennue.testing.pool import URL
from vennue.testing.scenario import DevicePlan, JobPlan
from vennue.testing.virtual import Process, current_process
from vennue.testing.witness import first_model, report_of

if TYPE_CHECKING:
    from vennue.testing.world import World

PATIENCE: Final = Retry(total_s=60.0, most_s=5.0)


class Line(httpx.AsyncBaseTransport):
    """Somebody's way to the network, dead with its owner's process."""

    def __init__(self, world: "World", who: str) -> None:
        self.up = True
        self._world = world
        self._who = who

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        process = current_process()
        if process is not None and not process.alive:
            # Not a ConnectError: the SDK would try again, and there is nobody left to do so.
            raise httpx.LocalProtocolError(f"{process.name} was killed", request=request)
        call = f"{self._who}: {request.method} {request.url.raw_path.decode()}"
        try:
            if not self.up:
                raise httpx.ConnectError("cut off on purpose", request=request)
            response = await self._world.network.handle_async_request(request)
        except httpx.TransportError as error:
            self._world.note(f"{call} → {type(error).__name__}")
            raise
        self._world.note(f"{call} → {response.status_code}")
        return response


class Actor:
    """Somebody whose program is started, killed and started again."""

    def __init__(self, world: "World", who: str) -> None:
        self.world = world
        self.who = who
        self.line = Line(world, who)
        self._process: Process | None = None
        self._starts = 0

    def start(self) -> None:
        """Begin its program, in a process of its own."""
        self._starts += 1
        self._process = Process(self.who)
        self.world.watch(self._process.spawn(self.live(), self.who), self.who)

    async def kill(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            self.world.note(f"{self.who}: killed")
            process.kill()
            await process.gone()

    async def restart(self) -> None:
        """End it, and begin it again."""
        await self.kill()
        self.start()

    def live(self) -> Coroutine[Any, Any, None]:
        """The program."""
        raise NotImplementedError


class Owner(Actor):
    """The owner of a job: runs its rounds, comes back by the job's key, and notes what it is told."""

    def __init__(self, world: "World", plan: JobPlan) -> None:
        super().__init__(world, f"owner of {plan.key}")
        self.plan = plan
        self.accepted: asyncio.Future[JobId] = asyncio.get_running_loop().create_future()
        self.finished = asyncio.Event()

    async def live(self) -> None:
        if self.finished.is_set():
            return
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self.plan.starts_at_s - loop.time()))
        fields = dict(self.plan.spec)
        if self.plan.after:
            fields["after"] = [await self._predecessor(place, when) for place, when in self.plan.after]
        while not self.finished.is_set():
            try:
                await (self._hand_over(fields) if self.plan.is_managed else self._drive(fields))
            except (Unavailable, Overloaded) as error:
                self.world.note(f"{self.who}: {error.message}")
                await asyncio.sleep(1.0)

    async def _predecessor(self, place: int, when: Any) -> After:
        earlier = self.world.owners[place]
        return After(job=await asyncio.shield(earlier.accepted), when=when)

    async def _drive(self, fields: dict[str, Any]) -> None:
        witness, key = self.world.witness, self.plan.key
        timing = self.world.timing(f"{self.who} {self._starts}")
        job = AsyncJob(URL, key=key, transport=self.line, timing=timing, retry=PATIENCE, **fields)
        try:
            async with job:
                self._was_accepted(job.id)
                model: dict[str, Any] = dict(first_model(key))
                async with contextlib.aclosing(job.rounds()) as rounds:  # type: ignore[type-var] # it is a generator
                    async for turn in rounds:
                        model = await turn.run(model)
                        assert turn.view is not None
                        assert turn.view.result is not None
                        witness.committed(job.id, turn.number, turn.view.result, model)
        except JobEnded:
            self._was_accepted(job.id)
        except Conflict:
            self._was_refused()
            return
        witness.ended(job.id, (await job.status()).state)
        self._finish()

    async def _hand_over(self, fields: dict[str, Any]) -> None:
        """Have the platform run the rounds, and look now and then how far it has come."""
        witness, key = self.world.witness, self.plan.key
        timing = self.world.timing(f"{self.who} {self._starts}")
        wire = Wire(AsyncioTransport(URL, self.line, timing), PATIENCE, timing)
        model = await wire.store(models.encode(first_model(key)))
        request = SubmitRequest(spec=msgspec.convert(fields, JobSpec), managed=Managed(model=model))
        try:
            view = await wire.call("POST", "/v1/jobs", JobView, body=request, headers={IDEMPOTENCY_HEADER: key})
        except Conflict:
            self._was_refused()
            return
        self._was_accepted(view.id)
        while view.state == "active":
            await asyncio.sleep(5.0)
            view = await wire.call("GET", f"/v1/jobs/{view.id}", JobView)
            if view.model is not None:
                witness.committed(view.id, view.committed_rounds, view.model, {})
        witness.ended(view.id, view.state)
        self._finish()

    def _finish(self) -> None:
        self.world.note(f"{self.who}: finished")
        self.finished.set()

    def _was_refused(self) -> None:
        """The job that it was to follow can no longer complete; nothing else may be in its way."""
        assert self.plan.after, f"{self.plan.key} was refused, though it follows nobody"
        self.finished.set()

    def _was_accepted(self, job: JobId) -> None:
        self.world.witness.accepted(self.plan.key, job)
        if not self.accepted.done():
            self.accepted.set_result(job)


class _Accident(Exception):
    """What a device's own program raises."""


class SimulatedDevice(Actor):
    """A device: trains and reports, or misbehaves."""

    def __init__(self, world: "World", plan: DevicePlan, seed: str) -> None:
        super().__init__(world, plan.name)
        self.plan = plan
        self._seed = seed
        self._rng = random.Random(f"device {seed}")

    async def live(self) -> None:
        timing = self.world.timing(f"{self._seed} {self._starts}")
        while True:
            duration_s = None if self.world.calm else self._rng.uniform(20.0, 200.0)
            with contextlib.suppress(Unavailable, Overloaded, _Accident):
                async with (
                    AsyncDevice(
                        URL, device_id=self.plan.name, attributes=self.plan.attributes, private=self.plan.private,
                        transport=self.line, timing=timing, retry=PATIENCE,
                    ) as device,
                    contextlib.aclosing(device.tasks(duration_s=duration_s)) as tasks,
                ):  # fmt: skip
                    async for task in tasks:
                        await self._serve(task)
            await asyncio.sleep(self._rng.uniform(0.1, 10.0))

    async def _serve(self, task: AsyncTask) -> None:
        await asyncio.sleep(self._rng.expovariate(0.2))
        if self.world.calm or self._rng.random() >= self.world.plan.misbehaving:
            await self._report(task)
            return
        match self._rng.choice(("dawdle", "blunder", "decline", "abort", "raise", "forget")):
            case "dawdle":
                await asyncio.sleep(task.expires_in_s + self._rng.uniform(-1.0, 10.0))
                await self._report(task)
            case "blunder":
                with contextlib.suppress(InvalidUpdate):
                    if not await task.report({"numbers": np.full(4, np.nan, np.float32)}, examples=1):
                        return
                    raise AssertionError("an update with other names was counted")
                await self._report(task)
            case "decline":
                await task.decline("on purpose")
            case "abort":
                await task.abort("on purpose")
            case "raise":
                raise _Accident
            case _:
                pass

    async def _report(self, task: AsyncTask) -> None:
        update, examples, metrics = report_of(task.id)
        self.world.witness.sends(task.id, self.plan.name)
        if await task.report(update, examples=examples, metrics=metrics):
            self.world.witness.acknowledged(task.id)
