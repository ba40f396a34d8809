"""Tombstones: the receipts of counted updates, kept when their round is over, so that a repeat still gets its answer.

One file per attempt, a line of JSON per aggregate: appended before the round commits, so that they are there after a
crash whenever the commit is. The oldest files go when all of them together take too much of the disk.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from vennue._files import make_directory, storage_errors
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.updates.sums import Receipt

MAX_BYTES: Final = 256 * 2**20
"""Some two million receipts."""
CACHED_ATTEMPTS: Final = 8

_SUFFIX: Final = ".jsonl"
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class Tombstones:
    """Receipts by assignment, in a directory. One thread at a time.

    Args:
        directory: created where missing.
        max_bytes: how much disk they may take.

    Raises:
        StorageError: the directory cannot be used.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._directory = make_directory(directory)
        self._max_bytes = max_bytes
        self._cache: OrderedDict[AttemptId, dict[AssignmentId, Receipt]] = OrderedDict()
        with storage_errors("read the receipts of old rounds", directory):
            files = sorted(directory.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
            self._sizes = OrderedDict((path.name, path.stat().st_size) for path in files)
        self._bytes = sum(self._sizes.values())

    def bury(self, attempt: AttemptId, receipts: Iterable[Receipt]) -> None:
        """Keep receipts of an attempt; those that are kept already may be among them.

        Raises:
            StorageError: they cannot be written.
        """
        rows = [[receipt.assignment, receipt.body_bytes, receipt.weight, receipt.sha256] for receipt in receipts]
        if not rows:
            return
        # A line of its own, even after one that a crash has cut off.
        line = "\n" + json.dumps(rows, separators=(",", ":")) + "\n"
        path = self._directory / (attempt + _SUFFIX)
        with storage_errors("keep the receipts of a round", path), path.open("a") as file:
            file.write(line)
        self._cache.pop(attempt, None)
        self._sizes[path.name] = self._sizes.pop(path.name, 0) + len(line)
        self._bytes += len(line)
        while self._bytes > self._max_bytes and len(self._sizes) > 1:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            self._cache.pop(AttemptId(oldest.removesuffix(_SUFFIX)), None)
            with storage_errors("remove the receipts of an old round", path):
                (self._directory / oldest).unlink(missing_ok=True)

    def find(self, assignment: AssignmentId) -> Receipt | None:
        """The receipt of an assignment's update, as a duplicate's.

        Raises:
            StorageError: it cannot be read.
        """
        attempt = attempt_of(assignment)
        if attempt in self._cache:
            self._cache.move_to_end(attempt)
        else:
            self._cache[attempt] = self._read(attempt)
            if len(self._cache) > CACHED_ATTEMPTS:
                self._cache.popitem(last=False)
        return self._cache[attempt].get(assignment)

    def _read(self, attempt: AttemptId) -> dict[AssignmentId, Receipt]:
        # An assignment's id comes from a request: it must not become a path of the caller's choice.
        if not _ATTEMPT.fullmatch(attempt) or attempt + _SUFFIX not in self._sizes:
            return {}
        path = self._directory / (attempt + _SUFFIX)
        with storage_errors("read the receipts of a round", path):
            text = path.read_text()
        found: dict[AssignmentId, Receipt] = {}
        for line in text.split("\n"):
            try:
                rows = json.loads(line or "[]")
            except ValueError:  # a crash has cut it off
                continue
            for assignment, body_bytes, weight, sha256 in rows:
                found[AssignmentId(assignment)] = Receipt(
                    AssignmentId(assignment),
                    body_bytes,
                    weight,
                    None if sha256 is None else Digest(sha256),
                    duplicate=True,
                )
        return found
