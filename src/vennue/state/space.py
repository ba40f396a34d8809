"""Free space where promises are kept: that a disk is full is said before something promised cannot be written to it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final


class Space:
    """Looks whether directories, which may be on file systems of their own, have room.

    Args:
        directories: those that are written to; one that is not there yet is looked for where it will be made.
        needed_bytes: how much must be free in each; 0 for no bound.
    """

    def __init__(self, directories: Sequence[Path] = (), needed_bytes: int = 0) -> None:
        self._directories = directories
        self._needed_bytes = needed_bytes

    def lack(self) -> str | None:
        """Which directory has too little room, in numbers; None while all have enough."""
        for directory in self._directories:
            try:
                there = next(path for path in (directory, *directory.parents) if path.exists())
                found = os.statvfs(there)
            except OSError as error:
                return f"{directory} cannot be used: {error.strerror}"
            free_bytes = found.f_bavail * found.f_frsize
            if free_bytes < self._needed_bytes:
                return (
                    f"{free_bytes} bytes are free in {directory}, {self._needed_bytes} are needed: "
                    "free space on its file system"
                )
        return None


NO_BOUND: Final = Space()
"""As if every disk had room."""
