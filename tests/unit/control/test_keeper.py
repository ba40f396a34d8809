"""What jobs need is kept, whatever happens; what they do not need goes, once it has not been touched for a while."""

import asyncio
import hashlib
import os

import numpy as np
import pytest

from tests.unit.control.rig import Clock, Rig
from vennue.control import keeper as keeper_module
from vennue.control.keeper import Keeper, Keeping
from vennue.core.errors import OutOfSpace
from vennue.core.ids import Digest
from vennue.core.job import JobSpec
from vennue.protocol import CheckInRequest, Managed
from vennue.tensors.model import save


def blob(text: str) -> tuple[bytes, Digest]:
    data = text.encode()
    return data, Digest(hashlib.sha256(data).hexdigest())


def model_of(value: float) -> bytes:
    return save({"w": np.full(4, value, np.float32)})


def age(rig: Rig) -> None:
    """Everything was touched for the last time in 1970."""
    for digest in rig.blobs.list():
        os.utime(rig.blobs.path(digest), (0, 0))


async def train(rig: Rig, task, value: float = 1.0):
    data = model_of(value)

    async def chunks(limit: int):
        yield data

    return await rig.selector.report(task.assignment, task.token, 1.0, {}, chunks)


async def committed(rig: Rig, job, number: int):
    view = await rig.coordinator.round(job, number, wait_s=10.0)
    assert view.state == "committed"
    return view


async def run_round(rig: Rig, job, number: int, model: Digest) -> Digest:
    """A round of one device; its result."""
    await rig.coordinator.open_round(job, number, model, {})
    answer, pending = rig.selector.check_in(CheckInRequest(device=f"d{number}"))
    if pending is not None:
        await pending
    assert answer is not None
    await train(rig, answer.task, float(number))
    return Digest(str((await committed(rig, job, number)).result))


@pytest.fixture
async def rig(tmp_path):
    async with Rig(tmp_path, Clock()) as running:
        yield running


@pytest.fixture
def keeper(rig):
    return Keeper(rig.coordinator, Keeping())


async def test_an_upload_that_no_job_names_goes_after_its_grace(rig, keeper):
    data, digest = blob("never used")
    rig.blobs.put(data)
    assert await keeper.collect() == 0
    os.utime(rig.blobs.path(digest), (0, 0))
    assert await keeper.collect() == len(data)
    assert not rig.blobs.exists(digest)
    assert keeper.view().freed_bytes == len(data)


async def test_of_a_job_the_latest_results_stay_and_older_ones_go(rig, keeper):
    view, _ = await rig.coordinator.submit(JobSpec(name="job", demand=1))
    results = [rig.blobs.put(model_of(0.0))]
    for number in range(1, 5):
        results.append(await run_round(rig, view.id, number, results[-1]))
    age(rig)
    await keeper.collect()
    assert set(rig.blobs.list()) == set(results[-2:])
    await rig.coordinator.complete(view.id)
    age(rig)
    await keeper.collect()
    assert set(rig.blobs.list()) == set(results[-2:])


async def test_the_model_of_an_open_round_stays(rig, keeper):
    view, _ = await rig.coordinator.submit(JobSpec(name="job", demand=1))
    model = rig.blobs.put(model_of(0.0))
    await rig.coordinator.open_round(view.id, 1, model, {})
    age(rig)
    assert await keeper.collect() == 0
    await rig.coordinator.cancel(view.id, "enough")
    await keeper.collect()
    assert not rig.blobs.exists(model)


async def test_what_a_strategy_remembers_stays_as_long_as_its_job_goes_on(rig, keeper):
    view, _ = await rig.coordinator.submit(JobSpec(name="job", demand=1, strategy="fedavgm"))
    await run_round(rig, view.id, 1, rig.blobs.put(model_of(0.0)))
    (commit,) = await rig.coordinator.latest_commits(1)
    assert commit.memory
    age(rig)
    await keeper.collect()
    assert all(rig.blobs.exists(digest) for digest in commit.memory.values())
    await rig.coordinator.complete(view.id)
    await keeper.collect()
    assert set(rig.blobs.list()) == {commit.result}


async def test_the_first_model_of_a_managed_job_stays_until_the_job_has_ended(rig, keeper):
    model = rig.blobs.put(model_of(0.0))
    first, _ = await rig.coordinator.submit(JobSpec(name="first", demand=1))
    view, _ = await rig.coordinator.submit(
        JobSpec(name="second", demand=1, rounds=1, after=(first.id,)), managed=Managed(model=model)
    )
    age(rig)
    assert await keeper.collect() == 0
    await rig.coordinator.cancel(view.id, "not wanted any more")
    age(rig)
    await keeper.collect()
    assert not rig.blobs.exists(model)


async def test_naming_a_model_again_renews_its_grace(rig, keeper):
    model = rig.blobs.put(model_of(0.0))
    await rig.coordinator.data.models.check(model)
    age(rig)
    await rig.coordinator.data.models.check(model)
    assert await keeper.collect() == 0


async def test_when_space_is_short_the_grace_is_too(rig, keeper):
    data, digest = blob("ten minutes ago")
    rig.blobs.put(data)
    at = rig.blobs.path(digest).stat().st_mtime - 600
    os.utime(rig.blobs.path(digest), (at, at))
    assert await keeper.collect() == 0
    assert await keeper.collect(hurried=True) == len(data)


async def test_when_space_is_short_uploads_that_rest_go_as_well(rig, keeper):
    data, digest = blob("half an upload")
    with rig.blobs.resume(digest) as upload:
        upload.write(data)
        upload.suspend()
    part = next((rig.blobs.path(rig.model()).parents[1] / "incoming").iterdir())
    at = part.stat().st_mtime - 600
    os.utime(part, (at, at))
    assert await keeper.collect() == 0
    assert await keeper.collect(hurried=True) == len(data)
    assert rig.blobs.received(digest) == 0


async def test_an_upload_that_nobody_goes_on_with_is_given_up_later_than_models_are(rig, keeper):
    _, digest = blob("half an upload")
    with rig.blobs.resume(digest) as upload:
        upload.write(b"half")
        upload.suspend()
    (part,) = (rig.blobs._files._incoming).iterdir()
    for hours, freed in ((5, 0), (7, 4)):
        at = part.stat().st_ctime - hours * 3600
        os.utime(part, (at, at))
        assert await keeper.collect() == freed


async def test_nothing_is_removed_while_the_ledger_fails(rig, keeper, monkeypatch):
    data, digest = blob("who knows")
    rig.blobs.put(data)
    os.utime(rig.blobs.path(digest), (0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(rig.coordinator, "_failure", "disk full")
        assert await keeper.collect() == 0
    assert rig.blobs.exists(digest)


async def test_it_collects_by_itself(rig):
    keeper = Keeper(rig.coordinator, Keeping(interval_s=0.01))
    data, digest = blob("by itself")
    rig.blobs.put(data)
    os.utime(rig.blobs.path(digest), (0, 0))
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(30):
        while rig.blobs.exists(digest):  # noqa: ASYNC110 - it is a file
            await asyncio.sleep(0.01)
    running.cancel()


async def test_when_the_quota_is_nearly_used_up_it_collects_sooner(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_module, "LOOK_S", 0.01)
    async with Rig(tmp_path, Clock(), quota_bytes=1000) as rig:
        collecting = asyncio.create_task(Keeper(rig.coordinator, Keeping()).run())
        old = rig.blobs.put(b"x" * 901)
        at = rig.blobs.path(old).stat().st_mtime - 600
        os.utime(rig.blobs.path(old), (at, at))
        async with asyncio.timeout(30):
            while rig.blobs.exists(old):  # noqa: ASYNC110 - it is a file
                await asyncio.sleep(0.01)
        collecting.cancel()


async def test_a_round_s_result_is_made_even_where_uploads_have_used_the_quota_up(tmp_path):
    model = model_of(0.0)
    async with Rig(tmp_path, Clock(), quota_bytes=len(model)) as rig:
        digest = rig.blobs.put(model)
        view, _ = await rig.coordinator.submit(JobSpec(name="job", demand=1))
        assert rig.blobs.exists(await run_round(rig, view.id, 1, digest))
        with pytest.raises(OutOfSpace):
            rig.blobs.put(b"another")
