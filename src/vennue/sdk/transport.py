"""The seam between the SDK and the network: requests over httpx, with an event loop and without one.

Everything above it is written once, as coroutines over the small `Transport`. Under `AsyncioTransport` they suspend as
usual; under `BlockingTransport` nothing in them ever suspends, so `blocking` runs them to their end on the spot: no
thread, no event loop, plain tracebacks, and no quarrel with a loop that a notebook already runs. Faults are injected
one level below, as an httpx transport (`vennue.testing.FaultyTransport`).
"""

import asyncio
import functools
import os
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

import httpx

from vennue.core.errors import InvalidInput

T = TypeVar("T")

Sink = Callable[[httpx.Response], Callable[[bytes], object]]
"""Gives what takes an answer's body, as it is on the wire."""

DEFAULT_SERVER = "http://127.0.0.1:8765"
"""Where ``vennue serve`` listens when it is told nothing else."""
SERVER_VARIABLE = "VENNUE_SERVER"
"""The environment variable that names another server."""
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
"""Of single steps of a call, so a long upload may take longer; well above the longest long poll."""
LIMITS = httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=60.0)

PIECE_BYTES = 256 * 1024


class Stopped(BaseException):
    """A wait ended because the session was told to stop. Never leaves the SDK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where time and chance come from. Tests and simulations replace them.

    Args:
        clock: seconds, never stepping back.
        sleep: waits for so many seconds; a coroutine function for the asynchronous classes.
        rng: draws the jitter of waits.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] | None = None
    rng: random.Random = field(default_factory=random.Random)


class Transport(Protocol):
    """What the SDK asks of the network and of time."""

    stop: Any
    """While set to an event, `sleep` ends early, with `Stopped`, when the event is set."""

    def build(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> httpx.Request:
        """A request to the server."""
        ...

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, read to its end."""
        ...

    async def receive(self, request: httpx.Request, sink: Sink) -> httpx.Response:
        """As `send`, but a successful answer's body goes to ``sink(answer)`` as it arrives, up to any cut."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait."""
        ...

    async def close(self) -> None:
        """Give the connections back. A later call opens new ones; a transport of the caller's is left to the caller."""
        ...


class BlockingTransport:
    """The seam over `httpx.Client`. Its coroutines never suspend."""

    def __init__(self, server: str | None, transport: httpx.BaseTransport | None, timing: Timing) -> None:
        self.stop: threading.Event | None = None
        self._options = {"transport": transport, **_client_options(server)}
        self._client = httpx.Client(**self._options)
        self._sleep = timing.sleep

    def build(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> httpx.Request:
        pieces = body if body is None or len(body) <= PIECE_BYTES else _Pieces(body)
        return self._client.build_request(method, path, headers=_sized(headers, body), content=pieces)

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self._client.send(request)

    async def receive(self, request: httpx.Request, sink: Sink) -> httpx.Response:
        response = self._client.send(request, stream=True)
        try:
            if response.is_success:
                take = sink(response)
                for chunk in response.iter_raw() if _is_encoded(response) else response.iter_bytes():
                    take(chunk)
            else:
                response.read()
        finally:
            response.close()
        return response

    async def sleep(self, delay_s: float) -> None:
        if self._sleep is not None:
            self._sleep(delay_s)
        elif self.stop is not None:
            self.stop.wait(delay_s)
        else:
            time.sleep(delay_s)  # noqa: ASYNC251 - under `blocking` there is no loop to hold up
        if self.stop is not None and self.stop.is_set():
            raise Stopped

    async def close(self) -> None:
        if self._options["transport"] is None:
            self._client.close()
            self._client = httpx.Client(**self._options)


class AsyncioTransport:
    """The seam over `httpx.AsyncClient`."""

    def __init__(self, server: str | None, transport: httpx.AsyncBaseTransport | None, timing: Timing) -> None:
        self.stop: asyncio.Event | None = None
        self._options = {"transport": transport, **_client_options(server)}
        self._client = httpx.AsyncClient(**self._options)
        self._sleep = timing.sleep

    def build(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> httpx.Request:
        pieces = body if body is None or len(body) <= PIECE_BYTES else _AsyncPieces(body)
        return self._client.build_request(method, path, headers=_sized(headers, body), content=pieces)

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._client.send(request)

    async def receive(self, request: httpx.Request, sink: Sink) -> httpx.Response:
        response = await self._client.send(request, stream=True)
        try:
            if response.is_success:
                take = sink(response)
                async for chunk in response.aiter_raw() if _is_encoded(response) else response.aiter_bytes():
                    take(chunk)
            else:
                await response.aread()
        finally:
            await response.aclose()
        return response

    async def sleep(self, delay_s: float) -> None:
        if self._sleep is not None:
            await self._sleep(delay_s)
        elif self.stop is not None:
            try:
                async with asyncio.timeout(delay_s):
                    await self.stop.wait()
            except TimeoutError:
                pass
        else:
            await asyncio.sleep(delay_s)
        if self.stop is not None and self.stop.is_set():
            raise Stopped

    async def close(self) -> None:
        if self._options["transport"] is None:
            await self._client.aclose()
            self._client = httpx.AsyncClient(**self._options)


class _Pieces:
    """A long body in pieces, as often as it is asked for: what is left of a piece is copied each time some is sent."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return (self._body[start : start + PIECE_BYTES] for start in range(0, len(self._body), PIECE_BYTES))


class _AsyncPieces:
    """The same for asyncio."""

    def __init__(self, body: bytes) -> None:
        self._pieces = _Pieces(body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def _sized(headers: Mapping[str, str], body: bytes | None) -> dict[str, str]:
    return dict(headers) if body is None else {**headers, "content-length": str(len(body))}


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: everything that it awaits in the end is a `BlockingTransport`."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call was about to suspend")


def _is_encoded(response: httpx.Response) -> bool:
    """Whether httpx may decode a body, if it is let to; a transport of a test has perhaps read it already."""
    return "content-encoding" in response.headers


def _client_options(server: str | None) -> dict[str, Any]:
    if server is None:
        server = os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    try:
        url = httpx.URL(server)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidInput(
            f"{server!r} is not the address of a server",
            field="server",
            value=server,
            fix=f'give it as in "{DEFAULT_SERVER}"',
        )
    return {
        "base_url": url,
        "timeout": TIMEOUT,
        "limits": LIMITS,
        "verify": _tls(),
        "headers": {"user-agent": _user_agent()},
        "follow_redirects": True,
    }


@functools.cache
def _user_agent() -> str:
    """Read the installed version once: it is looked up in a file."""
    return f"vennue/{version('vennue')}"


@functools.cache
def _tls() -> ssl.SSLContext:
    """Read the certificate authorities once: it takes longer than everything else that a client needs."""
    return httpx.create_ssl_context()
