"""What is said of blobs, that is models, when they are uploaded."""

import msgspec

from vennue.core.ids import Digest


class BlobReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """``PUT /v1/blobs/{sha256}``."""

    sha256: Digest
    size_bytes: int


class UploadView(msgspec.Struct, frozen=True, kw_only=True):
    """``…/upload``: how far an upload in parts is."""

    received_bytes: int
    complete: bool
    """Whether all of it is here, and in use."""
