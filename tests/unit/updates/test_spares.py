"""Spare files: written over instead of created, never in the way of what needs the disk."""

import asyncio
import os

import numpy as np
import pytest

from vennue.core.errors import StorageError
from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.model import save
from vennue.testing import LocalPool
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.spares import Spares
from vennue.updates.spool import Spool

ATTEMPT, NEXT = AttemptId("job.1.1"), AttemptId("job.2.1")


@pytest.fixture
def spares(tmp_path):
    return Spares(tmp_path / ".spares", max_bytes=10_000)


def put(spool, key, body):
    with spool.begin() as writer:
        writer.write(body)
        return writer.finish(key, {})[0]


def kept(tmp_path):
    directory = tmp_path / ".spares"
    return sorted(path.stat().st_size for path in directory.iterdir()) if directory.exists() else []


def contents(spool):
    return {record.key: record.path.read_bytes()[: record.body_bytes] for record in spool.records()}


def fill_up(tmp_path, monkeypatch):
    disk = os.statvfs(tmp_path)
    full = os.statvfs_result((*disk[:3], 0, 0, *disk[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("body", [b"", b"short", b"n" * 5_000])
def test_an_update_is_written_over_the_file_of_a_removed_one(tmp_path, spares, body, durable):
    spool = Spool(tmp_path, ATTEMPT, durable=durable, spares=spares)
    old = put(spool, "old", b"o" * 1_000).path.stat().st_ino
    spool.remove("old")
    assert put(spool, "new", body).path.stat().st_ino == old
    assert contents(spool) == contents(Spool(tmp_path, ATTEMPT)) == {"new": body}
    assert kept(tmp_path) == []


def test_an_attempt_that_is_over_leaves_its_files_to_the_next(tmp_path, spares):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    old = {put(spool, key, b"o" * 1_000).path.stat().st_ino for key in ("a", "b")}
    spool.discard()
    assert not spool.directory.exists()
    after = Spool(tmp_path, NEXT, spares=spares)
    assert {put(after, key, b"new").path.stat().st_ino for key in ("a", "b")} == old
    assert contents(Spool(tmp_path, NEXT)) == {"a": b"new", "b": b"new"}


def test_files_that_somebody_may_still_read_are_not_written_over(tmp_path, spares):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    with put(spool, "a", b"body").path.open("rb") as reading:
        spool.discard(reuse=False)
        put(Spool(tmp_path, NEXT, spares=spares), "b", b"other")
        assert reading.read().startswith(b"body")
    assert kept(tmp_path) == []


def test_an_aborted_update_leaves_nothing_not_even_the_spare_that_it_was_written_over(tmp_path, spares):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    put(spool, "a", b"x" * 100)
    spool.remove("a")
    for _ in range(2):
        with spool.begin() as writer:
            writer.write(b"y")
        assert kept(tmp_path) == []
        assert list(spool.directory.iterdir()) == []
    assert contents(Spool(tmp_path, ATTEMPT)) == {}


def test_no_more_is_kept_than_spares_may_take(tmp_path, spares):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    for number in range(4):
        put(spool, f"{number}", b"x" * 5_000)
    spool.discard()
    assert len(kept(tmp_path)) == 1
    assert sum(kept(tmp_path)) <= 10_000


def test_a_small_spare_counts_as_what_it_takes_of_the_disk(tmp_path, spares):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    for number in range(4):
        put(spool, f"{number}", b"small")
    spool.discard()
    assert len(kept(tmp_path)) == 2  # of 4096 bytes each


def test_spares_go_when_the_disk_fills_up(tmp_path, spares, monkeypatch):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    put(spool, "a", b"x" * 100)
    put(spool, "b", b"x" * 100)
    spool.remove("a")
    assert len(kept(tmp_path)) == 1
    fill_up(tmp_path, monkeypatch)
    spool.remove("b")
    assert kept(tmp_path) == []
    put(spool, "c", b"new")
    assert contents(spool) == {"c": b"new"}


def test_an_update_that_is_being_written_over_a_spare_outlives_a_disk_that_fills_up(tmp_path, spares, monkeypatch):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    put(spool, "a", b"x" * 100)
    put(spool, "b", b"x" * 100)
    spool.remove("a")
    with spool.begin() as writer:
        writer.write(b"new")
        fill_up(tmp_path, monkeypatch)
        spool.remove("b")
        writer.finish("c", {})
    assert contents(spool) == {"c": b"new"}


def test_what_an_earlier_process_has_left_is_removed_and_never_used(tmp_path, spares):
    (tmp_path / ".spares").mkdir()
    (tmp_path / ".spares" / "0").write_bytes(b"old")
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    put(spool, "a", b"body")
    spool.remove("a")
    assert len(kept(tmp_path)) == 1
    assert b"old" not in next((tmp_path / ".spares").iterdir()).read_bytes()


def test_cleared_spares_are_gone_and_new_ones_come(tmp_path, spares):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    for key in ("a", "b"):
        put(spool, key, b"body")
        spool.remove(key)
        assert len(kept(tmp_path)) == 1
        spares.clear()
        assert kept(tmp_path) == []


def test_a_place_for_spares_that_cannot_be_made_costs_nothing_but_speed(tmp_path):
    (tmp_path / "file").write_text("in the way")
    spool = Spool(tmp_path / "spool", ATTEMPT, spares=Spares(tmp_path / "file" / "spares"))
    put(spool, "a", b"body")
    spool.remove("a")
    put(spool, "b", b"next")
    assert contents(Spool(tmp_path / "spool", ATTEMPT)) == {"b": b"next"}


def test_a_spare_that_cannot_be_opened_is_an_error_and_is_removed(tmp_path, spares, monkeypatch):
    spool = Spool(tmp_path, ATTEMPT, spares=spares)
    put(spool, "a", b"body")
    spool.remove("a")

    def too_many(*_):
        raise OSError(24, os.strerror(24))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_many)
        with pytest.raises(StorageError, match="Too many open files"):
            spool.begin()
    assert kept(tmp_path) == []
    put(spool, "b", b"next")
    assert contents(spool) == {"b": b"next"}


def test_a_file_of_another_attempt_under_the_same_name_is_no_record(tmp_path):
    record = put(Spool(tmp_path, ATTEMPT), "sum.1", b"body")
    after = Spool(tmp_path, NEXT)
    record.path.rename(after.directory / record.path.name)
    assert Spool(tmp_path, NEXT).records() == ()


def test_what_is_being_folded_when_its_attempt_is_closed_is_not_written_over(tmp_path, spares):
    import numpy as np

    blobs = DirectoryBlobs(tmp_path / "blobs", durable=False)
    model = save({"w": np.zeros(4, np.float32)})
    aggregator = RoundAggregator(ATTEMPT, blobs.put(model), blobs, tmp_path / "spool", spares=spares)
    with aggregator.start_update(AssignmentId("job.1.1.1")) as sink:
        sink.write(model)
        sink.finish()
    with aggregator._folding:  # somebody folds
        aggregator.close()
    assert kept(tmp_path) == []


@pytest.mark.parametrize("spare_bytes", [0, 2**30])
async def test_a_server_keeps_files_of_past_rounds_as_far_as_it_is_told_to(tmp_path, spare_bytes):
    async with LocalPool(tmp_path, spare_bytes=spare_bytes) as pool, pool.device() as device:
        async with pool.job(name="job", demand=1, rounds=1) as job:
            running = asyncio.ensure_future(job.run({"w": np.zeros(2, np.float32)}))
            async for task in device.tasks(max_tasks=1, duration_s=3600):
                await task.report(task.model, examples=1)
            await running
        async with asyncio.timeout(20):
            while any(pool.spool.iterdir()):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        assert len(list((tmp_path / "spares").iterdir())) == bool(spare_bytes)
