"""Which form of a blob a caller gets: as it is, compressed, as the difference to one that the caller has, or rounded.

A form is made in a thread when it is first asked for, once however many ask, and one at a time: it costs the processor
more than anything else a server does. Whoever asks waits for it for a while, and then gets the blob as it is, which is
always right: a caller is told what it gets.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vennue.core.errors import InvalidInput, NotFound, VennueError
from vennue.core.ids import Digest
from vennue.tensors.rounded import ROUNDINGS
from vennue.updates.blobs import BlobStore, check_digest
from vennue.updates.variants import ZSTD, Kind, Variant, Variants

log = logging.getLogger("vennue.control")

WAIT_S: Final = 10.0
"""How long a download waits for its variant to be made."""
CHECK_WAIT_S: Final = 2.0
"""How long a download waits until its blob is checked. Whoever it is sent to checks it, too."""
LARGE_BYTES: Final = 256 * 2**20
"""Larger blobs are checked one at a time, so that no small one waits for them: some take half a minute."""
QUEUE: Final = 16
"""Variants waiting to be made; while there are more, callers get blobs as they are."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a caller gets: bytes of a file.

    ``sha256`` is that of these bytes. ``variant`` is None for the blob itself, compressed or not; else ``delta`` or the
    name of the rounding. ``encoding`` is the content encoding. Bytes that are not ``is_checked`` may have been damaged:
    whoever gets them finds out, but no cache may keep them.
    """

    path: Path
    size_bytes: int
    sha256: Digest
    variant: str | None = None
    encoding: str | None = None
    is_checked: bool = True


class Distribution:
    """The forms of one server's blobs. All methods belong to one event loop.

    Args:
        blobs: the blobs.
        variants: their other forms; without them, blobs are only sent as they are.
    """

    def __init__(self, blobs: BlobStore, variants: Variants | None = None) -> None:
        self.blobs = blobs
        self.variants = variants
        self.on_damage: Callable[[Digest], object] = lambda _: None
        """Told of blobs that were damaged, and are put aside."""
        self._making: dict[tuple[Digest, Kind], asyncio.Task[Variant | None]] = {}
        self._turn = asyncio.Semaphore(1)
        self._checking: dict[Digest, asyncio.Task[None]] = {}
        self._turn_to_check = asyncio.Semaphore(1)

    def is_checked(self, digest: Digest) -> bool:
        """Whether a blob is there, and known to be what its name says."""
        return self.blobs.is_verified(digest)

    async def check(self, digest: Digest) -> None:
        """Make sure that a blob is what its name says: one of an earlier process is read, once, whoever asks.

        Raises:
            NotFound: there is no such blob; or it was damaged on the disk, and is put aside.
            StorageError: it cannot be read.
        """
        if not self.is_checked(digest):
            await asyncio.shield(self._being_checked(digest))

    async def holds(self, digest: Digest) -> bool:
        """Whether a blob is there, undamaged; if so, its grace before garbage collection begins anew.

        Raises:
            StorageError: it cannot be read.
        """
        if not self.blobs.touch(digest):
            return False
        try:
            await self.check(digest)
        except NotFound:
            return False
        return True

    async def choose(
        self, digest: Digest, *, zstd: bool = False, base: str | None = None, rounding: str | None = None
    ) -> Chosen:
        """The best form of a blob for a caller.

        Args:
            digest: of the blob.
            zstd: whether the caller can decompress that.
            base: the digest of a model that the caller has, for a delta, which is compressed.
            rounding: one of `ROUNDINGS`.

        Raises:
            NotFound: there is no such blob, or it was damaged on the disk.
            StorageError: it cannot be read.
            InvalidInput: the caller asks for something that does not exist.
        """
        kind = self._kind(zstd=zstd, base=base, rounding=rounding)
        if not self.is_checked(digest):
            checking = self._being_checked(digest)
            await asyncio.wait((checking,), timeout=CHECK_WAIT_S)
            if checking.done():
                checking.result()
        path = self.blobs.path(digest)
        size_bytes = path.stat().st_size
        if not self.is_checked(digest):
            return Chosen(path, size_bytes, digest, is_checked=False)
        for one in (kind, ZSTD if zstd and rounding is None else None):
            variant = None if one is None else await self._variant(digest, one)
            if variant is not None:
                name = None if variant.kind == ZSTD else variant.kind.name
                return Chosen(variant.path, variant.size_bytes, variant.sha256, name, variant.encoding)
        return Chosen(path, size_bytes, digest)

    def prune(self) -> None:
        """Remove the forms of blobs that are gone."""
        if self.variants is not None:
            self.variants.prune(self.blobs.exists)

    def _kind(self, *, zstd: bool, base: str | None, rounding: str | None) -> Kind | None:
        if rounding is not None:
            if rounding not in ROUNDINGS:
                known = ", ".join(ROUNDINGS)
                raise InvalidInput("no such rounding", field="rounding", value=rounding[:80], limit=known)
            if base is not None:
                raise InvalidInput(
                    "a delta is exact, and cannot be rounded", field="from", fix="ask for one of the two"
                )
            return Kind(rounding)
        if base is not None:
            try:
                known_base = check_digest(base)
            except InvalidInput as error:
                error.field = "from"
                raise
            return Kind("delta", known_base) if zstd and self.blobs.exists(known_base) else None
        return ZSTD if zstd else None

    def _being_checked(self, digest: Digest) -> asyncio.Task[None]:
        checking = self._checking.get(digest)
        if checking is None:
            checking = asyncio.get_running_loop().create_task(self._check(digest), name=f"check {digest}")
            self._checking[digest] = checking
            checking.add_done_callback(lambda done: self._checked(digest, done))
        return checking

    async def _check(self, digest: Digest) -> None:
        async with self._turn_to_check if self.blobs.size(digest) > LARGE_BYTES else nullcontext():
            damaged = await asyncio.to_thread(self.blobs.verify, digest)
        if damaged is not None:
            log.error("model %s was damaged on the disk, and is put aside: %s", digest, damaged)
            self.on_damage(digest)
            raise NotFound("the model was damaged on the disk", field="digest", value=digest, fix="upload it again")

    def _checked(self, digest: Digest, done: asyncio.Task[None]) -> None:
        del self._checking[digest]
        if not done.cancelled():
            done.exception()  # whoever asked may be gone

    async def _variant(self, blob: Digest, kind: Kind) -> Variant | None:
        """A variant; None if there is none, or it takes too long to be made."""
        variants = self.variants
        if variants is None or kind.base == blob:
            return None
        found = variants.find(blob, kind)
        if found is not None or variants.is_refused(blob, kind):
            return found
        making = self._making.get((blob, kind))
        if making is None:
            if len(self._making) >= QUEUE:
                return None
            making = asyncio.get_running_loop().create_task(self._make(variants, blob, kind))
            self._making[blob, kind] = making
            making.add_done_callback(lambda _: self._making.pop((blob, kind)))
        await asyncio.wait((making,), timeout=WAIT_S)
        return making.result() if making.done() and not making.cancelled() else None

    async def _make(self, variants: Variants, blob: Digest, kind: Kind) -> Variant | None:
        try:
            if kind.base is not None:
                await self.check(kind.base)
            async with self._turn:
                return await asyncio.to_thread(variants.make, blob, kind)
        except VennueError as error:
            log.warning("a variant of %s cannot be made: %s", blob, error)
        except Exception:
            log.exception("a variant of %s cannot be made", blob)
        return None
