"""A pool that binds check-ins together answers each request once, with a task or when to come back."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.unit.control.rig import DISK_FULL, Rig, rig_at, until
from vennue.core.errors import StorageError
from vennue.core.events import CancelJob, Tick
from vennue.core.job import JobSpec
from vennue.protocol import CheckInAnswer, CheckInRequest

WINDOW_S = 3600.0
"""No window ends by itself in these tests: they move the clock."""


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path, batch_window_s=WINDOW_S) as made:
        yield made


async def ask(rig: Rig, device: str, **attributes: Any) -> CheckInAnswer:
    """What a device is answered, once it is."""
    answer, pending = rig.selector.check_in(
        CheckInRequest(device=device, attributes=msgspec.Raw(msgspec.json.encode(attributes)))
    )
    if pending is not None:
        answer = await pending or answer
    assert answer is not None
    return answer


async def gathered(rig: Rig, *devices: str) -> list[asyncio.Task[CheckInAnswer]]:
    """Requests of devices that wait by now."""
    asking = [asyncio.create_task(ask(rig, device)) for device in devices]
    await until(lambda: len(rig.coordinator.gathering) == len(set(devices)))
    return asking


def end_window(rig: Rig) -> None:
    rig.clock.now += WINDOW_S
    rig.coordinator.apply(Tick())


async def test_devices_are_answered_when_the_window_ends(rig):
    job = await rig.job(demand=2)
    await rig.open(job)
    asking = await gathered(rig, "d1", "d2", "d3")
    assert not any(task.done() for task in asking)
    end_window(rig)
    answers = await asyncio.gather(*asking)
    assert [answer.task is not None for answer in answers] == [True, True, False]
    assert answers[2].retry_after_s is not None
    assert len(rig.coordinator.gathering) == 0


async def test_a_task_from_a_batch_can_be_reported(rig):
    job = await rig.job(demand=1)
    await rig.open(job)
    [asking] = await gathered(rig, "d1")
    end_window(rig)
    task = (await asking).task
    assert task is not None
    await rig.report(task)
    assert (await rig.coordinator.round(job, 1, wait_s=20)).state == "committed"


async def test_a_device_that_asks_twice_is_answered_the_same_twice(rig):
    job = await rig.job(demand=5)
    await rig.open(job)
    first, second = await gathered(rig, "d1", "d1")
    end_window(rig)
    one, two = (await first).task, (await second).task
    assert one is not None
    assert two is not None
    assert one.assignment == two.assignment


async def test_a_request_that_is_broken_off_does_not_take_another_with_it(rig):
    job = await rig.job(demand=5)
    await rig.open(job)
    first, second = await gathered(rig, "d1", "d1")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    end_window(rig)
    assert (await second).task is not None


async def test_a_device_that_holds_a_task_does_not_wait(rig):
    job = await rig.job(demand=5)
    await rig.open(job)
    [asking] = await gathered(rig, "d1")
    end_window(rig)
    first, again = (await asking).task, (await ask(rig, "d1")).task
    assert first is not None
    assert again is not None
    assert first.assignment == again.assignment
    assert len(rig.coordinator.gathering) == 0


async def test_a_job_that_is_cancelled_right_after_the_window_hands_out_no_task(rig):
    job = await rig.job(demand=5)
    await rig.open(job)
    [asking] = await gathered(rig, "d1")
    end_window(rig)
    rig.coordinator.apply(CancelJob(job))
    assert (await asking).task is None


async def test_at_a_stop_whoever_waits_is_told_to_come_back(rig):
    asking = await gathered(rig, "d1", "d2")
    rig.coordinator.announce_stop()
    assert [answer.task for answer in await asyncio.gather(*asking)] == [None, None]


async def test_when_the_ledger_fails_whoever_waits_is_told_so(rig):
    asking = await gathered(rig, "d1")
    rig.ledger.failure = DISK_FULL
    with pytest.raises(StorageError, match="disk is full"):
        await rig.coordinator.submit(JobSpec(name="x", demand=1))
    with pytest.raises(StorageError, match="disk is full"):
        await asking[0]


async def test_a_request_waits_no_longer_than_the_window(tmp_path):

    loop = asyncio.get_running_loop()
    async with rig_at(tmp_path, lambda: 1000.0 + loop.time(), batch_window_s=0.01) as rig:  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            assert (await ask(rig, "d1")).task is None
