"""Uploads in parts as HTTP: the headers that all of them share.

The shape is that of the IETF's draft on resumable uploads (draft-ietf-httpbis-resumable-upload): ``PATCH`` appends at
``Upload-Offset``, ``Upload-Complete: ?1`` says which part is the last. What is uploaded has a name already, the digest
of a model or an assignment, so nothing has to be created first.
"""

from dataclasses import dataclass
from typing import Final

from vennue.core.errors import InvalidInput
from vennue.protocol import COMPLETE_HEADER, LENGTH_HEADER, OFFSET_HEADER, UploadView
from vennue.server.http import Answer, Request, json_answer
from vennue.server.problems import RequestError
from vennue.server.routing import Parameter

_BYTES: Final = {"type": "integer", "minimum": 0}
PARAMETERS: Final = (
    Parameter(
        name=OFFSET_HEADER, where="header", required=True, schema=_BYTES,
        text="Where this part begins: how many bytes have arrived before.",
    ),
    Parameter(
        name=COMPLETE_HEADER, where="header", schema={"type": "string", "enum": ["?0", "?1"]},
        text="Whether this is the last part, `?1`; that is the default.",
    ),
    Parameter(name=LENGTH_HEADER, where="header", schema=_BYTES, text="The size of the whole."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartHeaders:
    """What a part says of itself: where it begins and ends, whether it is the last, and the size of the whole."""

    offset: int
    end: int
    complete: bool
    size_bytes: int | None

    @classmethod
    def of(cls, request: Request) -> "PartHeaders":
        """Those of a request.

        Raises:
            InvalidInput: one is missing, or makes no sense.
        """
        offset = _bytes(request, OFFSET_HEADER)
        if offset is None:
            raise InvalidInput("is missing", field=OFFSET_HEADER, fix="say where the part begins; the first one at 0")
        complete = request.header(COMPLETE_HEADER) or "?1"
        if complete not in {"?0", "?1"}:
            raise InvalidInput(
                "must be ?0 or ?1", field=COMPLETE_HEADER, value=complete[:80], fix="?1 for the last part"
            )
        size_bytes = _bytes(request, LENGTH_HEADER)
        end = offset + int(request.header("content-length") or 0)
        if size_bytes is not None and end > size_bytes:
            raise InvalidInput("the part ends behind the whole", field=LENGTH_HEADER, value=end, limit=size_bytes)
        return cls(offset, end, complete == "?1", size_bytes)

    def room(self, limit: int) -> int:
        """How long the part may be, where the whole may have ``limit`` bytes.

        Raises:
            RequestError: (413) it begins behind that.
        """
        if self.offset > limit:
            raise RequestError(
                f"the upload has {self.offset} bytes or more, {limit} are allowed",
                status=413,
                field=OFFSET_HEADER,
                value=self.offset,
                limit=limit,
            )
        return limit - self.offset


def upload_answer(received_bytes: int, *, complete: bool, status: int = 200) -> Answer:
    """How far an upload is."""
    headers = (
        (OFFSET_HEADER.lower(), str(received_bytes)),
        (COMPLETE_HEADER.lower(), "?1" if complete else "?0"),
        ("cache-control", "no-store"),
    )
    return json_answer(UploadView(received_bytes=received_bytes, complete=complete), status=status, headers=headers)


def _bytes(request: Request, name: str) -> int | None:
    text = request.header(name)
    if text is None:
        return None
    if not (text.isdigit() and len(text) < 20):
        raise InvalidInput("must be a number of bytes", field=name, value=text[:80], fix="write digits")
    return int(text)
