"""Tombstones: what was said of updates that nothing else tells of any more, so that a repeat still gets its answer.

The receipts of counted updates are kept when their round is over, and the names of those that were refused as too late
while it was not. One file per attempt, with lines of JSON. Receipts are appended before the round commits, so that they
are there after a crash whenever the commit is; their line names the round that it is for, and after a crash
`Tombstones.settle` removes those of a round that did not commit. The oldest files go when all of them together take too
much of the disk.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from vennue._files import make_directory, storage_errors, sync_directory
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.updates.sums import Receipt

MAX_BYTES: Final = 256 * 2**20
"""Some two million receipts."""
CACHED_ATTEMPTS: Final = 8

_SUFFIX: Final = ".jsonl"
_PART: Final = ".part"
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")

_Row: TypeAlias = tuple[AssignmentId, int, float, Digest | None]
"""A receipt: its assignment, the body's bytes, the weight, and the SHA-256 where it was computed."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said at one time."""

    round: int
    receipts: list[_Row]
    refused: list[AssignmentId] = []


_LINES: Final = msgspec.json.Decoder(_Line | list[_Row])
"""The first version wrote rows alone, and no round."""


class Tombstones:
    """Receipts by assignment, in a directory. One thread at a time.

    Args:
        directory: created where missing.
        max_bytes: how much disk they may take.
        durable: whether they survive a power loss.

    Raises:
        StorageError: the directory cannot be used.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES, durable: bool = False) -> None:
        self._directory = make_directory(directory)
        self._durable = durable
        self._max_bytes = max_bytes
        self._cache: OrderedDict[AttemptId, dict[AssignmentId, Receipt]] = OrderedDict()
        with storage_errors("read the receipts of old rounds", directory):
            for path in directory.glob(f"*{_PART}"):  # of an earlier process, which had no time to end it
                path.unlink()
            # Without following links: one that leads nowhere would hide all other files.
            files = sorted(directory.glob(f"*{_SUFFIX}"), key=lambda path: path.lstat().st_mtime)
            self._sizes = OrderedDict((path.name, path.lstat().st_size) for path in files)
        self._bytes = sum(self._sizes.values())

    def bury(self, attempt: AttemptId, receipts: Iterable[Receipt], *, round_number: int = 0) -> None:
        """Keep receipts of an attempt; those that are kept already may be among them.

        Args:
            attempt: whose they are.
            receipts: of counted updates.
            round_number: the round whose aggregate they go into; 0 for none.

        Raises:
            StorageError: they cannot be written.
        """
        rows = [(receipt.assignment, receipt.body_bytes, receipt.weight, receipt.sha256) for receipt in receipts]
        if rows:
            self._append(attempt, _Line(round_number, rows))

    def refuse(self, attempt: AttemptId, assignments: Iterable[AssignmentId]) -> None:
        """Keep that updates of an attempt were refused, and must not count after a crash.

        Raises:
            StorageError: that cannot be written.
        """
        self._append(attempt, _Line(0, [], list(assignments)))

    def refused(self, attempt: AttemptId) -> list[AssignmentId]:
        """The assignments whose updates were refused, in that order.

        Raises:
            StorageError: they cannot be read.
        """
        return [each for line in self._lines(attempt) for each in line.refused]

    def find(self, assignment: AssignmentId) -> Receipt | None:
        """The receipt of an assignment's update, as a duplicate's.

        Raises:
            StorageError: it cannot be read.
        """
        attempt = attempt_of(assignment)
        if attempt in self._cache:
            self._cache.move_to_end(attempt)
        else:
            self._cache[attempt] = {
                assignment: receipt for line in self._lines(attempt) for assignment, receipt in _receipts(line).items()
            }
            if len(self._cache) > CACHED_ATTEMPTS:
                self._cache.popitem(last=False)
        return self._cache[attempt].get(assignment)

    def settle(self, attempt: AttemptId, committed: int) -> None:
        """After a crash: forget the receipts of an attempt whose aggregate did not become a commit.

        Args:
            attempt: one that goes on.
            committed: the job's last committed round.

        Raises:
            StorageError: they cannot be read, or cannot be written anew.
        """
        lines = self._lines(attempt)
        kept = [line for line in lines if line.round <= committed]
        if len(kept) == len(lines):
            return
        path = self._directory / (attempt + _SUFFIX)
        anew = path.with_suffix(_PART)
        text = msgspec.json.Encoder().encode_lines(kept)
        with storage_errors("keep the receipts of a round", path):
            with anew.open("wb") as file:
                file.write(text)
                self._sync(file)
            anew.rename(path)
            if self._durable:
                sync_directory(self._directory)
        self._cache.pop(attempt, None)
        self._bytes += len(text) - self._sizes[path.name]
        self._sizes[path.name] = len(text)

    def _append(self, attempt: AttemptId, line: _Line) -> None:
        # A line of its own, even after one that a crash has cut off.
        text = b"\n" + msgspec.json.encode(line) + b"\n"
        path = self._directory / (attempt + _SUFFIX)
        with storage_errors("keep what was said of reports", path):
            with path.open("ab") as file:
                file.write(text)
                self._sync(file)
            if self._durable and path.name not in self._sizes:
                sync_directory(self._directory)
        if attempt in self._cache:
            self._cache[attempt] |= _receipts(line)
        self._sizes[path.name] = self._sizes.pop(path.name, 0) + len(text)
        self._bytes += len(text)
        while self._bytes > self._max_bytes and len(self._sizes) > 1:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            self._cache.pop(AttemptId(oldest.removesuffix(_SUFFIX)), None)
            with storage_errors("remove the receipts of an old round", path):
                (self._directory / oldest).unlink(missing_ok=True)

    def _sync(self, file: Any) -> None:
        if self._durable:
            file.flush()
            os.fsync(file.fileno())

    def _lines(self, attempt: AttemptId) -> list[_Line]:
        """What can be read of what was said; what a crash has cut off, or a disk has damaged, hides no other line."""
        # An assignment's id comes from a request: it must not become a path of the caller's choice.
        if not _ATTEMPT.fullmatch(attempt) or attempt + _SUFFIX not in self._sizes:
            return []
        path = self._directory / (attempt + _SUFFIX)
        with storage_errors("read the receipts of a round", path):
            text = path.read_bytes()
        lines: list[_Line] = []
        for line in filter(None, text.split(b"\n")):
            try:
                read = _LINES.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            lines.append(read if isinstance(read, _Line) else _Line(0, read))
        return lines


def _receipts(line: _Line) -> dict[AssignmentId, Receipt]:
    return {
        assignment: Receipt(assignment, body_bytes, weight, sha256, duplicate=True)
        for assignment, body_bytes, weight, sha256 in line.receipts
    }
