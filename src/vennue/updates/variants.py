"""Other forms of blobs, made when they are first asked for and kept while there is room: smaller, or differences.

A variant is a file that is made of a blob (and perhaps of a second one). It is named by the SHA-256 of its own bytes,
like a blob, so caches and interrupted downloads know it again. What would save next to nothing is not made. Variants
are a cache: the directory is emptied at the start, and those not used for the longest go first.
"""

import hashlib
import math
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from vennue._files import free_bytes, make_directory, storage_errors
from vennue._zstd import zstd
from vennue.core.errors import InvalidModel, NotFound
from vennue.core.ids import Digest
from vennue.tensors.delta import delta
from vennue.tensors.model import MappedModel
from vennue.tensors.rounded import ROUNDINGS, write_rounded
from vennue.updates.blobs import BlobStore

LEVEL: Final = 1
"""Of compression. Numbers compress no better at level 3, which takes half as long again."""
WORTH: Final = 0.97
"""A variant that is larger than this share of its blob is not kept."""
IN_USE_S: Final = 30.0
"""A variant that was asked for so recently may be on its way to somebody, and is not removed."""
NO_ROOM_S: Final = 60.0
"""After how long another attempt is made at a variant for which there was no room."""
REMEMBERED: Final = 4096
"""Variants that are remembered as not worth it."""

_CHUNK_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Kind:
    """Which form of a blob: ``zstd``; ``delta``, from another blob; or one of `ROUNDINGS`."""

    name: str
    base: Digest | None = None


ZSTD: Final = Kind("zstd")


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of a blob, in a file of ``size_bytes`` that is named by the SHA-256 of its bytes."""

    kind: Kind
    path: Path
    size_bytes: int
    sha256: Digest

    @property
    def encoding(self) -> Literal["zstd"] | None:
        """How the file's bytes are compressed, if they are."""
        return None if self.kind.name in ROUNDINGS else "zstd"


class Variants:
    """The variants of one store. Safe to use from several threads; making the same one twice at once only wastes time.

    Args:
        directory: where they are kept; whatever is there is removed.
        blobs: what they are made of.
        max_bytes: how much they may take; never more than they leave free, since all else needs the disk more.

    Raises:
        StorageError: the directory cannot be written.
    """

    def __init__(self, directory: Path, blobs: BlobStore, *, max_bytes: int) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self._directory = make_directory(directory)
        self._blobs = blobs
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Digest, Kind], tuple[Variant, float]] = OrderedDict()
        self._refused: OrderedDict[tuple[Digest, Kind], float] = OrderedDict()
        self.used_bytes = 0
        self.made = 0
        """Variants made so far."""

    def find(self, blob: Digest, kind: Kind) -> Variant | None:
        """A variant that was made before."""
        with self._lock:
            found = self._kept.get((blob, kind))
            if found is None:
                return None
            self._kept[blob, kind] = found[0], time.monotonic()
            self._kept.move_to_end((blob, kind))
            return found[0]

    def is_refused(self, blob: Digest, kind: Kind) -> bool:
        """Whether it was tried, and came to nothing."""
        return self._refused.get((blob, kind), -math.inf) > time.monotonic()

    def make(self, blob: Digest, kind: Kind) -> Variant | None:
        """Make a variant; None if it would save next to nothing, cannot be made of this blob, or there is no room.

        Raises:
            NotFound: there is no such blob.
            StorageError: the disk is full.
        """
        source = self._blobs.path(blob)
        most_bytes = int(WORTH * source.stat().st_size)
        if most_bytes > free_bytes(self._directory) // 2:  # it is written before its size is known
            self._refuse(blob, kind, NO_ROOM_S)
            return None
        path = self._directory / f"{uuid.uuid4().hex}.new"
        try:
            self._write(source, kind, path)
            size_bytes = path.stat().st_size
            if size_bytes > most_bytes:
                self._refuse(blob, kind, math.inf)
                return None
            with path.open("rb") as file:
                sha256 = Digest(hashlib.file_digest(file, "sha256").hexdigest())
            variant = Variant(kind, self._directory / f"{blob}.{uuid.uuid4().hex}", size_bytes, sha256)
            if self._keep(blob, variant, path):
                return variant
            self._refuse(blob, kind, NO_ROOM_S)
        except (InvalidModel, NotFound):  # it is no model, or of another form than its base, which may be gone
            self._refuse(blob, kind, math.inf)
        finally:
            path.unlink(missing_ok=True)
        return None

    def prune(self, exists: Callable[[Digest], bool]) -> None:
        """Remove the variants of blobs that are gone, and what the disk has no room for any more."""
        with self._lock:
            for key in [key for key in self._kept if not exists(key[0])]:
                self._remove(key)
            self._make_room(0)

    def _write(self, source: Path, kind: Kind, path: Path) -> None:
        with storage_errors("make a variant", path), path.open("xb") as file:
            if kind.name in ROUNDINGS:
                write_rounded(MappedModel(source), kind.name, file.fileno())
                return
            compressor = zstd.ZstdCompressor(level=LEVEL)
            if kind.base is None:
                with source.open("rb") as blob:
                    while chunk := blob.read(_CHUNK_BYTES):
                        file.write(compressor.compress(chunk))
            else:
                for block in delta(MappedModel(self._blobs.path(kind.base)), MappedModel(source)):
                    file.write(compressor.compress(block))
            file.write(compressor.flush())

    def _keep(self, blob: Digest, variant: Variant, path: Path) -> bool:
        """Publish a variant, if there is room for it once those not used for the longest are gone."""
        with self._lock:
            if (blob, variant.kind) in self._kept:
                self._remove((blob, variant.kind))
            if not self._make_room(variant.size_bytes):
                return False
            with storage_errors("keep a variant", variant.path):
                path.rename(variant.path)
            self._kept[blob, variant.kind] = variant, time.monotonic()
            self.used_bytes += variant.size_bytes
            self.made += 1
            return True

    def _make_room(self, size_bytes: int) -> bool:
        """Remove those not used for the longest until one of that size, which is written, fits; whether it does."""
        rested = time.monotonic() - IN_USE_S
        for key, (_, used_at) in list(self._kept.items()):
            if self.used_bytes + size_bytes <= self._allowed_bytes(size_bytes) or used_at > rested:
                break
            self._remove(key)
        return self.used_bytes + size_bytes <= self._allowed_bytes(size_bytes)

    def _allowed_bytes(self, written_bytes: int) -> int:
        """How much they may take, where so many bytes of the next one are on the disk."""
        return min(self._max_bytes, (self.used_bytes + written_bytes + free_bytes(self._directory)) // 2)

    def _remove(self, key: tuple[Digest, Kind]) -> None:
        variant, _ = self._kept.pop(key)
        variant.path.unlink(missing_ok=True)
        self.used_bytes -= variant.size_bytes

    def _refuse(self, blob: Digest, kind: Kind, for_s: float) -> None:
        """Have nobody try to make it again for a while."""
        with self._lock:
            self._refused[blob, kind] = time.monotonic() + for_s
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)
