"""The command line against a real server: answers as tables and as JSON, exit codes, and every kind of bad input."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

import vennue
from tests.e2e.calls import open_round, report, task_for
from tests.e2e.server_process import model
from vennue.cli import run
from vennue.demo.tasks import task

VENNUE = str(Path(sys.executable).with_name("vennue"))
SPEC = """\
name: digits
demand: 2
rounds: 2
requirement: device.android >= 6
lease_s: 5
"""


class Done(NamedTuple):
    """How a command line ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command line in this process, which spares a second for each."""

    def run_it(*arguments, server=""):
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("VENNUE_")]:
                patch.delenv(name)
            if server:
                patch.setenv("VENNUE_SERVER", server)
            capsys.readouterr()
            return Done(int(run(arguments)), *capsys.readouterr())

    return run_it


class Served:
    """A server that the command line has started."""

    def __init__(self, data_dir, **environment):
        self.process = subprocess.Popen(
            [VENNUE, "serve", "--port", "0", "--data-dir", str(data_dir), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        document = ""
        while not document.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            document += line
        self.started = json.loads(document)
        self.url = self.started["url"]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.communicate(timeout=250)
        return self.process.returncode


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    served = Served(
        tmp_path_factory.mktemp("pool"),
        VENNUE_PACING_SHORT_S="0.1", VENNUE_PACING_BUSY_S="0.2", VENNUE_PACING_IDLE_S="0.3",
        VENNUE_QUOTAS='{"vision": {"devices": 5, "borrow": false}}',
    )  # fmt: skip
    yield served
    assert served.stop() == 0


@pytest.fixture
def ask(server, command):
    return lambda *arguments: command(*arguments, server=server.url)


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def job(ask, job_file):
    """A submitted job's id; cancelled at the end."""
    id = ask("submit", str(job_file)).stdout.strip()
    yield id
    ask("cancel", id)


def test_serve_says_as_json_where_it_listens(server):
    assert server.started["url"].startswith("http://127.0.0.1:")
    assert server.started["pid"] == server.process.pid


def test_submit_prints_the_id_and_nothing_else(ask, job_file):
    done = ask("submit", str(job_file))

    assert done.returncode == 0
    id = done.stdout.removesuffix("\n")
    assert " " not in id
    assert "\n" not in id
    assert json.loads(ask("show", id, "--json").stdout)["id"] == id
    assert ask("cancel", id).returncode == 0


def test_q9_a_chain_of_job_files_is_submitted_in_its_order(ask, tmp_path):
    files = []
    for name, after in (("last", "[middle]"), ("middle", "[{job: first, when: ended}]"), ("first", "[]")):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"name: {name}\ndemand: 1\nafter: {after}\n")
        files.append(str(path))
    first, middle, last = json.loads(ask("submit", *files, "--key", "chain", "--json").stdout)
    assert [job["spec"]["name"] for job in (first, middle, last)] == ["first", "middle", "last"]
    assert middle["spec"]["after"] == [{"job": first["id"], "when": "ended"}]
    assert last["reason"]["code"] == "waiting-for-job"
    assert last["reason"]["blocking"] == [middle["id"]]
    again = json.loads(ask("submit", *files, "--key", "chain", "--json").stdout)
    assert [job["id"] for job in again] == [first["id"], middle["id"], last["id"]]
    ask("cancel", middle["id"])
    assert json.loads(ask("show", last["id"], "--json").stdout)["state"] == "cancelled"
    ask("cancel", first["id"])


def test_the_same_key_submits_one_job(ask, job_file):
    first, second = (ask("submit", str(job_file), "--key", "k1", "--json") for _ in range(2))

    assert json.loads(first.stdout)["id"] == json.loads(second.stdout)["id"]


def test_show_has_every_field_of_a_job_even_where_it_was_left_out(ask, job):
    shown = json.loads(ask("show", job, "--json").stdout)

    assert shown["state"] == "active"
    assert shown["spec"]["min_fraction"] == 0.8
    assert shown["spec"]["private_requirement"] is None
    assert shown["reason"]["code"] == "waiting-for-owner"
    assert shown["reason"]["needs"] is None
    assert shown["rounds"] == []


def test_show_tells_a_person_state_reason_and_requirement(ask, job):
    shown = ask("show", job).stdout

    assert "active" in shown
    assert "round 1 waits for the job's owner to open it" in shown
    assert "device.android >= 6" in shown


def test_show_and_why_tell_what_was_refused_and_what_was_given_back(ask, server, job):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        open_round(client, job)
        first, second = (task_for(client, name, android=7) for name in ("refused", "gives-back"))
        for _ in range(2):
            assert report(client, first, model(float("nan"))).status_code == 422
        path, shown = f"/v1/assignments/{second['assignment']}/abort", {"authorization": f"Bearer {second['token']}"}
        assert client.post(path, json={"reason": "no disk"}, headers=shown).status_code == 204

    for verb in ("show", "why"):
        told = ask(verb, job).stdout
        assert re.search(r"reports refused +2\n", told)
        assert re.search(r"2 invalid-update +w: element 0 is nan", told)
        assert re.search(r"tasks given back +1\n", told)
        assert re.search(r"1 given-back +no disk \(the last at ", told)
        assert json.loads(ask(verb, job, "--json").stdout)["setbacks"]["refused_reports"] == 2
    assert json.loads(ask("show", job, "--json").stdout)["rounds"][0]["returned_tasks"] == 1


def test_jobs_lists_a_job_as_a_table_and_as_json(ask, job):
    table = ask("jobs").stdout
    (listed,) = [entry for entry in json.loads(ask("jobs", "--json").stdout)["jobs"] if entry["id"] == job]

    assert job in table
    assert "0/2" in table
    assert listed["spec"]["demand"] == 2


def test_pool_and_plan_show_the_registered_requirement(ask, job):
    pool = json.loads(ask("pool", "--json").stdout)
    plan = json.loads(ask("plan", "--json").stdout)

    assert pool["policy"] == plan["policy"] == "venn-sched"
    assert job in next(r for r in pool["requirements"] if r["text"] == "device.android >= 6")["jobs"]
    assert "device.android >= 6" in ask("pool").stdout
    assert ask("plan").returncode == 0


def test_pool_shows_what_each_tenant_with_a_quota_uses(ask, tmp_path):
    spec = tmp_path / "vision.yaml"
    spec.write_text("name: vision\ndemand: 2\ntenant: vision\n")
    id = ask("submit", str(spec)).stdout.strip()
    tenants = ask("pool").stdout.partition("tenants with a quota, in devices")[2].splitlines()

    assert tenants[2].split() == ["vision", "0/5", "0", "0", "waits"]
    assert ask("cancel", id).returncode == 0


def test_serve_claims_no_policy_since_the_one_in_force_may_have_been_chosen_since(server):
    assert "policy" not in server.started


def test_a_cancelled_job_says_who_wanted_it_and_cancelling_again_changes_nothing(ask, job):
    first = json.loads(ask("cancel", job, "--reason", "wrong data", "--json").stdout)
    second = json.loads(ask("cancel", job, "--reason", "again", "--json").stdout)

    assert first["state"] == second["state"] == "cancelled"
    assert "wrong data" in second["reason"]["text"]


def test_waiting_for_a_job_that_is_cancelled_ends_with_1(ask, server, job_file):
    waiting = subprocess.Popen(
        [VENNUE, "submit", str(job_file), "--wait", "--key", "awaited"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"VENNUE_SERVER": server.url},
    )  # fmt: skip
    assert waiting.stderr is not None
    said = waiting.stderr.readline()
    id = said.split()[-1]
    assert ask("cancel", id, "--reason", "enough").returncode == 0

    out, _ = waiting.communicate(timeout=250)
    assert waiting.returncode == 1
    assert "cancelled" in out


def test_phones_of_a_fleet_serve_a_job_to_its_end(ask, server, job):
    fleet = subprocess.Popen(
        [VENNUE, "fleet", "--devices", "40", "--speedup", "2000", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"VENNUE_SERVER": server.url},
    )  # fmt: skip
    attached = vennue.Job.attach(server.url, job)
    model = task("digits").initial_model(0)
    for turn in attached.rounds():
        model = turn.run(model)
    attached.close()
    fleet.send_signal(signal.SIGINT)
    out, said = fleet.communicate(timeout=250)

    assert fleet.returncode == 0, said
    summary = json.loads(out)
    assert summary["devices"] == 40
    # A phone that leaves as its report is counted does not learn so.
    assert summary["reports"] + summary["drop_outs"] >= 4
    assert summary["check_ins"] >= summary["tasks"] >= 4
    assert summary["failures"] == 0
    shown = json.loads(ask("show", job, "--json").stdout)
    assert (shown["state"], shown["committed_rounds"]) == ("completed", 2)
    assert [turn["state"] for turn in shown["rounds"]] == ["committed", "committed"]
    assert shown["rounds"][0]["metrics"]["loss"] > 0
    assert "committed" in ask("show", job).stdout
    assert all(np.isfinite(values).all() for values in model.values())


def test_a_fleet_stops_by_itself_when_its_time_is_up(ask):
    done = ask("fleet", "--devices", "5", "--for", "0.5", "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["elapsed_s"] >= 0.5


# -- bad input: a clear error, the right exit code, nothing changed --------------------------------------------------


def refused(done, code, *said):
    """The problem that a command has printed as JSON, and as text."""
    assert done.returncode == code, done.stderr
    problem = json.loads(done.stdout)["error"]
    assert problem["exit_code"] == code
    for text in said:
        assert text in done.stderr
    return problem


def test_a_job_that_is_not_there_is_4(ask):
    for verb in ("show", "cancel"):
        assert refused(ask(verb, "no-such-job", "--json"), 4, "there is no job no-such-job")["code"] == "not-found"


def test_a_text_that_can_be_no_jobs_id_is_4_and_says_where_the_ids_are(ask):
    for text in ("", "next/word"):
        assert refused(ask("show", text, "--json"), 4, f"there is no job {text!r}", "`vennue jobs` lists them")


def test_a_server_that_is_not_there_is_3(command):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for verb in (["jobs"], ["pool"], ["plan"], ["show", "x"], ["fleet", "--devices", "1"]):
            problem = refused(command(*verb, "--json", server=address), 3, address, "vennue serve")
            assert problem["code"] == "unavailable"


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        (("device.android", "device.andriod"), "requirement", "line 4"),
        (("demand: 2", "demand: 0"), "demand", "line 2"),
        (("rounds: 2", "rounds: -1"), "rounds", "line 3"),
        (("lease_s: 5", "min_fraction: 1.5"), "min_fraction", "line 5"),
        (("lease_s: 5", "deadline_s: 0.001"), "deadline_s", "line 5"),
        (("demand: 2", "demand: many"), "demand", "line 2"),
        (("demand: 2", "demnad: 2"), "demnad", "did you mean 'demand'?"),
        (("name: digits", "name: ["), "file", "not YAML"),
    ],
)
def test_a_bad_job_file_is_2_and_makes_no_job(ask, job_file, change, field, said):
    before = ask("jobs", "--json").stdout
    job_file.write_text(SPEC.replace(*change))

    problem = refused(ask("submit", str(job_file), "--json"), 2, "job.yaml", said)

    assert problem["field"] == field
    assert len(json.loads(ask("jobs", "--json").stdout)["jobs"]) == len(json.loads(before)["jobs"])


def test_a_job_file_that_is_not_there_is_2(ask, tmp_path):
    assert refused(ask("submit", str(tmp_path / "absent.yaml"), "--json"), 2, "there is no file")["field"] == "file"


def test_a_port_in_use_is_a_clear_error(server, command, tmp_path):
    port = server.url.rpartition(":")[2]

    refused(command("serve", "--port", port, "--data-dir", str(tmp_path / "d"), "--json"), 1, port, "in use")


def test_a_data_directory_in_use_is_a_clear_error(server, command):
    done = command("serve", "--port", "0", "--data-dir", server.started["data_dir"], "--json")

    assert refused(done, 1, "another server")["field"] == "data_dir"


def test_a_data_directory_that_cannot_be_made_is_a_clear_error(command):
    # /proc takes no directories, not even from root, whom permissions do not bind.
    refused(command("serve", "--port", "0", "--data-dir", "/proc/vennue", "--json"), 1, "/proc/vennue")


def test_a_data_directory_that_is_a_file_is_called_one(command, job_file):
    refused(command("serve", "--port", "0", "--data-dir", str(job_file), "--json"), 1, "is a file", "name a directory")


@pytest.mark.parametrize(
    ("arguments", "field", "said"),
    [
        (["serve", "--policy", "venn-shed"], "policy", "venn-sched"),
        (["serve", "--port", "70000"], "port", "0 to 65535"),
        (["serve", "--set", "demand_scope"], "set", "NAME=VALUE"),
        (["fleet", "--devices", "0"], "devices", "above 0"),
        (["fleet", "--for", "0"], "for", "above 0"),
        (["fleet", "--sessions", "phone"], "trace", "did you mean 'phones'?"),
        (["demo", "--policy", "venn-shed"], "policy", "venn-sched"),
        (["demo", "--baseline", "random-ordre"], "baseline", "random-order"),
        (["demo", "--jobs", "/nowhere.yaml"], "jobs", "/nowhere.yaml"),
        (["demo", "--keep", "/proc"], "keep", "not empty"),
    ],
)
def test_an_option_that_makes_no_sense_is_2_with_its_name_and_the_fix(command, arguments, field, said):
    assert refused(command(*arguments, "--json"), 2, said)["field"] == field


def test_a_program_that_fails_shows_no_traceback_and_one_document():
    done = subprocess.run(
        [VENNUE, "show", "x", "--server", "http://127.0.0.1:9", "--json"],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip

    assert refused(done, 3, "vennue serve")["field"] == "server"
    assert "Traceback" not in done.stderr


def test_a_value_of_the_wrong_kind_is_2(command):
    assert refused(command("fleet", "--devices", "many", "--json"), 2, "--devices")["code"] == "usage"
