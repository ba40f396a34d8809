"""A network that fails on purpose: requests that never arrive, arrive twice or too late, and connections that break.

`FaultyTransport` wraps any httpx transport, so it stands below everything that the SDK does about faults, and above a
real network or a mocked one alike. The same seed gives the same faults to the same sequence of calls.

    device = vennue.Device(server, transport=FaultyTransport(httpx.HTTPTransport(), drop=0.1, duplicate=0.1, seed=7))
"""

import asyncio
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from vennue.core.errors import InvalidInput

Cut = Literal["request", "answer", "body"]

REMEMBERED = 32
"""Requests that may arrive once more."""


@dataclass(frozen=True, slots=True)
class _Fate:
    """What happens to one request."""

    delay_s: float
    back_delay_s: float
    dropped: bool
    twice: bool
    again: httpx.Request | None
    cut: Cut | None


class FaultyTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """An httpx transport, synchronous and asynchronous, that lets some requests suffer.

    Args:
        transport: the transport to spoil; its kind decides how this one may be used.
        drop: probability that a request never leaves (`httpx.ConnectError`).
        delay: probability that it waits, uniformly in ``delay_s``; on its way there or back, alike.
        duplicate: probability that it arrives twice; the caller sees the second answer.
        replay: probability that an earlier request, out of the last ones, arrives once more before it.
        disconnect: probability that the connection breaks: within the request's body, before the answer, or within
            the answer's body, alike. In the last two the server has handled the request.
        delay_s: bounds of a delay, in seconds.
        seed: of the faults.
        sleep: waits; a coroutine function with an asynchronous transport. By default real time passes.

    Attributes:
        injected: how often each fault has happened, by name.

    Raises:
        InvalidInput: a probability outside 0 to 1.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport,
        *,
        drop: float = 0.0,
        delay: float = 0.0,
        duplicate: float = 0.0,
        replay: float = 0.0,
        disconnect: float = 0.0,
        delay_s: tuple[float, float] = (0.01, 0.1),
        seed: int = 0,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        self.injected: Counter[str] = Counter()
        self._inner: Any = transport
        self._probabilities = {
            "drop": drop, "delay": delay, "duplicate": duplicate, "replay": replay, "disconnect": disconnect
        }  # fmt: skip
        for field, value in self._probabilities.items():
            if not 0 <= value <= 1:
                raise InvalidInput(f"must be 0 to 1, got {value}", field=field, value=value, fix="give a probability")
        self._delay_s = delay_s
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._earlier: deque[httpx.Request] = deque(maxlen=REMEMBERED)
        self._sleep = sleep

    def heal(self) -> None:
        """Let all further requests pass."""
        self._probabilities = dict.fromkeys(self._probabilities, 0.0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        fate = self._fate(request)
        if fate.delay_s:
            (self._sleep or time.sleep)(fate.delay_s)
        _fail_early(fate, request)
        if fate.again is not None:
            self._let_pass(fate.again)
        if fate.cut == "request":
            self._inner.handle_request(_half_sent(request)).close()
            raise _broken("in the request", request)
        if fate.twice:
            self._let_pass(request)
        response: httpx.Response = self._inner.handle_request(request)
        if fate.back_delay_s:
            (self._sleep or time.sleep)(fate.back_delay_s)
        if fate.cut == "answer":
            response.close()
            raise _broken("before the answer", request)
        return _half_answered(response, request) if fate.cut == "body" else response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        fate = self._fate(request)
        if fate.delay_s:
            await (self._sleep or asyncio.sleep)(fate.delay_s)
        _fail_early(fate, request)
        if fate.again is not None:
            await self._let_pass_async(fate.again)
        if fate.cut == "request":
            await (await self._inner.handle_async_request(_half_sent(request))).aclose()
            raise _broken("in the request", request)
        if fate.twice:
            await self._let_pass_async(request)
        response: httpx.Response = await self._inner.handle_async_request(request)
        if fate.back_delay_s:
            await (self._sleep or asyncio.sleep)(fate.back_delay_s)
        if fate.cut == "answer":
            await response.aclose()
            raise _broken("before the answer", request)
        return _half_answered(response, request) if fate.cut == "body" else response

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _let_pass(self, request: httpx.Request) -> None:
        response = self._inner.handle_request(request)
        response.read()
        response.close()

    async def _let_pass_async(self, request: httpx.Request) -> None:
        response = await self._inner.handle_async_request(request)
        await response.aread()
        await response.aclose()

    def _fate(self, request: httpx.Request) -> _Fate:
        with self._lock:
            # As many draws for every request, so that one fault more does not change all that follow.
            happens = {fault: self._rng.random() < p for fault, p in self._probabilities.items()}
            delay_s = self._rng.uniform(*self._delay_s)
            is_late = self._rng.random() < 0.5
            which = self._rng.random()
            cut: Cut = self._rng.choice(("request", "answer", "body"))
            again = self._earlier[int(which * len(self._earlier))] if happens["replay"] and self._earlier else None
            happens["replay"] = again is not None
            self._earlier.append(request)
            self.injected.update(fault for fault, so in happens.items() if so)
        return _Fate(
            delay_s=delay_s if happens["delay"] and not is_late else 0.0,
            back_delay_s=delay_s if happens["delay"] and is_late else 0.0,
            dropped=happens["drop"],
            twice=happens["duplicate"],
            again=again,
            cut=cut if happens["disconnect"] else None,
        )


def _fail_early(fate: _Fate, request: httpx.Request) -> None:
    if fate.dropped or (fate.cut == "request" and not request.content):
        raise httpx.ConnectError("the request was dropped on purpose", request=request)


def _broken(where: str, request: httpx.Request) -> httpx.ReadError:
    return httpx.ReadError(f"the connection was cut {where} on purpose", request=request)


class _Half(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The first bytes of a stream, then an error."""

    def __init__(self, stream: Any, limit_bytes: int, error: httpx.TransportError) -> None:
        self._stream = stream
        self._left = limit_bytes
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield self._take(chunk)
            if self._left <= 0:
                break
        raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield self._take(chunk)
            if self._left <= 0:
                break
        raise self._error

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()

    async def aclose(self) -> None:
        if hasattr(self._stream, "aclose"):
            await self._stream.aclose()

    def _take(self, chunk: bytes) -> bytes:
        taken = chunk[: self._left]
        self._left -= len(taken)
        return taken


def _half_sent(request: httpx.Request) -> httpx.Request:
    error = httpx.WriteError("the connection was cut in the request on purpose", request=request)
    stream = _Half(request.stream, len(request.content) // 2, error)
    return httpx.Request(
        request.method, request.url, headers=request.headers, stream=stream, extensions=request.extensions
    )


def _half_answered(response: httpx.Response, request: httpx.Request) -> httpx.Response:
    limit_bytes = int(response.headers.get("content-length", 0)) // 2
    stream = _Half(response.stream, limit_bytes, _broken("in the answer", request))
    return httpx.Response(response.status_code, headers=response.headers, stream=stream, extensions=response.extensions)
