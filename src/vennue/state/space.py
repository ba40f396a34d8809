"""Whether promises can be kept where they are kept: a disk that is full, or a directory that is gone, is said to be so.

It is looked at from outside, so that it is told before something promised cannot be written.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final


class Space:
    """Looks whether directories, which may be on file systems of their own, can be written to and have room.

    Args:
        directories: those that are written to, each made already.
        needed_bytes: how much must be free in each; 0 for no bound.
        files: those that are held open, and must stay where they are now.
    """

    def __init__(self, directories: Sequence[Path] = (), needed_bytes: int = 0, *, files: Sequence[Path] = ()) -> None:
        self._directories = directories
        self._needed_bytes = needed_bytes
        self._files = {file: _identity(file) for file in files}

    def lack(self) -> str | None:
        """What is wrong with which directory or file, in one line; None while all is well."""
        for directory in self._directories:
            try:
                found = os.statvfs(directory)
            except FileNotFoundError:
                return f"{directory} is gone: put it back, or restart the server, which makes what is missing anew"
            except OSError as error:
                return f"{directory} cannot be used: {error.strerror}"
            if not os.access(directory, os.W_OK | os.X_OK):
                return f"{directory} cannot be written: make it writable for the user that runs the server"
            free_bytes = found.f_bavail * found.f_frsize
            if free_bytes < self._needed_bytes:
                return (
                    f"{free_bytes} bytes are free in {directory}, {self._needed_bytes} are needed: "
                    "free space on its file system"
                )
        for file, before in self._files.items():
            if _identity(file) != before:
                return (
                    f"{file} was removed or replaced, so what is promised now goes with this process: "
                    "stop the server, and restore a backup of the data directory"
                )
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


NO_BOUND: Final = Space()
"""As if every disk had room."""
