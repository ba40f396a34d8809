"""Virtual time: it passes only by being waited for, and a process on it ends all at once."""

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor

import pytest

from vennue.testing.virtual import (
    Deadlock,
    Process,
    VirtualLoop,
    check_alive,
    current_process,
    in_virtual_time,
    run_virtual,
)


def now():
    return asyncio.get_running_loop().time()


DISK = ThreadPoolExecutor(1)
"""Never used: a virtual loop starts no threads."""


async def idle():
    await asyncio.get_running_loop().create_future()


@in_virtual_time
async def test_a_day_of_sleep_takes_a_day_of_virtual_time_and_no_real_one():
    await asyncio.sleep(86_400)  # with which no test would end, if it were a real day
    assert now() == 86_400.0


@in_virtual_time
async def test_sleepers_wake_in_the_order_of_their_times():
    woken = []

    async def sleeper(seconds):
        await asyncio.sleep(seconds)
        woken.append((now(), seconds))

    await asyncio.gather(*(sleeper(seconds) for seconds in (3.0, 1.0, 2.0)))
    assert woken == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


@in_virtual_time
async def test_a_timeout_fires_at_its_virtual_time():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await idle()
    assert now() == 3600.0


def test_time_may_start_anywhere():
    async def when():
        return now()

    assert run_virtual(when(), lambda: VirtualLoop(start_s=1e9)) == 1e9


def test_waiting_for_what_never_happens_is_an_error_and_not_a_hang():
    with pytest.raises(Deadlock, match=r"at 0.000 s everything waits"):
        run_virtual(idle())


def test_a_loop_that_lets_no_time_pass_is_an_error_and_not_a_hang(monkeypatch):
    async def busy():
        while True:  # noqa: ASYNC110 - this is what is tested
            await asyncio.sleep(0)

    monkeypatch.setattr("vennue.testing.virtual.LIVELOCK_TURNS", 100)
    with pytest.raises(Deadlock, match="turned 100 times"):
        run_virtual(busy())


@in_virtual_time
async def test_work_for_threads_is_done_in_the_loop_after_the_caller_s_step():
    done: list[int] = []
    work = asyncio.to_thread(done.append, 1)
    assert done == []
    await work
    assert done == [1]


def test_work_for_an_executor_takes_the_time_that_is_asked_for():
    async def work():
        await asyncio.get_running_loop().run_in_executor(DISK, int)
        return now()

    assert run_virtual(work(), lambda: VirtualLoop(work_s=lambda: 2.5)) == 2.5


def test_what_the_time_of_work_raises_becomes_of_the_work():
    def fails():
        raise OSError("full")

    async def work():
        await asyncio.get_running_loop().run_in_executor(DISK, int)

    with pytest.raises(OSError, match="full"):
        run_virtual(work(), lambda: VirtualLoop(work_s=fails))


@in_virtual_time
async def test_an_error_in_work_reaches_whoever_waits_for_it():
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.to_thread(int, "x")


# -- processes -------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_killed_process_takes_its_tasks_timers_and_work_with_it():
    happened: list[str] = []

    async def program():
        loop = asyncio.get_running_loop()
        loop.call_later(5, happened.append, "timer")
        child = loop.create_task(asyncio.sleep(5))
        child.add_done_callback(lambda task: happened.append(f"child {task.cancelled()}"))
        await asyncio.sleep(5)
        happened.append("program")

    process = Process("p")
    process.spawn(program())
    await asyncio.sleep(1)
    process.kill()
    await process.gone()
    await asyncio.sleep(10)
    assert happened == ["child True"]


@in_virtual_time
async def test_a_process_that_kills_itself_goes_no_step_further():
    steps = []

    async def program():
        steps.append(1)
        process.kill()
        await asyncio.sleep(0)
        steps.append(2)

    process = Process("p")
    process.spawn(program())
    await asyncio.sleep(1)
    await process.gone()
    assert steps == [1]


@in_virtual_time
async def test_work_that_has_not_begun_when_its_process_is_killed_never_does():
    done: list[int] = []
    process = Process("p")
    task = process.spawn(asyncio.to_thread(done.append, 1))
    await asyncio.sleep(0)
    process.kill()
    await process.gone()
    await asyncio.sleep(1)
    assert task.cancelled()
    assert done == []


@in_virtual_time
async def test_others_go_on_when_a_process_is_killed():
    process = Process("p")
    process.spawn(idle())
    mine = asyncio.create_task(asyncio.sleep(5, "done"))
    await asyncio.sleep(1)
    process.kill()
    assert await mine == "done"


@in_virtual_time
async def test_what_a_killed_process_starts_as_it_cleans_up_does_not_run():
    happened = []

    async def farewell():
        happened.append("farewell")

    async def program():
        try:
            await idle()
        finally:
            await asyncio.create_task(farewell())

    process = Process("p")
    process.spawn(program())
    await asyncio.sleep(1)
    process.kill()
    await process.gone()
    assert happened == []


@in_virtual_time
async def test_a_process_that_outlives_every_cancellation_is_reported():
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    process = Process("mule")
    task = process.spawn(stubborn())
    await asyncio.sleep(0)
    process.kill()
    with pytest.raises(AssertionError, match="still there after mule was killed"):
        await process.gone()
    task.get_coro().close()
    task.cancel()


@in_virtual_time
async def test_everything_knows_its_process_and_whether_it_lives():
    seen: list[object] = []

    async def program():
        seen.append(current_process())
        check_alive()
        process.kill()
        with pytest.raises(asyncio.CancelledError):
            check_alive()
        seen.append("checked")

    process = Process("p")
    process.spawn(program())
    await asyncio.sleep(1)
    assert seen == [process, "checked"]
    assert current_process() is None
    check_alive()


def test_the_same_program_takes_the_same_steps():
    async def program(steps):
        async def worker(name):
            for _ in range(3):
                await asyncio.sleep(0.1 * len(name))
                steps.append((now(), name))

        await asyncio.gather(*map(worker, ("a", "bb", "cc")))

    first: list[object] = []
    second: list[object] = []
    run_virtual(program(first))
    run_virtual(program(second))
    assert first == second
    assert functools.reduce(lambda count, _: count + 1, first, 0) == 9
