"""What caches are told of blobs: all are immutable, and one that may have been damaged is not to be kept."""

import asyncio

from tests.unit.server.test_app import Exchange
from vennue.control import distribution as module
from vennue.control.distribution import Distribution
from vennue.core.ids import Digest
from vennue.server.config import Limits
from vennue.server.http import Request, StallWatch
from vennue.server.routes.blobs import BlobRoutes
from vennue.updates.blob_directory import DirectoryBlobs


async def kept_for(distribution: Distribution, digest: Digest) -> str:
    """How long a cache may keep a blob."""
    exchange = Exchange("GET", f"/v1/blobs/{digest}")
    request = Request(exchange.scope, exchange, {"sha256": digest}, StallWatch(60.0))
    return dict((await BlobRoutes(distribution, Limits()).get(request)).headers)["cache-control"]


async def test_no_cache_keeps_a_blob_that_is_sent_before_it_was_checked(tmp_path, monkeypatch):
    digest = DirectoryBlobs(tmp_path, durable=False).put(b"numbers")
    distribution, checked = Distribution(DirectoryBlobs(tmp_path, durable=False)), asyncio.Event()
    check = distribution._check

    async def check_late(one: Digest) -> None:
        await checked.wait()
        await check(one)

    monkeypatch.setattr(distribution, "_check", check_late)
    monkeypatch.setattr(module, "CHECK_WAIT_S", 0.0)
    assert await kept_for(distribution, digest) == "no-store"
    checked.set()
    await distribution.check(digest)
    assert await kept_for(distribution, digest) == "public, max-age=31536000, immutable"
