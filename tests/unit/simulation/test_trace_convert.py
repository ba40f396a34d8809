"""Other projects' files: FedScale's pickles, read without running them, and the Venn authors' lists and workloads."""

import collections
import io
import json
import pickle
import subprocess

import numpy as np
import pytest

from vennue.core.errors import InvalidInput
from vennue.simulation import authors_workload
from vennue.simulation.traces import CLASSES, Capacity, Trace, open_population, read_recording, read_trace
from vennue.simulation.traces.devices import class_requirements
from vennue.simulation.workload import draw, parse


@pytest.fixture
def pickled(tmp_path):
    def write(value, protocol=4):
        path = tmp_path / "client_behave_trace"
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        return path

    return write


def refusal(path):
    with pytest.raises(InvalidInput) as caught:
        read_recording(path)
    return str(caught.value)


CLIENTS = {
    17: {"duration": 12, "active": [5, 90], "inactive": [9, 98], "finish_time": 86_400, "model": "A"},
    4: {"duration": 2, "active": [6], "inactive": [8], "finish_time": 86_400, "model": None},
}


@pytest.mark.parametrize("protocol", range(6))
def test_fedscales_clients_become_devices_in_the_files_order(pickled, protocol):
    trace = read_recording(pickled(CLIENTS, protocol))
    assert isinstance(trace, Trace)
    assert list(zip(trace.device.tolist(), trace.start_s.tolist(), trace.end_s.tolist(), strict=True)) == [
        (0, 5, 9), (1, 6, 8), (0, 90, 98),
    ]  # fmt: skip


def test_the_same_records_are_read_from_json(tmp_path):
    path = tmp_path / "clients.json"
    path.write_text(json.dumps(CLIENTS))
    assert len(read_trace(path)) == 3


@pytest.mark.parametrize("protocol", range(6))
def test_numpy_scalars_and_ordered_dictionaries_are_plain_data(pickled, protocol):
    record = collections.OrderedDict(active=[np.int64(5), np.float32(7.5)], inactive=[np.uint16(6), np.float64(9.25)])
    trace = read_trace(pickled({"x": record}, protocol))
    assert trace.start_s.tolist() == [5, 7.5]
    assert trace.end_s.tolist() == [6, 9.25]


class _Runs:
    def __reduce__(self):
        return subprocess.check_call, (["touch", "/nonexistent/x"],)


class _Evaluates:
    def __reduce__(self):
        return eval, ("1/0",)


@pytest.mark.parametrize(("value", "named"), [(_Runs(), "subprocess.check_call"), (_Evaluates(), "builtins.eval")])
def test_a_pickle_that_wants_to_run_code_is_refused_before_it_does(pickled, value, named):
    said = refusal(pickled({"client": value}))
    assert f"the pickle wants to run {named}" in said
    assert "do not trust this file" in said


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2]),
        np.dtype(object),
        np.dtype("M8[s]"),
        np.str_("x"),
        collections.Counter("a"),
        {1: io.StringIO},
        slice(1),
        complex(1, 2),
    ],
    ids=repr,
)
def test_anything_but_plain_data_is_refused(pickled, value):
    assert "path: " in refusal(pickled({"client": value}))


@pytest.mark.parametrize(
    "code",
    [
        b"cnumpy\ndtype\n(S'O'\nI0\nI1\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O'\nI0\nI1\ntRS'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'f8'\nI0\nI1\ntRS'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n}S'__code__'\nNsb.",
        b"cnumpy\ndtype\n(Nt\x81.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"Pelsewhere\n.",
        b"(lp0\n",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"not a pickle",
        b"",
    ],
)
def test_a_hostile_or_broken_pickle_is_refused_and_nothing_else_happens(tmp_path, code):
    path = tmp_path / "trace.pickle"
    path.write_bytes(code)
    assert "path: " in refusal(path)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"active": [5], "inactive": [4]}, "client 'x', session 0: the session ends at 4 s, before it starts at 5 s"),
        ({"active": [5, 6], "inactive": [7]}, "client 'x': 2 starts and 1 ends"),
        ({"active": [5]}, "client 'x': inactive is missing"),
        ({"active": ["5"], "inactive": [7]}, "client 'x': active is '5', not a number"),
        ({"active": 5, "inactive": [7]}, "client 'x': active is not a list"),
        ({"active": [5, 6], "inactive": [9, 8]}, "client 'x', session 1: device 1 starts a session at 6 s"),
    ],
)
def test_a_wrong_client_is_named(pickled, record, said):
    assert said in refusal(pickled({"good": {"active": [1], "inactive": [2]}, "x": record}))


def test_a_recording_of_no_known_kind_is_refused(pickled):
    assert "is neither client_behave_trace, client_device_capacity nor an eligibility list" in refusal(
        pickled({"a": {"b": 1}})
    )


def test_overlapping_clients_can_be_merged(pickled):
    trace = read_recording(pickled({"x": {"active": [5, 6], "inactive": [9, 8]}}), merge_gap_s=0)
    assert isinstance(trace, Trace)
    assert trace.end_s.tolist() == [9]


def test_fedscales_capacities_are_listed_in_the_files_order(pickled):
    path = pickled({1: {"computation": 153, "communication": 2209.5}, 2: {"computation": 39.0, "communication": 18437}})
    capacity = read_recording(path)
    assert isinstance(capacity, Capacity)
    devices = open_population(None, str(path))(np.arange(5))
    assert devices.computation_ms.tolist() == [153, 39, 153, 39, 153]
    assert devices.communication_kbps.tolist() == [2209.5, 18437, 2209.5, 18437, 2209.5]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"computation": -1, "communication": 5}, "must be finite and above 0: entry 0 is -1"),
        ({"computation": 5}, "client 1: communication is missing"),
        ({"computation": "x", "communication": 5}, "client 1: computation is 'x', not a number"),
    ],
)
def test_a_wrong_capacity_is_named(pickled, record, said):
    assert said in refusal(pickled({1: record}))


def test_an_eligibility_list_gives_devices_that_meet_exactly_its_classes(tmp_path):
    listed = [[1], [1, 2, 3, 4], [], [1, 3], [1, 2]]
    path = tmp_path / "eligibility.json"
    path.write_text(json.dumps(listed))
    population = open_population(str(path))
    regions = population.regions(class_requirements())
    signatures = [regions.signatures[regions.of_row[row]] for row in population(np.arange(10)).row]
    assert signatures == [0b0001, 0b1111, 0, 0b0101, 0b0011] * 2


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([[1], [5]], "device 1: [5] is not a list of class numbers"),
        ([[1], 3], "device 1: 3 is not a list of class numbers"),
        ([[1], [4]], "device 1: no phone model meets exactly the classes high_performance"),
        ([], "is not a list of devices' classes"),
        ("1234", "is not a list of devices' classes"),
    ],
)
def test_a_wrong_eligibility_list_is_refused(tmp_path, listed, said):
    path = tmp_path / "eligibility.json"
    path.write_text(json.dumps(listed))
    with pytest.raises(InvalidInput) as caught:
        open_population(str(path))
    assert said in str(caught.value)


JOBS = """
jobs:
    - config: {participants: 100, rounds: 1000, concurrency: 0, job_type: sync, deadline: 300, workload: 30}
    - config: {participants: 200, rounds: 500, concurrency: 0, job_type: sync, deadline: 600, workload: 20}
    - config: {participants: 50, rounds: 900, concurrency: 10, job_type: async, deadline: 180}
job_requirement:
    - eligibility: {memory: 10, cpu: 1, os: 6}
    - eligibility: {memory: 1000, cpu: 7, os: 6}
"""


@pytest.fixture
def authors(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "jobs.yml").write_text(JOBS)

    def write(text):
        path = tmp_path / "config" / "mix_workload.yml"
        path.write_text(text)
        return path

    return write


def test_the_authors_mixture_keeps_its_seed_weights_and_requirements(authors):
    workload = authors_workload.convert(
        authors(
            "RANDOMSEED: 2\njob_config_file: config/jobs.yml\njob_id_prob: [3, 1, 0]\neligiblility_prob: [.9, .1]\n"
        )
    )
    jobs = draw(workload)
    assert (workload.seed, len(jobs), jobs[0].arrival_s) == (2, 50, 3600)
    assert {job.config for job in jobs} == {1, 2}
    assert sum(job.config == 1 for job in jobs) > 30
    assert sum(job.category == "class-1" for job in jobs) > 40
    assert {job.spec.requirement for job in jobs} == {
        "device.memory_score >= 10 && device.cpu_score >= 1 && device.android >= 6",
        "device.memory_score >= 1000 && device.cpu_score >= 7 && device.android >= 6",
    }


def test_without_weights_the_authors_jobs_take_the_requirements_in_turn(authors):
    jobs = draw(authors_workload.convert(authors("job_config_file: jobs.yml\neligiblility_prob: None\n")))
    assert [job.category for job in jobs[:4]] == ["class-1", "class-2", "class-1", "class-2"]
    asynchronous = next(job for job in jobs if job.config == 3)
    assert (asynchronous.spec.demand, asynchronous.spec.buffer_size, asynchronous.spec.lease_s) == (50, 10, 180)
    assert asynchronous.spec.deadline_s is None


def test_a_job_file_alone_runs_every_job_once_with_its_own_class(tmp_path):
    path = tmp_path / "job_config.yml"
    path.write_text("jobs:\n- config: {participants: 300, rounds: 1000, deadline: 300, eligibility: 2}\n")
    (job,) = draw(authors_workload.convert(path))
    assert (job.spec.demand, job.category, job.spec.requirement) == (300, "memory", CLASSES["memory"])


def test_a_converted_workload_reads_back_as_it_was_written(authors):
    workload = authors_workload.convert(authors("job_config_file: jobs.yml\n"))
    assert draw(parse(authors_workload.dump(workload))) == draw(workload)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_config_file: other.yml\n", "job_config_file: mix_workload.yml: no such job file: other.yml"),
        ("RANDOMSEED: 2\n", "must name the job file"),
        ("job_config_file: jobs.yml\njob_id_prob: [1]\n", "job_id_prob: mix_workload.yml: must be a list of 3 numbers"),
        ("job_config_file: jobs.yml\njob_id_prob: [0, 0, 0]\n", "mixture.configs"),
        ("job_config_file: jobs.yml\nRANDOMSEED: x\n", "RANDOMSEED: mix_workload.yml: must be a whole number"),
        ("just text", "holds neither jobs nor a mixture"),
        ("a: [", "is not YAML"),
        ("jobs: []\n", "jobs: mix_workload.yml: must be a list with at least one entry"),
        ("jobs: [{config: {participants: 3}}]\n", "jobs[0]: mix_workload.yml: lacks rounds"),
        ("jobs: [{config: {participants: 3, rounds: 4, colour: 5}}]\n", "has an unknown colour"),
        ("jobs: [{config: {participants: x, rounds: 4}}]\n", "Expected `int`, got `str`"),
        ("jobs: [{config: {participants: 3, rounds: 4, eligibility: 9}}]\n", "jobs[0].eligibility"),
        ("jobs: [{config: {participants: 3, rounds: 4}}]\njob_requirement: [{eligibility: {gpu: 1}}]\n", "gpu"),
    ],
)
def test_a_wrong_authors_file_is_refused_by_field(authors, text, said):
    with pytest.raises(InvalidInput) as caught:
        authors_workload.convert(authors(text))
    assert said in str(caught.value)
    assert caught.value.fix
