"""The spool: every update on disk, whole and checksummed, before anybody is told that it was received.

One directory per attempt, one file per update. An update is written to a ``.part`` file, or over a spare one, as it
arrives; when it is whole, what must be known about it and a checksum are appended, and the file is renamed to its key:
from then on it exists, for this process and for the one after a crash. So several updates arrive at once without
waiting for one another, and an update is later read through a memory map.

A file is ``body | attempt, key and meta (JSON) | trailer``; the trailer is body bytes, meta bytes, the XXH3-128 of all
before it, magic and version, little-endian. The last eight bytes, magic and version, keep their place in all versions
to come.

What a file holds may count only once somebody has said so: then it is *taken*, which is a second rename. It needs no
space, so a full disk cannot stand between a decision and its record.

A finished update survives a crash of the process; with ``durable``, a power loss, too.
"""

import errno
import json
import logging
import os
import re
import shutil
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import xxhash

from vennue._files import make_directory, storage_errors, sync_directory, write_all
from vennue.core.errors import InvalidInput, StorageError, TooLarge
from vennue.core.ids import AttemptId
from vennue.updates.spares import Spares

log = logging.getLogger("vennue.updates")

VERSION: Final = 1

_MAGIC: Final = b"VnSpool"
_TRAILER: Final = struct.Struct("<QI16s7sB")
_SUFFIX: Final = ".update"
_TAKEN: Final = ".taken"
_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_CHUNK_BYTES: Final = 2**20
_LOST: Final = {errno.EIO, errno.EBADMSG, errno.EISDIR, errno.ELOOP, errno.ENOENT}
"""What reading a file comes to that a disk has damaged, or that is none."""


@dataclass(frozen=True, slots=True)
class Record:
    """A finished update: ``file`` begins with its body, of ``body_bytes``; ``meta`` is what ``finish`` was given."""

    key: str
    meta: Mapping[str, Any]
    file: str
    """Its path. Text, for of small updates there are thousands per second, and a `Path` costs more than a look-up."""
    body_bytes: int
    taken: bool = False
    """Whether `Spool.take` was called for it."""

    @property
    def path(self) -> Path:
        """Its file."""
        return Path(self.file)


class Spool:
    """The finished updates of one attempt. Safe to use from several threads.

    Opening reads and verifies what is there. What a crash left unfinished, or a power loss damaged, is removed:
    nobody was told that it had arrived, or ``durable`` was not asked for.

    Args:
        root: the directory of all spools; the attempt gets one of its own in it.
        attempt: the attempt's id.
        durable: whether a finished update survives a power loss.
        spares: where the files of removed updates go, and those of new ones come from; without them, files are created
            and removed.

    Raises:
        StorageError: the directory cannot be used, or was written by a newer version of this program.
    """

    def __init__(self, root: Path, attempt: AttemptId, *, durable: bool = False, spares: Spares | None = None) -> None:
        self.directory = make_directory(root / _checked(attempt, "attempt"))
        self._prefix = f"{self.directory}/"
        self.removed_bytes = 0
        """How much unfinished or damaged data was removed at opening."""
        self.durable = durable
        self.attempt = attempt
        self._spares = spares
        self._lock = threading.Lock()
        self._numbers = count()
        self._records: dict[str, Record] = {}
        with storage_errors("read the spool", self.directory):
            for path in sorted(self.directory.iterdir()):
                record = _found(path, attempt) if path.suffix in {_SUFFIX, _TAKEN} else None
                if record is None:
                    if path.suffix in {_SUFFIX, _TAKEN}:
                        log.error("a finished update was damaged on the disk, and is removed: %s", path)
                    self.removed_bytes += _remove(path)
                else:
                    self._records[record.key] = record

    def begin(self, *, max_bytes: int | None = None) -> "SpoolWriter":
        """Begin an update of at most ``max_bytes``."""
        spare = None if self._spares is None else self._spares.take()
        file = spare or f"{self._prefix}{next(self._numbers):08}.part"
        try:
            return SpoolWriter(self, file, max_bytes)
        except StorageError:
            Path(file).unlink(missing_ok=True)
            raise

    def records(self) -> tuple[Record, ...]:
        """Every finished update, in the order in which they were finished; by key, after a reopening."""
        with self._lock:
            return tuple(self._records.values())

    def take(self, key: str) -> Record:
        """Mark an update as taken, as durably as it was finished; its record. Repeating it changes nothing.

        Raises:
            StorageError: it cannot be marked, and is not.
        """
        with self._lock:
            record = self._records[key]
            if record.taken:
                return record
            taken = replace(record, file=str(record.path.with_suffix(_TAKEN)), taken=True)
            with storage_errors("mark an update as taken", record.path):
                record.path.rename(taken.path)
                if self.durable:
                    try:
                        sync_directory(self.directory)
                    except OSError:
                        taken.path.rename(record.path)
                        raise
            self._records[key] = taken
        return taken

    def remove(self, key: str) -> None:
        """Forget an update; nothing happens where there is none."""
        with self._lock:
            record = self._records.pop(key, None)
        if record is not None:
            with storage_errors("remove an update", record.path):
                self._let_go(record.file)

    def discard(self, *, reuse: bool = True) -> None:
        """Remove the attempt's directory with all that it holds; without ``reuse`` where somebody may still read it."""
        with self._lock:
            records = tuple(self._records.values())
            self._records.clear()
        with storage_errors("remove the spool", self.directory):
            for record in records if reuse else ():
                self._let_go(record.file)
            shutil.rmtree(self.directory)

    def _let_go(self, file: str) -> None:
        if self._spares is None:
            Path(file).unlink(missing_ok=True)
        else:
            self._spares.give(file)

    def publish(self, part: str, key: str, meta: Mapping[str, Any], body_bytes: int) -> tuple[Record, bool]:
        """For ``SpoolWriter``: make a finished file the key's record, unless the key has one; that, and whether new."""
        record = Record(key, meta, f"{self._prefix}{_checked(key, 'key')}{_SUFFIX}", body_bytes)
        with self._lock:
            earlier = self._records.get(key)
            if earlier is not None:
                return earlier, False
            with storage_errors("spool an update", record.file):
                os.rename(part, record.file)  # noqa: PTH104 - see Record.file
                if self.durable:
                    try:
                        sync_directory(self.directory)
                    except OSError:
                        record.path.unlink()
                        raise
            self._records[key] = record
        return record, True


class SpoolWriter:
    """An update on its way in: ``Spool.begin`` makes it. As a context manager, it aborts unless it was finished."""

    def __init__(self, spool: Spool, file: str, max_bytes: int | None) -> None:
        self.file = file
        self.body_bytes = 0
        self.max_bytes = max_bytes
        """How long the body may become: more may be known later than at the beginning."""
        self._spool = spool
        self._hash = xxhash.xxh3_128()
        with storage_errors("spool an update", file):
            self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)  # over what a spare holds

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append a chunk of the body.

        Raises:
            TooLarge: more than the update may have. It is aborted.
            StorageError: the disk is full. The update is aborted.
        """
        view = memoryview(chunk).cast("B")
        try:
            if self.max_bytes is not None and self.body_bytes + len(view) > self.max_bytes:
                raise TooLarge(
                    "the update is larger than one of this model can be",
                    field="body",
                    value=self.body_bytes + len(view),
                    limit=self.max_bytes,
                )
            with storage_errors("spool an update", self.file):
                write_all(self._fd, view)
            self._hash.update(view)
        except BaseException:
            self.abort()
            raise
        self.body_bytes += len(view)

    def finish(self, key: str, meta: Mapping[str, Any]) -> tuple[Record, bool]:
        """Make the update exist under its key, with JSON about it.

        Returns:
            The key's record, and whether it is this update; ``False`` when there was one already, which stays.

        Raises:
            InvalidInput: the key cannot be a file's name. The update is aborted.
            StorageError: it cannot be stored. The update is aborted.
        """
        about = {"attempt": self._spool.attempt, "key": key, "meta": dict(meta)}
        text = msgspec.json.encode(about)
        self._hash.update(text)
        end = text + _TRAILER.pack(self.body_bytes, len(text), self._hash.digest(), _MAGIC, VERSION)
        try:
            with storage_errors("spool an update", self.file):
                write_all(self._fd, end)
                if os.fstat(self._fd).st_size > self.body_bytes + len(end):
                    os.ftruncate(self._fd, self.body_bytes + len(end))
                if self._spool.durable:
                    os.fsync(self._fd)
            record, is_new = self._spool.publish(self.file, key, meta, self.body_bytes)
        except BaseException:
            self.abort()
            raise
        if is_new:
            self._close()
        else:
            self.abort()
        return record, is_new

    def abort(self) -> None:
        """Remove what was written. Does nothing after ``finish`` or ``abort``."""
        if self._fd >= 0:
            self._close()
            Path(self.file).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def _checked(name: str, field: str) -> str:
    if not _KEY.fullmatch(name):
        raise InvalidInput(
            "it cannot name a file",
            field=field,
            value=name[:80],
            fix="use letters, digits, dots, dashes and underscores",
        )
    return name


def _found(path: Path, attempt: AttemptId) -> Record | None:
    """As `_read`; ``None``, too, if the disk has lost the file, which is no reason to lose those beside it."""
    try:
        return _read(path, attempt)
    except OSError as error:
        if error.errno not in _LOST:
            raise
        return None


def _remove(path: Path) -> int:
    """Remove what is no record; its size."""
    size_bytes = path.lstat().st_size
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    return size_bytes


def _read(path: Path, attempt: AttemptId) -> Record | None:
    """The record in a file; ``None`` if it is torn or damaged, or another one under this name."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _TRAILER.size:
            return None
        file.seek(size - _TRAILER.size)
        body_bytes, meta_bytes, checksum, magic, version = _TRAILER.unpack(file.read())
        if magic != _MAGIC:
            return None
        if version > VERSION:
            raise StorageError(
                f"the spool is of version {version}, this program knows versions up to {VERSION}",
                field="path",
                value=str(path),
                limit=VERSION,
                fix="run the version that wrote it, or a newer one",
            )
        if body_bytes + meta_bytes + _TRAILER.size != size:
            return None
        file.seek(0)
        digest = xxhash.xxh3_128()
        for start in range(0, body_bytes, _CHUNK_BYTES):
            digest.update(file.read(min(_CHUNK_BYTES, body_bytes - start)))
        text = file.read(meta_bytes)
        digest.update(text)
        if digest.digest() != checksum:
            return None
    about = json.loads(text)
    if path.name != about["key"] + path.suffix or about.get("attempt", attempt) != attempt:
        return None
    return Record(about["key"], about["meta"], str(path), body_bytes, taken=path.suffix == _TAKEN)
