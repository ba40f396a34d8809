"""``vennue why`` and ``vennue what-if`` against a real server with a little supply."""

import json

import pytest

from tests.e2e.calls import open_round
from tests.e2e.server_process import ServerProcess
from vennue.cli import run
from vennue.cli.terminal import ExitCode


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A pool in which 30 devices with 6 GB and 60 with 2 GB have checked in."""
    with ServerProcess(tmp_path_factory.mktemp("pool") / "data") as running, running.client() as client:
        for number in range(90):
            attributes = {"ram_gb": 2 if number % 3 else 6}
            client.post("/v1/check-ins", json={"device": f"d{number}", "attributes": attributes})
        yield running


@pytest.fixture
def job(server):
    with server.client() as client:
        spec = {"name": "next-word", "demand": 5000, "rounds": 2, "requirement": "device.ram_gb >= 4"}
        id = client.post("/v1/jobs", json={"spec": spec}).json()["id"]
        open_round(client, id)
        yield id
        client.post(f"/v1/jobs/{id}/cancel")


@pytest.fixture
def say(server, capsys):
    def ask(*arguments):
        capsys.readouterr()
        code = run([*arguments, "--server", server.url])
        return code, capsys.readouterr().out

    return ask


def test_why_tells_people_the_supply_the_regions_and_what_would_change_it(say, job):
    code, said = say("why", job)
    assert code == ExitCode.OK
    assert f"{job} is active: 0 of 5000 devices" in said
    assert "regions that it may use" in said
    assert "with ram_gb >= 2 instead of >= 4 the supply would be 3×" in said


def test_why_tells_scripts_the_same(say, job):
    told = json.loads(say("why", job, "--json")[1])
    assert told["reason"]["needs"] == 5000
    assert told["changes"][0]["value"] == "device.ram_gb >= 2"
    assert len(told["supply_by_hour_per_s"]) == 24


def test_why_of_a_job_that_is_not_there_is_not_found(say):
    assert say("why", "gone")[0] == ExitCode.NOT_FOUND


def test_what_if_shows_every_job_with_and_without_the_new_one(say, job, tmp_path):
    path = tmp_path / "new.yaml"
    path.write_text("name: newcomer\ndemand: 10\nrounds: 1\n")
    found = json.loads(say("what-if", str(path), "--seeds", "1", "--json")[1])
    assert [(one["job"], one["name"], one["rounds"]) for one in found["jobs"]] == [
        (job, "next-word", 2),
        ("", "newcomer", 1),
    ]
    assert all(one["with_s"] > 0 for one in found["jobs"])
    code, said = say("what-if", str(path), "--seeds", "1", "--policy", "fifo")
    assert code == ExitCode.OK
    assert "newcomer (new)" in said


def test_what_if_says_where_the_file_is_wrong(say, tmp_path):
    path = tmp_path / "new.yaml"
    path.write_text("name: newcomer\ndemand: 0\n")
    code, said = say("what-if", str(path), "--json")
    assert code == ExitCode.INVALID
    assert "line 2" in json.loads(said)["error"]["message"]
