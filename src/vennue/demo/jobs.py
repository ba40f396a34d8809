"""The demo's jobs: read from a YAML file, and driven as their owners would, by the SDK.

`load` reads them (`jobs.yaml` beside this file by default); `drive` runs one to its end and says, round by round, how
well its model does on data that no phone holds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from vennue.core.errors import InvalidInput, JobEnded
from vennue.core.job import JobSpec, Setting
from vennue.demo.tasks import Score, task
from vennue.protocol import JobView
from vennue.sdk.job import AsyncJob
from vennue.sdk.models import Model
from vennue.sdk.retry import Retry

GONE_S = 20.0
"""A server that cannot be reached for this long is gone for good: it runs on the same machine."""
SHIPPED = Path(__file__).with_name("jobs.yaml")


class DemoJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of the demo."""

    task: str
    """The learning task that its phones train."""
    job: JobSpec
    arrives_s: float = 0.0
    """Seconds from the start of the run to its submission."""
    config: dict[str, Setting] = {}
    """Further settings for the phones, such as ``learning_rate``."""


def load(path: Path = SHIPPED) -> list[DemoJob]:
    """The jobs of a file.

    Raises:
        InvalidInput: it is not such a file; names the file and the field.
    """
    try:
        jobs = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), list[DemoJob])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"{path}: {reason}", field="jobs", value=str(path), fix=f"take {SHIPPED} as an example"
        ) from error
    if not jobs:
        raise InvalidInput(f"{path} holds no job", field="jobs", value=0, limit=1, fix="give at least one")
    names = [job.job.name for job in jobs]
    for job in jobs:
        task(job.task)
        if not job.job.rounds:
            raise InvalidInput(f"{path}: {job.job.name} has no end", field="rounds", fix="say how many rounds it runs")
        if names.count(job.job.name) > 1:
            raise InvalidInput(f"{path}: two jobs are called {job.job.name}", field="name", fix="give each its own")
    return jobs


class JobProgress:
    """What is known of a job while it runs. Held-out scores are by number of rounds, from 0."""

    def __init__(self, job: DemoJob) -> None:
        self.job = job
        self.id: str | None = None
        self.scores: list[Score] = []
        self.reached_at: list[float] = []
        """When the model of each score was there, by the event loop's clock."""
        self.final: JobView | None = None
        """The job as it ended."""

    @property
    def learned(self) -> bool:
        """Whether its held-out loss has fallen."""
        return len(self.scores) > 1 and self.scores[-1].loss < self.scores[0].loss


async def drive(server: str, progress: JobProgress, *, seed: int, compute: Callable[..., Awaitable[Any]]) -> None:
    """Run a job to its end, however it ends.

    Args:
        server: the server's address.
        progress: what to run, and where to say how it goes.
        seed: of the initial model.
        compute: runs a function somewhere else than on the event loop, and awaits its result.
    """
    job = progress.job
    learning = task(job.task)
    model: Model = learning.initial_model(seed)
    await _score(progress, model, compute)
    await asyncio.sleep(job.arrives_s)
    async with AsyncJob(server, job.job, retry=Retry(total_s=GONE_S)) as handle:
        progress.id = handle.id
        try:
            async for turn in handle.rounds({"task": job.task, **job.config}):
                model = await turn.run(model)
                await _score(progress, model, compute)
        except JobEnded:
            pass  # the final state says why
        progress.final = await handle.status()


async def _score(progress: JobProgress, model: Model, compute: Callable[..., Awaitable[Any]]) -> None:
    progress.reached_at.append(asyncio.get_running_loop().time())
    progress.scores.append(await compute(task(progress.job.task).evaluate, model))
