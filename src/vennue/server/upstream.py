"""The way up from a leaf: the root's HTTP interface, or that of the leaf above, which is the same."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from vennue.control.uploads import RETRY_AFTER_S
from vennue.core.errors import Forbidden, InvalidInput, NotFound, Overloaded, Unavailable, VennueError
from vennue.core.ids import AttemptId, Digest
from vennue.protocol import (
    COMPLETE_HEADER,
    DIGEST_HEADER,
    EXAMPLES_HEADER,
    LENGTH_HEADER,
    METRICS_HEADER,
    MODEL_HEADER,
    OFFSET_HEADER,
    REPR_DIGEST_HEADER,
    AttemptView,
    PartialManifest,
    PartialReceipt,
)
from vennue.sdk.problems import error_of, is_problem
from vennue.server.http import Answer, Request
from vennue.updates.blobs import BlobWriter
from vennue.updates.cache import SERVED_S, BlobCache

log = logging.getLogger("vennue.leaf")

CHUNK_BYTES: Final = 2**20
TIMEOUT: Final = httpx.Timeout(120.0, connect=5.0)
"""Of single steps. A sum is answered when it counts, which waits for nothing but disks."""
CONNECTIONS: Final = 256
"""At once, of each kind."""
WHOLE_BYTES: Final = 2**16
"""Bodies of requests that may not be longer are received before they are passed on."""
CHECK_S: Final = 5.0
"""How long a root may take to say whether it takes this leaf."""
ROOM_S: Final = 30.0
"""How long a download waits for others to leave it room in the cache."""
ROOM_POLL_S: Final = 0.1
PASSED_ON: Final = (
    "authorization",
    "content-type",
    *(
        name.lower()
        for name in (
            *(COMPLETE_HEADER, DIGEST_HEADER, EXAMPLES_HEADER, LENGTH_HEADER, METRICS_HEADER, MODEL_HEADER),
            *(OFFSET_HEADER, REPR_DIGEST_HEADER),
        )
    ),
)
"""The headers of a device's request that its answer depends on."""
PASSED_BACK: Final = (
    *("content-type", "retry-after", "www-authenticate", "allow"),
    *(OFFSET_HEADER.lower(), COMPLETE_HEADER.lower(), "cache-control"),
)

T = TypeVar("T")


class HttpUpstream:
    """Calls to the root or the leaf above. All methods belong to one event loop.

    Whatever it answers with a problem document is raised as the same error; what it cannot be reached for is
    `Unavailable`.

    Args:
        url: its address.
        key: the pool's key for leaves.
        cache: where fetched models go.
        transport: an httpx transport to use instead of the network's.
    """

    def __init__(
        self, url: str, key: str, cache: BlobCache, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url
        self.fetched = 0
        """Models that were downloaded."""
        self.failure: str | None = None
        """Why the last call could not be made, if it could not."""
        self.refusal: str | None = None
        """Why the last call that needs the key was refused, if it was for the key."""
        self._is_admitted = False
        """Whether the key has been taken, at least once."""
        self._key = {"authorization": f"Bearer {key}"}
        self.cache = cache
        self.pinned: Callable[[], AbstractSet[Digest]] = frozenset
        """The models that must stay."""
        self._fetching: dict[Digest, asyncio.Task[None]] = {}
        self._coming: dict[Digest, tuple[BlobWriter, int]] = {}
        """Models for which there is room, and their sizes."""
        self._transport = transport
        self._client = self._connections()
        """For the leaf's own calls."""
        self._passing = self._connections()
        """For what devices ask, and is here whole."""
        self._streams = self._connections()
        """For bodies that go up as they arrive: however slowly they do, nothing else waits for their connections."""
        self._streaming = 0

    async def close(self) -> None:
        """Give the connections back."""
        for client in (self._client, self._passing, self._streams):
            await client.aclose()

    async def trouble(self) -> str | None:
        """Why calls fail, if they do. Asked of the root where no call has yet gone well, or the last one went wrong."""
        if self.failure or self.refusal or not self._is_admitted:
            try:
                async with asyncio.timeout(CHECK_S):
                    await self.attempt(AttemptId("none.1.1"))
            except TimeoutError:
                return f"{self.url} does not answer"
            except NotFound:  # there is no such attempt, which is said to none but leaves
                return None
            except VennueError as error:
                return error.message
        return None

    async def attempt(self, id: AttemptId) -> AttemptView:
        """``GET /v1/attempts/{id}``."""
        return await self._call(AttemptView, "GET", _path("v1", "attempts", id))

    async def send(self, attempt: AttemptId, id: str, manifest: PartialManifest, sums: Path | None) -> PartialReceipt:
        """``PUT /v1/attempts/{id}/partials/{partial}``."""
        message = msgspec.json.encode(manifest)
        head = len(message).to_bytes(8, "little") + message
        size = len(head) + (0 if sums is None else await asyncio.to_thread(os.path.getsize, sums))
        return await self._call(
            PartialReceipt,
            "PUT",
            _path("v1", "attempts", attempt, "partials", id),
            content=_read(head, sums),
            headers={"content-length": str(size)},
        )

    async def fetch(self, digest: Digest) -> None:
        """``GET /v1/blobs/{sha256}``, unless the model is here; once, however many ask for it at the same time."""
        if self.cache.use(digest) and self.cache.blobs.is_verified(digest):
            return
        fetching = self._fetching.get(digest)
        if fetching is None:
            fetching = asyncio.get_running_loop().create_task(self._fetch(digest), name=f"fetching {digest}")
            self._fetching[digest] = fetching
            fetching.add_done_callback(lambda _: self._fetching.pop(digest))
        await asyncio.shield(fetching)

    async def make_room(self, size_bytes: int) -> None:
        """Have models give way to part of a report, those that are being sent in a moment. Or the store refuses it."""
        for _ in range(round(2 * SERVED_S / ROOM_POLL_S)):
            if await self._room(self._coming_bytes() + size_bytes):
                return
            await asyncio.sleep(ROOM_POLL_S)

    async def pass_on(self, request: Request, limit: int) -> Answer:
        """A request, to be answered as if it had been made there. Its body is not kept here.

        Raises:
            TooLarge: its body is longer than ``limit``.
            Overloaded: too many bodies are on their way through.
        """
        headers = {name: value for name in PASSED_ON if (value := request.header(name)) is not None}
        path, query = quote(request.scope.path), request.scope.query_string
        if query:
            path += f"?{query}"
        if not request.has_unread_body:
            return await self._passed(self._passing, request.method, path, headers=headers)
        if limit <= WHOLE_BYTES:
            body = await request.body(limit)
            return await self._passed(self._passing, request.method, path, content=body, headers=headers)
        length = request.header("content-length")
        if length is not None:
            headers["content-length"] = length
        pieces = request.pieces(limit)
        first = await anext(pieces, b"")  # before there is a connection: a small body is whole then
        if self._streaming >= CONNECTIONS:
            raise Overloaded("too many uploads are under way", limit=CONNECTIONS, retry_after_s=RETRY_AFTER_S)
        self._streaming += 1
        try:
            content = _joined(first, pieces)
            return await self._passed(self._streams, request.method, path, content=content, headers=headers)
        finally:
            self._streaming -= 1

    async def _passed(self, client: httpx.AsyncClient, method: str, path: str, **options: Any) -> Answer:
        response = await self._sent(client, method, path, **options)
        return Answer(
            status=response.status_code,
            headers=[(name, response.headers[name]) for name in PASSED_BACK if name in response.headers],
            body=response.content,
        )

    async def _call(self, answer: type[T], method: str, path: str, **options: Any) -> T:
        options["headers"] = {**options.get("headers", {}), **self._key}
        response = await self._sent(self._client, method, path, **options)
        if not response.is_success:
            raise self._refused(self._error_of(response))
        self.refusal, self._is_admitted = None, True
        try:
            return msgspec.json.decode(response.content, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"{self.url} answered with something that is no {answer.__name__}: {error}",
                field="root",
                fix="check that it is the address of a root or a leaf, of this version or newer",
            ) from error

    def _connections(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            transport=self._transport,
        )

    async def _sent(self, client: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await client.request(method, path, **options)
        except httpx.InvalidURL as error:  # quoted, it is too long
            raise NotFound("no such path", field="path", value=path[:200]) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self.failure = None
        return response

    async def _fetch(self, digest: Digest) -> None:
        if self.cache.blobs.exists(digest):  # an earlier process has fetched it
            damaged = await asyncio.to_thread(self.cache.blobs.verify, digest)
            if damaged is None:
                return
            log.error("model %s was damaged on the disk, and is fetched anew", digest)
            await asyncio.to_thread(damaged.unlink)
        writer = await asyncio.to_thread(self.cache.blobs.resume, digest)
        try:
            while True:
                before = writer.offset
                try:
                    await self._receive(digest, writer)
                    break
                except httpx.TransportError as error:
                    if writer.offset == before:
                        raise self._unreachable(error) from error
                    log.info("the download of model %s goes on at byte %d: %s", digest, writer.offset, error)
            try:
                await asyncio.to_thread(writer.commit)
            except InvalidInput as error:
                raise Unavailable(
                    f"model {digest} arrives damaged: {error.message}",
                    field="model",
                    fix="look for a proxy or a cache between this leaf and its root that changes bodies",
                ) from error
        finally:
            self._coming.pop(digest, None)
            writer.suspend()  # nothing happens to what is committed
        self.cache.use(digest)
        self.fetched += 1
        log.info("fetched model %s", digest)

    async def _receive(self, digest: Digest, writer: BlobWriter) -> None:
        """What is left of a model, as it is: whoever wants it smaller asks this leaf for that."""
        headers = {"accept-encoding": "identity"}
        if writer.offset:
            headers |= {"range": f"bytes={writer.offset}-", "if-range": f'"{digest}"'}
        async with self._client.stream("GET", f"/v1/blobs/{digest}", headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # all of it is here, or something else, which the digest will tell
            if not response.is_success:
                await response.aread()
                raise self._error_of(response)
            skip = 0 if response.status_code == httpx.codes.PARTIAL_CONTENT else writer.offset
            left = int(response.headers.get("content-length", 0)) - skip
            await self._make_room_for(digest, writer, writer.offset + left)
            async for chunk in response.aiter_bytes(CHUNK_BYTES):
                await asyncio.to_thread(writer.write, memoryview(chunk)[skip:])
                skip = max(0, skip - len(chunk))

    async def _make_room_for(self, digest: Digest, writer: BlobWriter, size_bytes: int) -> None:
        """Make room for a model beside others on their way, or wait for them. Without any, the store refuses it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ROOM_S
        while self.cache.can_hold(size_bytes, self.pinned()) and loop.time() < until:
            others = self._coming_bytes(but=digest)
            self._coming[digest] = writer, size_bytes
            if await self._room(others + size_bytes - writer.offset):
                return
            del self._coming[digest]
            await asyncio.sleep(ROOM_POLL_S)

    async def _room(self, needed_bytes: int) -> bool:
        return await asyncio.to_thread(self.cache.make_room, needed_bytes, self.pinned())

    def _coming_bytes(self, *, but: Digest | None = None) -> int:
        return sum(end - writer.offset for digest, (writer, end) in self._coming.items() if digest != but)

    def _error_of(self, response: httpx.Response) -> VennueError:
        """The error that an answer stands for. That there is no such thing is believed only of a root or a leaf.

        For a while, it may be a proxy that says so, and what it is said of would be given up for good.
        """
        error = error_of(response)
        if isinstance(error, NotFound) and not is_problem(response):
            return Unavailable(
                f"{self.url} answers like no root or leaf: {error.message}",
                field="root",
                fix="check the address, and what stands in front of the root",
            )
        return error

    def _refused(self, error: VennueError) -> VennueError:
        """What an error of a call with the key is to devices: that the key is wrong is no fault of theirs."""
        if not isinstance(error, Forbidden):
            if isinstance(error, NotFound):
                self.refusal, self._is_admitted = None, True
            return error
        refusal = f"{self.url} refuses this leaf: {error.message}"
        if refusal != self.refusal:
            log.error("%s (%s)", refusal, error.fix)
        self.refusal = refusal
        return Unavailable(self.refusal, field="root", fix=error.fix)

    def _unreachable(self, error: Exception) -> VennueError:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.failure = f"{self.url} cannot be reached: {cause}"
        return Unavailable(self.failure, field="root", fix="check the address, and that it runs")


def _path(*segments: str) -> str:
    """The path of these segments, which may be whatever a stranger has made up."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _read(head: bytes, path: Path | None) -> AsyncIterator[bytes]:
    yield head
    if path is None:
        return
    with path.open("rb", buffering=0) as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
