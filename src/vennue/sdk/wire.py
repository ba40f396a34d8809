"""Calls to a server, tried again while that may help: JSON messages, and blobs and reports by their content.

`Wire` is written once, as coroutines over a `vennue.sdk.transport.Transport`, and so serves the blocking classes of the
SDK and those for asyncio alike.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import httpx
import msgspec

from vennue import protocol
from vennue._zstd import zstd
from vennue.core import errors
from vennue.core.errors import InvalidModel, Unavailable
from vennue.core.ids import Digest
from vennue.sdk.download import Damaged, Download, Fetched, Form, damaged
from vennue.sdk.problems import TryAgain, check, given_up
from vennue.sdk.retry import Retry
from vennue.sdk.transport import AsyncioTransport, BlockingTransport, Timing, Transport

log = logging.getLogger("vennue.sdk")

T = TypeVar("T")

PARTS_BYTES = 8 * 2**20
"""Models from this size on are uploaded in parts."""

_QUIET_FAILURES = 2
"""A connection that the server closed while it was idle costs one of these, and is nobody's concern."""


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
            check(response)
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
                    check(response)
                return download.finish()
            except (Damaged, InvalidModel, zstd.ZstdError) as error:
                download.give_up()
                raise TryAgain(damaged(digest, error)) from error

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
                check(response)
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
            check(response)
        except errors.Conflict as error:
            if type(error) is not errors.Conflict:
                raise
            raise TryAgain(error) from error  # another part is still being received, or has just ended
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
            except TryAgain as failure:
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
                final = given_up(error)
                final.add_note(f"{what} failed {failures} times within {now - began:.1f} s")
                raise final
            warned, odd = divmod(failures, _QUIET_FAILURES + 1)
            # Of an outage that lasts, the log warns at each doubling.
            level = logging.WARNING if odd == 0 and warned.bit_count() == 1 else logging.INFO
            log.log(level, "%s failed, trying again in %.1f s: %s", what, wait_s, error.message)
            await self.transport.sleep(wait_s)


def blocking_wire(
    server: str | None, retry: Retry | None, transport: httpx.BaseTransport | None, timing: Timing | None
) -> Wire:
    """The wire of a class that blocks, with the defaults of what its caller left out."""
    timing = timing or Timing()
    return Wire(BlockingTransport(server, transport, timing), retry or Retry(), timing)


def async_wire(
    server: str | None, retry: Retry | None, transport: httpx.AsyncBaseTransport | None, timing: Timing | None
) -> Wire:
    """The wire of a class for asyncio, with the defaults of what its caller left out."""
    timing = timing or Timing()
    return Wire(AsyncioTransport(server, transport, timing), retry or Retry(), timing)
