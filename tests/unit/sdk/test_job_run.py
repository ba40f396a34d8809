"""``Job.run``: all rounds in one call, to their end or to where the owner has had enough."""

import asyncio

import numpy as np
import pytest

from vennue.testing import LocalPool, in_virtual_time


def start():
    return {"w": np.zeros(2, np.float32)}


async def add_one(pool, stop):
    async with pool.device() as device:
        async for task in device.tasks(stop=stop):
            await task.report({"w": task.model["w"] + 1}, examples=1, metrics={"loss": 1 / task.round})


@pytest.fixture
def trained():
    """Run what an owner does, with a device that adds one to every number; what came of it."""

    async def run(owner):
        stop = asyncio.Event()
        async with LocalPool() as pool, asyncio.TaskGroup() as group:
            group.create_task(add_one(pool, stop))
            found = await owner(pool)
            stop.set()
            return found

    return run


@in_virtual_time
async def run_to_the_end(trained):
    async def owner(pool):
        async with pool.job(name="count", demand=1, rounds=3) as job:
            model = await job.run(start())
        return model, (await job.status()).state

    return await trained(owner)


def test_a_run_goes_through_all_rounds_and_returns_the_last_model(trained):
    model, state = run_to_the_end(trained)
    assert (model["w"].tolist(), state) == ([3, 3], "completed")


@in_virtual_time
async def run_until(trained):
    async def owner(pool):
        seen = []

        def enough(turn, model):
            seen.append((turn.number, float(model["w"][0])))
            return turn.metrics["loss"] <= 0.5

        async with pool.job(name="count", demand=1) as job:
            await job.run(start(), until=enough)
        return seen, (await job.status()).state

    return await trained(owner)


def test_an_open_ended_job_runs_until_its_owner_has_enough_and_then_completes(trained):
    assert run_until(trained) == ([(1, 1.0), (2, 2.0)], "completed")


@in_virtual_time
async def run_again(trained):
    async def owner(pool):
        models = []
        for wanted in (1, 2, 2):
            job = pool.job(name="count", demand=1, rounds=2, key="mine")
            models.append(await job.run(start(), until=lambda turn, _, wanted=wanted: turn.number == wanted))
            await job.close()
        return [model["w"].tolist() for model in models]

    return await trained(owner)


def test_a_job_that_is_run_again_goes_on_from_its_last_commit_and_one_that_is_over_returns_its_model(trained):
    assert run_again(trained) == [[1, 1], [2, 2], [2, 2]]
