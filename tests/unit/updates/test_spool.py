"""The spool: what was finished is there after a crash, what was not is not, and no update exists twice."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from vennue.core.errors import InvalidInput, StorageError, TooLarge
from vennue.core.ids import AttemptId
from vennue.updates.spool import VERSION, Spool

ATTEMPT = AttemptId("job.1.1")
BODY = b"0123456789" * 300_000  # 3 MB: more than the chunk in which files are verified


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path, ATTEMPT)


def put(spool, key, body=BODY, meta=None):
    with spool.begin() as writer:
        writer.write(body)
        return writer.finish(key, meta or {})


def contents(spool):
    return {record.key: record.path.read_bytes()[: record.body_bytes] for record in spool.records()}


def files(spool):
    return sorted(path.name for path in spool.directory.iterdir())


def test_a_finished_update_has_its_body_and_what_is_known_about_it(spool):
    record, is_new = put(spool, "job.1.1.7", meta={"weight": 2.5, "metrics": {"loss": 0.25}})
    assert is_new
    assert record.key == "job.1.1.7"
    assert record.meta == {"weight": 2.5, "metrics": {"loss": 0.25}}
    assert record.body_bytes == 3_000_000
    assert contents(spool) == {"job.1.1.7": BODY}


def test_an_update_arrives_in_chunks_of_any_size(spool):
    with spool.begin() as writer:
        for start, stop in [(0, 0), (0, 1), (1, 70_000), (70_000, 3_000_000)]:
            writer.write(memoryview(BODY)[start:stop])
            assert writer.body_bytes == stop
        writer.finish("a", {})
    assert contents(spool) == {"a": BODY}


@pytest.mark.parametrize("durable", [False, True])
def test_finished_updates_are_there_for_the_next_process(tmp_path, durable):
    spool = Spool(tmp_path, ATTEMPT, durable=durable)
    put(spool, "b", BODY, {"weight": 3})
    put(spool, "a", b"")
    again = Spool(tmp_path, ATTEMPT)
    assert contents(again) == {"a": b"", "b": BODY}
    assert [record.meta for record in again.records()] == [{}, {"weight": 3}]
    assert again.removed_bytes == 0


def test_updates_that_arrive_at_once_do_not_mix(spool):
    with spool.begin() as first, spool.begin() as second:
        for byte in b"abc":
            first.write(bytes([byte]))
            second.write(bytes([byte - 32]))
        second.finish("second", {})
        first.finish("first", {})
    assert contents(spool) == {"first": b"abc", "second": b"ABC"}


def test_the_second_update_of_a_key_changes_nothing_and_is_told_the_first(spool):
    first, _ = put(spool, "a", b"first", {"weight": 1})
    record, is_new = put(spool, "a", b"second", {"weight": 2})
    assert record == first
    assert not is_new
    assert contents(spool) == {"a": b"first"}
    assert len(files(spool)) == 1


def test_an_aborted_update_leaves_nothing(spool):
    with spool.begin() as writer:
        writer.write(BODY)
    writer.abort()
    assert files(spool) == []
    assert spool.records() == ()


def test_attempts_do_not_see_each_other(tmp_path, spool):
    put(spool, "a")
    assert Spool(tmp_path, AttemptId("job.1.2")).records() == ()


def test_what_a_crash_left_unfinished_is_removed(tmp_path, spool, caplog):
    put(spool, "a", b"whole")
    spool.begin().write(BODY)  # and the process dies
    again = Spool(tmp_path, ATTEMPT)
    assert caplog.records == []
    assert contents(again) == {"a": b"whole"}
    assert again.removed_bytes == 3_000_000
    assert len(files(again)) == 1


@pytest.mark.parametrize("size", [0, 1, 20, 3_000_000, -1])
def test_a_torn_file_is_removed_and_told_since_somebody_had_been_told_that_it_arrived(tmp_path, spool, caplog, size):
    record, _ = put(spool, "a", meta={"weight": 1})
    whole = record.path.read_bytes()
    record.path.write_bytes(whole[:size])
    again = Spool(tmp_path, ATTEMPT)
    assert again.records() == ()
    assert again.removed_bytes == len(whole[:size])
    assert files(again) == []
    assert [one.getMessage() for one in caplog.records] == [
        f"a finished update was damaged on the disk, and is removed: {record.path}"
    ]


def a_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    path.mkdir()
    (path / "found").write_text("by a repair of the file system")


def a_link_to_nowhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_bad_sector(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def fail(at: Path, mode: str) -> Any:
        if at == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(at, mode)

    monkeypatch.setattr(Path, "open", fail)


@pytest.mark.parametrize("befall", [a_folder, a_link_to_nowhere, a_bad_sector])
def test_an_update_that_the_disk_has_lost_costs_no_other(tmp_path, spool, monkeypatch, befall):
    put(spool, "a", b"whole")
    lost, _ = put(spool, "b")
    with monkeypatch.context() as meanwhile:
        befall(lost.path, meanwhile)
        again = Spool(tmp_path, ATTEMPT)
    assert contents(again) == {"a": b"whole"}
    put(again, "b", b"anew")
    assert contents(again) == {"a": b"whole", "b": b"anew"}


def test_a_file_that_cannot_be_opened_for_now_is_kept(tmp_path, spool, monkeypatch):
    record, _ = put(spool, "a")

    def fail(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short_of_files:
        short_of_files.setattr(Path, "open", fail)
        with pytest.raises(StorageError, match="Too many open files"):
            Spool(tmp_path, ATTEMPT)
    assert contents(Spool(tmp_path, ATTEMPT)) == {"a": record.path.read_bytes()[: record.body_bytes]}


@pytest.mark.parametrize("at", [0, 1_500_000, 2_999_999, 3_000_012, -37, -25, -9])
def test_a_single_changed_byte_is_detected(tmp_path, spool, at):
    record, _ = put(spool, "a", meta={"weight": 1})
    data = bytearray(record.path.read_bytes())
    data[at] ^= 1
    record.path.write_bytes(data)
    assert Spool(tmp_path, ATTEMPT).records() == ()


def test_a_file_under_another_updates_name_is_not_that_update(tmp_path, spool):
    record, _ = put(spool, "a")
    shutil.copy(record.path, record.path.with_name("b.update"))
    assert list(contents(Spool(tmp_path, ATTEMPT))) == ["a"]


def test_a_spool_of_a_newer_version_is_refused_with_both_versions_and_kept(tmp_path, spool):
    record, _ = put(spool, "a")
    data = bytearray(record.path.read_bytes())
    data[-1] = VERSION + 1
    record.path.write_bytes(data)
    with pytest.raises(StorageError, match="the spool is of version 2, this program knows versions up to 1"):
        Spool(tmp_path, ATTEMPT)
    assert record.path.read_bytes() == data


def test_more_than_the_update_may_have_is_refused_while_it_arrives(spool):
    writer = spool.begin(max_bytes=10)
    writer.write(b"0123456789")
    with pytest.raises(TooLarge) as refusal:
        writer.write(b"x")
    assert (refusal.value.value, refusal.value.limit) == (11, 10)
    assert files(spool) == []


@pytest.mark.parametrize("call", ["write", "finish"])
def test_a_full_disk_in_the_middle_is_a_storage_error_and_the_partial_is_removed(spool, monkeypatch, call):
    put(spool, "a", b"earlier")
    writer = spool.begin()
    writer.write(b"first")
    write = os.write

    def fill_up(fd: int, data: bytes) -> int:
        if len(data) > 3:
            return write(fd, data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(StorageError, match=r"No space left on device.*free space"):
        writer.write(b"second") if call == "write" else writer.finish("b", {})
    monkeypatch.undo()
    assert contents(spool) == {"a": b"earlier"}
    assert len(files(spool)) == 1
    put(spool, "b", b"again")
    assert contents(spool) == {"a": b"earlier", "b": b"again"}


@pytest.mark.parametrize("good", [0, 1])
def test_a_failing_sync_is_a_storage_error_and_the_update_does_not_exist(tmp_path, monkeypatch, good):
    spool = Spool(tmp_path, ATTEMPT, durable=True)
    left = [None] * good  # that of the file succeeds, that of the directory fails

    def sync(fd: int) -> None:
        if not left:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        left.pop()

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(StorageError, match="Input/output error"):
        put(spool, "a")
    assert spool.records() == ()
    assert files(spool) == []


def test_a_removed_update_is_gone_and_removing_it_again_is_nothing(tmp_path, spool):
    put(spool, "a")
    put(spool, "b", b"stays")
    spool.remove("a")
    spool.remove("a")
    assert contents(spool) == contents(Spool(tmp_path, ATTEMPT)) == {"b": b"stays"}


@pytest.mark.parametrize("durable", [False, True])
def test_an_update_once_taken_is_taken_for_the_next_process_too(tmp_path, durable):
    spool = Spool(tmp_path / "marked", ATTEMPT, durable=durable)
    for key in ("a.1", "a.2"):
        with spool.begin() as writer:
            writer.write(b"body")
            writer.finish(key, {})
    record = spool.take("a.1")
    assert record.path.read_bytes().startswith(b"body")
    assert spool.take("a.1") is record
    again = Spool(tmp_path / "marked", ATTEMPT)
    assert {one.key: one.taken for one in again.records()} == {"a.1": True, "a.2": False}
    again.remove("a.1")
    assert [one.key for one in Spool(tmp_path / "marked", ATTEMPT).records()] == ["a.2"]


def test_a_mark_that_cannot_be_synced_is_taken_back(tmp_path, monkeypatch):
    spool = Spool(tmp_path / "marked", ATTEMPT, durable=True)
    with spool.begin() as writer:
        writer.finish("a.1", {})

    def broken(_):
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", broken)
        with pytest.raises(StorageError, match="as taken"):
            spool.take("a.1")
    assert [one.taken for one in Spool(tmp_path / "marked", ATTEMPT).records()] == [False]
    assert spool.take("a.1").taken


def test_a_discarded_spool_leaves_nothing(spool):
    put(spool, "a")
    spool.discard()
    assert not spool.directory.exists()
    assert spool.records() == ()


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../a", "a\0b", "ä", "a" * 201])
def test_a_name_that_could_leave_the_directory_is_refused(tmp_path, spool, name):
    with pytest.raises(InvalidInput, match="cannot name a file"):
        Spool(tmp_path, AttemptId(name))
    with pytest.raises(InvalidInput, match="cannot name a file"):
        put(spool, name)
    assert files(spool) == []


def test_a_place_that_is_a_file_is_a_storage_error(tmp_path):
    (tmp_path / ATTEMPT).write_text("a file")
    with pytest.raises(StorageError, match="File exists"):
        Spool(tmp_path, ATTEMPT)
