"""Timelines keep to Chrome's Trace Event Format, so that Perfetto opens them, and say what happened."""

import gzip
import json
from collections import defaultdict

import pytest

from tests.unit.simulation.results import experiment, results, run_result
from vennue.simulation.experiment import run_experiment
from vennue.simulation.options import options
from vennue.simulation.perfetto import events, write_perfetto

# What the format's description asks of each phase that is used here ("Trace Event Format", the Chromium project).
REQUIRED = {
    "X": {"name": str, "cat": str, "ts": int, "dur": int, "pid": int, "tid": int},
    "C": {"name": str, "ts": int, "pid": int, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
METADATA["thread_sort_index"] = "sort_index"


def check_format(document):
    """Fails unless a viewer could show every event as it is meant."""
    assert document["displayTimeUnit"] in {"ms", "ns"}
    threads = defaultdict(list)
    for event in document["traceEvents"]:
        for name, kind in REQUIRED[event["ph"]].items():
            assert isinstance(event[name], kind), (event, name)
        if event["ph"] == "M":
            assert METADATA[event["name"]] in event["args"]
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():  # slices of one thread must nest: none may straddle another's end
        open_until: list[int] = []
        for begin, end in sorted(slices, key=lambda ends: (ends[0], -ends[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@pytest.fixture(scope="module")
def simulated():
    workload = """
name: mixed
jobs:
  - {name: sync, demand: 10, rounds: 3, deadline_s: 200, count: 2}
  - {name: buffered, mode: async, demand: 8, buffer_size: 4, rounds: 5}
"""
    return run_experiment(experiment("fifo", "venn", workload=workload, options=options("default", overcommit=1)))


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_simulated_timeline_keeps_to_the_format(simulated, tmp_path, name):
    path = tmp_path / name
    write_perfetto(path, simulated.runs)
    content = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    check_format(json.loads(content))


def test_every_attempt_is_a_slice_of_its_jobs_thread(simulated):
    slices = [event for event in events(simulated.runs) if event.get("cat") == "attempt"]
    assert len(slices) == sum(len(run.attempts["job"]) for run in simulated.runs)


def test_a_run_is_a_process_and_a_job_a_thread():
    found = [event for event in events(results(run_result("fifo"), run_result("venn")).runs) if event["ph"] == "M"]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in found if "name" in event["args"]}
    assert names == {
        (1, 0): "fifo, seed 0", (1, 1): "a-1 (any)", (1, 2): "b-2 (fast)",
        (2, 0): "venn, seed 0", (2, 1): "a-1 (any)", (2, 2): "b-2 (fast)",
    }  # fmt: skip


def test_a_committed_round_waits_and_collects_within_its_slice():
    mine = [event for event in events([run_result()]) if event["ph"] == "X" and event["tid"] == 1]
    assert [(event["name"], event["ts"], event["dur"]) for event in mine] == [
        ("round 1", 0, 20_000_000),
        ("round 1, attempt 2", 20_000_000, 40_000_000),
        ("waiting", 20_000_000, 30_000_000),
        ("collecting", 50_000_000, 10_000_000),
    ]


def test_an_attempt_says_how_it_ended():
    mine = [event for event in events([run_result()]) if event.get("cat") == "attempt" and event["tid"] == 1]
    assert [event["args"]["ended"] for event in mine] == ["too few devices", "committed"]


def test_counters_are_devices_online_and_at_work():
    found = [event for event in events([run_result()]) if event["ph"] == "C"]
    shown = [(event["name"], event["ts"], event["args"]["devices"]) for event in found]
    assert shown == [
        ("devices online", 0, 0.8), ("devices online", 3_600_000_000, 0.3),
        ("devices at work", 0, 0.2), ("devices at work", 3_600_000_000, 0.0),
    ]  # fmt: skip


def test_a_partial_run_is_named_so():
    first = next(iter(events([run_result(ended="stopped")])))
    assert first["args"] == {"name": "fifo, seed 0 (partial)"}
