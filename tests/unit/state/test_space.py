"""Whether a disk has room is told in numbers, with the directory that lacks it."""

import os

from vennue.state.space import NO_BOUND, Space


def test_a_disk_with_room_lacks_nothing(tmp_path):
    assert Space((tmp_path,), 1).lack() is None
    assert NO_BOUND.lack() is None


def test_a_directory_is_looked_for_where_it_will_be_made(tmp_path):
    assert Space((tmp_path / "not" / "yet",), 1).lack() is None


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
