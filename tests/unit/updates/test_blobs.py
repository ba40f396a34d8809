"""What is particular to blobs in a directory: quotas, limits, disks that refuse, and crashes half-way."""

import errno
import hashlib
import os
import threading

import pytest

from vennue.core.errors import OutOfSpace, StorageError, TooLarge
from vennue.core.ids import Digest
from vennue.updates.blob_directory import DirectoryBlobs

DATA = b"0123456789" * 100
OTHER = Digest("a" * 64)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def failing(monkeypatch):
    """Make a system call fail with an error number."""

    def fail(name: str, number: int) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, name, refuse)

    return fail


def test_the_directory_is_created_with_its_parents(tmp_path):
    DirectoryBlobs(tmp_path / "a" / "b").put(DATA)
    assert len(files(tmp_path / "a" / "b")) == 1


def test_a_place_that_is_a_file_is_a_storage_error(tmp_path):
    (tmp_path / "blobs").write_text("a file")
    with pytest.raises(StorageError, match="File exists") as refusal:
        DirectoryBlobs(tmp_path / "blobs")
    assert refusal.value.value == str(tmp_path / "blobs")


def test_a_read_only_directory_is_a_storage_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(StorageError, match="make the directory writable"):
        DirectoryBlobs(tmp_path)


def test_a_file_system_that_turns_read_only_is_a_storage_error(tmp_path, failing):
    store = DirectoryBlobs(tmp_path)
    failing("open", errno.EROFS)
    with pytest.raises(StorageError, match=r"Read-only file system.*make the directory writable"):
        store.put(DATA)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_a_storage_error_and_the_partial_file_is_removed(tmp_path, failing, call):
    store = DirectoryBlobs(tmp_path)
    writer = store.create()
    if call == "fsync":
        writer.write(DATA)
    failing(call, errno.ENOSPC)
    with pytest.raises(StorageError, match=r"No space left on device.*free space"):
        writer.write(DATA) if call == "write" else writer.commit()
    assert files(tmp_path) == []
    assert store.used_bytes == 0


def test_too_many_open_files_is_a_storage_error(tmp_path, failing):
    store = DirectoryBlobs(tmp_path)
    failing("open", errno.EMFILE)
    with pytest.raises(StorageError, match="ulimit -n"):
        store.create()


def test_a_writer_that_failed_to_open_does_not_block_the_next(tmp_path, monkeypatch):
    store = DirectoryBlobs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *arguments: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(StorageError):
            store.resume(OTHER)
    store.resume(OTHER).abort()


def test_an_upload_that_cannot_be_opened_for_want_of_file_descriptors_goes_on_later(tmp_path, monkeypatch):
    blobs = DirectoryBlobs(tmp_path)
    digest = Digest(hashlib.sha256(b"first, second").hexdigest())
    with blobs.resume(digest) as writer:
        writer.write(b"first, ")
        writer.suspend()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *arguments: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many open")))
        with pytest.raises(StorageError):
            blobs.resume(digest)
    assert blobs.used_bytes == blobs.received(digest) == 7
    with blobs.resume(digest) as writer:
        writer.write(b"second")
        assert writer.commit() == digest


def test_a_write_that_stops_short_is_continued(tmp_path, monkeypatch):
    store = DirectoryBlobs(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    assert store.path(store.put(DATA)).read_bytes() == DATA


def test_writing_to_a_committed_blob_is_a_storage_error(tmp_path):
    store = DirectoryBlobs(tmp_path)
    writer = store.create()
    writer.write(DATA)
    digest = writer.commit()
    with pytest.raises(StorageError):
        writer.write(DATA)
    assert store.path(digest).read_bytes() == DATA


def test_the_quota_counts_finished_and_unfinished_blobs(tmp_path):
    store = DirectoryBlobs(tmp_path, quota_bytes=2500)
    store.put(DATA)
    with store.create() as writer:
        writer.write(DATA[:999])
        assert store.used_bytes == 1999
        with pytest.raises(OutOfSpace, match="2501 bytes of the disk, of which 2500 are theirs") as refusal:
            store.put(b"x" * 502)
        assert (refusal.value.value, refusal.value.limit) == (2501, 2500)
        store.put(b"x" * 501)
    assert store.used_bytes == 1501


def test_the_quota_does_not_count_what_is_stored_twice(tmp_path):
    store = DirectoryBlobs(tmp_path, quota_bytes=1500)
    for _ in range(3):
        store.put(DATA)
    assert store.used_bytes == 1000


def test_the_quota_refuses_an_announced_size_at_once(tmp_path):
    store = DirectoryBlobs(tmp_path, quota_bytes=1500)
    with pytest.raises(StorageError, match="quota"):
        store.create(size_bytes=1501)
    assert files(tmp_path) == []


def test_a_resumed_upload_is_not_read_again_unless_something_else_changed_its_file(tmp_path, monkeypatch):
    store = DirectoryBlobs(tmp_path)
    digest = Digest(hashlib.sha256(DATA).hexdigest())
    with store.resume(digest) as upload:
        upload.write(DATA[:600])
        upload.suspend()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *arguments: pytest.fail("read again"))
        with store.resume(digest) as upload:
            upload.write(DATA[600:800])
            upload.suspend()
    (part,) = (tmp_path / "incoming").iterdir()
    part.write_bytes(DATA[:900])
    with store.resume(digest) as upload:
        assert upload.offset == 900
        upload.write(DATA[900:])
        assert upload.commit() == digest


def test_what_the_pool_makes_itself_may_exceed_the_quota_and_uploads_then_may_not(tmp_path):
    store = DirectoryBlobs(tmp_path, quota_bytes=1000)
    store.put(DATA)
    with store.create(size_bytes=500, within_quota=False) as result:
        result.write(b"r" * 500)
        result.commit()
    assert store.used_bytes == 1500
    with pytest.raises(OutOfSpace):
        store.put(b"x")


def test_the_quota_counts_what_an_earlier_process_left(tmp_path):
    store = DirectoryBlobs(tmp_path)
    store.put(DATA)
    with store.resume(OTHER) as upload:
        upload.write(b"12345")
        upload.suspend()
    again = DirectoryBlobs(tmp_path)
    assert again.used_bytes == 1005
    again.resume(OTHER).abort()
    again.gc(set(), grace_s=-1)
    assert again.used_bytes == 0


def test_the_largest_blob_is_bounded(tmp_path):
    store = DirectoryBlobs(tmp_path, max_blob_bytes=1000)
    store.put(DATA)
    with pytest.raises(TooLarge):
        store.create(size_bytes=10 * 2**30)
    writer = store.create()
    writer.write(DATA)
    with pytest.raises(TooLarge) as refusal:
        writer.write(b"x")
    assert (refusal.value.value, refusal.value.limit) == (1001, 1000)
    assert store.used_bytes == 1000


def test_what_a_crash_left_half_written_is_no_blob_and_is_collected(tmp_path):
    store = DirectoryBlobs(tmp_path)
    store.create().write(DATA)  # and the process dies
    again = DirectoryBlobs(tmp_path)
    assert list(again.list()) == []
    assert again.gc(set(), grace_s=-1) == 1000
    assert files(tmp_path) == []


def test_threads_that_store_the_same_blob_leave_one(tmp_path):
    store = DirectoryBlobs(tmp_path, durable=False)
    ready = threading.Barrier(8)
    digests: list[str] = []

    def upload() -> None:
        with store.create() as writer:
            writer.write(DATA)
            ready.wait()
            digests.append(writer.commit())

    threads = [threading.Thread(target=upload) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 8
    assert len(files(tmp_path)) == 1
    assert store.used_bytes == 1000


def test_a_link_that_leads_nowhere_keeps_no_store_from_opening_and_gives_way_to_the_blob(tmp_path):
    digest = DirectoryBlobs(tmp_path).put(b"a model")
    place = tmp_path / digest[:2] / digest
    place.unlink()
    place.symlink_to(tmp_path / "a disk that is not mounted")
    blobs = DirectoryBlobs(tmp_path)
    assert blobs.used_bytes == 0
    assert not blobs.exists(digest)
    assert blobs.put(b"a model") == digest
    assert place.read_bytes() == b"a model"
    assert blobs.used_bytes == 7


def test_what_cannot_be_removed_keeps_no_garbage(tmp_path, caplog):
    blobs = DirectoryBlobs(tmp_path)
    digests = sorted(blobs.put(data) for data in (b"a", b"b", b"c"))
    stuck = tmp_path / digests[0][:2] / digests[0]
    stuck.unlink()
    (stuck / "a folder").mkdir(parents=True)
    (tmp_path / "incoming" / "another folder").mkdir()
    assert blobs.gc(frozenset(), grace_s=-60.0) == 2
    assert set(blobs.list()) == {digests[0]}
    assert f"2 files cannot be removed, such as {stuck}: path: cannot remove the blob: Is a directory" in caplog.text
