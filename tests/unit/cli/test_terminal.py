"""How commands speak: figures for people, failures with field, reason and fix, exit codes for scripts."""

import json
import re

import pytest

from vennue.cli import app, run, terminal
from vennue.cli.terminal import ExitCode, duration, exit_code, rate
from vennue.core import errors


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4231, "0.42 s"),
        (9.99, "9.99 s"),
        (38.04, "38 s"),
        (12.34, "12.3 s"),
        (99.6, "1 min 40 s"),
        (725.0, "12 min 5 s"),
        (12_000.0, "3 h 20 min"),
        (370_800.0, "4 d 7 h"),
        (None, "–"),
    ],
)
def test_a_duration_is_said_in_the_units_that_people_use(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("per_s", "said"), [(12.345, "12.3/s"), (0.01, "0.01/s"), (0.005, "0.3/min"), (0.0001, "0.36/h"), (0.0, "0/h")]
)
def test_a_rate_is_said_per_second_minute_or_hour_as_it_reads_best(per_s, said):
    assert rate(per_s) == said


def test_a_table_in_a_pipe_has_no_spaces_at_the_ends_of_its_lines(capsys):
    table = terminal.table("job", "state")
    table.add_row("a", "active")
    table.add_row("b", "completed after a while")
    terminal.output().print("told: ", end="")
    terminal.output().print(table)
    assert capsys.readouterr().out == "told: job  state\na    active\nb    completed after a while\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownAttribute("x"), 2),
        (errors.Infeasible("x"), 2),
        (errors.Unavailable("x"), 3),
        (errors.NotFound("x"), 4),
        (errors.Conflict("x"), 1),
        (errors.StorageError("x"), 1),
        (errors.JobEnded("x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_the_exit_code_tells_bad_input_no_server_and_no_such_job_apart(error, code):
    assert exit_code(error) == code


def test_an_error_is_told_as_field_reason_and_fix_and_as_a_document_for_scripts(capsys):
    error = errors.InvalidInput("must be at least 1, got 0", field="demand", value=0, limit=1, fix="ask for one device")

    code = terminal.show_error(error, as_json=True)

    out, err = capsys.readouterr()
    assert code == ExitCode.INVALID
    assert "demand: must be at least 1, got 0" in err
    assert "fix: ask for one device" in err
    assert json.loads(out) == {
        "error": {
            "code": "invalid-input", "message": "must be at least 1, got 0", "field": "demand", "value": 0, "limit": 1,
            "fix": "ask for one device", "exit_code": 2,
        }
    }  # fmt: skip


def test_of_tasks_that_failed_side_by_side_the_first_failure_is_told(capsys):
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [errors.NotFound("there is no job x")])])

    assert terminal.show_error(group, as_json=False) == ExitCode.NOT_FOUND
    assert "there is no job x" in capsys.readouterr().err


def test_a_value_that_json_cannot_hold_is_shown_as_text(capsys, tmp_path):
    terminal.show_error(errors.InvalidInput("no", value=tmp_path), as_json=True)

    assert json.loads(capsys.readouterr().out)["error"]["value"] == str(tmp_path)


def test_an_unknown_command_suggests_the_nearest_and_exits_with_2(capsys):
    assert run(["jbos"]) == ExitCode.INVALID
    assert 'Did you mean "jobs"?' in capsys.readouterr().err


def test_a_wrong_option_is_a_json_document_too_when_json_is_asked_for(capsys):
    assert run(["jobs", "--json", "--sever", "x"]) == ExitCode.INVALID

    problem = json.loads(capsys.readouterr().out)["error"]
    assert problem["code"] == "usage"
    assert "--server" in problem["message"]


def test_every_command_shows_help_with_examples(capsys):
    for command in app:
        if command.startswith("-"):
            continue
        assert run([command, "--help"]) == ExitCode.OK
        shown = capsys.readouterr().out
        assert f"\n$ vennue {command}" in shown
        assert "ARGS" not in shown
        assert not re.search(r"default: (None|False)", shown)


def test_the_lines_of_an_arguments_text_are_joined_in_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run(["simulate", "--help"])
    assert "general, compute, memory, resource), or a YAML file." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trace synth x.csv --clock 24", "clock: must be an hour of the day, from 0 to below 24, got 24"),
        ("demo --limit -5", "limit: must be above 0 s, got -5"),
        ("fleet --workload 0", "workload_s: must be above 0"),
        ("simulate even --seed -1", "seeds: needs distinct seeds"),
        ("simulate even --policy-file nope.py", "policy_files: there is no file nope.py"),
        ("serve --port 0 --policy-file nope.py", "policy_files: there is no file nope.py"),
    ],
)
def test_a_value_that_makes_no_sense_is_told_with_the_fix_before_anything_is_done(
    line, said, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run(line.split()) == ExitCode.INVALID
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said}")
    assert "fix: " in told
    assert not list(tmp_path.glob("*.csv"))


def test_a_folder_for_papers_that_cannot_be_made_is_told_before_the_work(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert run(["papers", "speedups", "--out", str(tmp_path / "file")]) == ExitCode.FAILED
    assert f"out: cannot make the folder {tmp_path / 'file'}: File exists" in capsys.readouterr().err.replace("\n", " ")


def test_help_says_what_the_exit_codes_mean(capsys):
    assert run(["--help"]) == ExitCode.OK
    assert "Exit codes: 0 done, 1 failed, 2 invalid input, 3 server unreachable" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_exit_code_3_with_the_address_and_the_fix(capsys):
    # Port 9 is the discard service: nothing listens there.
    assert run(["jobs", "--server", "http://127.0.0.1:9"]) == ExitCode.UNREACHABLE

    said = capsys.readouterr().err
    assert "http://127.0.0.1:9" in said
    assert "vennue serve" in said


def test_an_address_that_is_none_is_invalid_input(capsys):
    assert run(["jobs", "--server", "nonsense"]) == ExitCode.INVALID
    assert "server" in capsys.readouterr().err


def test_the_default_address_is_where_the_server_listens():
    from vennue.sdk.transport import DEFAULT_SERVER
    from vennue.server.config import ServerConfig

    config = ServerConfig()
    assert f"http://{config.host}:{config.port}" == DEFAULT_SERVER
