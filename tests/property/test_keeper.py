"""A blob that the ledger still names is never collected, whatever happened before."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.control.rig import Clock, Rig
from tests.unit.control.test_keeper import age, model_of, train
from vennue.control.keeper import Keeper, Keeping
from vennue.core.errors import VennueError
from vennue.core.ids import JobId
from vennue.core.job import JobSpec
from vennue.protocol import CheckInRequest, DeclineRequest, Task

STEPS = ("submit", "open", "check in", "report", "abort", "complete", "cancel", "upload", "restart")


class Life:
    """Jobs and devices that do something at each step, perhaps not in their turn."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._jobs: list[JobId] = []
        self._tasks: list[Task] = []
        self._number = 0

    async def begin(self) -> None:
        self.rig = await Rig(self._root, Clock()).__aenter__()

    async def end(self) -> None:
        await self.rig.__aexit__(None, None, None)

    async def do(self, step: str, which: int) -> None:
        self._number += 1
        if step == "restart":
            await self.end()
            await self.begin()
        elif step == "upload":
            self.rig.blobs.put(f"stray {self._number}".encode())
        elif step == "check in":
            answer, pending = self.rig.selector.check_in(CheckInRequest(device=f"d{self._number}"))
            if pending is not None:
                await pending
            if answer is not None and answer.task is not None:
                self._tasks.append(answer.task)
        elif step in {"report", "abort"}:
            await self._with_task(step, which)
        else:
            await self._with_job(step, which)

    async def _with_task(self, step: str, which: int) -> None:
        if not self._tasks:
            return
        task = self._tasks.pop(which % len(self._tasks))
        if step == "abort":
            self.rig.selector.abort(task.assignment, task.token, DeclineRequest())
            return
        await train(self.rig, task, float(self._number))
        await self.rig.coordinator.round(task.job, task.round, wait_s=10.0)

    async def _with_job(self, step: str, which: int) -> None:
        coordinator = self.rig.coordinator
        if step == "submit" or not self._jobs:
            strategy = ("fedavg", "fedavgm", "fedadam")[which]
            view, _ = await coordinator.submit(JobSpec(name="job", demand=1, strategy=strategy))
            self._jobs.append(view.id)
            return
        job = self._jobs[which % len(self._jobs)]
        if step == "open":
            view = await coordinator.job(job)
            model = view.model or self.rig.blobs.put(model_of(float(which)))
            await coordinator.open_round(job, view.committed_rounds + 1, model, {})
        elif step == "complete":
            await coordinator.complete(job)
        else:
            await coordinator.cancel(job, "enough")


@given(seed=st.integers(0, 2**32), steps=st.integers(10, 40))
@settings(max_examples=3, deadline=None)
def test_a_blob_that_the_ledger_still_names_is_never_collected(seed, steps):
    """After each step everything is old, and whatever no job needs is removed."""
    with TemporaryDirectory() as folder:
        asyncio.run(live(Life(Path(folder)), random.Random(seed), steps))


async def live(life: Life, rng: random.Random, steps: int) -> None:
    await life.begin()
    weights = [1, 6, 6, 6, 1, 0.3, 0.3, 1, 1]
    for step in rng.choices(STEPS, weights, k=steps):
        with suppress(VennueError):  # it may not be its turn
            await life.do(step, rng.randrange(3))
        age(life.rig)
        await Keeper(life.rig.coordinator, Keeping()).collect()
        await check(life.rig)
    await life.end()


async def check(rig: Rig) -> None:
    """What must be there, by what is on record; and nothing that never was."""
    recovered = await rig.ledger.load()
    needed = {attempt.model for attempt in recovered.open_attempts}
    for job in recovered.jobs:
        for number in (job.committed - 1, job.committed):
            commit = await rig.ledger.commit(job.id, number)
            if commit is not None:
                needed.add(commit.result)
                if number == job.committed and not job.state.terminal:
                    needed.update(commit.memory.values())
    stored = set(rig.blobs.list())
    assert needed <= stored
    assert not any(rig.blobs.path(digest).read_bytes().startswith(b"stray") for digest in stored)
