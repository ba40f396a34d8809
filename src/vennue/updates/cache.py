"""A bounded cache of blobs that can be had again elsewhere: a leaf's models."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from vennue.core.ids import Digest
from vennue.updates.blobs import BlobStore

SERVED_S: Final = 1.0
"""How long a server may take from the choice of a file that it sends to its opening; what is open can be removed."""
UPLOAD_GRACE_S: Final = 6 * 3600.0
"""An upload in parts to which nothing has come for this long is given up."""
HURRIED_GRACE_S: Final = 300.0
"""… when all else that may go is not room enough: a device may begin one for every task that it gives back."""


class BlobCache:
    """Makes room among blobs for new ones: those not used for the longest go first. Safe to use from several threads.

    The store's quota is what bounds it: a blob for which no room can be made is refused by the store.

    Args:
        blobs: where they are. Nothing else removes any.
        rest_s: how long a blob stays after a use, at least.
    """

    def __init__(self, blobs: BlobStore, *, rest_s: float = 0.0) -> None:
        self.blobs = blobs
        self.evicted = 0
        """Blobs removed so far."""
        self._rest_s = rest_s
        self._lock = threading.Lock()
        found = ((blobs.path(digest).stat().st_mtime, digest) for digest in blobs.list())
        self._used = OrderedDict((digest, -math.inf) for _, digest in sorted(found))

    def use(self, digest: Digest) -> bool:
        """Whether a blob is here; if so, it is the last one to go."""
        if not self.blobs.exists(digest):
            return False
        with self._lock:
            self._used[digest] = time.monotonic()
            self._used.move_to_end(digest)
        return True

    def can_hold(self, size_bytes: int, pinned: AbstractSet[Digest] = frozenset()) -> bool:
        """Whether a blob of that size fits beside those that are ``pinned``, once all others are gone."""
        quota = self.blobs.quota_bytes
        return quota is None or size_bytes + self._size(pinned) <= quota

    def make_room(self, size_bytes: int, pinned: AbstractSet[Digest] = frozenset()) -> bool:
        """Remove blobs, none of those ``pinned``, until one of ``size_bytes`` fits; whether it does.

        If those that may go are not enough, all stay.
        """
        quota = self.blobs.quota_bytes
        if quota is None:
            return True
        self._give_up_uploads(UPLOAD_GRACE_S)
        with self._lock:
            rested = time.monotonic() - self._rest_s
            idle = [digest for digest, used_at in self._used.items() if digest not in pinned and used_at <= rested]
            if self.blobs.used_bytes - self._size(idle) + size_bytes > quota:
                self._give_up_uploads(HURRIED_GRACE_S)
            if self.blobs.used_bytes - self._size(idle) + size_bytes > quota:
                return False
            for digest in idle:
                if self.blobs.used_bytes + size_bytes <= quota:
                    break
                del self._used[digest]
                self.blobs.delete(digest)
                self.evicted += 1
        return True

    def _give_up_uploads(self, grace_s: float) -> None:
        self.blobs.gc(set(self.blobs.list()), parts_grace_s=grace_s)

    def _size(self, digests: Iterable[Digest]) -> int:
        return sum(self.blobs.size(digest) for digest in digests if self.blobs.exists(digest))
