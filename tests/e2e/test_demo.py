"""The demonstration, scaled down: real servers, real phones' sessions, real learning, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.calls import until
from vennue.core.errors import StorageError
from vennue.state.directory import DataDirectory

VENNUE = str(Path(sys.executable).with_name("vennue"))
JOBS = """\
- task: digits
  job: {name: cheques, demand: 4, rounds: 3, deadline_s: 30, lease_s: 3, requirement: device.cpu_score >= 7}
- task: digits
  arrives_s: 0.2
  job:
    name: trial
    demand: 3
    rounds: 3
    deadline_s: 30
    lease_s: 3
    private_requirement: device.digits_samples >= 5
"""
SMALL = ("--devices", "100", "--speedup", "1500")


@pytest.fixture
def jobs_file(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS)
    return path


@pytest.fixture
def scratch(tmp_path):
    """Where a demonstration has its temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def demo(jobs_file, scratch):
    """Starts a demonstration."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [VENNUE, "demo", *SMALL, "--jobs", str(jobs_file), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=os.environ | {"TMPDIR": str(scratch)},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_both_runs_complete_every_job_with_a_lower_loss_and_leave_what_was_to_be_kept(demo, scratch, tmp_path):
    kept = tmp_path / "kept"
    process = demo("--json", "--keep", str(kept))
    out, said = process.communicate(timeout=250)

    assert process.returncode == 0, said
    result = json.loads(out)
    assert [run["policy"] for run in result["runs"]] == ["venn-sched", "random-order"]
    for run in result["runs"]:
        assert [job["name"] for job in run["jobs"]] == ["cheques", "trial"]
        for job in run["jobs"]:
            assert (job["state"], job["rounds"]) == ("completed", 3)
            assert job["loss_after"] < job["loss_before"]
            assert [point["accuracy"] for point in job["history"]][:: job["rounds"]] == [
                job["accuracy_before"],
                job["accuracy_after"],
            ]
            assert job["jct_s"] >= job["scheduling_delay_s"] + job["collection_s"] > 0
        # A round commits with 80 % of its demand: 4 of 4 and 3 of 3 reports, three times each. A phone that leaves as
        # its report is counted does not learn so.
        assert run["fleet"]["reports"] + run["fleet"]["drop_outs"] >= 3 * 4 + 3 * 3
        assert run["fleet"]["check_ins"] >= run["fleet"]["tasks"] >= run["fleet"]["reports"]
        assert run["average_jct_s"] == pytest.approx(sum(job["jct_s"] for job in run["jobs"]) / 2)
    assert result["speedup"] == pytest.approx(result["runs"][1]["average_jct_s"] / result["runs"][0]["average_jct_s"])
    # Both runs begin with the same models.
    assert [job["loss_before"] for job in result["runs"][0]["jobs"]] == [
        job["loss_before"] for job in result["runs"][1]["jobs"]
    ]
    assert json.loads((kept / "result.json").read_text()) == result
    assert list(scratch.iterdir()) == []
    for policy in ("venn-sched", "random-order"):
        assert (kept / policy / "server.log").read_text() == ""


def test_a_single_run_says_in_words_how_it_went(demo):
    process = demo("--baseline", "none")
    out, said = process.communicate(timeout=250)

    assert process.returncode == 0, said
    assert re.search(r"venn-sched +\d+ s: cheques 0/3, trial 0/3", said)
    assert "s per job on average" in out
    assert out.strip().endswith("every job completed under venn-sched, each with a lower held-out loss")


@pytest.mark.slow_suite
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_server_and_no_temporary_files(demo, scratch, tmp_path, number):
    kept = tmp_path / "kept"
    process = demo("--keep", str(kept))
    _await_begin(process)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=250)

    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.strip().endswith("interrupted")
    assert list(scratch.iterdir()) == []
    assert _is_free(kept / "venn-sched" / "data")  # a server that lives would hold it


def test_a_killed_demo_takes_its_server_with_it(demo, tmp_path):
    kept = tmp_path / "kept"
    process = demo("--keep", str(kept))
    _await_begin(process)
    process.kill()
    process.communicate()

    # Nobody is left to tell when the server has stopped: its hold on the data says so.
    until(lambda: _is_free(kept / "venn-sched" / "data"))


def _await_begin(process):
    assert process.stderr.readline() == "100 phones, 2 jobs: venn-sched, then random-order\n"
    assert re.match(r"venn-sched +\d+ s: ", process.stderr.readline())


def _is_free(data):
    try:
        with DataDirectory(data):
            return True
    except StorageError:
        return False


def test_a_run_that_does_not_end_in_time_is_a_failure_that_says_which_jobs(demo):
    process = demo("--limit", "0.5", "--json")
    out, _ = process.communicate(timeout=250)

    assert process.returncode == 1
    problem = json.loads(out)["error"]
    assert problem["field"] == "limit_s"
    assert "cheques, trial" in problem["message"]
