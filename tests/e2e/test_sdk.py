"""The SDK against a real server: rounds that train, a bad network, jobs that are gone on with, and how jobs end."""

import asyncio
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice

import httpx
import numpy as np
import pytest

from tests.e2e.server_process import ServerProcess
from vennue import AsyncDevice, AsyncJob, Device, Job, Retry
from vennue.core.errors import Conflict, InvalidUpdate, JobEnded, NotFound, UnknownAttribute
from vennue.testing import FaultyTransport

HASTY = Retry(first_s=0.01, most_s=0.1)
"""A server on the loopback needs no sparing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("sdk") / "data") as running:
        yield running.url
        assert running.stop() == 0, running.log


@pytest.fixture
def device(server):
    with Device(server, attributes={"ram_gb": 8}, private={"samples": 100}, retry=HASTY) as made:
        yield made


def model(*values):
    return {"w": np.array(values, np.float32)}


async def devices_at_work(server, count, acknowledged, job_ended, **faults):
    """Devices that each add their own number to the model, on a network with faults, until the jobs have ended.

    What a device adds to a number is a power of two, so every mean of reports tells which reports are in it.
    """

    async def live(number):
        network = FaultyTransport(httpx.AsyncHTTPTransport(), seed=number, **faults)
        async with (
            network,
            AsyncDevice(
                server, device_id=f"d{number}", attributes={"ram_gb": 8}, transport=network, retry=HASTY
            ) as own,
        ):
            async for task in own.tasks(stop=job_ended):
                update = {name: array + 2.0**number for name, array in task.model.items()}
                if await task.report(update, examples=number + 1):
                    attempt, _, _ = task.id.rpartition(".")
                    acknowledged[attempt].append(number)
        return network.injected

    return await asyncio.gather(*(live(number) for number in range(count)))


async def test_on_a_bad_network_each_aggregate_is_the_mean_of_the_reports_that_were_acknowledged(server):
    acknowledged: dict[str, list[int]] = defaultdict(list)
    ended = asyncio.Event()
    network = FaultyTransport(httpx.AsyncHTTPTransport(), seed=99, drop=0.1, duplicate=0.1, disconnect=0.2)
    results = []

    async def own(name):
        job = AsyncJob(server, name=name, demand=4, rounds=4, transport=network, retry=HASTY)
        async with job:
            current = model(0, 100)
            async for round in job.rounds():
                before, current = current, await round.run(current)
                assert round.view is not None
                results.append((f"{job.id}.{round.number}.{round.view.attempt}", current["w"] - before["w"]))

    async def jobs():
        try:
            await asyncio.gather(own("first"), own("second"))
        finally:
            ended.set()

    faults = {"drop": 0.05, "duplicate": 0.1, "disconnect": 0.15}
    injected, _ = await asyncio.gather(devices_at_work(server, 6, acknowledged, ended, **faults), jobs())
    await network.aclose()
    assert len(results) == 8
    for attempt, added in results:
        numbers = acknowledged[attempt]
        assert len(numbers) == 4
        mean = sum((n + 1) * 2.0**n for n in numbers) / sum(n + 1 for n in numbers)
        np.testing.assert_allclose(added, mean, rtol=1e-5)
    assert min(sum(counts[fault] for counts in injected) for fault in faults) > 0


@pytest.fixture
def background():
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit


def add_one(device, tasks=1):
    """Serve so many tasks; whether each report counted."""
    return [
        task.report({name: array + 1 for name, array in task.model.items()}, examples=1)
        for task in device.tasks(max_tasks=tasks)
    ]


def test_a_program_that_is_run_again_under_its_key_goes_on_from_the_last_committed_model(server, device, background):
    def program(rounds):
        job = Job(server, name="again", demand=1, rounds=3, key="again-1", retry=HASTY)
        current, numbers = model(0, 0), []
        for round in islice(job.rounds(), rounds):
            current = round.run(current)
            numbers.append(round.number)
        state = job.status().state
        job.close()
        return numbers, current["w"].tolist(), state

    first = background(program, 1)
    add_one(device)
    assert first.result() == ([1], [1, 1], "active")
    second = background(program, 3)
    add_one(device, 2)
    assert second.result() == ([2, 3], [3, 3], "completed")


async def test_a_program_that_stopped_within_a_round_joins_it(server):
    job = AsyncJob(server, name="joined", demand=1, rounds=1, retry=HASTY)
    await job.register()
    running = asyncio.create_task((await anext(job.rounds())).run(model(5)))
    while (await job.status()).open_round is None:  # noqa: ASYNC110 - it is the server's
        await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    async with AsyncJob.attach(server, job.id) as attached, AsyncDevice(server, retry=HASTY) as device:

        async def serve():
            async for task in device.tasks(max_tasks=1):
                await task.report(task.model, examples=1)

        round = await anext(attached.rounds())
        result, _ = await asyncio.gather(round.run(model(0)), serve())
    assert result["w"].tolist() == [5]
    await job.close()


def test_an_exception_ends_the_job_for_everybody_with_its_reason(server):
    job = Job(server, name="fails", demand=1)
    with suppress(ZeroDivisionError), job:
        raise ZeroDivisionError("the loss was nothing")
    with closing(Job.attach(server, job.id)) as attached, pytest.raises(JobEnded) as caught:
        next(attached.rounds())
    assert caught.value.message.endswith("ZeroDivisionError: the loss was nothing")


def test_a_program_that_ctrl_c_stops_goes_on_with_its_job_when_it_is_run_again(server, device, background):
    def program(ctrl_c):
        made = []
        with (
            suppress(KeyboardInterrupt),
            Job(server, name="stopped", key="stopped-1", demand=1, rounds=2) as job,
        ):
            for round in job.rounds():
                made.append(round.run(model(0))["w"].tolist())
                if ctrl_c:
                    raise KeyboardInterrupt
        return made

    first = background(lambda: program(ctrl_c=True))
    add_one(device)
    assert first.result() == [[1]]
    again = background(lambda: program(ctrl_c=False))
    add_one(device)
    assert again.result() == [[2]]


def test_a_jobs_result_is_there_after_its_block(server, device, background):
    def program():
        with Job(server, name="after", demand=1, rounds=1) as job:
            next(job.rounds()).run(model(0))
        with closing(job):
            return job.result(), job.status().state

    finished = background(program)
    add_one(device)
    result, state = finished.result()
    assert (result["w"].tolist(), state) == ([1], "completed")


def test_private_requirements_choose_the_device_and_their_attributes_stay_on_it(server, device, background):
    def program(samples):
        with Job(server, name="private", demand=1, rounds=1, private_requirement=f"device.samples >= {samples}") as job:
            return next(job.rounds()).run(model(0))["w"].tolist()

    unmet = Job(server, name="unmet", demand=1, rounds=1, private_requirement="device.samples >= 101")
    with suppress(JobEnded), unmet:
        waiting = background(lambda: next(unmet.rounds()).run(model(0)))
        with closing(Job.attach(server, unmet.id)) as same, ThreadPoolExecutor(1) as other:
            while same.status().open_round is None:  # until the device is asked about it first
                time.sleep(0.01)
            met = other.submit(program, 100)
            assert add_one(device) == [True]
            assert met.result() == [1]
        unmet.cancel()
        waiting.result()


def test_a_report_after_the_round_has_committed_does_not_count_and_is_no_error(server, device, background):
    def program():
        with Job(server, name="late", demand=1, overcommit=2.0, rounds=1, requirement="device.ram_gb == 8") as job:
            return next(job.rounds()).run(model(0))["w"].tolist()

    result = background(program)
    with Device(server, attributes={"ram_gb": 8}, retry=HASTY) as slow:
        for late in slow.tasks(max_tasks=1):
            assert add_one(device) == [True]
            assert result.result() == [1]
            assert late.report(late.model, examples=1) is False


def test_an_update_that_is_not_finite_is_refused_by_name_and_may_be_corrected(server, device, background):
    def program():
        with Job(server, name="finite", demand=1, rounds=1) as job:
            return next(job.rounds()).run(model(0, 0))["w"].tolist()

    result = background(program)
    for task in device.tasks(max_tasks=1):
        with pytest.raises(InvalidUpdate) as caught:
            task.report(model(1, np.nan), examples=1)
        assert caught.value.field == "w"
        assert task.report(model(1, 2), examples=1)
    assert result.result() == [1, 2]


def test_a_large_model_survives_cuts_on_its_way(server, background):
    network = FaultyTransport(httpx.HTTPTransport(), seed=3, disconnect=0.4)
    big = {"w": np.arange(2_000_000, dtype=np.float32)}

    def program():
        with Job(server, name="big", demand=1, rounds=2, transport=network, retry=HASTY) as job:
            current = big
            for round in job.rounds():
                current = round.run(current)
            return current

    result = background(program)
    with Device(server, transport=network, retry=HASTY) as device:
        add_one(device, 2)
        np.testing.assert_array_equal(result.result()["w"], big["w"] + 2)
    assert network.injected["disconnect"] > 5
    network.close()


def test_a_spec_that_makes_no_sense_is_refused_with_the_field_and_the_fix(server):
    job = Job(server, name="typo", demand=1, requirement="device.ram_bg > 4")
    with closing(job), pytest.raises(UnknownAttribute, match="ram_gb") as caught:
        job.register()
    assert caught.value.field == "requirement"


def test_a_key_names_one_submission(server):
    first, second = (Job(server, name=name, demand=1, key="same") for name in ("one", "two"))
    with closing(first), closing(second):
        first.register()
        with pytest.raises(Conflict):
            second.register()


def test_a_job_that_is_not_there_is_not_found(server):
    with closing(Job.attach(server, "nobody-000000")) as job, pytest.raises(NotFound):
        job.status()
