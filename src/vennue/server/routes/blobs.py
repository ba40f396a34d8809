"""Routes for blobs: models up and down, named by their SHA-256, immutable, and so cacheable for ever by anybody.

Any HTTP cache in front just works: strong ETags, one range at a time (RFC 9110, section 14), ``immutable``.
"""

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from vennue.control.distribution import Distribution
from vennue.control.parts import Parts
from vennue.core.ids import Digest
from vennue.protocol import DELTA_TYPE, VARIANT_HEADER, BlobReceipt, UploadView
from vennue.server.config import Limits
from vennue.server.http import Answer, Headers, Request, content_length, json_answer
from vennue.server.problems import RequestError
from vennue.server.routing import BINARY, Parameter, Reply, Route
from vennue.server.uploading import PARAMETERS, PartHeaders, upload_answer
from vennue.tensors.rounded import ROUNDINGS
from vennue.updates.blobs import check_digest

_RANGE: Final = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)")
_DIGEST: Final = Parameter(
    name="sha256", where="path", required=True, schema={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    text="The blob's SHA-256, in lower-case hexadecimal.",
)  # fmt: skip


Store = Callable[[Digest, AsyncIterator[bytes], int | None], Awaitable[int]]
"""Stores a blob of that digest and size as it arrives; the size."""


class BlobRoutes:
    """Handlers for blobs.

    Args:
        distribution: where they are, and their other forms.
        limits: on what a caller may send.
        store: how an upload is stored; without it, none is taken.
        parts: how one in parts is.
    """

    def __init__(
        self, distribution: Distribution, limits: Limits, store: Store | None = None, parts: Parts | None = None
    ) -> None:
        self._distribution = distribution
        self._blobs = distribution.blobs
        self._limits = limits
        self._store = store
        self._parts = parts

    def routes(self) -> list[Route]:
        """The routes of these handlers."""
        common: dict[str, Any] = {"path": "/v1/blobs/{sha256}", "tag": "blob", "handler": self.get}
        reading = (
            _DIGEST,
            Parameter(name="Range", where="header", schema={"type": "string"}, text="One range, as in `bytes=1000-`."),
            Parameter(
                name="Accept-Encoding", where="header", schema={"type": "string"}, text="`zstd` for less on the wire."
            ),
            Parameter(
                name="from",
                where="query",
                schema={"type": "string", "pattern": "^[0-9a-f]{64}$"},
                text="""The SHA-256 of a model that the caller has. Who accepts `zstd`, too, may get the delta from it,
                which says so in `Vennue-Variant`; whatever does not make it shorter is passed over.""",
            ),
            Parameter(
                name="rounding",
                where="query",
                schema={"type": "string", "enum": list(ROUNDINGS)},
                text="How to round the model. One that cannot be rounded is sent as it is, without `Vennue-Variant`.",
            ),
            Parameter(name="If-None-Match", where="header", schema={"type": "string"}, text="ETags at hand."),
            Parameter(
                name="If-Range", where="header", schema={"type": "string"}, text="Apply `Range` to this ETag only."
            ),
        )
        return [
            Route(
                method="PUT", path="/v1/blobs/{sha256}", handler=self.put, name="putBlob", tag="blob",
                text="Store a blob under its SHA-256, which is checked. A blob that is there already is left alone.",
                parameters=(_DIGEST,), body=BINARY, problems=(422, 507),
                replies=(
                    Reply(status=201, text="The blob is durable.", body=BlobReceipt),
                    Reply(status=200, text="The blob was there already.", body=BlobReceipt),
                ),
            ),
            Route(
                method="GET", path="/v1/blobs/{sha256}/upload", handler=self.upload_state, name="showUpload",
                tag="blob", text="How far an upload in parts is.", parameters=(_DIGEST,), problems=(422,),
                replies=(Reply(status=200, text="How many bytes have arrived.", body=UploadView),),
            ),
            Route(
                method="PATCH", path="/v1/blobs/{sha256}/upload", handler=self.upload, name="uploadBlob", tag="blob",
                text="""Upload a blob in parts.

                What has arrived of a part whose connection breaks is kept: ask how far the upload is, and go on
                from there. With the last part, the digest is checked, and the blob is durable.""",
                parameters=(_DIGEST, *PARAMETERS), body=BINARY, body_required=False, problems=(409, 422, 507),
                replies=(
                    Reply(status=201, text="That was the last part: the blob is durable.", body=UploadView),
                    Reply(status=200, text="How many bytes have arrived.", body=UploadView),
                ),
            ),
            Route(
                method="GET", name="getBlob", text="A blob, or a range of it.", parameters=reading,
                problems=(404, 416, 422),
                replies=(
                    Reply(status=200, text="The blob.", body=BINARY),
                    Reply(status=206, text="The range.", body=BINARY),
                    Reply(status=304, text="The caller has the blob."),
                ),
                **common,
            ),
            Route(
                method="HEAD", name="headBlob", text="Whether a blob is there, and its size.", parameters=reading,
                problems=(404, 416, 422),
                replies=(
                    Reply(status=200, text="The blob is there."),
                    Reply(status=206, text="The range is there."),
                    Reply(status=304, text="The caller has the blob."),
                ),
                **common,
            ),
        ]  # fmt: skip

    async def put(self, request: Request) -> Answer:
        """``PUT /v1/blobs/{sha256}``."""
        assert self._store is not None, "no route leads here without a store"
        digest = check_digest(request.params["sha256"])
        limit = self._limits.blob_bytes
        announced = content_length(request.scope, limit)
        if await self._distribution.holds(digest):
            return json_answer(BlobReceipt(sha256=digest, size_bytes=self._blobs.size(digest)))
        size_bytes = await self._store(digest, request.chunks(limit), announced)
        return json_answer(BlobReceipt(sha256=digest, size_bytes=size_bytes), status=201)

    async def upload_state(self, request: Request) -> Answer:
        """``GET /v1/blobs/{sha256}/upload``."""
        assert self._parts is not None, "no route leads here without parts"
        digest = check_digest(request.params["sha256"])
        if await self._distribution.holds(digest):
            return upload_answer(self._blobs.size(digest), complete=True)
        return upload_answer(await self._parts.received(digest), complete=False)

    async def upload(self, request: Request) -> Answer:
        """``PATCH /v1/blobs/{sha256}/upload``."""
        assert self._parts is not None, "no route leads here without parts"
        digest = check_digest(request.params["sha256"])
        part = PartHeaders.of(request)
        room = part.room(self._limits.blob_bytes)
        content_length(request.scope, room)
        if await self._distribution.holds(digest):
            return upload_answer(self._blobs.size(digest), complete=True)
        received = await self._parts.append(
            digest,
            request.chunks(room),
            offset=part.offset,
            size_bytes=part.size_bytes,
            publish=part.complete,
        )
        return upload_answer(received, complete=part.complete, status=201 if part.complete else 200)

    async def get(self, request: Request) -> Answer:
        """``GET /v1/blobs/{sha256}`` and HEAD."""
        digest = check_digest(request.params["sha256"])
        chosen = await self._distribution.choose(
            digest,
            zstd=accepts_zstd(request.header("accept-encoding")),
            base=request.query("from"),
            rounding=request.query("rounding"),
        )
        size = chosen.size_bytes
        etag = f'"{chosen.sha256}"'
        headers: Headers = [
            ("etag", etag),
            ("cache-control", "public, max-age=31536000, immutable" if chosen.is_checked else "no-store"),
            ("vary", "accept-encoding"),
        ]
        if _lists(request.header("if-none-match"), etag):
            return Answer(status=304, headers=headers)
        headers += [
            ("content-type", DELTA_TYPE if chosen.variant == "delta" else "application/octet-stream"),
            ("accept-ranges", "bytes"),
            ("repr-digest", f"sha-256=:{base64.b64encode(bytes.fromhex(chosen.sha256)).decode()}:"),
        ]
        if chosen.encoding is not None:
            headers.append(("content-encoding", chosen.encoding))
        if chosen.variant is not None:
            headers.append((VARIANT_HEADER.lower(), chosen.variant))
        if_range = request.header("if-range")
        wanted = request.header("range") if if_range is None or if_range.strip() == etag else None
        span = None if wanted is None else _span(wanted, size, digest)
        if span is None:
            return Answer(headers=headers, file=chosen.path, start=0, stop=size)
        start, stop = span
        headers.append(("content-range", f"bytes {start}-{stop - 1}/{size}"))
        return Answer(status=206, headers=headers, file=chosen.path, start=start, stop=stop)


def accepts_zstd(header: str | None) -> bool:
    """Whether an ``Accept-Encoding`` header names zstd, and not with a weight of 0 (RFC 9110, section 12.5.3)."""
    for item in (header or "").split(","):
        name, _, weight = item.replace(" ", "").lower().partition(";")
        if name == "zstd":
            return not re.fullmatch(r"q=0(\.0*)?", weight)
    return False


def _lists(header: str | None, etag: str) -> bool:
    """Whether an ``If-None-Match`` header holds the ETag; weak ones count, RFC 9110 section 13.1.2."""
    if header is None:
        return False
    listed = [item.strip().removeprefix("W/") for item in header.split(",")]
    return "*" in listed or etag in listed


def _span(header: str, size: int, digest: Digest) -> tuple[int, int] | None:
    """The bytes that a ``Range`` header asks for; None when the header is to be ignored.

    Raises:
        RequestError: (416) it asks for nothing that the blob has.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None:  # another unit, several ranges or nonsense: RFC 9110 allows to send everything
        return None
    first, last = _position(match["first"]), _position(match["last"])
    if first is not None:
        start, stop = first, size if last is None else min(last + 1, size)
        if last is not None and last < start:
            return None
    elif last is not None:
        start, stop = max(0, size - last), size
    else:
        return None
    if start >= stop:
        raise RequestError(
            f"blob {digest} has {size} bytes",
            status=416,
            headers=(("content-range", f"bytes */{size}"),),
            field="Range",
            value=header[:80],
            limit=size,
        )
    return start, stop


def _position(digits: str) -> int | None:
    """A position in a ``Range`` header; None where there is none. Behind all blobs, how far does not matter."""
    return int(digits.lstrip("0")[:20] or "0") if digits else None
