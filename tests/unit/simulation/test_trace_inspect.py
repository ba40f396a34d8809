"""What `vennue trace` prints and writes: figures checked against traces small enough to count by hand."""

import html.parser
import json
import pickle

import pytest

from vennue import cli
from vennue.cli.terminal import ExitCode
from vennue.core.requirement import Requirement
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, page, read_trace
from vennue.simulation.traces.model import Trace
from vennue.simulation.traces.paper import PaperCheckIns
from vennue.simulation.traces.summary import summarise

DAY_S = 86_400.0
HOUR_S = 3600.0
CLASSES = {"big": Requirement.parse("device.ram_gb >= 8")}


def population():
    # Device 0 is small, device 1 is big, device 2 is small, …
    return DevicePopulation(DeviceTable({"ram_gb": [4.0, 8.0]}), Capacity.fedscale(), listed_rows=[0, 1])


def run(capsys, *arguments):
    assert cli.run(["trace", *map(str, arguments)]) is ExitCode.OK
    return capsys.readouterr().out


def test_availability_counts_a_session_that_runs_past_the_end_of_the_period():
    # Device 0 is there from 23:00 to 01:00, device 1 never but for an instant: (1 + 1) h of 2 × 24 device-hours.
    summary = summarise(Trace([0, 1], [23 * HOUR_S, 0], [25 * HOUR_S, 0], period_s=DAY_S), population(), CLASSES)
    assert summary.available == pytest.approx(2 / 48)
    assert {hour.clock_h: hour.available for hour in summary.hours if hour.available > 1e-12} == pytest.approx(
        {0: 0.5, 23: 0.5}
    )


def test_hours_are_those_of_the_local_clock():
    summary = summarise(Trace([0], [30 * 60], [90 * 60], period_s=2 * DAY_S, clock_h=18), population(), CLASSES)
    by_hour = {hour.clock_h: hour for hour in summary.hours}
    assert (by_hour[18].available, by_hour[19].available, by_hour[20].available) == pytest.approx((0.25, 0.25, 0))
    assert by_hour[18].check_ins_per_s == pytest.approx(1 / 7200)


def test_counts_rates_and_lengths_are_those_of_the_sessions():
    trace = Trace([0, 1, 1, 2], [0, 100, 500, 900], [10, 120, 540, 980], period_s=2 * DAY_S)
    summary = summarise(trace, population(), CLASSES)
    assert (summary.devices, summary.sessions, summary.period_s) == (3, 4, 2 * DAY_S)
    assert summary.sessions_per_device_day == pytest.approx(4 / 3 / 2)
    assert summary.check_ins_per_s == pytest.approx(4 / (2 * DAY_S))
    assert (summary.mean_length_s, summary.length_s[50]) == (37.5, 30)


def test_regions_are_weighted_by_check_ins():
    trace = Trace([0, 1, 1, 1], [0, 100, 500, 900], [10, 120, 540, 980], period_s=DAY_S)
    found = [(region.classes, region.share) for region in summarise(trace, population(), CLASSES).regions]
    assert found == [(("big",), 0.75), ((), 0.25)]


def test_task_times_are_those_of_the_devices_that_check_in():
    mean_device = Capacity([78.0], [13_736.0])
    population = DevicePopulation(DeviceTable({"ram_gb": [8.0]}), mean_device)
    summary = summarise(Trace([0, 1], [0, 1], [10, 10]), population, CLASSES)
    assert set(summary.task_s.values()) == {50.0}


def test_an_endless_stream_is_described_by_its_first_day():
    summary = summarise(PaperCheckIns(rate_per_s=0.05, seed=1), population(), CLASSES)
    assert summary.sessions == summary.devices == pytest.approx(4320, rel=0.05)


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    class Reader(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags = []
            self.links = []

        def handle_starttag(self, tag, attributes):
            self.tags.append(tag)
            self.links += [value for name, value in attributes if name in ("src", "href")]

    trace = Trace([0], [0], [10], name="<script>alert(1)</script>")
    reader = Reader()
    reader.feed(page.render(summarise(trace, population(), CLASSES)))
    assert "script" not in reader.tags
    assert reader.links == []
    assert (reader.tags.count("svg"), reader.tags.count("rect")) == (2, 48)


def test_inspect_prints_json_that_a_program_can_read(capsys):
    found = json.loads(run(capsys, "inspect", "phones", "--json"))
    assert (found["name"], found["devices"], found["sessions"]) == ("phones", 292, 5566)
    assert sum(region["share"] for region in found["regions"]) == pytest.approx(1)
    assert len(found["hours"]) == 24


def test_inspect_prints_tables_for_people(capsys):
    out = run(capsys, "inspect", "phones")
    assert "5,566 sessions of 292 devices over 5 days" in out
    assert "general, compute, memory, high_performance" in out


def test_inspect_takes_classes_and_writes_a_page(capsys, tmp_path):
    out = run(
        capsys, "inspect", "phones", "--class.big", "device.ram_gb >= 8", "--html", tmp_path / "page.html", "--json"
    )
    assert {tuple(region["classes"]) for region in json.loads(out)["regions"]} == {("big",), ()}
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_synth_writes_the_devices_and_days_asked_for(capsys, tmp_path):
    path = tmp_path / "t.csv.gz"
    out = run(capsys, "synth", path, "--devices", 50, "--days", 3, "--seed", 4, "--habit", "--flapping")
    trace = read_trace(path)
    assert trace.period_s == 3 * DAY_S
    assert f"{len(trace):,} sessions of {trace.devices} devices over 3 days" in " ".join(out.split())


def test_synth_writes_the_papers_calibration(capsys, tmp_path):
    run(capsys, "synth", tmp_path / "t.csv", "--calibration", "paper", "--rate", 0.01, "--days", 1)
    assert len(read_trace(tmp_path / "t.csv")) == pytest.approx(4018, rel=0.06)


def test_convert_reads_a_pickle_and_merges(capsys, tmp_path):
    (tmp_path / "traces").write_bytes(pickle.dumps({1: {"active": [5, 20], "inactive": [19, 30]}}))
    assert "1 sessions of 1 devices" in run(
        capsys, "convert", tmp_path / "traces", tmp_path / "t.parquet", "--merge-gap", 1
    )
    assert read_trace(tmp_path / "t.parquet").end_s.tolist() == [30]


def test_convert_writes_capacities_and_devices_that_can_be_used_again(capsys, tmp_path):
    (tmp_path / "capacity").write_bytes(pickle.dumps({1: {"computation": 15, "communication": 2000}}))
    (tmp_path / "eligibility.json").write_text("[[1, 2, 3, 4], []]")
    run(capsys, "convert", tmp_path / "capacity", tmp_path / "capacity.csv")
    run(capsys, "convert", tmp_path / "eligibility.json", tmp_path / "devices.csv")
    out = run(
        capsys, "inspect", "phones", "--devices", tmp_path / "devices.csv", "--capacity", tmp_path / "capacity.csv",
        "--json",
    )  # fmt: skip
    assert {len(region["classes"]) for region in json.loads(out)["regions"]} == {0, 4}


def test_convert_writes_a_workload(capsys, tmp_path):
    (tmp_path / "jobs.yml").write_text("jobs:\n- config: {participants: 300, rounds: 1000, deadline: 300}\n")
    assert "workload" in run(capsys, "convert", tmp_path / "jobs.yml", tmp_path / "w.yaml")
    assert "demand: 300" in (tmp_path / "w.yaml").read_text()


def test_a_wrong_file_ends_the_command_with_its_row_and_the_fix(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("device,start_s,end_s\n0,5,7\n1,9,8\n")
    assert cli.run(["trace", "inspect", str(path), "--json"]) is ExitCode.INVALID
    said = capsys.readouterr()
    assert "t.csv, line 3: the session ends at 8 s, before it starts at 9 s" in said.err
    error = json.loads(said.out)["error"]
    assert (error["field"], error["fix"]) == ("end_s", "swap the times or delete the row")


def test_a_target_that_is_no_table_is_refused_before_the_work(capsys, tmp_path):
    arguments = ["trace", "synth", str(tmp_path / "t.xls"), "--devices", "1000000000"]
    assert cli.run(arguments) is ExitCode.INVALID
    assert "t.xls is not a table" in capsys.readouterr().err


def test_a_pickle_that_wants_to_run_code_writes_nothing(capsys, tmp_path):
    (tmp_path / "trace").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert cli.run(["trace", "convert", str(tmp_path / "trace"), str(tmp_path / "t.csv")]) is ExitCode.INVALID
    assert "the pickle wants to run os.system" in capsys.readouterr().err
    assert not (tmp_path / "t.csv").exists()


def test_an_interrupted_conversion_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vennue.simulation.traces.files.write_table", interrupt)
    assert cli.run(["trace", "synth", str(tmp_path / "t.csv"), "--devices", "5"]) is ExitCode.INTERRUPTED
    assert list(tmp_path.iterdir()) == []
