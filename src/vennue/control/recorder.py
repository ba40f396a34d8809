"""The recorder: when devices of which kind checked in, for a simulation to replay. It writes only where it is asked to.

What it writes tells no device apart: no names, times to the hundredth of a second, and the attributes of a kind only
once several devices of that kind have been seen; the check-ins before that are of an unnamed kind. Files are JSON
lines, appended to and never changed; a new one begins when one is full, and the oldest goes when there are too many.

    {"format": "vennue-check-ins", "version": 1, "started_at": 1767225600.0}
    {"kind": 1, "attributes": {"android": 12, "ram_gb": 6}}
    [0.25, 1]
    [0.31, 0]
"""

import logging
import math
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from vennue._files import make_directory, storage_errors
from vennue.core.errors import StorageError
from vennue.core.ids import DeviceId
from vennue.core.requirement import Profile

log = logging.getLogger("vennue.control")

FORMAT: Final = "vennue-check-ins"
VERSION: Final = 1
SUFFIX: Final = ".jsonl"
UNNAMED: Final = 0
"""The kind of check-ins whose attributes too few devices share."""

Noted = tuple[float, Profile | None]
"""When a device of which kind checked in; None for an unnamed one."""

_MOST_WAITING: Final = 100_000
"""Check-ins that wait to be written; more are left out, and counted."""
_MOST_STRANGERS: Final = 4096
"""Kinds whose devices are being counted at once."""


class Recorder:
    """Records the check-ins of one pool. `note` and `take` are for the event loop, `write` for any one thread.

    Args:
        directory: where the files go; those of former servers stay, and count.
        least_devices: devices of one kind after which its attributes are written.
        max_file_bytes: size at which a new file begins.
        max_files: how many are kept.

    Raises:
        StorageError: the directory cannot be written to.
    """

    def __init__(
        self, directory: Path, *, least_devices: int = 10, max_file_bytes: int = 64 * 2**20, max_files: int = 16
    ) -> None:
        self.left_out = 0
        """Check-ins that were not recorded, because the disk is too slow or fails."""
        self._directory = make_directory(directory)
        self._least_devices = least_devices
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._waiting: list[Noted] = []
        self._strangers: dict[Profile, set[DeviceId]] = {}
        self._named: set[Profile] = set()
        self._file: BinaryIO | None = None
        self._kinds: dict[Profile, int] = {}
        self._started_at = math.nan
        self._size_bytes = 0

    def note(self, profile: Profile, device: DeviceId, now: float) -> None:
        """A device checked in. Its name serves to count devices of its kind, and goes nowhere."""
        if len(self._waiting) >= _MOST_WAITING:
            self.left_out += 1
        else:
            self._waiting.append((now, profile if profile in self._named or self._is_common(profile, device) else None))

    def take(self) -> list[Noted]:
        """What waits to be written, which is the caller's to write now."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def write(self, waiting: list[Noted]) -> None:
        """Append to the file. A disk that fails costs what was to be written, never the pool."""
        try:
            with storage_errors("record check-ins", self._directory):
                self._write(waiting)
        except StorageError as error:
            log.warning("%s", error)
            self.left_out += len(waiting)
            self._forget_file()

    def close(self) -> None:
        """Write what waits, and end the file. Nothing may be noted after it."""
        self.write(self.take())
        self._forget_file()

    def _is_common(self, profile: Profile, device: DeviceId) -> bool:
        devices = self._strangers.get(profile)
        if devices is None:
            if len(self._strangers) >= _MOST_STRANGERS:
                self._strangers.clear()
            devices = self._strangers[profile] = set()
        devices.add(device)
        if len(devices) < self._least_devices:
            return False
        del self._strangers[profile]
        self._named.add(profile)
        return True

    def _write(self, waiting: list[Noted]) -> None:
        lines: list[bytes] = []
        for now, profile in waiting:
            if self._file is None or self._size_bytes >= self._max_file_bytes:
                self._append(lines)
                lines = []
                self._begin_file(now)
            kind = UNNAMED
            if profile is not None:
                known = self._kinds.get(profile)
                if known is None:
                    known = self._kinds[profile] = len(self._kinds) + 1
                    lines.append(msgspec.json.encode({"kind": known, "attributes": dict(profile.attributes)}))
                kind = known
            lines.append(b"[%.2f, %d]" % (max(0.0, now - self._started_at), kind))
            self._size_bytes += len(lines[-1]) + 1
        self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        if lines and self._file is not None:
            self._file.write(b"\n".join(lines) + b"\n")
            self._file.flush()

    def _begin_file(self, now: float) -> None:
        self._forget_file()
        head = msgspec.json.encode({"format": FORMAT, "version": VERSION, "started_at": now}) + b"\n"
        self._file = (self._directory / f"check-ins-{int(now * 1000):015}{SUFFIX}").open("ab")
        self._file.write(head)
        self._size_bytes = len(head)
        self._started_at = now
        self._kinds = {}
        for old in sorted(self._directory.glob(f"check-ins-*{SUFFIX}"))[: -self._max_files]:
            old.unlink(missing_ok=True)

    def _forget_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
