"""The contract of ``BlobStore``, which every implementation keeps. A new one is added to ``STORES``."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vennue.core.errors import Conflict, InvalidInput, NotFound, TooLarge
from vennue.core.ids import Digest
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.blobs import BlobStore

STORES: dict[str, Callable[[Path], BlobStore]] = {
    "directory": lambda root: DirectoryBlobs(root / "blobs"),
    "directory, not durable": lambda root: DirectoryBlobs(root / "blobs", durable=False),
}

DATA = bytes(range(256)) * 10
DIGEST = Digest(hashlib.sha256(DATA).hexdigest())
ABSENT = Digest("0" * 64)


@pytest.fixture(params=STORES)
def make_store(request, tmp_path):
    return lambda: STORES[request.param](tmp_path)


@pytest.fixture
def store(make_store):
    return make_store()


def read(store: BlobStore, digest: Digest, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(store.chunks(digest, start, stop))


def test_a_blob_is_named_by_its_sha_256_and_reads_back(store):
    assert store.put(DATA) == DIGEST
    assert read(store, DIGEST) == DATA
    assert store.path(DIGEST).read_bytes() == DATA
    assert store.size(DIGEST) == 2560
    assert store.exists(DIGEST)


def test_a_store_is_new_until_something_is_stored_whatever_becomes_of_that(make_store):
    store = make_store()
    assert store.is_new
    store.put(DATA)
    store.delete(DIGEST)
    assert (store.is_new, make_store().is_new) == (False, False)


def test_an_empty_blob_is_a_blob(store):
    digest = store.put(b"")
    assert digest == hashlib.sha256(b"").hexdigest()
    assert read(store, digest) == b""


def test_what_this_process_has_stored_is_known_to_be_right_until_it_is_removed(store):
    store.put(DATA)
    assert store.is_verified(DIGEST)
    assert store.verify(DIGEST) is None
    store.delete(DIGEST)
    assert not store.is_verified(DIGEST)
    with pytest.raises(NotFound):
        store.verify(DIGEST)


def test_what_an_earlier_process_has_stored_is_read_once_to_be_known(make_store):
    make_store().put(DATA)
    again = make_store()
    assert not again.is_verified(DIGEST)
    assert again.verify(DIGEST) is None
    assert again.is_verified(DIGEST)


def test_a_blob_that_was_cut_off_since_it_was_stored_is_not_known_to_be_right_any_more(store):
    store.put(DATA)
    os.truncate(store.path(DIGEST), 3)
    assert not store.is_verified(DIGEST)
    assert store.verify(DIGEST) is not None
    assert store.used_bytes == 0
    assert store.put(DATA) == DIGEST
    assert store.is_verified(DIGEST)


@pytest.mark.parametrize("damage", [DATA[:-1], DATA[:-1] + b"x", b""])
def test_a_blob_that_was_damaged_is_put_aside_and_can_be_stored_anew(make_store, damage):
    store = make_store()
    store.put(DATA)
    store.path(DIGEST).write_bytes(damage)
    again = make_store()
    aside = again.verify(DIGEST)
    assert aside is not None
    assert aside.read_bytes() == damage
    assert (again.exists(DIGEST), again.used_bytes, list(again.list())) == (False, 0, [])
    assert again.put(DATA) == DIGEST
    assert read(again, DIGEST) == DATA
    assert make_store().used_bytes == len(DATA)


def test_a_blob_is_written_in_chunks_of_any_size(store):
    with store.create() as writer:
        for start, stop in [(0, 0), (0, 1), (1, 1000), (1000, 2560)]:
            writer.write(memoryview(DATA)[start:stop])
            assert writer.offset == stop
        assert not store.exists(DIGEST)
        assert writer.commit() == DIGEST
    assert read(store, DIGEST) == DATA


def test_what_is_stored_is_there_for_the_next_process(make_store):
    make_store().put(DATA)
    assert read(make_store(), DIGEST) == DATA


def test_a_range_is_read(store):
    store.put(DATA)
    assert read(store, DIGEST, 100, 400) == DATA[100:400]
    assert read(store, DIGEST, 2560) == b""


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 2561), (2561, None)])
def test_a_range_outside_of_the_blob_is_refused(store, start, stop):
    store.put(DATA)
    with pytest.raises(InvalidInput, match="no such range"):
        store.chunks(DIGEST, start, stop)


def test_what_is_not_there_is_not_found(store):
    assert not store.exists(ABSENT)
    for ask in (store.size, store.path, store.chunks):
        with pytest.raises(NotFound, match="no such blob"):
            ask(ABSENT)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n"])
def test_a_name_that_is_no_digest_is_refused_everywhere(store, name):
    calls = [store.exists, store.size, store.path, store.chunks, store.delete, store.resume]
    for call in [*calls, lambda name: store.create(expected=name), lambda name: store.put(b"", expected=name)]:
        with pytest.raises(InvalidInput, match="64 lower-case hexadecimal digits"):
            call(name)


def test_bytes_of_another_digest_are_refused_and_leave_nothing(store):
    with pytest.raises(InvalidInput, match="another digest") as refusal:
        store.put(DATA, expected=ABSENT)
    assert (refusal.value.value, refusal.value.limit) == (DIGEST, ABSENT)
    with store.create(expected=ABSENT) as writer:
        writer.write(DATA)
        with pytest.raises(InvalidInput, match="another digest"):
            writer.commit()
    assert list(store.list()) == []


def test_a_blob_longer_than_announced_is_refused_before_its_end(store):
    writer = store.create(size_bytes=2000)
    writer.write(DATA[:2000])
    with pytest.raises(TooLarge) as refusal:
        writer.write(DATA[2000:])
    assert (refusal.value.value, refusal.value.limit) == (2560, 2000)
    assert list(store.list()) == []


def test_a_blob_shorter_than_announced_is_refused(store):
    with store.create(size_bytes=2561) as writer:
        writer.write(DATA)
        with pytest.raises(InvalidInput, match="cut off"):
            writer.commit()
    assert list(store.list()) == []


def test_an_aborted_blob_leaves_nothing(store):
    with store.create() as writer:
        writer.write(DATA)
    writer.abort()
    assert list(store.list()) == []
    assert store.gc(set(), grace_s=-1) == 0


def test_the_same_bytes_are_stored_once(store):
    store.put(DATA)
    with store.create() as first, store.create() as second:
        first.write(DATA)
        second.write(DATA)
        assert first.commit() == second.commit() == store.put(DATA) == DIGEST
    assert list(store.list()) == [DIGEST]
    assert store.gc(set(), grace_s=-1) == 2560


def test_an_upload_is_resumed_where_it_stopped(make_store):
    with make_store().resume(DIGEST) as upload:
        upload.write(DATA[:1000])
        upload.suspend()
    store = make_store()
    with store.resume(DIGEST, size_bytes=2560) as upload:
        assert upload.offset == 1000
        upload.write(DATA[1000:])
        assert upload.commit() == DIGEST
    assert read(store, DIGEST) == DATA


def test_a_resumed_upload_with_a_wrong_beginning_is_refused_and_begins_anew(store):
    with store.resume(DIGEST) as upload:
        upload.write(b"x" * 1000)
        upload.suspend()
    with store.resume(DIGEST) as upload:
        upload.write(DATA[1000:])
        with pytest.raises(InvalidInput, match="another digest"):
            upload.commit()
    assert store.resume(DIGEST).offset == 0


def test_two_uploads_of_one_digest_do_not_mix(store):
    with store.resume(DIGEST) as upload:
        upload.write(DATA[:10])
        with pytest.raises(Conflict, match="uploaded already"):
            store.resume(DIGEST)
        upload.write(DATA[10:])
        assert upload.commit() == DIGEST
    with store.resume(DIGEST) as again:
        again.write(DATA)
        assert again.commit() == DIGEST


def test_an_upload_of_which_nothing_came_leaves_nothing(store, tmp_path):
    with store.resume(DIGEST, owner="one") as upload:
        upload.suspend()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_uploads_of_one_digest_by_several_owners_do_not_meet(store):
    with store.resume(DIGEST, owner="one") as one, store.resume(DIGEST, owner="two") as two:
        one.write(DATA[:10])
        two.write(DATA)
        two.commit()
        one.suspend()
    assert store.received(DIGEST, owner="one") == 10
    assert store.received(DIGEST, owner="two") == store.received(DIGEST) == 0


def test_uploads_of_a_family_of_owners_are_given_up_together(store):
    for owner in ("job.1.1.1", "job.1.1.2", "job.1.2.1", "job.1.10.1", ""):
        with store.resume(DIGEST, owner=owner) as upload:
            upload.write(DATA[:100])
            upload.suspend()
    under_way = store.resume(DIGEST, owner="job.1.1.3")
    under_way.write(DATA[:50])
    assert store.give_up("job.1.1") == 200
    assert store.used_bytes == 350
    rest = [store.received(DIGEST, owner=owner) for owner in ("job.1.1.1", "job.1.2.1", "job.1.10.1", "")]
    assert rest == [0, 100, 100, 100]
    under_way.write(DATA[50:])
    assert under_way.commit() == DIGEST
    assert store.give_up("job.1.1") == 0


def test_an_upload_tells_how_far_it_is_while_it_runs_and_when_it_rests(make_store):
    store = make_store()
    assert store.received(DIGEST) == 0
    with store.resume(DIGEST) as upload:
        upload.write(DATA[:1000])
        assert store.received(DIGEST) == 1000
        upload.suspend()
    assert make_store().received(DIGEST) == 1000


def test_what_was_written_can_be_read_back_before_it_is_a_blob(store):
    with store.resume(DIGEST) as upload:
        upload.write(DATA[:1000])
        upload.suspend()
    with store.resume(DIGEST) as upload:
        upload.write(DATA[1000:])
        assert b"".join(upload.read()) == DATA


def test_going_on_many_times_gives_the_same_blob(store):
    for start in range(0, len(DATA), 256):
        with store.resume(DIGEST) as upload:
            assert upload.offset == start
            upload.write(DATA[start : start + 256])
            if start + 256 < len(DATA):
                upload.suspend()
            else:
                assert upload.commit() == DIGEST


def test_touching_a_blob_renews_its_grace_and_tells_whether_it_is_there(store):
    assert not store.touch(DIGEST)
    store.put(DATA)
    os.utime(store.path(DIGEST), (0, 0))
    assert store.touch(DIGEST)
    assert store.gc(set()) == 0


def test_suspended_uploads_may_have_a_longer_grace_than_blobs(store):
    store.put(DATA)
    with store.resume(ABSENT) as upload:
        upload.write(b"half")
        upload.suspend()
    assert store.gc(set(), grace_s=-1, parts_grace_s=3600) == 2560
    assert store.received(ABSENT) == 4
    assert store.gc(set(), grace_s=-1) == 4


def test_what_has_no_expected_digest_cannot_be_suspended(store):
    with store.create() as writer:
        writer.write(DATA)
        writer.suspend()
    assert store.gc(set(), grace_s=-1) == 0


def test_a_deleted_blob_is_gone_and_deleting_it_again_is_nothing(store):
    store.put(DATA)
    store.delete(DIGEST)
    store.delete(DIGEST)
    assert not store.exists(DIGEST)
    assert store.put(DATA) == DIGEST


def test_garbage_collection_keeps_what_is_live_and_frees_the_rest(store):
    live = store.put(b"live")
    store.put(DATA)
    with store.resume(ABSENT) as upload:
        upload.write(b"half an upload")
        upload.suspend()
    assert store.gc({live}, grace_s=-1) == 2560 + 14
    assert list(store.list()) == [live]
    assert store.resume(ABSENT).offset == 0


def test_garbage_collection_spares_what_is_new_and_what_is_being_written(store):
    with store.create() as writer:
        writer.write(DATA)
        store.put(b"not yet referred to")
        assert store.gc(set()) == 0
        store.delete(hashlib.sha256(b"not yet referred to").hexdigest())
        assert store.gc(set(), grace_s=-1) == 0
        assert writer.commit() == DIGEST
    assert store.exists(DIGEST)


def test_storing_a_blob_again_renews_its_grace(store):
    store.put(DATA)
    os.utime(store.path(DIGEST), (0, 0))
    store.put(DATA)
    assert store.gc(set()) == 0
    os.utime(store.path(DIGEST), (0, 0))
    assert store.gc(set()) == 2560
