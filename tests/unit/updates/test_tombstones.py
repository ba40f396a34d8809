"""Tombstones: receipts of rounds that are over, found again, in bounded space, after a crash too."""

from pathlib import Path

import pytest

from vennue.core.errors import StorageError
from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.updates.sums import Receipt
from vennue.updates.tombstones import Tombstones


def receipt(attempt: str, number: int) -> Receipt:
    return Receipt(AssignmentId(f"{attempt}.{number}"), 100 + number, 2.5, Digest("0" * 64), token="secret")


def found(tombstones: Tombstones, attempt: str, number: int) -> Receipt | None:
    return tombstones.find(AssignmentId(f"{attempt}.{number}"))


def test_a_buried_receipt_is_found_by_its_assignment_as_a_duplicate_s(tmp_path):
    tombstones = Tombstones(tmp_path)
    tombstones.bury(AttemptId("j.1.1"), [receipt("j.1.1", 1), receipt("j.1.1", 2)])
    expected = Receipt(AssignmentId("j.1.1.2"), 102, 2.5, Digest("0" * 64), duplicate=True)
    assert found(tombstones, "j.1.1", 2) == expected
    assert found(Tombstones(tmp_path), "j.1.1", 2) == expected
    assert found(tombstones, "j.1.1", 3) is None
    assert found(tombstones, "j.2.1", 1) is None


def test_an_attempt_is_buried_in_several_parts(tmp_path):
    tombstones = Tombstones(tmp_path)
    for number in (1, 2, 2):
        tombstones.bury(AttemptId("j.1.1"), [receipt("j.1.1", number)])
        assert found(tombstones, "j.1.1", number) is not None
    assert found(tombstones, "j.1.1", 1) is not None


def test_tokens_are_not_kept(tmp_path):
    Tombstones(tmp_path).bury(AttemptId("j.1.1"), [receipt("j.1.1", 1)])
    assert b"secret" not in (tmp_path / "j.1.1.jsonl").read_bytes()


def test_the_oldest_rounds_go_when_the_space_is_used_up(tmp_path):
    tombstones = Tombstones(tmp_path, max_bytes=1000)
    for number in range(1, 30):
        tombstones.bury(AttemptId(f"j.{number}.1"), [receipt(f"j.{number}.1", 1)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    assert found(tombstones, "j.1.1", 1) is None
    assert found(tombstones, "j.29.1", 1) is not None
    assert found(Tombstones(tmp_path, max_bytes=1000), "j.29.1", 1) is not None


def test_a_line_that_a_crash_cut_off_hides_no_other(tmp_path):
    tombstones = Tombstones(tmp_path)
    tombstones.bury(AttemptId("j.1.1"), [receipt("j.1.1", 1)])
    with (tmp_path / "j.1.1.jsonl").open("a") as file:
        file.write('[["j.1.1.2", 1')
    again = Tombstones(tmp_path)
    again.bury(AttemptId("j.1.1"), [receipt("j.1.1", 3)])
    assert [found(again, "j.1.1", number) is not None for number in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xff\xfe",
        b"null",
        b"5",
        b"[5]",
        b'{"round":1}',
        b'{"round":"1","receipts":[]}',
        b'{"round":1,"receipts":[["j.1.1.2"]]}',
        b'{"round":1,"receipts":[["j.1.1.2",1,1.0,"\xff"]]}',
        b'{"round":1,"receipts":[],"refused":[2]}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_damaged_hides_no_other(tmp_path, damaged):
    attempt = AttemptId("j.1.1")
    Tombstones(tmp_path).bury(attempt, [receipt("j.1.1", 1)])
    with (tmp_path / "j.1.1.jsonl").open("ab") as file:
        file.write(damaged)
    again = Tombstones(tmp_path)
    again.refuse(attempt, [AssignmentId("j.1.1.3")])
    again.settle(attempt, committed=0)
    assert again.refused(attempt) == ["j.1.1.3"]
    assert [found(again, "j.1.1", number) is not None for number in (1, 2)] == [True, False]


def test_a_link_that_leads_nowhere_hides_no_other_file(tmp_path):
    Tombstones(tmp_path).bury(AttemptId("job.1.1"), [receipt("job.1.1", 1)])
    (tmp_path / "job.2.1.jsonl").symlink_to("nowhere")
    again = Tombstones(tmp_path)
    assert found(again, "job.1.1", 1) is not None
    again.bury(AttemptId("job.1.2"), [receipt("job.1.2", 1)])
    assert found(again, "job.1.2", 1) is not None


def test_after_a_crash_the_receipts_of_a_round_that_did_not_commit_are_forgotten(tmp_path):
    tombstones = Tombstones(tmp_path)
    for number in (1, 2, 3):
        tombstones.bury(AttemptId("j.1.1"), [receipt("j.1.1", number)], round_number=number)
    tombstones.settle(AttemptId("j.1.1"), committed=2)
    for kept in (tombstones, Tombstones(tmp_path)):
        assert [found(kept, "j.1.1", number) is not None for number in (1, 2, 3)] == [True, True, False]
    tombstones.bury(AttemptId("j.1.1"), [receipt("j.1.1", 3)], round_number=3)
    assert found(tombstones, "j.1.1", 3) is not None
    tombstones.settle(AttemptId("j.9.1"), committed=0)  # of which there are none


def test_a_crash_while_receipts_are_forgotten_leaves_nothing_behind(tmp_path, monkeypatch):
    tombstones = Tombstones(tmp_path)
    tombstones.bury(AttemptId("job.1.1"), [receipt("job.1.1", 1)], round_number=2)
    with monkeypatch.context() as dying:
        dying.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            tombstones.settle(AttemptId("job.1.1"), 1)
    again = Tombstones(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["job.1.1.jsonl"]
    assert found(again, "job.1.1", 1) is not None


def test_lines_of_the_first_version_are_read(tmp_path):
    (tmp_path / "j.1.1.jsonl").write_text('\n[["j.1.1.1",101,2.5,null]]\n')
    tombstones = Tombstones(tmp_path)
    tombstones.settle(AttemptId("j.1.1"), committed=0)
    assert found(tombstones, "j.1.1", 1) == Receipt(AssignmentId("j.1.1.1"), 101, 2.5, None, duplicate=True)


@pytest.mark.parametrize("durable", [False, True])
def test_receipts_are_synced_where_they_must_outlive_a_power_loss(tmp_path, monkeypatch, durable):
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    Tombstones(tmp_path, durable=durable).bury(AttemptId("j.1.1"), [receipt("j.1.1", 1)])
    assert bool(synced) == durable


@pytest.mark.parametrize("assignment", ["../../etc/passwd.1", "", ".", "..1", "a/b.1.1.1", "x" * 500 + ".1.1.1"])
def test_an_id_that_a_stranger_made_up_leads_nowhere(tmp_path, assignment):
    (tmp_path / "receipts").mkdir()
    (tmp_path / "j.1.1.jsonl").write_text("[]\n")
    assert Tombstones(tmp_path / "receipts").find(AssignmentId(assignment)) is None


def test_a_directory_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Tombstones(tmp_path / "file")


def test_refusals_are_kept_in_their_order_beside_receipts_and_whatever_commits(tmp_path):
    attempt, names = AttemptId("j.1.1"), [AssignmentId(f"j.1.1.{number}") for number in range(4)]
    tombstones = Tombstones(tmp_path)
    tombstones.refuse(attempt, names[2:])
    tombstones.bury(attempt, [receipt("j.1.1", 1)], round_number=1)
    tombstones.refuse(attempt, names[:1])
    for kept in (tombstones, Tombstones(tmp_path)):
        assert kept.refused(attempt) == [*names[2:], names[0]]
        assert found(kept, "j.1.1", 2) is None
    tombstones.settle(attempt, committed=0)
    assert tombstones.refused(attempt) == [*names[2:], names[0]]
    assert found(tombstones, "j.1.1", 1) is None
    assert tombstones.refused(AttemptId("j.2.1")) == []


def test_receipts_of_a_version_that_kept_no_refusals_are_read(tmp_path):
    (tmp_path / "j.1.1.jsonl").write_text('{"round":1,"receipts":[["j.1.1.1",101,2.5,null]]}\n')
    assert Tombstones(tmp_path).refused(AttemptId("j.1.1")) == []
    assert found(Tombstones(tmp_path), "j.1.1", 1) is not None
