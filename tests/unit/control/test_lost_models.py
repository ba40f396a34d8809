"""Models that are lost or damaged under a server's feet: what becomes of the jobs that need them."""

import asyncio
import contextlib
import os
import shutil

import pytest

from tests.unit.control.rig import DISK_FULL, Clock, Rig, rig_at, sha256, until, update
from vennue.control.dataplane import DataPlane
from vennue.control.distribution import Distribution
from vennue.control.recovery import Found, find_reports
from vennue.control.tokens import Tokens
from vennue.core.errors import NotFound, StorageError, TooLate
from vennue.core.ids import AttemptId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.protocol import Managed


async def result_of(rig: Rig, job: JobId) -> list[float]:
    """What the job's first round has made."""
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert view.result is not None
    return rig.numbers(view.result)


def takes_reports(data: DataPlane, attempt: AttemptId) -> bool:
    """Whether an attempt is open to the data plane."""
    with contextlib.suppress(TooLate):
        return data.plan(attempt) is not None
    return False


@pytest.mark.parametrize("reported", [0, 1])
async def test_a_model_that_is_cut_off_while_its_round_is_open_ends_its_job_with_the_reason_and_no_other(
    tmp_path, reported
):
    async with rig_at(tmp_path) as rig:
        broken, sound = await rig.job(demand=2), await rig.job(demand=1)
        lost = rig.model(9.0)
        await rig.coordinator.open_round(broken, 1, lost, {})
        tasks = [rig.task(f"d{number}") for number in range(2)]
        for task in tasks[:reported]:
            await rig.report(task, 2.0)
        os.truncate(rig.blobs.path(lost), 50)
        for task in tasks[reported:]:
            with contextlib.suppress(NotFound, TooLate):  # of which the first finds it out, unless the commit does
                await rig.report(task, 2.0)
        await until(lambda: rig.coordinator.pool.jobs[broken].state.terminal)
        assert f"the model of its round is gone: {lost} (it was damaged" in str(
            rig.coordinator.pool.jobs[broken].reason
        )
        await rig.open(sound)
        await rig.report(rig.task("d1"), 2.0)
        assert await result_of(rig, sound) == [2.0, 2.0]


async def test_a_damaged_model_that_another_job_asks_for_ends_the_rounds_that_are_open_on_it(tmp_path):
    async with rig_at(tmp_path) as rig:
        first, second = await rig.job(demand=1), await rig.job(demand=1)
        await rig.open(first)
        os.truncate(rig.blobs.path(rig.model()), 50)
        with pytest.raises(NotFound, match="damaged on the disk"):
            await rig.coordinator.open_round(second, 1, sha256(update(0.0)), {})
        assert rig.coordinator.pool.jobs[first].state.terminal
        await rig.open(second)


@pytest.mark.parametrize("managed", [False, True], ids=["driven", "managed"])
async def test_a_server_whose_models_are_all_gone_ends_no_job_for_it_and_goes_on_when_they_are_back(tmp_path, managed):
    async with rig_at(tmp_path) as rig:
        if managed:
            asked = JobSpec(name="learner", demand=1, rounds=2)
            job = (await rig.coordinator.submit(asked, managed=Managed(model=rig.model())))[0].id
        else:
            job = await rig.job(demand=1)
            await rig.open(job)
    (tmp_path / "blobs").rename(tmp_path / "unmounted")
    refused = Rig(tmp_path, Clock(2000.0))
    with pytest.raises(StorageError, match=f"the directory of models is empty.* {job}") as refusal:
        await refused.coordinator.start()
    await refused.coordinator.stop(5.0)
    assert refusal.value.field == "data_dir"
    shutil.rmtree(tmp_path / "blobs")
    (tmp_path / "unmounted").rename(tmp_path / "blobs")
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        await rig.report(rig.task("d"), 3.0)
        assert await result_of(rig, job) == [3.0, 3.0]


async def test_a_ledger_that_works_again_waits_for_the_models_too(tmp_path, monkeypatch):
    monkeypatch.setattr("vennue.control.shell.RETRY_LEDGER_S", 0.0)
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=1)
        await rig.open(job)
        rig.ledger.failure = DISK_FULL
        with pytest.raises(StorageError):
            await rig.job()
        (tmp_path / "blobs").rename(tmp_path / "unmounted")
        rig.ledger.failure = None
        await until(lambda: "directory of models is empty" in str(rig.coordinator.failure))
        (tmp_path / "unmounted").rename(tmp_path / "blobs")
        await until(lambda: rig.coordinator.failure is None)
        assert (await rig.coordinator.job(job)).state == "active"


async def test_a_model_that_is_found_damaged_while_a_server_starts_ends_its_job_and_keeps_no_other(
    tmp_path, monkeypatch
):
    async with rig_at(tmp_path) as rig:
        broken, sound = await rig.job(), await rig.job()
        lost = rig.model(9.0)
        await rig.open(sound)
        await rig.report(rig.task("a"))
        await rig.coordinator.open_round(broken, 1, lost, {})
        await rig.report(rig.task("b"))
    (tmp_path / "blobs" / lost[:2] / lost).write_bytes(update(8.0))
    restarted = Rig(tmp_path, Clock(2000.0))
    found, check = [], Distribution.check
    all_found = asyncio.Event()

    async def check_late(distribution: Distribution, model: Digest) -> None:
        await all_found.wait()
        await check(distribution, model)

    async def find_slowly(data: DataPlane, tokens: Tokens, attempt: AttemptId, committed: int) -> Found:
        found.append(await find_reports(data, tokens, attempt, committed))
        if len(found) == 2:
            all_found.set()
            await until(lambda: not takes_reports(data, AttemptId(f"{broken}.1.1")))
        return found[-1]

    monkeypatch.setattr(Distribution, "check", check_late)
    monkeypatch.setattr("vennue.control.shell.find_reports", find_slowly)
    async with restarted as rig:
        assert [len(one.receipts) for one in found] == [1, 1]
        views = [await rig.coordinator.job(job) for job in (broken, sound)]
        assert [view.state for view in views] == ["cancelled", "active"]
        assert (await rig.coordinator.round(sound, 1)).reported == 1
