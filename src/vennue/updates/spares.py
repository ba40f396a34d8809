"""Spare files: those of removed updates, kept so that the next updates are written over them.

A file of its own for each update was most of what a report cost. ext4 does not give an inode out again for five seconds
after its file was unlinked, and looks at each such inode for every file that it creates: where updates of 1 MB come and
go, to create, fill and unlink a file takes 1.3 ms of a processor, and 0.15 ms to write over one whose pages are in
memory and whose blocks are allocated.

Spares are a cache: nobody reads what they hold, and they go when the disk fills up.
"""

import os
import shutil
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 2**30
LEAST_BYTES: Final = 4096
"""What the smallest file takes of a disk."""


class Spares:
    """The spare files in one directory. Safe to use from several threads.

    Args:
        directory: of its own, on the file system of the files that become spares. Created where missing; what an
            earlier process has left in it is removed.
        max_bytes: how much disk they may take. They take none while less than twice as much is free.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._numbers = count()
        self._files: list[tuple[str, int]] = []
        self._bytes = 0
        self._is_ready = False

    def take(self) -> str | None:
        """A file to write over and to rename, the one that was used last; ``None`` when there is none."""
        with self._lock:
            if not self._files:
                return None
            file, size = self._files.pop()
            self._bytes -= size
        return file

    def give(self, file: str) -> None:
        """Make a spare of a file that nobody reads or writes any more, or remove it; it may be gone already.

        Raises:
            OSError: it cannot be removed.
        """
        with self._lock, suppress(OSError):  # a cache that fails is none
            size = max(LEAST_BYTES, os.stat(file).st_size)  # noqa: PTH116 - text, as in `spool.Record`
            if self._has_room(size):
                spare = f"{self._directory}/{next(self._numbers)}"
                os.rename(file, spare)  # noqa: PTH104
                self._files.append((spare, size))
                self._bytes += size
                return
        Path(file).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._clear()

    def _has_room(self, size: int) -> bool:
        if not self._is_ready:
            self._clear()
            self._directory.mkdir(parents=True)
            self._is_ready = True
        disk = os.statvfs(self._directory)
        if disk.f_bavail * disk.f_frsize < 2 * self._max_bytes:
            while self._files:  # and not the whole directory: what was taken is being written
                idle, idle_bytes = self._files.pop()
                self._bytes -= idle_bytes
                Path(idle).unlink(missing_ok=True)
            return False
        return self._bytes + size <= self._max_bytes

    def _clear(self) -> None:
        self._files.clear()
        self._bytes = 0
        self._is_ready = False
        shutil.rmtree(self._directory, ignore_errors=True)
