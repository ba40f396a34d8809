"""Blobs: immutable bytes named by their SHA-256, such as models and what strategies remember.

``BlobStore`` is the contract; `vennue.updates.blob_directory` keeps it on a local disk. A blob is there whole or not at
all. Writing what is there already costs no space. An upload that names its digest can be broken off and resumed, by
another process too.
"""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from vennue.core.errors import InvalidInput
from vennue.core.ids import Digest

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
GRACE_S: Final = 3600.0
"""How long what was stored, but is not yet referred to, is kept from garbage collection, seconds."""
Buffer = bytes | bytearray | memoryview


class BlobWriter(Protocol):
    """A blob being written. As a context manager, it aborts unless it was committed or suspended."""

    @property
    def offset(self) -> int:
        """How many bytes it holds: where the next chunk goes."""
        ...

    def write(self, chunk: Buffer) -> None:
        """Append a chunk.

        Raises:
            TooLarge: more than the announced size, or than the store takes. The blob is aborted.
            OutOfSpace: the quota is used up. The blob is aborted.
            StorageError: the disk is full. The blob is aborted.
        """
        ...

    def read(self) -> Iterator[bytes]:
        """What it holds so far, from the beginning, in chunks."""
        ...

    def commit(self) -> Digest:
        """Make the blob durable and visible; its digest.

        Raises:
            InvalidInput: cut off, or other bytes than the expected digest's. The blob is aborted.
            StorageError: it cannot be stored. The blob is aborted.
        """
        ...

    def suspend(self) -> None:
        """Keep what was written, for ``BlobStore.resume``; without an expected digest, abort."""
        ...

    def abort(self) -> None:
        """Remove what was written. Does nothing after ``commit``, ``suspend`` or ``abort``."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BlobStore(Protocol):
    """Where blobs live. Safe to use from several threads. Every digest that comes in is checked to be one."""

    @property
    def used_bytes(self) -> int:
        """How much all blobs take, finished or not."""
        ...

    @property
    def quota_bytes(self) -> int | None:
        """How much they may take."""
        ...

    @property
    def is_new(self) -> bool:
        """Whether nothing has ever been stored in it, not even what was removed since."""
        ...

    def create(
        self, *, expected: Digest | None = None, size_bytes: int | None = None, within_quota: bool = True
    ) -> BlobWriter:
        """Begin a blob, with the digest and the size that it must have, where they are known.

        What is of the pool's own making may exceed the quota (``within_quota``): a round's result would otherwise be
        lost to uploads, with the work of all its devices.

        Raises:
            TooLarge: the announced size is more than the store takes.
            OutOfSpace: the announced size is more than the quota leaves.
            StorageError: the disk cannot be written.
        """
        ...

    def resume(self, expected: Digest, *, size_bytes: int | None = None, owner: str = "") -> BlobWriter:
        """Begin a blob, or go on where a suspended upload of it by the same ``owner`` stopped.

        An owner has one: where this one begins, what it suspended of another is removed.

        Raises:
            Conflict: it is being uploaded at this moment.
        """
        ...

    def give_up(self, family: str) -> int:
        """Remove what owners of a family have suspended; the bytes that became free.

        An owner's family is its name up to the last dot: an assignment's is its attempt.
        """
        ...

    def received(self, expected: Digest, *, owner: str = "") -> int:
        """How many bytes of a blob an upload that can be resumed, or is under way, has brought; 0 where there is none.

        The last ones may not be written yet.
        """
        ...

    def put(self, data: Buffer, *, expected: Digest | None = None) -> Digest:
        """Store bytes; their digest."""
        ...

    def exists(self, digest: Digest) -> bool:
        """Whether the blob is there."""
        ...

    def touch(self, digest: Digest) -> bool:
        """Whether the blob is there; if so, its grace before garbage collection begins anew."""
        ...

    def is_verified(self, digest: Digest) -> bool:
        """Whether a blob is there, this process has seen all of its bytes, they were right, and none were cut off."""
        ...

    def verify(self, digest: Digest) -> Path | None:
        """Make sure that a blob is what its name says, which takes a pass over it unless that is known.

        Returns:
            None; or where a blob is now that was damaged since it was stored: put aside, so that it can be stored anew.

        Raises:
            NotFound: there is no such blob.
        """
        ...

    def size(self, digest: Digest) -> int:
        """The blob's size in bytes; ``NotFound``."""
        ...

    def path(self, digest: Digest) -> Path:
        """A local file that holds the blob, to be mapped or sent by the kernel, never changed; ``NotFound``."""
        ...

    def chunks(self, digest: Digest, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The blob's bytes from ``start`` to ``stop``, in chunks; ``NotFound``, ``InvalidInput`` for a bad range."""
        ...

    def list(self) -> Iterator[Digest]:
        """Every blob, in no order."""
        ...

    def delete(self, digest: Digest) -> None:
        """Remove a blob; nothing happens where there is none."""
        ...

    def gc(self, live: AbstractSet[Digest], *, grace_s: float = GRACE_S, parts_grace_s: float | None = None) -> int:
        """Remove the blobs not in ``live``, and suspended uploads, unless touched in the last ``grace_s`` seconds.

        The grace covers what was stored, but is not yet referred to. Suspended uploads may have one of their own.
        Returns the bytes that became free.
        """
        ...


def is_digest(text: str) -> bool:
    """Whether ``text`` is 64 lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> Digest:
    """``text`` as a digest; ``InvalidInput`` unless it is 64 lower-case hexadecimal digits."""
    if not is_digest(text):
        raise InvalidInput(
            "a blob's name is its SHA-256", field="digest", value=text[:80], fix="use 64 lower-case hexadecimal digits"
        )
    return Digest(text)


def digest_mismatch(digest: Digest, expected: Digest) -> InvalidInput:
    """The error of bytes that are not those that were announced."""
    return InvalidInput(
        f"the bytes have another digest, {digest}",
        field="digest",
        value=digest,
        limit=expected,
        fix="send the bytes that the digest was computed from",
    )
