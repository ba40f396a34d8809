"""A bounded cache of blobs that can be had again elsewhere: a leaf's models."""

import threading
from collections import OrderedDict
from collections.abc import Set as AbstractSet
from typing import Final

from vennue.core.ids import Digest
from vennue.updates.blobs import BlobStore

UPLOAD_GRACE_S: Final = 6 * 3600.0
"""An upload in parts to which nothing has come for this long is given up."""


class BlobCache:
    """Makes room among blobs for new ones: those not used for the longest go first. Safe to use from several threads.

    The store's quota is what bounds it: a blob for which no room can be made is refused by the store.

    Args:
        blobs: where they are. Nothing else removes any.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self.evicted = 0
        """Blobs removed so far."""
        self._lock = threading.Lock()
        found = ((blobs.path(digest).stat().st_mtime, digest) for digest in blobs.list())
        self._used: OrderedDict[Digest, None] = OrderedDict.fromkeys(digest for _, digest in sorted(found))

    def use(self, digest: Digest) -> bool:
        """Whether a blob is here; if so, it is the last one to go."""
        if not self.blobs.exists(digest):
            return False
        with self._lock:
            self._used[digest] = None
            self._used.move_to_end(digest)
        return True

    def make_room(self, size_bytes: int, pinned: AbstractSet[Digest] = frozenset()) -> None:
        """Remove blobs, none of those ``pinned``, until one of ``size_bytes`` fits; or all, if that is not enough."""
        quota = self.blobs.quota_bytes
        if quota is None:
            return
        self.blobs.gc(set(self.blobs.list()), parts_grace_s=UPLOAD_GRACE_S)
        with self._lock:
            for digest in [digest for digest in self._used if digest not in pinned]:
                if self.blobs.used_bytes + size_bytes <= quota:
                    return
                del self._used[digest]
                self.blobs.delete(digest)
                self.evicted += 1
