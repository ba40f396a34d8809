"""Routes for leaves: what an attempt needs, and the partial sums of its reports. Root and leaves answer them alike."""

import hmac
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

import msgspec

from vennue.control.dataplane import Body
from vennue.core.errors import Forbidden, TooLarge
from vennue.core.ids import AttemptId
from vennue.protocol import AttemptView, PartialManifest, PartialReceipt
from vennue.server.http import Answer, Request, bearer, decode, json_answer, too_large
from vennue.server.problems import RequestError
from vennue.server.routing import BINARY, Parameter, Reply, Route

MAX_TOGETHER: Final = 10_000
"""Reports in one partial sum."""
MAX_MANIFEST_BYTES: Final = 16 * 2**20
_LENGTH_BYTES: Final = 8


class Trunk(Protocol):
    """Where partial sums go: the root's `vennue.control.leaves.Leaves`, or a leaf that passes them on."""

    async def attempt(self, id: AttemptId) -> AttemptView:
        """What a leaf must know of an open attempt."""
        ...

    async def report(self, attempt: AttemptId, id: str, manifest: PartialManifest, body: Body) -> PartialReceipt:
        """Take a partial sum."""
        ...


class LeafRoutes:
    """Handlers for what leaves ask.

    Args:
        trunk: where partial sums go.
        blob_bytes: the largest model.
        key: what leaves must show; without one there are none.
    """

    def __init__(self, trunk: Trunk, blob_bytes: int, key: str) -> None:
        self._trunk = trunk
        self._max_bytes = _LENGTH_BYTES + MAX_MANIFEST_BYTES + 4 * blob_bytes  # a model of F16 is summed in F64
        self._key = key.encode()
        self._decoder = msgspec.json.Decoder(PartialManifest)

    def routes(self) -> list[Route]:
        """The routes of these handlers."""
        attempt = Parameter(
            name="id", where="path", required=True, schema={"type": "string", "minLength": 1}, text="The attempt."
        )
        common: dict[str, Any] = {"tag": "leaf", "secured": "leaf", "problems": (404, 409)}
        return [
            Route(
                method="GET", path="/v1/attempts/{id}", handler=self.attempt, name="showAttempt",
                text="What a leaf must know to take the reports of an open attempt.", parameters=(attempt,),
                replies=(Reply(status=200, text="The attempt is open.", body=AttemptView),), **common,
            ),
            Route(
                method="PUT", path="/v1/attempts/{id}/partials/{partial}", handler=self.partial, name="putPartial",
                text="""The sum of some reports of an attempt: durable and counted, whole, when this is answered so.

                The body is the length of a `PartialManifest` in JSON (eight bytes, little-endian), the manifest, and
                the sums: a safetensors file of the model's floating tensors in F32 or F64. Repeating it is safe.""",
                parameters=(
                    attempt,
                    Parameter(
                        name="partial", where="path", required=True,
                        schema={"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, text="The sum's own id.",
                    ),
                ),
                body=BINARY,
                replies=(Reply(status=200, text="Whether it counts; if not, why.", body=PartialReceipt),), **common,
            ),
        ]  # fmt: skip

    async def attempt(self, request: Request) -> Answer:
        """``GET /v1/attempts/{id}``."""
        self._admit(request)
        return json_answer(await self._trunk.attempt(AttemptId(request.params["id"])))

    async def partial(self, request: Request) -> Answer:
        """``PUT /v1/attempts/{id}/partials/{partial}``."""
        self._admit(request)
        message, sums = await _split(request.chunks(self._max_bytes))
        manifest = decode(self._decoder, message)
        if len(manifest.reports) > MAX_TOGETHER:
            raise TooLarge("too many reports", field="reports", value=len(manifest.reports), limit=MAX_TOGETHER)

        def body(limit: int) -> AsyncIterator[bytes]:
            return _limited(sums, limit)

        attempt, id = AttemptId(request.params["id"]), request.params["partial"]
        return json_answer(await self._trunk.report(attempt, id, manifest, body))

    def _admit(self, request: Request) -> None:
        shown = bearer(request, "the pool's key for leaves")
        if not self._key:
            raise Forbidden(
                "this pool takes no leaves", field="Authorization", fix="start its root with a VENNUE_LEAF_KEY"
            )
        if not hmac.compare_digest(shown.encode(), self._key):
            raise Forbidden(
                "this is not the pool's key for leaves",
                field="Authorization",
                fix="give root and leaf the same VENNUE_LEAF_KEY",
            )


async def _split(chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """A body's message, and what follows it.

    Raises:
        RequestError: it is cut off before the message's end.
        TooLarge: the message is too long.
    """
    head = bytearray()
    end = _LENGTH_BYTES
    async for chunk in chunks:
        head += chunk
        if len(head) < _LENGTH_BYTES:
            continue
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if length > MAX_MANIFEST_BYTES:
            raise TooLarge("the manifest is too long", field="body", value=length, limit=MAX_MANIFEST_BYTES)
        end = _LENGTH_BYTES + length
        if len(head) >= end:
            return bytes(head[_LENGTH_BYTES:end]), _joined(bytes(head[end:]), chunks)
    raise RequestError(
        "the body ends before its manifest",
        status=400,
        field="body",
        value=len(head),
        limit=end,
        fix="send it whole",
    )


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _limited(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        if received > limit:
            raise too_large(received, limit)
        yield chunk
