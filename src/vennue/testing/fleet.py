"""A fleet of simulated phones that run the real SDK against a real server.

Each phone is a kind of phone from a population (its public attributes and its speed), comes and goes with the sessions
of a trace, and trains what a `Learner` gives it on data of its own. Simulated time runs ``speedup`` times as fast as
the clock. Nothing else is simulated: check-ins, downloads, private requirements and reports are the SDK's, so a fleet
meets the server as phones would. Like a phone, one whose session ends vanishes without a word, and the server learns
of it by the lease.
"""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import httpx
import msgspec
import numpy as np

from vennue.core.errors import InvalidInput, Unavailable, VennueError
from vennue.sdk.device import AsyncDevice, AsyncTask
from vennue.sdk.retry import Retry
from vennue.sdk.transport import Timing
from vennue.simulation.traces import DevicePopulation, Trace, task_time_s

log = logging.getLogger("vennue.fleet")

CONNECTIONS = 64
"""Connections that a whole fleet shares. A phone's calls are short, and it makes one at a time."""
MERGE_GAP_S = 60.0
"""Sessions of a phone that lie at most this far apart are one: a charger with a loose contact."""
FAREWELL_S = 5.0
"""How long the phones of a fleet that stops may take to give their tasks back."""


class Trained(NamedTuple):
    """What a phone reports: the trained model, the examples that it used, and how it went."""

    model: Mapping[str, Any]
    examples: float
    metrics: Mapping[str, float]


class Learner(Protocol):
    """What the phones learn from. Called from worker threads, one call per phone at a time."""

    def private(self, device: int) -> Mapping[str, Any]:
        """The device's private attributes: what only it knows of its data."""
        ...

    def train(self, device: int, task: AsyncTask) -> Trained | None:
        """Train a task's model on the device's data; None when it holds none for this job, and declines."""
        ...


class State(StrEnum):
    """What a phone is doing."""

    AWAY = "away"
    """Not plugged in, or not connected."""
    IDLE = "idle"
    """Checks in, and waits to be called."""
    BUSY = "busy"
    """Has a task."""
    RESTING = "resting"
    """Has just done a task, and takes no other for a while."""


class FleetSummary(msgspec.Struct, kw_only=True):
    """What a fleet has done so far. Bytes are those of bodies."""

    devices: int
    elapsed_s: float = 0.0
    sessions: int = 0
    """Sessions begun."""
    check_ins: int = 0
    tasks: int = 0
    """Tasks taken: accepted and downloaded."""
    reports: int = 0
    """Reports that counted."""
    late: int = 0
    """Reports that came after their round had closed."""
    declined: int = 0
    """Offers turned down: the private requirement is not met, or there is no data for the job."""
    drop_outs: int = 0
    """Tasks lost because the phone's session ended."""
    failures: int = 0
    """Sessions that ended with an error, such as a server that cannot be reached."""
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How a fleet behaves. Durations are simulated seconds, which pass ``speedup`` times as fast.

    Args:
        devices: how many phones, from 1. Phone *i* follows the trace's device *i*; when the trace has fewer, further
            phones follow the same devices, each lap of them a day later.
        trace: when phones are there.
        population: what they are, and how fast.
        speedup: simulated seconds per second.
        seed: of what is left to chance: which device of the trace is which.
        workload_s: training time of the mean phone.
        rest_s: after a task, how long a phone takes no other.
        threads: how many phones train at once, really.

    Raises:
        InvalidInput: a number that makes no sense.
    """

    devices: int
    trace: Trace
    population: DevicePopulation
    speedup: float = 500.0
    seed: int = 0
    workload_s: float = 30.0
    rest_s: float = 1200.0
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("devices", "speedup", "workload_s", "threads"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InvalidInput("must be above 0", field=name, value=value, limit=0, fix="give a positive number")
        for name in ("workload_s", "rest_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InvalidInput("must be at least 0 s", field=name, value=value, limit=0, fix="give a duration")

    def phones(self) -> "list[Phone]":
        """The fleet's phones, the same for the same arguments."""
        numbers = np.arange(self.devices)
        kinds = self.population(numbers)
        tasks_s = task_time_s(kinds, self.workload_s)
        schedules = _schedules(self.trace)
        order = np.random.default_rng(self.seed).permutation(len(schedules))
        made = []
        for number in range(self.devices):
            lap, place = divmod(number, len(schedules))
            attributes = self.population.table.profiles[int(kinds.row[number])].attributes
            schedule = schedules[order[place]].later(lap * 86_400.0)
            made.append(Phone(number, f"phone-{number:04d}", attributes, float(tasks_s[number]), schedule))
        return made


class Schedule(NamedTuple):
    """When a phone is there: sessions in order of their starts, repeated with a period."""

    sessions: list[tuple[float, float]]
    period_s: float

    def later(self, shift_s: float) -> "Schedule":
        """The same, so much later within the period."""
        shift_s %= self.period_s
        moved = [(start + shift_s, end + shift_s) for start, end in self.sessions]
        wrapped = [(s - self.period_s, e - self.period_s) if s >= self.period_s else (s, e) for s, e in moved]
        return Schedule(sorted(wrapped), self.period_s)

    def from_start(self) -> Iterator[tuple[float, float]]:
        """Sessions for ever, the first of them those that are under way at second 0."""
        offset_s = -self.period_s
        while True:
            for start, end in self.sessions:
                if end + offset_s > 0:
                    yield max(0.0, start + offset_s), end + offset_s
            offset_s += self.period_s


@dataclass(eq=False)
class Phone:
    """One simulated phone."""

    number: int
    id: str
    attributes: Mapping[str, Any]
    task_s: float
    """How long a task takes it, in simulated seconds: training, and the model's transfers."""
    schedule: Schedule
    state: State = State.AWAY
    job: str | None = None
    """The name of the job that it serves, while busy."""


def _schedules(trace: Trace) -> list[Schedule]:
    """The sessions of each of the trace's devices, sessions with short gaps between them made one."""
    merged = Trace(
        trace.device, trace.start_s, trace.end_s,
        period_s=trace.period_s, merge_gap_s=MERGE_GAP_S, clock_h=trace.clock_h, name=trace.name,
    )  # fmt: skip
    sessions: dict[int, list[tuple[float, float]]] = {}
    for device, start_s, end_s in zip(
        merged.device.tolist(), merged.start_s.tolist(), merged.end_s.tolist(), strict=True
    ):
        sessions.setdefault(device, []).append((start_s, end_s))
    return [Schedule(sessions[device], merged.period_s) for device in sorted(sessions)]


@dataclass(eq=False)
class FleetRun:
    """A fleet at work on a server, until told to stop.

    Args:
        fleet: how it behaves.
        server: the server's address.
        learner: what the phones learn from.
        network: an httpx transport to use instead of the real network.
        workers: where the phones train, instead of ``fleet.threads`` threads.
    """

    fleet: Fleet
    server: str
    learner: Learner
    network: httpx.AsyncBaseTransport | None = None
    workers: Executor | None = None
    phones: list[Phone] = field(init=False)
    summary: FleetSummary = field(init=False)

    def __post_init__(self) -> None:
        self.phones = self.fleet.phones()
        self.summary = FleetSummary(devices=len(self.phones))
        self._began_at = 0.0
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def elapsed_s(self) -> float:
        """Since the fleet started."""
        return asyncio.get_running_loop().time() - self._began_at

    def states(self) -> Counter[State]:
        """How many phones are doing what."""
        return Counter(phone.state for phone in self.phones)

    async def run(self, stop: asyncio.Event) -> FleetSummary:
        """Run until ``stop`` is set: reports on their way then arrive; other tasks that phones hold are given back."""
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        network = self.network or httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        )
        workers = self.workers or ThreadPoolExecutor(self.fleet.threads, thread_name_prefix="fleet-training")
        lives = [loop.create_task(self._live(phone, network, workers), name=phone.id) for phone in self.phones]
        ending = loop.create_task(stop.wait())
        try:
            await asyncio.wait([ending, *lives], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._sending:  # what is on its way may count: it is worth its answer
                await asyncio.wait(self._sending, timeout=FAREWELL_S)
            for _ in range(2):  # giving tasks back takes a moment; who still has not done it is stopped as it is
                for life in (ending, *lives):
                    life.cancel()
                await asyncio.wait([ending, *lives], timeout=FAREWELL_S)
            outcomes = await asyncio.gather(*lives, return_exceptions=True)
            if self.workers is None:
                workers.shutdown(cancel_futures=True)
            if self.network is None:
                await network.aclose()
            self.summary.elapsed_s = self.elapsed_s
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return self.summary

    async def _live(self, phone: Phone, network: httpx.AsyncBaseTransport, workers: Executor) -> None:
        """One phone's comings and goings, for ever."""
        loop = asyncio.get_running_loop()
        private = await loop.run_in_executor(workers, self.learner.private, phone.number)
        radio = _Radio(network, self.summary)
        async with AsyncDevice(
            self.server, device_id=phone.id, attributes=phone.attributes, private=private,
            retry=Retry(total_s=60.0), transport=radio,
            timing=Timing(clock=loop.time, rng=random.Random(f"{self.fleet.seed}/{phone.number}")),
        ) as device:  # fmt: skip
            for start_s, end_s in phone.schedule.from_start():
                end_at = self._began_at + end_s / self.fleet.speedup
                if end_at <= loop.time():
                    continue
                await asyncio.sleep(self._began_at + start_s / self.fleet.speedup - loop.time())
                self.summary.sessions += 1
                radio.on = True
                # The line goes dead a moment before the phone is stopped, so that it cannot say good-bye.
                unplugging = loop.call_at(end_at - 0.001, radio.unplug)
                try:
                    async with asyncio.timeout_at(end_at):
                        await self._session(phone, device, end_at - loop.time(), workers)
                except TimeoutError:
                    self.summary.drop_outs += phone.state is State.BUSY
                except Unavailable as error:
                    if radio.on:
                        self.summary.failures += 1
                        log.warning("%s: %s", phone.id, error)
                except VennueError as error:
                    self.summary.failures += 1
                    log.warning("%s: %s", phone.id, error)
                finally:
                    unplugging.cancel()
                    phone.state, phone.job = State.AWAY, None

    async def _session(self, phone: Phone, device: AsyncDevice, duration_s: float, workers: Executor) -> None:
        phone.state = State.IDLE
        async with contextlib.aclosing(device.tasks(duration_s=max(0.0, duration_s))) as tasks:
            async for task in tasks:
                phone.state, phone.job = State.BUSY, task.name
                self.summary.tasks += 1
                await self._work(phone, task, workers)
                phone.state, phone.job = State.RESTING, None
                await asyncio.sleep(self.fleet.rest_s / self.fleet.speedup)
                phone.state = State.IDLE

    async def _work(self, phone: Phone, task: AsyncTask, workers: Executor) -> None:
        """Train for as long as the phone would take, and report."""
        loop = asyncio.get_running_loop()
        done_at = loop.time() + phone.task_s / self.fleet.speedup
        trained = await loop.run_in_executor(workers, self.learner.train, phone.number, task)
        if trained is None:
            await task.decline("there is no data for this job")
            return
        await asyncio.sleep(done_at - loop.time())
        sending = loop.create_task(self._send(task, trained))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        await sending

    async def _send(self, task: AsyncTask, trained: Trained) -> None:
        if await task.report(trained.model, examples=trained.examples, metrics=trained.metrics):
            self.summary.reports += 1
        else:
            self.summary.late += 1


class _Radio(httpx.AsyncBaseTransport):
    """A phone's way to the fleet's shared connections, which counts what passes, and is dead once unplugged."""

    def __init__(self, network: httpx.AsyncBaseTransport, summary: FleetSummary) -> None:
        self.on = False
        self._network = network
        self._summary = summary

    def unplug(self) -> None:
        self.on = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self.on:
            # Not a ConnectError: the SDK would try again, and there is nobody left to do so.
            raise httpx.LocalProtocolError("the phone has been unplugged", request=request)
        response = await self._network.handle_async_request(request)
        self._summary.check_ins += request.url.path == "/v1/check-ins"
        self._summary.declined += request.url.path.endswith("/decline")
        self._summary.sent_bytes += int(request.headers.get("content-length", 0))
        self._summary.received_bytes += int(response.headers.get("content-length", 0))
        return response
