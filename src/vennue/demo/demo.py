"""The demonstration: jobs that contend for one fleet of simulated phones, under one policy and then under another.

A run is a server, a fleet and the jobs' owners, all talking over HTTP by the SDK. Both runs of a demo have the same
phones with the same sessions, speeds and data, and the same jobs with the same initial models, so what differs is the
policy, and chance: the order in which messages happen to arrive.
"""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from vennue.core.errors import InvalidInput, StorageError, VennueError
from vennue.core.requirement import Requirement
from vennue.demo.jobs import DemoJob, JobProgress, drive, load
from vennue.demo.learner import PhoneData
from vennue.demo.server import serving
from vennue.policies.registry import get_policy
from vennue.protocol import JobList, JobView
from vennue.sdk.retry import Retry
from vennue.sdk.transport import AsyncioTransport, Timing
from vennue.sdk.wire import Wire
from vennue.simulation.traces import Trace, phone_population, phone_trace
from vennue.testing.fleet import Fleet, FleetRun, FleetSummary, Phone, State

LOOK_S = 0.5
"""How often a run looks at the server, for whoever watches."""
PACING = {"PACING_SHORT_S": 0.3, "PACING_BUSY_S": 0.6, "PACING_IDLE_S": 1.0}
"""When phones that find no task come back, in time compressed like their sessions."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What a demonstration does.

    Args:
        policy: the policy to show.
        baseline: the policy to compare it with; None for a single run.
        jobs: the jobs, by default the shipped ones.
        seed: of the phones, their data, the initial models and the baseline's lottery.
        devices: size of the fleet; the shipped jobs suit the 300 recorded phones.
        speedup: simulated seconds per second.
        rest_s: after a task, how many simulated seconds a phone takes no other.
        limit_s: a run that takes longer has failed.

    Raises:
        InvalidInput: there is no such policy, or a number makes no sense.
    """

    policy: str = "venn-sched"
    baseline: str | None = "random-order"
    jobs: list[DemoJob] = field(default_factory=load)
    seed: int = 1
    devices: int = 300
    speedup: float = 500.0
    rest_s: float = 900.0
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("policy", "baseline"):
            policy = getattr(self, name)
            if policy is None:
                continue
            try:
                get_policy(policy)
            except InvalidInput as error:
                error.field = name
                raise
        if not 0 < self.limit_s < float("inf"):
            raise InvalidInput(
                f"must be above 0 s, got {self.limit_s:g}", field="limit", value=self.limit_s, limit=0,
                fix="a run takes about a minute",
            )  # fmt: skip
        self.fleet()

    def fleet(self) -> Fleet:
        """The fleet of both runs."""
        return Fleet(
            devices=self.devices, trace=trace(), population=phone_population(seed=self.seed),
            speedup=self.speedup, seed=self.seed, rest_s=self.rest_s,
        )  # fmt: skip

    @property
    def policies(self) -> list[str]:
        """Of the runs, in their order."""
        return [self.policy] if self.baseline is None else [self.policy, self.baseline]


@functools.cache
def trace() -> Trace:
    """The recorded phones' sessions."""
    return phone_trace()


class Reached(msgspec.Struct, kw_only=True):
    """How well a job's model does on held-out data, and when, in seconds since the run began."""

    elapsed_s: float
    loss: float
    accuracy: float


class JobResult(msgspec.Struct, kw_only=True):
    """How one job fared in one run. Losses are mean cross-entropies on held-out data, in nats."""

    name: str
    task: str
    requirement: str
    private_requirement: str | None
    demand: int
    rounds: int
    state: str
    jct_s: float
    """Job completion time: from submission to the end of the last round."""
    scheduling_delay_s: float
    """Of that: waiting for devices."""
    collection_s: float
    """Of that: waiting for their reports."""
    devices_bound: int
    loss_before: float
    loss_after: float
    accuracy_before: float
    accuracy_after: float
    history: list[Reached]
    """By round, from 0."""

    @property
    def succeeded(self) -> bool:
        """Whether it completed, and its model is better than before."""
        return self.state == "completed" and self.loss_after < self.loss_before


class RunResult(msgspec.Struct, kw_only=True):
    """One run under one policy."""

    policy: str
    average_jct_s: float
    jobs: list[JobResult]
    fleet: FleetSummary


class DemoResult(msgspec.Struct, kw_only=True):
    """Both runs, and what they amount to."""

    seed: int
    runs: list[RunResult]
    speedup: float | None
    """The baseline's average job completion time over the policy's."""
    succeeded: bool
    """Every job of every run completed, and its held-out loss fell."""


@dataclass(frozen=True)
class Region:
    """The phones that may serve exactly the same jobs."""

    jobs: tuple[str, ...]
    """Names of the jobs whose public requirement they meet."""
    phones: tuple[Phone, ...]

    def count(self, *states: State) -> int:
        """How many of its phones are in one of these states."""
        return sum(phone.state in states for phone in self.phones)


class Scene:
    """A run as it happens, for whoever shows it."""

    def __init__(self, policy: str, jobs: list[DemoJob], fleet: FleetRun, began_at: float) -> None:
        self.policy = policy
        self.progress = [JobProgress(job) for job in jobs]
        self.fleet = fleet
        self.regions = _regions(jobs, fleet.phones)
        self.views: dict[str, JobView] = {}
        """The server's latest word on each job, by id."""
        self.began_at = began_at
        """The event loop's time when the run began."""

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return asyncio.get_running_loop().time() - self.began_at


Watch = Callable[[Scene], Coroutine[Any, Any, None]]
"""Shows a scene until it is cancelled."""


async def run_demo(config: DemoConfig, watch: Watch, folder: Path) -> DemoResult:
    """Run the demonstration.

    Args:
        config: what to do.
        watch: shows each run; cancelled when it is over.
        folder: where the servers keep their data.

    Raises:
        VennueError: a server does not start, or a run does not end in time.
    """
    data = PhoneData(config.devices, config.seed)
    await asyncio.to_thread(data.load)
    runs = [await _run(config, policy, data, watch, folder / policy) for policy in config.policies]
    speedup = runs[1].average_jct_s / runs[0].average_jct_s if len(runs) > 1 else None
    succeeded = all(job.succeeded for run in runs for job in run.jobs)
    return DemoResult(seed=config.seed, runs=runs, speedup=speedup, succeeded=succeeded)


async def _run(config: DemoConfig, policy: str, data: PhoneData, watch: Watch, folder: Path) -> RunResult:
    settings = {"POLICY": policy, "SEED": config.seed, "DURABLE_BLOBS": 0, **PACING}
    async with serving(folder, settings) as server:
        fleet = FleetRun(config.fleet(), server, data)
        scene = Scene(policy, config.jobs, fleet, asyncio.get_running_loop().time())
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group, _computing() as compute:
            group.create_task(fleet.run(stop))
            helpers = [group.create_task(_look(scene, server)), group.create_task(watch(scene))]
            try:
                async with asyncio.timeout(config.limit_s), asyncio.TaskGroup() as owners:
                    for progress in scene.progress:
                        owners.create_task(drive(server, progress, seed=config.seed, compute=compute))
            except TimeoutError:
                late = [progress.job.job.name for progress in scene.progress if progress.final is None]
                raise VennueError(
                    f"the run under {policy} has not ended: {', '.join(late)}", field="limit_s", limit=config.limit_s,
                    fix="this machine may be too slow or too busy for it: ask for fewer rounds",
                ) from None  # fmt: skip
            for helper in helpers:
                helper.cancel()
            stop.set()
    return _result(scene)


@contextlib.asynccontextmanager
async def _computing() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """A function that runs another one in a thread, one at a time."""
    with ThreadPoolExecutor(1, thread_name_prefix="demo-evaluating") as worker:
        yield functools.partial(asyncio.get_running_loop().run_in_executor, worker)


async def _look(scene: Scene, server: str) -> None:
    """Keep the scene's views of the server fresh."""
    timing = Timing()
    transport = AsyncioTransport(server, None, timing)
    wire = Wire(transport, Retry(attempts=3), timing)
    try:
        while True:
            listed = await wire.call("GET", "/v1/jobs", JobList)
            scene.views = {view.id: view for view in listed.jobs}
            await asyncio.sleep(LOOK_S)
    finally:
        await transport.close()


def _result(scene: Scene) -> RunResult:
    jobs = []
    for progress in scene.progress:
        spec, view = progress.job.job, progress.final
        assert view is not None, "drive returns only when its job has ended"
        before, after = progress.scores[0], progress.scores[-1]
        history = [
            Reached(elapsed_s=at - scene.began_at, loss=score.loss, accuracy=score.accuracy)
            for at, score in zip(progress.reached_at, progress.scores, strict=True)
        ]
        jobs.append(
            JobResult(
                name=spec.name, task=progress.job.task, requirement=spec.requirement,
                private_requirement=spec.private_requirement, demand=spec.demand, rounds=view.committed_rounds,
                state=view.state, jct_s=view.jct_s or 0.0, scheduling_delay_s=view.scheduling_delay_s,
                collection_s=view.collection_s, devices_bound=view.devices_bound,
                loss_before=before.loss, loss_after=after.loss,
                accuracy_before=before.accuracy, accuracy_after=after.accuracy, history=history,
            )
        )  # fmt: skip
    average_s = sum(job.jct_s for job in jobs) / len(jobs)
    return RunResult(policy=scene.policy, average_jct_s=average_s, jobs=jobs, fleet=scene.fleet.summary)


def _regions(jobs: list[DemoJob], phones: list[Phone]) -> list[Region]:
    """The Venn diagram of the jobs' public requirements, the phones that may serve most jobs first."""
    requirements = [(job.job.name, Requirement.parse(job.job.requirement)) for job in jobs]
    cells: dict[tuple[str, ...], list[Phone]] = {}
    for phone in phones:
        met = tuple(name for name, requirement in requirements if requirement.matches(phone.attributes))
        cells.setdefault(met, []).append(phone)
    return [Region(met, tuple(cells[met])) for met in sorted(cells, key=lambda met: (-len(met), met))]


@contextlib.contextmanager
def data_folder(keep: Path | None) -> Iterator[Path]:
    """Where the servers keep their data: ``keep``, or a temporary folder that is gone at the end.

    Raises:
        InvalidInput: ``keep`` holds something already.
        StorageError: it cannot be made.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="vennue-demo-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise InvalidInput(f"{keep} is not empty", field="keep", value=str(keep), fix="name a new folder")
    except OSError as error:
        raise StorageError(
            f"cannot keep data in {keep}: {error.strerror}", field="keep", value=str(keep), fix="name another folder"
        ) from error
    yield keep
