"""The way up from a leaf: the root's HTTP interface, or that of the leaf above, which is the same."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import msgspec

from vennue.core.errors import Unavailable, VennueError
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
from vennue.sdk.transport import error_of
from vennue.server.http import Answer, Request
from vennue.updates.blobs import BlobStore

log = logging.getLogger("vennue.leaf")

CHUNK_BYTES: Final = 2**20
TIMEOUT: Final = httpx.Timeout(120.0, connect=5.0)
"""Of single steps. A sum is answered when it counts, which waits for nothing but disks."""
CONNECTIONS: Final = 256
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
        blobs: where fetched models go.
        transport: an httpx transport to use instead of the network's.
    """

    def __init__(
        self, url: str, key: str, blobs: BlobStore, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url
        self.fetched = 0
        """Models that were downloaded."""
        self.failure: str | None = None
        """Why the last call could not be made, if it could not."""
        self._key = {"authorization": f"Bearer {key}"}
        self._blobs = blobs
        self._fetching: dict[Digest, asyncio.Task[None]] = {}
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            transport=transport,
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def attempt(self, id: AttemptId) -> AttemptView:
        """``GET /v1/attempts/{id}``."""
        return await self._call(AttemptView, "GET", f"/v1/attempts/{id}")

    async def send(self, attempt: AttemptId, id: str, manifest: PartialManifest, sums: Path | None) -> PartialReceipt:
        """``PUT /v1/attempts/{id}/partials/{partial}``."""
        message = msgspec.json.encode(manifest)
        head = len(message).to_bytes(8, "little") + message
        size = len(head) + (0 if sums is None else await asyncio.to_thread(os.path.getsize, sums))
        return await self._call(
            PartialReceipt,
            "PUT",
            f"/v1/attempts/{attempt}/partials/{id}",
            content=_read(head, sums),
            headers={"content-length": str(size)},
        )

    async def fetch(self, digest: Digest) -> None:
        """``GET /v1/blobs/{sha256}``, unless the model is here; once, however many ask for it at the same time."""
        if self._blobs.exists(digest):
            return
        fetching = self._fetching.get(digest)
        if fetching is None:
            fetching = asyncio.get_running_loop().create_task(self._fetch(digest), name=f"fetching {digest}")
            self._fetching[digest] = fetching
            fetching.add_done_callback(lambda _: self._fetching.pop(digest))
        await asyncio.shield(fetching)

    async def pass_on(self, request: Request, limit: int) -> Answer:
        """A request, to be answered as if it had been made there. Its body is not kept here.

        Raises:
            TooLarge: its body is longer than ``limit``.
        """
        headers = {name: value for name in PASSED_ON if (value := request.header(name)) is not None}
        content = None
        if request.has_unread_body:
            content = request.chunks(limit)
            length = request.header("content-length")
            if length is not None:
                headers["content-length"] = length
        query = request.scope.query_string
        path = f"{request.scope.path}?{query}" if query else request.scope.path
        response = await self._sent(request.method, path, content=content, headers=headers)
        return Answer(
            status=response.status_code,
            headers=[(name, response.headers[name]) for name in PASSED_BACK if name in response.headers],
            body=response.content,
        )

    async def _call(self, answer: type[T], method: str, path: str, **options: Any) -> T:
        options["headers"] = {**options.get("headers", {}), **self._key}
        response = await self._sent(method, path, **options)
        if not response.is_success:
            raise error_of(response)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"{self.url} answered with something that is no {answer.__name__}: {error}",
                field="root",
                fix="check that it is the address of a root or a leaf, of this version or newer",
            ) from error

    async def _sent(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self.failure = None
        return response

    async def _fetch(self, digest: Digest) -> None:
        try:
            async with self._client.stream("GET", f"/v1/blobs/{digest}") as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                length = response.headers.get("content-length")
                with self._blobs.create(expected=digest, size_bytes=None if length is None else int(length)) as writer:
                    async for chunk in response.aiter_bytes(CHUNK_BYTES):
                        await asyncio.to_thread(writer.write, chunk)
                    await asyncio.to_thread(writer.commit)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self.fetched += 1
        log.info("fetched model %s", digest)

    def _unreachable(self, error: Exception) -> VennueError:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.failure = f"{self.url} cannot be reached: {cause}"
        return Unavailable(self.failure, field="root", fix="check the address, and that it runs")


async def _read(head: bytes, path: Path | None) -> AsyncIterator[bytes]:
    yield head
    if path is None:
        return
    with path.open("rb", buffering=0) as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
