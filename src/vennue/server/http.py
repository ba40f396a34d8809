"""Requests and answers: the thin layer between RSGI, granian's interface, and the routes.

It enforces what holds for every request, whatever it asks: a body is no larger than its limit (refused by its
Content-Length before a byte is read), arrives whole and keeps arriving, and JSON is JSON of the expected shape.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from vennue.core.errors import InvalidInput, TooLarge
from vennue.server.problems import RequestError
from vennue.server.silence import silent_peers

WHOLE_BODY_BYTES: Final = 2**20
"""A report up to this size is handed over in one piece: in the five that 1 MB comes in, it costs a fifth more."""
WHOLE_BODIES_BYTES: Final = 32 * 2**20

Headers = list[tuple[str, str]]
Message = TypeVar("Message")
T = TypeVar("T")


class Scope(Protocol):
    """What granian says of a request."""

    client: str
    method: str
    path: str
    query_string: str
    headers: Any


class Transport(Protocol):
    """Granian's half of a request: its body, and the means to answer. See the RSGI specification."""

    async def __call__(self) -> bytes: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def client_disconnect(self) -> None: ...

    def response_empty(self, status: int, headers: Headers) -> None: ...

    def response_bytes(self, status: int, headers: Headers, body: bytes) -> None: ...

    def response_file(self, status: int, headers: Headers, file: str) -> None: ...

    def response_file_range(self, status: int, headers: Headers, file: str, start: int, end: int) -> None: ...


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler returns: a message (or bytes) with a status and headers, or bytes of a file."""

    status: int = 200
    headers: Headers = []
    body: bytes = b""
    file: Path | None = None
    """Send this file's bytes from ``start`` to ``stop``, without reading them into memory."""
    start: int = 0
    stop: int = 0


def json_answer(message: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """An answer in JSON."""
    body = msgspec.json.encode(message)
    return Answer(status=status, headers=[("content-type", "application/json"), *headers], body=body)


def send(request: "Request", transport: Transport, answer: Answer) -> None:
    """Hand an answer to granian."""
    headers = answer.headers
    without_body = request.method == "HEAD"
    if request.has_unread_body:
        # Granian closes the connection, and would let the client send its next request into the void.
        headers = [*headers, ("connection", "close")]
    if answer.file is not None:
        headers = [*headers, ("content-length", str(answer.stop - answer.start))]
        if without_body or answer.stop == answer.start:
            transport.response_empty(answer.status, headers)
        elif answer.status == 206:
            transport.response_file_range(answer.status, headers, os.fspath(answer.file), answer.start, answer.stop)
        else:
            transport.response_file(answer.status, headers, os.fspath(answer.file))
    elif without_body and answer.status != 304:  # which has the length of what it stands for, or none
        transport.response_empty(answer.status, [*headers, ("content-length", str(len(answer.body)))])
    elif answer.body:
        transport.response_bytes(answer.status, headers, answer.body)
    else:
        transport.response_empty(answer.status, headers)


class _Wait(NamedTuple):
    """A body that is waited for."""

    since: float
    more_s: float
    """How much longer than others it may take, if it keeps arriving."""
    client: str
    """The other end of its connection, where that is known."""


class StallWatch:
    """Gives up bodies that have stopped arriving, or arrive so slowly that they would hold their place for ever.

    It looks at all of them now and then: a timer for each body would cost a check-in a fifth of its time.

    Args:
        idle_s: after how long without a byte a body is given up. It may take half as long again until it is seen.
        least_bytes_per_s: what a body must come to on average, once it was waited for this long.
        whole_bytes: how much the bodies that are waited for in one piece may come to together.
        silent: told a time in seconds, the clients from which nothing has come for so long.
    """

    def __init__(
        self,
        idle_s: float,
        least_bytes_per_s: float = 0.0,
        *,
        whole_bytes: int = WHOLE_BODIES_BYTES,
        silent: Callable[[float], Collection[str]] = silent_peers,
    ) -> None:
        self.idle_s = idle_s
        self.least_bytes_per_s = least_bytes_per_s
        self._whole_bytes_left = whole_bytes
        self._silent = silent
        self._waiting: dict[asyncio.Task[Any], _Wait] = {}
        self._given_up: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Watch, until cancelled."""
        while True:
            await asyncio.sleep(self.idle_s / 2)
            latest = asyncio.get_running_loop().time() - self.idle_s
            late = {task: wait for task, wait in self._waiting.items() if wait.since < latest}
            silent: Collection[str] = ()
            if any(wait.more_s for wait in late.values()):
                silent = await asyncio.to_thread(self._silent, self.idle_s)
            for task, wait in late.items():
                is_over = wait.since + wait.more_s < latest or wait.client in silent
                if is_over and self._waiting.get(task) is wait:
                    self._given_up.add(task)
                    task.cancel()

    def check_speed(self, received_bytes: int, waited_s: float) -> None:
        """Refuse a body of which too little has come for the time that it was waited for (408)."""
        if waited_s > self.idle_s and received_bytes < self.least_bytes_per_s * waited_s:
            raise RequestError(
                f"the body arrives more slowly than {self.least_bytes_per_s:g} bytes per second",
                status=408,
                field="body",
                value=received_bytes,
                limit=self.least_bytes_per_s,
                fix="send it again over a better connection",
            )

    def takes_whole(self, size_bytes: int) -> bool:
        """Whether there is room to wait for a body of this size in one piece."""
        return size_bytes <= min(WHOLE_BODY_BYTES, self._whole_bytes_left) and self.least_bytes_per_s > 0

    async def whole(self, body: Awaitable[bytes], size_bytes: int, client: str = "") -> bytes:
        """A body in one piece, for which it is waited as long as the slowest sender takes, if that is not silent.

        Raises:
            RequestError: (408) it did not come.
        """
        self._whole_bytes_left -= size_bytes
        try:
            return await self.next(body, size_bytes / self.least_bytes_per_s, client)
        finally:
            self._whole_bytes_left += size_bytes

    async def next(self, bytes_to_come: Awaitable[bytes], more_s: float = 0.0, client: str = "") -> bytes:
        """The bytes, once they are there; they may take so many seconds more than others while the client sends.

        Raises:
            RequestError: (408) nothing came.
        """
        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        wait = self._waiting[task] = _Wait(asyncio.get_running_loop().time(), more_s, client)
        try:
            return await bytes_to_come
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            task.uncancel()
            is_slow = more_s and asyncio.get_running_loop().time() >= wait.since + self.idle_s + more_s
            raise RequestError(
                f"too little of the body arrived for {self.idle_s + more_s:g} s"
                if is_slow
                else f"nothing of the body arrived for {self.idle_s:g} s",
                status=408,
                field="body",
                fix="send it again",
            ) from None
        finally:
            del self._waiting[task]
            self._given_up.discard(task)


class Request:
    """One request, as a route's handler sees it.

    ``params`` holds the values of the path's placeholders.
    """

    __slots__ = ("_is_read", "_query", "_transport", "_watch", "params", "scope")

    def __init__(self, scope: Scope, transport: Transport, params: dict[str, str], watch: StallWatch) -> None:
        self.params = params
        self.scope = scope
        self._transport = transport
        self._watch = watch
        self._query: dict[str, list[str]] | None = None
        self._is_read = False

    @property
    def has_unread_body(self) -> bool:
        """Whether a body was announced that has not been read to its end, so that no request can follow it."""
        headers = self.scope.headers
        return not self._is_read and (headers.get("content-length", "0") != "0" or "transfer-encoding" in headers)

    @property
    def method(self) -> str:
        """As in GET or PUT."""
        return self.scope.method

    def header(self, name: str) -> str | None:
        """A header's value, the last one if it was sent several times.

        Raises:
            RequestError: it is there, but is not ASCII. Passing it over would drop a weight or an idempotency key.
        """
        headers = self.scope.headers
        value: str | None = headers.get(name.lower())
        if value is None and name.lower() in headers:
            raise RequestError(
                "must be ASCII", status=400, field=name, fix="write other characters as JSON does: \\u00e9"
            )
        return value

    def query(self, name: str) -> str | None:
        """A query parameter's value, the last one if it was sent several times."""
        if self._query is None:
            self._query = parse_qs(self.scope.query_string, keep_blank_values=True)
        values = self._query.get(name)
        return values[-1] if values else None

    def check_query(self, known: list[str]) -> None:
        """Make sure that the query has no other parameters, which would be passed over.

        Raises:
            InvalidInput: it has one; the error names those that there are.
        """
        for name in parse_qs(self.scope.query_string, keep_blank_values=True):
            if name not in known:
                takes = "it takes " + ", ".join(known) if known else "it takes none"
                raise InvalidInput(
                    "there is no such query parameter", field=name[:80], limit=", ".join(known),
                    fix=f"leave it out: {takes}",
                )  # fmt: skip

    def whole_number(self, name: str, default: int, *, least: int, most: int) -> int:
        """As `number`, without a fraction."""
        value = self.number(name, default, least=least, most=most)
        if not value.is_integer():
            raise InvalidInput(f"must be a whole number, got {value:g}", field=name, value=value)
        return int(value)

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """A numeric query parameter.

        Raises:
            InvalidInput: it is no number, or out of bounds.
        """
        text = self.query(name)
        if text is None:
            return float(default)
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InvalidInput(
                f"must be a number from {least:g} to {most:g}, got {text[:80]!r}",
                field=name,
                value=text[:80],
                limit=most,
                fix=f"leave it out for {default:g}",
            )
        return value

    async def body(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            TooLarge: it is, or claims to be, longer than ``limit`` bytes.
            RequestError: it was cut off, or stopped arriving.
        """
        expected = content_length(self.scope, limit)
        if expected is None:
            return b"".join([chunk async for chunk in self.chunks(limit)])
        return await self._whole(self._watch.next(self._transport()), expected)

    def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """The body, in one piece if it is small, else as it arrives; raises as `body` does.

        Of one that is broken off, nothing may be left.
        """
        expected = content_length(self.scope, limit)
        if expected is None or not self._watch.takes_whole(expected):
            return self.chunks(limit)
        return self._piece(expected)

    async def _piece(self, expected: int) -> AsyncIterator[bytes]:
        yield await self._whole(self._watch.whole(self._transport(), expected, self.scope.client), expected)

    async def _whole(self, coming: Awaitable[bytes], expected: int) -> bytes:
        try:
            body = await coming
        except RuntimeError:  # granian's word for a connection that closed
            body = b""
        if len(body) != expected:
            raise _cut_off(len(body), expected)
        self._is_read = True
        return body

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """The body as it arrives; raises as `body` does."""
        expected = content_length(self.scope, limit)
        received = 0
        waited_s = 0.0  # for the sender alone: what this server's own disk takes is not held against it
        stream = aiter(self._transport)
        while True:
            asked_at = asyncio.get_running_loop().time()
            try:
                chunk = await self._watch.next(anext(stream))
            except StopAsyncIteration:
                break
            received += len(chunk)
            waited_s += asyncio.get_running_loop().time() - asked_at
            self._watch.check_speed(received, waited_s)
            if received > limit:
                raise too_large(received, limit)
            if chunk:
                yield chunk
        if expected is not None and received != expected:
            raise _cut_off(received, expected)
        self._is_read = True

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of work that waits for news, which is given up when nobody is there any more to be told.

        Raises:
            RequestError: (408) the client has gone.
        """
        working = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._transport.client_disconnect())
        try:
            await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise RequestError("the client has gone", status=408)
        finally:
            gone.cancel()
            working.cancel()

    async def json(self, decoder: "msgspec.json.Decoder[Message]", limit: int, *, optional: bool = False) -> Message:
        """The body as a message. If it is ``optional``, an empty one counts as ``{}``."""
        body = await self.body(limit)
        if optional and not body and "transfer-encoding" in self.scope.headers:
            # A body in chunks whose connection breaks before the first looks the same.
            raise RequestError(
                "the body is empty, or was cut off", status=400, field="body", fix="send it whole, or none at all"
            )
        return decode(decoder, b"{}" if optional and not body else body)


Handler = Callable[[Request], Awaitable[Answer]]


def bearer(request: Request, what: str) -> str:
    """The secret that a request shows.

    Args:
        request: the request.
        what: which secret it must be, for the error.

    Raises:
        RequestError: (401) it shows none.
    """
    scheme, _, secret = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise RequestError(
            f"{what} is missing",
            status=401,
            headers=(("www-authenticate", "Bearer"),),
            field="Authorization",
            fix="send it as: Authorization: Bearer SECRET",
        )
    return secret.strip()


def content_length(scope: Scope, limit: int) -> int | None:
    """The announced length of the body, or None.

    Raises:
        TooLarge: it is above the limit. The body stays unread.
    """
    text: str | None = scope.headers.get("content-length")
    if text is None:
        return None
    length = int(text)  # granian has refused what is not a number
    if length > limit:
        raise too_large(length, limit)
    return length


def _cut_off(received: int, expected: int) -> RequestError:
    return RequestError(
        "the body was cut off", status=400, field="body", value=received, limit=expected, fix="send it whole"
    )


def too_large(length: int, limit: int) -> TooLarge:
    """The error for a body of ``length`` bytes."""
    return TooLarge(
        f"the body has {length} bytes or more, {limit} are allowed", field="body", value=length, limit=limit
    )


_AT: Final = re.compile(r" - at `\$\.?(?P<path>.*)`$")


def decode(decoder: "msgspec.json.Decoder[Message]", data: bytes) -> Message:
    """JSON as a message.

    Raises:
        RequestError: it is no JSON (400), or not of the expected shape (422).
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _AT.search(text)
        message = text[: at.start()] if at else text
        raise RequestError(
            f"{message[:1].lower()}{message[1:]}",
            status=422,
            field=(at["path"] if at else "") or "body",
            fix="the description at /openapi.json has the fields and their types",
        ) from None
    except RecursionError:
        raise RequestError("the body nests too deeply", status=400, field="body", fix="send it flat") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}", status=400, field="body", fix="send JSON") from None
