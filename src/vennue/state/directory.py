"""The data directory: where one server keeps everything durable, and the lock that keeps a second server out.

The lock is the kernel's (``flock``): it goes with the process, however that ends, so there is never a stale one.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import Self

from vennue.core.errors import StorageError


class DataDirectory:
    """A data directory held by this process until `close`.

    Args:
        path: created where missing, with its parents.

    Raises:
        StorageError: it cannot be created or written, or another server holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except (FileExistsError, NotADirectoryError) as error:
            raise StorageError(
                "the data directory is a file, or in one", field="data_dir", value=str(path), fix="name a directory"
            ) from error
        except OSError as error:
            raise StorageError(
                f"the data directory cannot be written: {error.strerror}",
                field="data_dir",
                value=str(path),
                fix="make it writable, or name another one",
            ) from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise StorageError(
                "the data directory's lock is no file",
                field="data_dir",
                value=str(path / "lock"),
                fix="remove it, or name another directory",
            )
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            by = f" (process {holder})" if holder.isdigit() else ""
            raise StorageError(
                f"another server is using the data directory{by}",
                field="data_dir",
                value=str(path),
                fix="stop that server, or name another directory",
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    @property
    def ledger(self) -> Path:
        """The SQLite file."""
        return self.path / "ledger.sqlite"

    @property
    def blobs(self) -> Path:
        """Where models and aggregates live."""
        return self.path / "blobs"

    @property
    def spool(self) -> Path:
        """Where reports wait for their round's commit."""
        return self.path / "spool"

    def close(self) -> None:
        """Let another server have the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
