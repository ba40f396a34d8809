"""How this package touches the disk: errors that say what to do, and directory entries that survive a power loss.

Used by the blob store and the spool. Both write a file beside its final place, and publish it by one atomic rename, so
a reader never sees half of anything.
"""

import errno
import os
from pathlib import Path

from vennue.core.errors import StorageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class storage_errors:  # noqa: N801 - used as a function; a generator would cost a small report a tenth of its spooling
    """Turn an ``OSError`` of the block into a ``StorageError`` that names the path and the fix."""

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: str, path: Path | str) -> None:
        self._doing = doing
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in _FULL:
            fix = "free space on this file system, or raise its quota"
        elif error.errno in _NOT_WRITABLE:
            fix = "make the directory writable for the user that runs the server, or choose another data directory"
        elif error.errno in {errno.EMFILE, errno.ENFILE}:
            fix = "raise the limit on open files (ulimit -n)"
        else:
            fix = "check that the path is a directory on a working file system"
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StorageError(f"cannot {self._doing}: {reason}", field="path", value=str(self._path), fix=fix) from error


def make_directory(path: Path) -> Path:
    """Create ``path`` and its parents where missing; ``StorageError`` when it cannot be written to."""
    with storage_errors("create the directory", path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return path


def free_bytes(path: Path) -> int:
    """How much this process may still write to the file system of ``path``; ``StorageError`` if that is not there."""
    with storage_errors("look for free space", path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def write_all(fd: int, chunk: bytes | bytearray | memoryview) -> None:
    """Write the whole chunk: a single ``write`` may stop short at a signal or at 2 GiB."""
    view = memoryview(chunk).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: Path) -> None:
    """Make the entries of ``path`` durable: a rename is safe from a power loss only after this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
