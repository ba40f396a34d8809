"""Whether promises can be kept is told with the directory or file that stands in the way, and in numbers."""

import os
import shutil

import pytest

from vennue.state.space import NO_BOUND, Space


def test_a_disk_with_room_lacks_nothing(tmp_path):
    assert Space((tmp_path,), 1).lack() is None
    assert NO_BOUND.lack() is None


def test_a_directory_that_was_removed_is_told_until_it_is_there_again(tmp_path):
    spool = tmp_path / "spool"
    spool.mkdir()
    space = Space((tmp_path, spool))
    assert space.lack() is None
    shutil.rmtree(spool)
    assert space.lack() == f"{spool} is gone: put it back, or restart the server, which makes what is missing anew"
    spool.mkdir()
    assert space.lack() is None


def test_a_directory_that_has_become_read_only_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path or not mode & os.W_OK)
    assert Space((tmp_path,)).lack() == (
        f"{tmp_path} cannot be written: make it writable for the user that runs the server"
    )


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_that_is_held_open_and_is_not_in_its_place_any_more_is_told(tmp_path, replaced):
    ledger = tmp_path / "ledger.sqlite"
    ledger.write_bytes(b"old")
    space = Space((tmp_path,), files=(ledger,))
    assert space.lack() is None
    ledger.rename(tmp_path / "elsewhere")
    if replaced:
        ledger.write_bytes(b"new")
    assert space.lack() == (
        f"{ledger} was removed or replaced, so what is promised now goes with this process: stop the server, and "
        "restore a backup of the data directory"
    )


def test_what_is_free_for_the_servers_user_counts_and_not_what_is_kept_for_root(tmp_path, monkeypatch):
    there = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: there)
    free_bytes = there.f_bavail * there.f_frsize
    assert Space((tmp_path,), free_bytes).lack() is None
    assert Space((tmp_path,), free_bytes + 1).lack() == (
        f"{free_bytes} bytes are free in {tmp_path}, {free_bytes + 1} are needed: free space on its file system"
    )


def test_a_disk_that_does_not_answer_is_told(tmp_path, monkeypatch):
    def gone(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", gone)
    assert Space((tmp_path,), 1).lack() == f"{tmp_path} cannot be used: Input/output error"
