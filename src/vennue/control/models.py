"""Models that owners upload: stored as they arrive, and checked before a round begins with one."""

import functools
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from vennue.control.distribution import Distribution
from vennue.control.uploads import Uploads
from vennue.core.errors import InvalidModel, NotFound
from vennue.core.ids import Digest
from vennue.tensors.model import check_model
from vennue.updates.blobs import BlobWriter

REMEMBERED: Final = 1024
"""Models of which it is known that they can be trained."""


class Models:
    """The models of one server. All methods belong to one event loop.

    Args:
        distribution: of the blobs that they are among.
        uploads: how they are received.
    """

    def __init__(self, distribution: Distribution, uploads: Uploads) -> None:
        self._distribution = distribution
        self._blobs = distribution.blobs
        self._uploads = uploads
        self._checked: OrderedDict[Digest, None] = OrderedDict()

    async def check(self, digest: Digest) -> None:
        """Check that a model can be trained: it is there, undamaged, well-formed, finite, and has numbers to learn.

        Raises:
            NotFound: there is no such blob.
            InvalidInput: it is not a digest, or (`InvalidModel`) not such a model.
        """
        if digest in self._checked:
            if self._blobs.touch(digest) and self._distribution.is_checked(digest):
                return
            del self._checked[digest]
        try:
            if not self._blobs.touch(digest):  # what is there is about to be needed: no garbage
                raise NotFound("there is no such model")
            await self._distribution.check(digest)
            layout = await self._uploads.in_thread(lambda: check_model(self._blobs.path(digest)))
        except NotFound as error:
            raise NotFound(
                error.message, field="model", value=digest, fix=f"upload it first: PUT /v1/blobs/{digest}"
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
