"""A blob on its way down: in whichever form it comes, from the byte where it was cut off, to memory or to a file.

`Download` is one blob's; it asks for nothing itself, it says what to ask for and takes what comes. What arrives is
decompressed, put together with the model that is here already, and hashed at once, so nothing is held twice. A
large blob goes to an unnamed temporary file, which is mapped into memory and vanishes with the process.
"""

import base64
import binascii
import hashlib
import mmap
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Final, Literal, get_args

import httpx

from vennue._zstd import zstd
from vennue.core.errors import InvalidInput, InvalidModel, Unavailable
from vennue.protocol import REPR_DIGEST_HEADER, VARIANT_HEADER
from vennue.tensors.delta import DeltaReader
from vennue.tensors.rounded import ROUNDINGS, unrounded

Form = Literal["plain", "compressed", "delta", "float16", "bfloat16", "int8"]
"""How a model may come: as it is; compressed; compressed, as the difference to the last one; or rounded."""

IN_MEMORY_BYTES: Final = 64 * 2**20
"""What is larger goes to a file."""

Buffer = bytes | mmap.mmap


def check_form(form: str) -> Form:
    """``form``, if it is one; ``InvalidInput`` otherwise."""
    known: tuple[Form, ...] = get_args(Form)
    for one in known:
        if one == form:
            return one
    raise InvalidInput(
        "no such form of a model",
        field="model_form",
        value=form,
        limit=", ".join(known),
        fix="use one of " + ", ".join(known),
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """A blob that is here; ``rounded`` if it is only near the one of this digest."""

    digest: str
    blob: Buffer
    rounded: bool = False


class Damaged(Exception):
    """What arrived is not what was asked for."""


class Download:
    """One blob on its way.

    Args:
        digest: of the blob.
        form: in which to ask for it; any answer is understood.
        held: the last model, for a delta.
    """

    def __init__(self, digest: str, form: Form = "plain", held: Fetched | None = None) -> None:
        self._digest = digest
        self._form: Form = form
        self._held = held if form == "delta" and held is not None and not held.rounded else None
        self._received_bytes = 0
        self._etag = ""
        self._variant = ""
        self._repr_sha256 = ""
        self._decompress: zstd.ZstdDecompressor | None = None
        self._apply: DeltaReader | None = None
        self._hash = hashlib.sha256()
        self._store = _Store()
        self._forget()

    @property
    def received_bytes(self) -> int:
        """How much has arrived, as it was on the wire."""
        return self._received_bytes

    @property
    def path(self) -> str:
        """The path to ask for."""
        query = ""
        if self._form in ROUNDINGS:
            query = f"?rounding={self._form}"
        elif self._held is not None:
            query = f"?from={self._held.digest}"
        return f"/v1/blobs/{self._digest}{query}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers to ask with: for the rest, where a part of the blob is here."""
        headers = {"accept-encoding": "zstd" if self._form in {"compressed", "delta"} else "identity"}
        if self._received_bytes:
            headers |= {"range": f"bytes={self._received_bytes}-", "if-range": self._etag}
        return headers

    def begin(self, response: httpx.Response) -> Callable[[bytes], None]:
        """What takes the body of a successful answer, as it was on the wire, chunk by chunk."""
        headers = response.headers
        goes_on = (
            response.status_code == httpx.codes.PARTIAL_CONTENT
            and headers.get("content-range", "").startswith(f"bytes {self._received_bytes}-")
            and headers.get("etag", self._etag) == self._etag
        )
        if not goes_on:
            self._forget()
            self._etag = headers.get("etag", self._etag)
            self._arrange(headers)
        return self._take

    def finish(self) -> Fetched:
        """The blob, once all has arrived.

        Raises:
            Damaged: it is not the one that was asked for. The next attempt begins anew, and asks for the plain blob.
        """
        try:
            blob = self._whole()
        except (Damaged, InvalidModel, zstd.ZstdError):
            self.give_up()
            raise
        return Fetched(self._digest, blob, self._variant in ROUNDINGS)

    def give_up(self) -> None:
        """Begin anew, with the plain blob: something between here and the server spoils other forms."""
        self._form, self._held = "plain", None
        self._forget()

    def _arrange(self, headers: Mapping[str, str]) -> None:
        self._variant = headers.get(VARIANT_HEADER, "")
        encoding = headers.get("content-encoding", "identity")
        if encoding == "zstd":
            self._decompress = zstd.ZstdDecompressor()
        elif encoding != "identity":
            raise Damaged(f"it is encoded in {encoding[:40]}, which was not asked for")
        if self._variant == "delta":
            if self._held is None:
                raise Damaged("it is a delta, which was not asked for")
            self._apply = DeltaReader(memoryview(self._held.blob))
        elif self._variant in ROUNDINGS:
            self._repr_sha256 = _sha256(headers.get(REPR_DIGEST_HEADER, ""))
        elif self._variant:
            raise Damaged(f"it is {self._variant[:40]}, which was not asked for")

    def _take(self, chunk: bytes) -> None:
        self._received_bytes += len(chunk)
        if self._decompress is not None:
            chunk = self._decompress.decompress(chunk)
        if self._apply is not None:
            chunk = self._apply.feed(chunk)
        self._hash.update(chunk)
        self._store.write(chunk)

    def _whole(self) -> Buffer:
        if self._decompress is not None and not self._decompress.eof:
            raise Damaged("it is cut off")
        found, wanted = self._hash.hexdigest(), self._digest
        if self._variant in ROUNDINGS:
            wanted = self._repr_sha256
        if found != wanted:
            raise Damaged(f"the SHA-256 of what arrived is {found}")
        blob = self._store.whole()
        return unrounded(memoryview(blob)) if self._variant in ROUNDINGS else blob

    def _forget(self) -> None:
        self._received_bytes = 0
        self._etag = f'"{self._digest}"'
        self._variant = self._repr_sha256 = ""
        self._decompress = self._apply = None
        self._hash = hashlib.sha256()
        self._store = _Store()


class _Store:
    """Bytes in memory; in a file, when they are many."""

    def __init__(self) -> None:
        self._memory = bytearray()
        self._file: IO[bytes] | None = None

    def write(self, chunk: bytes) -> None:
        if self._file is None and len(self._memory) + len(chunk) > IN_MEMORY_BYTES:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as its map
            self._file.write(self._memory)
            self._memory = bytearray()
        if self._file is None:
            self._memory += chunk
        else:
            self._file.write(chunk)

    def whole(self) -> Buffer:
        if self._file is None:
            return bytes(self._memory)
        self._file.flush()
        with self._file as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def damaged(digest: str, error: Exception) -> Unavailable:
    """The error of a blob that arrives as something else."""
    return Unavailable(
        f"blob {digest} arrives damaged: {error}",
        field="model",
        fix="look for a proxy or a cache between here and the server that changes bodies",
    )


def _sha256(header: str) -> str:
    """The SHA-256 in a ``Repr-Digest`` header, in hexadecimal; empty where there is none."""
    for item in header.split(","):
        algorithm, _, value = item.strip().partition("=")
        if algorithm.lower() == "sha-256":
            try:
                return base64.b64decode(value.strip(":"), validate=True).hex()
            except binascii.Error:
                return ""
    return ""
