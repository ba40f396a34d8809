"""What the control plane's tests share: a coordinator on a clock of theirs, with real storage in a directory."""

import asyncio
import functools
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import Body, DataPlane
from vennue.control.leaves import Leaves
from vennue.control.pacing import Pacing
from vennue.control.selector import Selector
from vennue.core.errors import StorageError
from vennue.core.ids import Digest, JobId
from vennue.core.job import JobSpec
from vennue.policies import get_policy
from vennue.protocol import CheckInRequest, Task
from vennue.state.ledger import Batch, SqlLedger
from vennue.tensors.model import load, save
from vennue.updates.blob_directory import DirectoryBlobs

PACING = Pacing(short_s=1.0, busy_s=10.0, idle_s=100.0, spread=0.5)


class Clock:
    """Pool time that stands still until it is set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Ledger(SqlLedger):
    """A real ledger whose writes can be held up, and can fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.saves = 0

    async def save(self, batch: Batch) -> None:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().save(batch)
        self.saves += 1


DISK_FULL = StorageError("cannot save to the ledger: database or disk is full", field="ledger")


class Rig:
    """A coordinator and its surroundings."""

    def __init__(self, root: Path, clock: Clock, **options: Any) -> None:
        self.clock = clock
        self.ledger = Ledger(f"sqlite+aiosqlite:///{root / 'ledger.sqlite'}")
        self.blobs = DirectoryBlobs(root / "blobs", quota_bytes=options.pop("quota_bytes", None), durable=False)
        self.data = DataPlane(self.blobs, root / "spool", max_uploads=options.pop("max_uploads", 8))
        policy = options.pop("policy", "fifo")
        planner = options.pop("planner", None) or get_policy(policy)
        self.coordinator = Coordinator(
            self.ledger, self.data, planner, policy=policy, make_clock=lambda latest: clock, validate=True, **options
        )

    async def __aenter__(self) -> Self:
        await self.coordinator.start()
        self.selector = Selector(self.coordinator, PACING, random.Random(0))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.ledger.gate.set()
        await self.coordinator.stop(5.0)

    @functools.cached_property
    def leaves(self) -> Leaves:
        """Takes leaves' sums, once the coordinator has started."""
        return Leaves(self.coordinator)

    def model(self, value: float = 0.0) -> Digest:
        """A stored model of two numbers."""
        return self.blobs.put(update(value))

    async def job(self, **spec: Any) -> JobId:
        """A new job's id."""
        view, _ = await self.coordinator.submit(JobSpec(**{"name": "job", "demand": 2, **spec}))
        return view.id

    async def open(self, job: JobId, round_number: int = 1) -> None:
        """Open a round on the zero model."""
        await self.coordinator.open_round(job, round_number, self.model(), {"lr": 0.5})

    def check_in(self, device: str, **attributes: Any) -> Task | None:
        """The task that a device is given."""
        answer, _ = self.selector.check_in(
            CheckInRequest(device=device, attributes=msgspec.Raw(msgspec.json.encode(attributes)))
        )
        assert answer is not None, "the pool binds each device at once"
        return answer.task

    def task(self, device: str, **attributes: Any) -> Task:
        """The task that a device must be given."""
        task = self.check_in(device, **attributes)
        assert task is not None
        return task

    async def report(self, task: Task, value: float = 1.0, weight: float = 1.0, **metrics: float) -> Any:
        """Report an update whose numbers are all ``value``."""
        return await self.selector.report(task.assignment, task.token, weight, metrics, body(update(value)))

    def numbers(self, model: Digest) -> list[float]:
        """The numbers of a stored model."""
        weights: list[float] = load(self.blobs.path(model))["w"].tolist()
        return weights


def update(value: float, size: int = 2) -> bytes:
    """A model whose numbers are all ``value``."""
    return save({"w": np.full(size, value, np.float32)})


def body(data: bytes, *, chunk: int = 7) -> Body:
    """A request's body, in small chunks."""

    async def chunks(limit: int) -> AsyncIterator[bytes]:
        for start in range(0, len(data), chunk):
            yield data[start : start + chunk]

    return chunks


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


def sha256(data: bytes) -> Digest:
    """The digest of some bytes."""
    return Digest(hashlib.sha256(data).hexdigest())


@asynccontextmanager
async def rig_at(root: Path, clock: Clock | None = None, **options: Any) -> AsyncIterator[Rig]:
    """A started rig; a second one on the same directory is a restarted server."""
    async with Rig(root, clock or Clock(), **options) as rig:
        yield rig
