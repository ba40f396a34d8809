"""Trace files: what is read, what comes back as it was written, and how a wrong row is named."""

import gzip
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from vennue.core.errors import InvalidInput, StorageError
from vennue.simulation.traces import open_check_ins, open_population, phone_trace, read_trace, synthesise, write_trace
from vennue.simulation.traces.columns import write_table
from vennue.simulation.traces.model import Trace
from vennue.simulation.traces.paper import PaperCheckIns


@pytest.fixture
def csv_file(tmp_path):
    def write(text, name="trace.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(path):
    with pytest.raises(InvalidInput) as caught:
        read_trace(path)
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_trace_comes_back_as_it_was_written(tmp_path, name):
    trace = synthesise(40, 2, seed=1)
    write_trace(tmp_path / name, trace)
    again = read_trace(tmp_path / name)
    assert again.period_s == trace.period_s
    for column in ("device", "start_s", "end_s"):
        assert np.array_equal(getattr(again, column), getattr(trace, column))


def test_rows_may_come_in_any_order(csv_file):
    trace = read_trace(csv_file("device,start_s,end_s\n1,50,60\n0,5.5,7\n"))
    assert trace.start_s.tolist() == [5.5, 50]
    assert trace.device.tolist() == [0, 1]


def test_columns_may_come_in_any_order_and_others_are_ignored(csv_file):
    trace = read_trace(csv_file("end_s,note,device,start_s\n7,hello,0,5\n"))
    assert (trace.device[0], trace.start_s[0], trace.end_s[0]) == (0, 5, 7)


def test_blank_lines_and_a_byte_order_mark_do_not_matter(csv_file):
    assert len(read_trace(csv_file("\ufeffdevice,start_s,end_s\n\n0,5,7\n\n"))) == 1


def test_the_authors_csv_is_read_by_its_own_columns(csv_file):
    trace = read_trace(csv_file(",ID,start,end\n0,0,5,7\n1,1,6,9\n"))
    assert trace.device.tolist() == [0, 1]
    assert trace.end_s.tolist() == [7, 9]


def test_an_end_before_its_start_is_named_by_line(csv_file):
    said = refusal(csv_file("device,start_s,end_s\n0,5,7\n\n1,9,8\n"))
    assert "trace.csv, line 4: the session ends at 8 s, before it starts at 9 s" in said


def test_overlapping_sessions_are_named_by_both_lines_with_the_way_to_merge_them(csv_file):
    said = refusal(csv_file("device,start_s,end_s\n3,50,70\n1,5,7\n3,60,80\n"))
    assert "trace.csv, line 4: device 3 starts a session at 60 s, while its session of trace.csv, line 2 lasts" in said
    assert "--merge-gap 0" in said


def test_text_in_a_number_is_named_by_line_and_column(csv_file):
    assert "trace.csv, line 3: start_s is 'soon', not a number" in refusal(
        csv_file("device,start_s,end_s\n0,5,7\n1,soon,8\n")
    )


def test_a_missing_value_is_named_by_line_and_column(csv_file):
    assert "trace.csv, line 2: end_s is '', not a number" in refusal(csv_file("device,start_s,end_s\n0,5,\n"))


def test_a_device_that_is_not_a_whole_number_is_named(csv_file):
    assert "trace.csv, line 2: device is 1.5, not a whole number" in refusal(
        csv_file("device,start_s,end_s\n1.5,5,7\n")
    )


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_time_that_is_not_finite_is_named(csv_file, value):
    assert "line 2: not a finite number" in refusal(csv_file(f"device,start_s,end_s\n1,5,{value}\n"))


def test_missing_columns_are_named_with_those_that_are_there(csv_file):
    assert "trace.csv has no column start_s, end_s; it has device, begin" in refusal(csv_file("device,begin\n1,5\n"))


def test_a_ragged_row_is_named_by_line(csv_file):
    assert "trace.csv, line 3: 2 values for 3 columns" in refusal(csv_file("device,start_s,end_s\n0,5,7\n1,5\n"))


@pytest.mark.parametrize("text", ["device,start_s,end_s\n", ""])
def test_a_trace_without_devices_is_refused(csv_file, text):
    assert "holds no session" in refusal(csv_file(text)) or not text


def test_a_wrong_row_far_down_is_named_by_its_own_line(csv_file):
    rows = "".join(f"{device},5,7\n" for device in range(100_005))
    said = refusal(csv_file(f"device,start_s,end_s\n{rows}7,x,9\n"))
    assert "line 100007: start_s is 'x'" in said


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "nothing.csv")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "trace.csv is not a readable .csv file" in refusal(path)


PACKED = gzip.compress(b"device,start_s,end_s\n0,5,7\n" * 50, mtime=0)


@pytest.mark.parametrize(
    "content",
    [b"device,start_s,end_s\n", PACKED[:-9], PACKED[:12] + b"\xff" * 20 + PACKED[32:]],
    ids=["plain", "cut", "overwritten"],
)
def test_a_broken_gzip_file_is_refused(tmp_path, content):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(content)
    assert "trace.csv.gz is not a readable .csv.gz file" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"PAR1 nothing of the sort", b"PAR1" + b"x" * 40 + b"\x08\0\0\0PAR1"])
def test_a_broken_parquet_file_is_refused(tmp_path, content):
    path = tmp_path / "trace.parquet"
    path.write_bytes(content)
    assert "trace.parquet is not a readable Parquet file" in refusal(path)


def test_parquet_rows_are_named_by_number(tmp_path):
    path = tmp_path / "trace.parquet"
    parquet.write_table(pa.table({"device": [0, 1], "start_s": ["5", "soon"], "end_s": [7, 8]}), path)
    assert "trace.parquet, row 2: start_s is 'soon', not a number" in refusal(path)


def test_a_null_in_parquet_is_refused(tmp_path):
    path = tmp_path / "trace.parquet"
    parquet.write_table(pa.table({"device": [0, 1], "start_s": [5.0, None], "end_s": [7, 8]}), path)
    assert "trace.parquet, row 2: not a finite number" in refusal(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'vennue[sim]'" in refusal(path)


def test_a_trace_is_not_written_under_a_name_that_says_no_format(tmp_path):
    with pytest.raises(InvalidInput, match=r"name it \*\.csv, \*\.csv\.gz, \*\.parquet"):
        write_trace(tmp_path / "trace.xls", synthesise(2, 1))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot write .*nowhere"):
        write_trace(tmp_path / "nowhere" / "trace.csv", synthesise(2, 1))


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("old")

    class Interrupting(list[int]):
        def __iter__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(path, {"device": Interrupting()})
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("trace.csv", "old")]


def test_the_shipped_phones_give_their_sessions_of_five_days_from_18_00():
    trace = phone_trace()
    assert (trace.devices, trace.period_s, trace.clock_h) == (292, 432_000.0, 18.0)
    # Over the whole recording, 3/41/944/3736/10 384 s; the first five days hold more of the short ones.
    length_s = trace.end_s - trace.start_s
    assert np.quantile(length_s, [0.1, 0.25, 0.5, 0.75, 0.9]) == pytest.approx([3, 41, 944, 3736, 10_384], rel=0.2)


@pytest.mark.parametrize(
    ("spec", "kind", "per_s"),
    [("paper", PaperCheckIns, 4.65), ("phones", Trace, 0.0127), ("synth:20x2", Trace, 0.0006)],
)
def test_check_ins_are_opened_by_name(spec, kind, per_s):
    check_ins = open_check_ins(spec, seed=1)
    assert isinstance(check_ins, kind)
    assert check_ins.rate_per_s == pytest.approx(per_s, rel=0.15)


def test_check_ins_are_opened_from_a_file(csv_file):
    assert open_check_ins(str(csv_file("device,start_s,end_s\n0,5,7\n"))).name == "trace.csv"


def test_an_unknown_trace_is_answered_with_the_nearest_name():
    with pytest.raises(InvalidInput, match=r"trace: 'phone' is neither a file nor .* \(did you mean 'phones'\?\)"):
        open_check_ins("phone")


def test_listed_devices_take_their_own_row_whatever_the_order_of_the_file(csv_file):
    path = csv_file("device,ram_gb,country,computation_ms,communication_kbps\n1,4,FR,20,2000\n0,8,DE,10,1000\n")
    population = open_population(str(path))
    devices = population(np.array([0, 1, 2]))
    assert devices.computation_ms.tolist() == [10, 20, 10]
    assert devices.communication_kbps.tolist() == [1000, 2000, 1000]
    assert [population.table.profiles[row].attributes for row in devices.row] == [
        {"ram_gb": 8.0, "country": "DE"}, {"ram_gb": 4.0, "country": "FR"}, {"ram_gb": 8.0, "country": "DE"},
    ]  # fmt: skip


def test_an_empty_cell_is_an_attribute_that_the_device_lacks(csv_file):
    population = open_population(str(csv_file("device,ram_gb,charging\n0,,TRUE\n1,8,\n2,4,false\n")))
    assert [population.table.profiles[row].attributes for row in population(np.arange(3)).row] == [
        {"charging": True}, {"ram_gb": 8.0}, {"charging": False, "ram_gb": 4.0},
    ]  # fmt: skip


def test_kinds_of_devices_are_drawn_by_weight(csv_file):
    population = open_population(str(csv_file("weight,ram_gb\n3,4\n1,8\n0,16\n")))
    ram_gb = np.array(population.table.columns["ram_gb"])[population(np.arange(40_000)).row]
    assert [(ram_gb == gb).mean() for gb in (4, 8, 16)] == pytest.approx([0.75, 0.25, 0], abs=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device,ram_gb\n", "trace.csv holds no device"),
        ("device,ram_gb\n0,4\n2,4\n", "line 3: device 2 where 1 should come"),
        ("device,ram_gb\n0,4\n0,4\n", "line 3: device 0 where 1 should come"),
        ("weight,ram_gb\n0,4\n0,8\n", "needs a weight of at least 0 for each device, not all 0"),
        ("ram_gb,computation_ms,communication_kbps\n4,0,5\n", "trace.csv: must be finite and above 0: entry 0 is 0"),
        ("ram_gb,computation_ms,communication_kbps\n4,fast,5\n", "line 2: computation_ms is 'fast', not a number"),
        ("ram_gb\n4\n\n8GB\n", "trace.csv, line 4: ram_gb is '8GB', not a number"),
        ("fast enough\n4\n", "attributes.fast enough"),
    ],
)
def test_a_table_of_devices_without_meaning_is_refused(csv_file, text, said):
    with pytest.raises(InvalidInput) as caught:
        open_population(str(csv_file(text)))
    assert said in str(caught.value)


def test_an_unknown_capacity_is_answered_with_the_nearest_name():
    with pytest.raises(InvalidInput, match="did you mean 'fedscale'"):
        open_population(None, "fedscal")
