"""The cache of blobs: what was not used for the longest goes first, and what is pinned stays."""

import os
import time

import pytest

from vennue.core.errors import OutOfSpace
from vennue.core.ids import Digest
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.cache import HURRIED_GRACE_S, BlobCache

ABSENT = Digest("0" * 64)


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", quota_bytes=3000, durable=False)


def put(blobs: DirectoryBlobs, letter: bytes) -> Digest:
    return blobs.put(letter * 1000)


def test_those_not_used_for_the_longest_make_room(blobs):
    cache = BlobCache(blobs)
    a, b, c = (put(blobs, letter) for letter in (b"a", b"b", b"c"))
    for digest in (a, b, c, a):
        assert cache.use(digest)
    cache.make_room(1001)
    assert set(blobs.list()) == {a}
    assert cache.evicted == 2


def test_nothing_goes_while_there_is_room(blobs):
    cache = BlobCache(blobs)
    a, b = put(blobs, b"a"), put(blobs, b"b")
    cache.use(a)
    cache.use(b)
    cache.make_room(1000)
    assert set(blobs.list()) == {a, b}


def test_what_is_pinned_stays_and_nothing_goes_for_what_does_not_fit_then(blobs):
    cache = BlobCache(blobs)
    digests = [put(blobs, letter) for letter in (b"a", b"b", b"c")]
    for digest in digests:
        cache.use(digest)
    pinned = {digests[0], digests[1]}
    assert not cache.make_room(2000, pinned)
    assert not cache.can_hold(2000, pinned)
    assert set(blobs.list()) == set(digests)
    assert cache.make_room(1000, pinned)
    assert set(blobs.list()) == pinned
    with pytest.raises(OutOfSpace, match="VENNUE_LEAF_CACHE_BYTES"):
        blobs.put(b"d" * 2000)


def test_what_was_used_a_moment_ago_stays_for_whoever_is_about_to_send_it(blobs):
    cache = BlobCache(blobs, rest_s=3600.0)
    digest = put(blobs, b"a")
    cache.use(digest)
    assert not cache.make_room(2500)
    assert cache.can_hold(2500)
    assert list(blobs.list()) == [digest]


def test_what_an_earlier_process_has_cached_goes_in_the_order_of_its_age(blobs):
    a, b = put(blobs, b"a"), put(blobs, b"b")
    os.utime(blobs.path(a), (2000, 2000))
    os.utime(blobs.path(b), (1000, 1000))
    BlobCache(blobs).make_room(1500)
    assert list(blobs.list()) == [a]


def test_uploads_that_were_given_up_make_room_too(blobs):
    cache = BlobCache(blobs)
    with blobs.resume(ABSENT, owner="a device") as upload:
        upload.write(b"half a report")
        upload.suspend()
    (part,) = (blobs._files._incoming).iterdir()
    os.utime(part, (0, 0))
    cache.make_room(100)
    assert blobs.used_bytes == 0


def test_uploads_that_rest_go_when_all_else_is_not_room_enough(blobs):
    cache = BlobCache(blobs)
    model = put(blobs, b"a")
    cache.use(model)
    with blobs.resume(ABSENT, owner="a device") as upload:
        upload.write(bytes(1500))
        upload.suspend()
    (part,) = (blobs._files._incoming).iterdir()
    minutes_ago = time.time() - HURRIED_GRACE_S - 60
    os.utime(part, (minutes_ago, minutes_ago))
    assert cache.make_room(500, {model})
    assert blobs.used_bytes == 2500  # the model's 1000 and the upload's 1500
    assert cache.make_room(1000, {model})
    assert blobs.used_bytes == 1000


def test_what_is_not_here_is_not_used(blobs):
    assert not BlobCache(blobs).use(ABSENT)
