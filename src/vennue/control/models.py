"""Models that owners upload: stored as they arrive, and checked before a round begins with one."""

import functools
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from vennue.control.uploads import Uploads
from vennue.core.errors import InvalidModel, NotFound
from vennue.core.ids import Digest
from vennue.tensors.model import check_model
from vennue.updates.blobs import BlobStore, BlobWriter

log = logging.getLogger("vennue.control")

REMEMBERED: Final = 1024
"""Models of which it is known that they can be trained."""


class Models:
    """The models of one server. All methods belong to one event loop.

    Args:
        blobs: where they are.
        uploads: how they are received.
    """

    def __init__(self, blobs: BlobStore, uploads: Uploads) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._checked: OrderedDict[Digest, None] = OrderedDict()

    async def check(self, digest: Digest) -> None:
        """Check that a model can be trained: it is there, undamaged, well-formed, finite, and has numbers to learn.

        Raises:
            NotFound: there is no such blob.
            InvalidInput: it is not a digest, or (`InvalidModel`) not such a model.
        """
        if digest in self._checked:
            if self._blobs.touch(digest):
                return
            del self._checked[digest]
        damaged = None
        try:
            self._blobs.touch(digest)  # it is about to be needed: no garbage
            damaged = await self._uploads.in_thread(self._blobs.verify, digest)
            if damaged is not None:
                log.error("model %s was damaged on the disk, and is put aside: %s", digest, damaged)
            layout = await self._uploads.in_thread(lambda: check_model(self._blobs.path(digest)))
        except NotFound:
            raise NotFound(
                "there is no such model" if damaged is None else "the model was damaged on the disk",
                field="model",
                value=digest,
                fix=f"upload it first: PUT /v1/blobs/{digest}",
            ) from None
        except InvalidModel as error:
            error.field = "model" if error.field is None else f"model.{error.field}"
            raise
        if not any(tensor.elements for tensor in layout.floating):
            raise InvalidModel("it has no floating number, so there is nothing to learn", field="model", value=digest)
        self._checked[digest] = None
        if len(self._checked) > REMEMBERED:
            self._checked.popitem(last=False)

    async def store(self, digest: Digest, chunks: AsyncIterator[bytes], size_bytes: int | None) -> int:
        """Store a blob as it arrives, durably; its size. What is broken off leaves nothing behind.

        Raises:
            InvalidInput: the bytes have another digest.
            TooLarge: it is larger than the store takes.
            StorageError: it cannot be stored.
            Overloaded: too many uploads are under way.
        """
        start = functools.partial(self._blobs.create, expected=digest, size_bytes=size_bytes)

        def commit(writer: BlobWriter) -> int:
            writer.commit()
            return writer.offset

        return await self._uploads.receive(start, commit, chunks, model=True)
