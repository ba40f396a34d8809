"""Who acts in the cases: devices that add one to whatever they are given, a job that waits, a network with a will."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import numpy as np

from vennue.sdk.device import AsyncDevice
from vennue.tensors.model import save
from vennue.testing import LocalPool

MODEL = save({"w": np.zeros(2, np.float32)})

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Network(httpx.AsyncBaseTransport):
    """A way to the pool on which a test may do what it likes with each call.

    Args:
        pool: where calls go.
        rule: told each request and how to pass it on.
    """

    def __init__(self, pool: LocalPool, rule: Callable[[httpx.Request, Handler], Awaitable[httpx.Response]]) -> None:
        self._inner = pool.transport()
        self._rule = rule

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._rule(request, self._inner.handle_async_request)


class Cut:
    """Loses the answers to the first calls whose path ends so: the server has done what it was asked, nobody knows."""

    def __init__(self, *ends: str) -> None:
        self.left = list(ends)

    async def __call__(self, request: httpx.Request, pass_on: Handler) -> httpx.Response:
        response = await pass_on(request)
        for end in self.left:
            if request.url.path.endswith(end):
                self.left.remove(end)
                raise httpx.ReadError("the connection was cut before the answer", request=request)
        return response


async def adds_one(device: AsyncDevice, *, takes_s: float = 10.0, told: list[bool] | None = None) -> None:
    """A device's life: it adds one to each model; ``told`` gets whether its reports counted."""
    async with device, contextlib.aclosing(device.tasks()) as tasks:
        async for task in tasks:
            await asyncio.sleep(takes_s)
            counted = await task.report({"w": task.model["w"] + 1}, examples=1)
            if told is not None:
                told.append(counted)


@contextlib.asynccontextmanager
async def devices(*lives: Awaitable[None]) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Devices that live as long as the block."""
    living = [asyncio.ensure_future(life) for life in lives]
    try:
        yield living
    finally:
        for one in living:
            one.cancel()
        await asyncio.wait(living)


async def learn(pool: LocalPool, rounds: int = 1, **spec: Any) -> list[float]:
    """Run a job of two devices a round to its end; its model, which counts the rounds."""
    async with pool.job(**{"name": "sum", "demand": 2, "rounds": rounds, **spec}) as job:
        model = {"w": np.zeros(2, np.float32)}
        async for turn in job.rounds():
            model = await turn.run(model)
    numbers: list[float] = model["w"].tolist()
    return numbers


async def opened(pool: LocalPool, **spec: Any) -> str:
    """The id of a job whose first round is open."""
    async with pool.client() as client:
        job: str = (await client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 1, **spec}})).json()["id"]
        model = pool.blobs.put(MODEL)
        answer = await client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": model})
        assert answer.status_code == 200
    return job


async def show(pool: LocalPool, path: str) -> Any:
    """What the pool answers to a question."""
    async with pool.client() as client:
        return (await client.get(path)).json()
