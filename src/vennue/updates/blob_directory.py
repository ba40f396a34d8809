"""Blobs in a directory of a local disk.

A blob is written beside its place, checked against its digest, made durable, and published by an atomic rename.
`DirectoryBlobs` and its writers share one account of the files and of the space that they take.
"""

import hashlib
import logging
import math
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from vennue._files import make_directory, storage_errors, sync_directory, write_all
from vennue.core.errors import Conflict, InvalidInput, NotFound, OutOfSpace, StorageError, TooLarge
from vennue.core.ids import Digest
from vennue.updates.blobs import GRACE_S, Buffer, check_digest, digest_mismatch, is_digest

log = logging.getLogger("vennue.updates")

_CHUNK_BYTES: Final = 2**20
REMEMBERED_HASHES: Final = 1024
"""Suspended uploads whose hash is kept, so that going on does not begin with reading what is there."""


class DirectoryBlobs:
    """Blobs in a directory of a local file system: ``ab/abcd…`` for blobs, ``incoming/`` for what is being written.

    Args:
        root: the directory, created where missing.
        max_blob_bytes: the largest blob to take; no bound by default.
        quota_bytes: how much all blobs together, finished or not, may take; no bound by default.
        durable: whether a commit survives a power loss. Without, it survives the crash of the process only.

    Raises:
        StorageError: the directory cannot be written.
    """

    def __init__(
        self, root: Path, *, max_blob_bytes: int | None = None, quota_bytes: int | None = None, durable: bool = True
    ) -> None:
        self._files = _Files(root, max_blob_bytes, quota_bytes, durable=durable)

    @property
    def used_bytes(self) -> int:
        return self._files.used_bytes

    @property
    def quota_bytes(self) -> int | None:
        return self._files.quota_bytes

    @property
    def is_new(self) -> bool:
        return self._files.is_new

    def create(
        self, *, expected: Digest | None = None, size_bytes: int | None = None, within_quota: bool = True
    ) -> "DirectoryWriter":
        expected = None if expected is None else check_digest(expected)
        name = f"{uuid.uuid4().hex}.new"
        return DirectoryWriter(self._files, name, expected, size_bytes, within_quota=within_quota)

    def resume(self, expected: Digest, *, size_bytes: int | None = None, owner: str = "") -> "DirectoryWriter":
        name = _part(expected, owner)
        if owner and not self._files.size_of(name):
            self._files.remove_parts(but=name)
        return DirectoryWriter(self._files, name, expected, size_bytes, resumable=True)

    def give_up(self, family: str) -> int:
        return sum(self._files.remove(path) for path in self._files.incoming(f"*.{_short(family)}-*.part"))

    def received(self, expected: Digest, *, owner: str = "") -> int:
        return self._files.size_of(_part(expected, owner))

    def put(self, data: Buffer, *, expected: Digest | None = None) -> Digest:
        digest = Digest(hashlib.sha256(data).hexdigest())
        if expected is not None and digest != check_digest(expected):
            raise digest_mismatch(digest, expected)
        if not self._files.touch(digest):
            with self.create(size_bytes=memoryview(data).nbytes) as writer:
                writer.write(data)
                writer.commit()
        return digest

    def exists(self, digest: Digest) -> bool:
        return self._files.place(digest).exists()

    def touch(self, digest: Digest) -> bool:
        return self._files.touch(digest)

    def is_verified(self, digest: Digest) -> bool:
        return self._files.is_verified(digest)

    def verify(self, digest: Digest) -> Path | None:
        path = self.path(digest)
        if self.is_verified(digest):
            return None
        with storage_errors("read the blob", path), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            size_bytes = os.fstat(file.fileno()).st_size
        if found != digest:
            return self._files.put_aside(path)
        self._files.verified[digest] = size_bytes
        return None

    def size(self, digest: Digest) -> int:
        return self.path(digest).stat().st_size

    def path(self, digest: Digest) -> Path:
        path = self._files.place(digest)
        if not path.exists():
            raise NotFound("no such blob", field="digest", value=digest, fix="upload it first")
        return path

    def chunks(self, digest: Digest, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        size = self.size(digest)
        stop = size if stop is None else stop
        if not 0 <= start <= stop <= size:
            raise InvalidInput("no such range of the blob", field="range", value=f"{start}-{stop}", limit=size)
        return _read_chunks(self.path(digest), start, stop)

    def list(self) -> Iterator[Digest]:
        return (Digest(path.name) for path in self._files.blobs())

    def delete(self, digest: Digest) -> None:
        self._files.remove(self._files.place(digest))

    def gc(self, live: AbstractSet[Digest], *, grace_s: float = GRACE_S, parts_grace_s: float | None = None) -> int:
        now = time.time()
        parts_grace_s = grace_s if parts_grace_s is None else parts_grace_s
        before_s = {path: now - grace_s for path in self._files.blobs() if path.name not in live}
        before_s |= dict.fromkeys(self._files.incoming(), now - parts_grace_s)
        freed, stuck = 0, []
        for path, touched_s in before_s.items():
            try:
                freed += self._files.remove(path, unless_after_s=touched_s)
            except StorageError as error:  # what else is of no use goes all the same
                stuck.append((path, error))
        if stuck:
            log.warning("%d files cannot be removed, such as %s: %s", len(stuck), *stuck[0])
        return freed


class DirectoryWriter:
    """The ``BlobWriter`` of ``DirectoryBlobs``, which makes them."""

    def __init__(
        self,
        files: "_Files",
        name: str,
        expected: Digest | None,
        size_bytes: int | None,
        *,
        resumable: bool = False,
        within_quota: bool = True,
    ) -> None:
        self._files = files
        self._within_quota = within_quota
        self._path = files.begin(name)
        self._expected = expected
        self._size_bytes = size_bytes
        self._resumable = resumable
        self._hash = hashlib.sha256()
        self._offset = 0
        self._is_open = True
        self._fd = -1
        try:
            with storage_errors("store a blob", self._path):
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                remembered = files.recall(self._path, os.fstat(self._fd).st_size)
                if remembered is not None:
                    self._offset, self._hash = remembered
                else:
                    for chunk in self.read():
                        self._hash.update(chunk)
                        self._offset += len(chunk)
            files.check_room(size_bytes or 0, self._offset, within_quota=within_quota)
        except BaseException:
            self._close(keep=files.size_of(name) > 0)  # it may be there, and yet not be readable now
            raise

    @property
    def offset(self) -> int:
        return self._offset

    def write(self, chunk: Buffer) -> None:
        view = memoryview(chunk).cast("B")
        after = self._offset + len(view)
        try:
            if self._size_bytes is not None and after > self._size_bytes:
                raise TooLarge("more bytes than announced", field="body", value=after, limit=self._size_bytes)
            self._files.reserve(after, self._offset, within_quota=self._within_quota)
            self._offset = after
            with storage_errors("store a blob", self._path):
                write_all(self._fd, view)
        except BaseException:
            self.abort()
            raise
        self._hash.update(view)

    def read(self) -> Iterator[bytes]:
        position = 0
        with storage_errors("read a blob", self._path):
            while chunk := os.pread(self._fd, _CHUNK_BYTES, position):
                position += len(chunk)
                yield chunk

    def commit(self) -> Digest:
        try:
            if self._size_bytes is not None and self._offset < self._size_bytes:
                raise InvalidInput(
                    "the blob is cut off", field="body", value=self._offset, limit=self._size_bytes, fix="send it whole"
                )
            digest = Digest(self._hash.hexdigest())
            if self._expected is not None and digest != self._expected:
                raise digest_mismatch(digest, self._expected)
            published = self._files.publish(self._path, self._fd, digest)
        except BaseException:
            self.abort()
            raise
        self._close(keep=published)
        return digest

    def suspend(self) -> None:
        if self._is_open and self._resumable:
            self._files.remember(self._path, self._offset, self._hash)
        self._close(keep=self._resumable and self._offset > 0)

    def abort(self) -> None:
        self._close(keep=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _close(self, *, keep: bool) -> None:
        if self._is_open:
            self._is_open = False
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._files.end(self._path, discard_bytes=None if keep else self._offset)


class _Files:
    """The files of a ``DirectoryBlobs`` and the space that they take: what a store and its writers share."""

    def __init__(self, root: Path, max_blob_bytes: int | None, quota_bytes: int | None, *, durable: bool) -> None:
        self._root = make_directory(root)
        self._incoming = make_directory(root / "incoming")
        self._max_blob_bytes = max_blob_bytes
        self.quota_bytes = quota_bytes
        self._durable = durable
        self._lock = threading.Lock()
        self._writing: set[Path] = set()
        self._hashes: OrderedDict[Path, tuple[int, Any]] = OrderedDict()
        self.verified: dict[str, int] = {}
        """The sizes of the blobs whose bytes were seen, and were right."""
        with storage_errors("read the blobs", root):
            self.used_bytes = sum(_size(path) for path in [*self.blobs(), *self.incoming()])

    def place(self, digest: Digest) -> Path:
        return self._root / check_digest(digest)[:2] / digest

    @property
    def is_new(self) -> bool:
        """Whether no blob was ever published: the directories that they are in stay when they go."""
        return next(self._root.glob("[0-9a-f][0-9a-f]"), None) is None

    def is_verified(self, digest: Digest) -> bool:
        """Whether a blob's bytes were seen, and were right, and its file was not cut off or removed since."""
        size_bytes = self.verified.get(digest)
        try:
            return size_bytes is not None and self.place(digest).stat().st_size == size_bytes
        except FileNotFoundError:
            return False

    def blobs(self) -> Iterator[Path]:
        return (path for path in self._root.glob("[0-9a-f][0-9a-f]/*") if is_digest(path.name))

    def incoming(self, pattern: str = "*") -> Iterator[Path]:
        return self._incoming.glob(pattern)

    def touch(self, digest: Digest) -> bool:
        """Whether the blob is there; if so, its grace before garbage collection begins anew."""
        place = self.place(digest)
        with self._lock, storage_errors("store the blob", place):
            try:
                os.utime(place)
            except FileNotFoundError:
                return False
            return True

    def remove_parts(self, *, but: str) -> None:
        """Remove the suspended uploads of the owner of this one, of which nothing is there yet."""
        digest, rest = but.split(".", 1)
        for path in self._incoming.glob(f"*.{rest}"):
            if not path.name.startswith(digest):
                self.remove(path)

    def size_of(self, name: str) -> int:
        """The size of an incoming file, 0 where there is none."""
        path = self._incoming / name
        with storage_errors("look for an upload", path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return 0

    def remember(self, path: Path, offset: int, so_far: Any) -> None:
        """Keep the hash of a suspended upload."""
        with self._lock:
            self._hashes[path] = offset, so_far
            if len(self._hashes) > REMEMBERED_HASHES:
                self._hashes.popitem(last=False)

    def recall(self, path: Path, size_bytes: int) -> tuple[int, Any] | None:
        """The offset and the hash of a suspended upload, if they were kept and are those of the file."""
        with self._lock:
            found = self._hashes.pop(path, None)
        return found if found is not None and found[0] == size_bytes else None

    def begin(self, name: str) -> Path:
        """Claim a name among the incoming files."""
        path = self._incoming / name
        with self._lock:
            if path in self._writing:
                raise Conflict(
                    "this blob is being uploaded already",
                    field="digest",
                    value=path.stem,
                    fix="wait for that upload to end, then try again",
                )
            self._writing.add(path)
        return path

    def check_room(self, blob_bytes: int, before_bytes: int, *, within_quota: bool = True) -> None:
        """Refuse a blob of ``blob_bytes``, of which ``before_bytes`` are there, if it is too large for the store."""
        if self._max_blob_bytes is not None and blob_bytes > self._max_blob_bytes:
            raise TooLarge(
                "the blob is larger than this pool takes", field="body", value=blob_bytes, limit=self._max_blob_bytes
            )
        used_bytes = self.used_bytes + blob_bytes - before_bytes
        if within_quota and self.quota_bytes is not None and used_bytes > self.quota_bytes:
            raise OutOfSpace(
                f"models would take {used_bytes} bytes of the disk, of which {self.quota_bytes} are theirs",
                field="disk_quota_bytes",
                value=used_bytes,
                limit=self.quota_bytes,
                fix="raise the quota (VENNUE_DISK_QUOTA_BYTES; of a leaf, VENNUE_LEAF_CACHE_BYTES), or end jobs: what "
                "no job needs is removed by itself",
            )

    def reserve(self, blob_bytes: int, before_bytes: int, *, within_quota: bool) -> None:
        """Count the growth of a blob from ``before_bytes`` to ``blob_bytes``, if there is room for it."""
        with self._lock:
            self.check_room(blob_bytes, before_bytes, within_quota=within_quota)
            self.used_bytes += blob_bytes - before_bytes

    def publish(self, path: Path, fd: int, digest: Digest) -> bool:
        """Put a finished file in its place, durably; ``False`` when the blob is there already."""
        if self.touch(digest):
            return False
        place = self.place(digest)
        with storage_errors("store the blob", place):
            if self._durable:
                os.fsync(fd)
            place.parent.mkdir(exist_ok=True)
            with self._lock:
                if place.exists():  # another upload of the same bytes was faster
                    return False
                path.rename(place)
                self.verified[digest] = place.stat().st_size
            if self._durable:
                sync_directory(place.parent)
                sync_directory(self._root)
        return True

    def end(self, path: Path, *, discard_bytes: int | None) -> None:
        """Give up a claimed name, and the file with the space counted for it unless ``discard_bytes`` is ``None``."""
        with self._lock:
            self._writing.discard(path)
            if discard_bytes is not None:
                path.unlink(missing_ok=True)
                self.used_bytes -= discard_bytes

    def remove(self, path: Path, *, unless_after_s: float = math.inf) -> int:
        """Remove a file that nobody writes, unless it was touched after a time; how many bytes that freed.

        Under the lock, so that a commit of the same blob either touches it in time or writes it anew.
        """
        with self._lock, storage_errors("remove the blob", path):
            try:
                status = path.stat()
                if path in self._writing or status.st_mtime > unless_after_s:
                    return 0
                path.unlink()
            except FileNotFoundError:
                return 0
            self.used_bytes -= self.verified.pop(path.name, status.st_size)
            return status.st_size

    def put_aside(self, path: Path) -> Path:
        """Take a damaged blob out of the store; where it is now."""
        aside = make_directory(self._root / "damaged") / path.name
        with self._lock, storage_errors("put a damaged blob aside", path):
            size_bytes = path.stat().st_size
            path.rename(aside)
            self.used_bytes -= self.verified.pop(path.name, size_bytes)
        return aside


def _size(path: Path) -> int:
    """The size of a file, 0 of a link that leads nowhere."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _part(expected: Digest, owner: str) -> str:
    """The name of the file in which an upload that can be resumed is collected."""
    name, family = check_digest(expected), owner.rpartition(".")[0]
    return f"{name}.{_short(family)}-{_short(owner)}.part" if owner else f"{name}.part"


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _read_chunks(path: Path, start: int, stop: int) -> Iterator[bytes]:
    with storage_errors("read the blob", path), path.open("rb") as file:
        file.seek(start)
        while start < stop:
            chunk = file.read(min(_CHUNK_BYTES, stop - start))
            if not chunk:
                raise StorageError("the blob's file is shorter than it was", field="path", value=str(path))
            start += len(chunk)
            yield chunk
