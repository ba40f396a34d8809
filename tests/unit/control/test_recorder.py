"""What is recorded of check-ins: kinds and times, no device, in files that are bounded and can be read again."""

import json

import pytest

from tests.unit.control.rig import rig_at
from vennue.control.recorder import Recorder
from vennue.core.errors import InvalidInput, StorageError
from vennue.core.ids import DeviceId
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.simulation.traces.files import open_check_ins, open_population
from vennue.simulation.traces.recorded import Recording


def kind(ram_gb):
    return DEFAULT_SCHEMA.check({"ram_gb": ram_gb, "data": ["keyboard"]})


def record(folder, check_ins, **options):
    """Record check-ins of (time, device, ram_gb)."""
    recorder = Recorder(folder, **options)
    for at, device, ram_gb in check_ins:
        recorder.note(kind(ram_gb), DeviceId(device), at)
    recorder.close()
    return recorder


def lines(folder):
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_kinds_and_times_are_written_and_no_device(tmp_path):
    record(tmp_path, [(1000.0 + n, f"phone-{n}", 6) for n in range(4)], least_devices=3)
    assert lines(tmp_path) == [
        {"format": "vennue-check-ins", "version": 1, "started_at": 1000.0},
        [0.0, 0],
        [1.0, 0],
        {"kind": 1, "attributes": {"data": ["keyboard"], "ram_gb": 6.0}},
        [2.0, 1],
        [3.0, 1],
    ]


def test_a_kind_of_which_one_device_comes_again_and_again_stays_unnamed(tmp_path):
    record(tmp_path, [(1000.0 + n, "the only one", 6) for n in range(100)], least_devices=3)
    assert {tuple(line)[1] for line in lines(tmp_path)[1:]} == {0}


def test_files_are_bounded_in_size_and_number_and_the_oldest_goes(tmp_path):
    check_ins = [(1000.0 + n, f"d{n}", 6) for n in range(500)]
    record(tmp_path, check_ins, least_devices=1, max_file_bytes=1000, max_files=3)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size < 1200 for file in files)
    assert Recording(tmp_path).time_s[-1] + lines(tmp_path)[0]["started_at"] == pytest.approx(1499.0)


def test_what_was_recorded_is_read_again_over_files_and_restarts(tmp_path):
    record(tmp_path, [(1000.0, "a", 6), (1001.5, "b", 2)], least_devices=1)
    record(tmp_path, [(1010.0, "c", 2), (1011.0, "d", 6)], least_devices=1)
    recording = Recording(tmp_path)
    assert recording.time_s.tolist() == [0.0, 1.5, 10.0, 11.0]
    assert [recording.kinds[row]["ram_gb"] for row in recording.kind] == [6.0, 2.0, 2.0, 6.0]


def test_a_replay_gives_each_check_in_the_kind_it_had(tmp_path):
    record(tmp_path, [(1000.0 + n, f"d{n}", 6 if n % 3 else 2) for n in range(30)], least_devices=1)
    trace, population = open_check_ins(str(tmp_path)), open_population(str(tmp_path))
    block = next(trace.blocks(30.0))
    rows = population(block.device).row
    assert [population.table.profiles[row].attributes["ram_gb"] for row in rows] == [
        6.0 if n % 3 else 2.0 for n in range(30)
    ]
    assert block.time_s.tolist() == [float(n) for n in range(30)]


def test_half_a_line_at_the_end_is_left_out(tmp_path):
    record(tmp_path, [(1000.0, "a", 6), (1001.0, "b", 6)], least_devices=1)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-4])
    assert Recording(tmp_path).time_s.tolist() == [0.0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no recorded check-in"),
        ('{"format": "other", "version": 1, "started_at": 0}\n[1, 0]\n', "no recording"),
        ('{"format": "vennue-check-ins", "version": 9, "started_at": 0}\n[1, 0]\n', "no recording"),
        ('{"format": "vennue-check-ins", "version": 1, "started_at": 0}\n[1, 7]\n', "line 2"),
        ('{"format": "vennue-check-ins", "version": 1, "started_at": 0}\nx\n', "line 2"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(tmp_path, content, said):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=said):
        Recording(path)


def test_a_disk_that_fails_costs_what_was_to_be_recorded_and_nothing_else(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "records", least_devices=1)
    recorder.note(kind(6), DeviceId("a"), 1000.0)
    (tmp_path / "records").rmdir()
    recorder.write(recorder.take())
    assert recorder.left_out == 1
    (tmp_path / "records").mkdir()
    recorder.note(kind(6), DeviceId("b"), 1001.0)
    recorder.close()
    assert Recording(tmp_path / "records").time_s.tolist() == [0.0]


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Recorder(tmp_path / "file")


async def test_the_selector_records_check_ins_where_it_is_asked_to(tmp_path):
    async with rig_at(tmp_path / "pool") as rig:
        recorder = Recorder(tmp_path / "records", least_devices=1)
        rig.selector._recorder = recorder
        rig.check_in("d1", ram_gb=6)
        rig.check_in("d2", ram_gb=6)
        recorder.close()
    recording = Recording(tmp_path / "records")
    assert [recording.kinds[row] for row in recording.kind] == [{"ram_gb": 6.0}, {"ram_gb": 6.0}]


def test_a_replay_repeats_what_was_recorded_with_other_devices_that_stay_as_long(tmp_path):
    record(tmp_path, [(1000.0, "a", 6), (1002.0, "b", 2), (1004.0, "c", 6)], least_devices=1)
    trace, population = open_check_ins(str(tmp_path)), open_population(str(tmp_path))
    (first, second) = trace.blocks(12.0)
    assert [*first.time_s, *second.time_s] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]  # two seconds between any two
    assert len({*first.device.tolist(), *second.device.tolist()}) == 6
    assert population(first.device).row.tolist() == population(second.device).row.tolist()
    assert (first.end_s - first.time_s).tolist() == [3600.0] * 3
    assert trace.rate_per_s == 0.5
