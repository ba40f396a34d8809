"""The one place where the SDK meets the network: calls over httpx, tried again, with problems turned back into errors.

`Wire` speaks the protocol: JSON calls and content-addressed blobs. It is written once, as coroutines over the small
`Transport` seam. Under `AsyncioTransport` they suspend as usual; under `BlockingTransport` nothing in them ever
suspends, so `blocking` runs them to their end on the spot: no thread, no event loop, plain tracebacks, and no quarrel
with a loop that a notebook already runs. Faults are injected one level below, as an httpx transport
(`vennue.testing.FaultyTransport`).
"""

import asyncio
import functools
import hashlib
import logging
import os
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from vennue import protocol
from vennue._zstd import zstd
from vennue.core import errors
from vennue.core.errors import InvalidInput, InvalidModel, Unavailable, VennueError
from vennue.core.ids import Digest
from vennue.sdk.download import Damaged, Download, Fetched, Form, damaged
from vennue.sdk.retry import Retry

log = logging.getLogger("vennue.sdk")

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
PARTS_BYTES = 8 * 2**20
"""Models from this size on are uploaded in parts."""

_TRY_AGAIN = frozenset({408, 425, 429, 502, 503, 504})
_DEFECT_ATTEMPTS = 3
"""Tries of a call that the server answers with 500: that is a defect, and seldom passes."""
_QUIET_FAILURES = 2
"""A connection that the server closed while it was idle costs one of these, and is nobody's concern."""


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
    """What `Wire` asks of the network and of time."""

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


class Wire:
    """Calls to one server.

    Raises, from every call: the class of `vennue.core.errors` that the server's problem document names; `Unavailable`
    when no answer came within what ``retry`` allows.
    """

    def __init__(self, transport: Transport, retry: Retry, timing: Timing) -> None:
        self.transport = transport
        self.clock = timing.clock
        self.rng = timing.rng
        self.retry = retry

    async def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: msgspec.Struct | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        retry: Retry | None = None,
    ) -> T:
        """Send a message or raw bytes and decode the answer."""
        response = await self.send(method, path, body=body, headers=headers, retry=retry)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"{response.request.url} answered with something that is no {answer.__name__}: {error}",
                field="server",
                fix="check that the address is that of a Vennue server, of this version or newer",
            ) from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: msgspec.Struct | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        retry: Retry | None = None,
    ) -> httpx.Response:
        """Send a message or raw bytes; the answer as it came."""
        sent = dict(headers or {})
        if isinstance(body, msgspec.Struct):
            body = msgspec.json.encode(body)
            sent["content-type"] = "application/json"
        elif body is not None:
            sent["content-type"] = "application/octet-stream"

        async def attempt() -> httpx.Response:
            response = await self.transport.send(self.transport.build(method, path, sent, body))
            _check(response)
            return response

        return await self._persist(f"{method} {path}", attempt, retry or self.retry)

    async def fetch(self, digest: str, *, form: Form = "plain", held: Fetched | None = None) -> Fetched:
        """A blob, verified. A download that was cut goes on where it stopped.

        Args:
            digest: of the blob.
            form: in which to ask for it.
            held: the last model, for a delta.

        Raises:
            NotFound: the server has no such blob.
            Unavailable: what arrives is something else.
        """
        download = Download(digest, form, held)

        async def attempt() -> Fetched:
            request = self.transport.build("GET", download.path, download.headers, None)
            try:
                response = await self.transport.receive(request, download.begin)
                if response.status_code != httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                    _check(response)
                return download.finish()
            except (Damaged, InvalidModel, zstd.ZstdError) as error:
                download.give_up()
                raise _TryAgain(damaged(digest, error)) from error

        what = f"GET /v1/blobs/{digest}"
        return await self._persist(what, attempt, self.retry, progress=lambda: download.received_bytes)

    async def store(self, data: bytes, *, again: bool = False) -> Digest:
        """Upload a blob, unless the server has it (or ``again``), and return its digest."""
        digest = Digest(hashlib.sha256(data).hexdigest())
        path = f"/v1/blobs/{digest}"
        if not again:
            try:
                await self.send("HEAD", path, headers={"accept-encoding": "identity"})
            except errors.NotFound:
                pass
            else:
                return digest
        if len(data) < PARTS_BYTES:
            await self.call("PUT", path, protocol.BlobReceipt, body=data)
        else:
            await self.upload(path, data)
        return digest

    async def upload(
        self,
        path: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        retry: Retry | None = None,
        whole: str | None = None,
    ) -> None:
        """Upload in parts: one, unless its connection breaks; the next one then goes on where that did.

        Args:
            path: of what is uploaded.
            data: the whole.
            headers: of each part.
            retry: how persistent to be.
            whole: a path that takes all at once by ``PUT``, with the same headers; tried until it breaks half-way.
        """
        reached = 0
        in_parts = whole is None
        sent = {**(headers or {}), "content-type": "application/octet-stream"}
        path = f"{path}/upload"

        async def attempt() -> None:
            nonlocal in_parts, reached
            if whole is not None and not in_parts:
                try:
                    response = await self.transport.send(self.transport.build("PUT", whole, sent, data))
                except httpx.ConnectError:
                    raise
                except httpx.TransportError:
                    in_parts = True
                    raise
                in_parts = response.status_code == httpx.codes.REQUEST_TIMEOUT
                _check(response)
                return
            state = await self._upload_state(self.transport.build("GET", path, headers or {}, None))
            if state.complete:
                return
            reached = state.received_bytes
            rest = data if reached == 0 else data[reached:]
            part = {
                protocol.OFFSET_HEADER: str(reached),
                protocol.LENGTH_HEADER: str(len(data)),
                protocol.COMPLETE_HEADER: "?1",
            }
            await self._upload_state(self.transport.build("PATCH", path, {**sent, **part}, rest))

        await self._persist(f"PATCH {path}", attempt, retry or self.retry, progress=lambda: reached)

    async def _upload_state(self, request: httpx.Request) -> protocol.UploadView:
        response = await self.transport.send(request)
        try:
            _check(response)
        except errors.Conflict as error:
            if type(error) is not errors.Conflict:
                raise
            raise _TryAgain(error) from error  # another part is still being received, or has just ended
        return msgspec.json.decode(response.content, type=protocol.UploadView)

    async def _persist(
        self,
        what: str,
        attempt: Callable[[], Awaitable[T]],
        retry: Retry,
        progress: Callable[[], int] = lambda: 0,
    ) -> T:
        """Try until it succeeds, fails for good, or fails too often without having made progress."""
        failures, began, reached = 0, 0.0, 0
        while True:
            at_least_s, limit = 0.0, retry.attempts
            try:
                return await attempt()
            except _TryAgain as failure:
                error, at_least_s = failure.error, failure.after_s
                limit = min(limit, failure.attempts)
            except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as failure:
                raise Unavailable(f"{what}: {failure}", field="server", fix="check the server's address") from failure
            except httpx.TransportError as failure:
                cause = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
                fix = "check its address, and that it runs"
                error = Unavailable(f"the server cannot be reached: {cause}", field="server", fix=fix)
                error.__cause__ = failure
            now = self.clock()
            if failures == 0 or progress() > reached:
                failures, began, reached = 0, now, progress()
            failures += 1
            wait_s = retry.wait_s(failures, self.rng, at_least_s)
            if failures >= limit or not retry.allows(failures, now - began + wait_s):
                given_up = _given_up(error)
                given_up.add_note(f"{what} failed {failures} times within {now - began:.1f} s")
                raise given_up
            warned, odd = divmod(failures, _QUIET_FAILURES + 1)
            # Of an outage that lasts, the log warns at each doubling.
            level = logging.WARNING if odd == 0 and warned.bit_count() == 1 else logging.INFO
            log.log(level, "%s failed, trying again in %.1f s: %s", what, wait_s, error.message)
            await self.transport.sleep(wait_s)


def _is_encoded(response: httpx.Response) -> bool:
    """Whether httpx may decode a body, if it is let to; a transport of a test has perhaps read it already."""
    return "content-encoding" in response.headers


class _TryAgain(Exception):
    """An answer that may be another one next time."""

    def __init__(self, error: VennueError, after_s: float = 0.0, attempts: int = 1_000_000) -> None:
        super().__init__(error.message)
        self.error = error
        self.after_s = after_s
        self.attempts = attempts


def _given_up(error: VennueError) -> VennueError:
    """What is told of a failure that did not pass: whatever its cause, it is the server's, and not the caller's."""
    if isinstance(error, Unavailable | errors.Overloaded):
        return error
    unavailable = Unavailable(f"the server still fails: {error.message}", field="server", fix=error.fix)
    unavailable.__cause__ = error
    return unavailable


def _check(response: httpx.Response) -> None:
    """Raise the error that an answer stands for, if it stands for one."""
    if response.is_success:
        return
    error = error_of(response)
    status = response.status_code
    if status in _TRY_AGAIN:
        raise _TryAgain(error, _retry_after_s(response, error))
    if status == httpx.codes.INTERNAL_SERVER_ERROR:
        raise _TryAgain(error, attempts=_DEFECT_ATTEMPTS)
    raise error


def error_of(response: httpx.Response) -> VennueError:
    """The error that a problem document describes; by the status alone where the answer is something else."""
    status = response.status_code
    request = response.request
    try:
        problem = msgspec.json.decode(response.content, type=protocol.Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = response.text.strip()[:200] if response.headers.get("content-type", "").startswith("text/plain") else ""
        problem = protocol.Problem(
            type="",
            title="",
            status=status,
            detail=f"the server answered {status} {response.reason_phrase} {said}".strip(),
        )
    kind = _by_code().get(problem.type.rpartition(":")[2]) or _by_status(status)
    context: dict[str, Any] = {
        "field": problem.field,
        "value": problem.value,
        "limit": problem.limit,
        "fix": problem.fix,
    }
    if kind is errors.IllegalTransition:
        context["story"] = tuple(problem.story)
    elif kind is errors.Overloaded:
        context["retry_after_s"] = problem.retry_after_s or 0.0
    error = kind(problem.detail or problem.title, **context)
    error.add_note(f"in answer to {request.method} {request.url}")
    return error


def _retry_after_s(response: httpx.Response, error: VennueError) -> float:
    """How long the server asks to be left alone: a problem document says it more finely than the header."""
    if isinstance(error, errors.Overloaded) and error.retry_after_s > 0:
        return error.retry_after_s
    header = response.headers.get("retry-after", "")
    return float(header) if header.isascii() and header.isdigit() else 0.0


@functools.cache
def _by_code() -> dict[str, type[VennueError]]:
    tree = vars(errors).values()
    return {kind.code: kind for kind in tree if isinstance(kind, type) and issubclass(kind, VennueError)}


def _by_status(status: int) -> type[VennueError]:
    if status >= 500 or status < 400:
        return Unavailable
    known: dict[int, type[VennueError]] = {
        401: errors.Forbidden,
        403: errors.Forbidden,
        404: errors.NotFound,
        408: Unavailable,
        409: errors.Conflict,
        413: errors.TooLarge,
        429: errors.Overloaded,
    }
    return known.get(status, InvalidInput)


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
        "headers": {"user-agent": f"vennue/{version('vennue')}"},
        "follow_redirects": True,
    }


@functools.cache
def _tls() -> ssl.SSLContext:
    """Read the certificate authorities once: it takes longer than everything else that a client needs."""
    return httpx.create_ssl_context()
