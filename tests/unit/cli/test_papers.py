"""``vennue papers``: its tables, its files, and what it says when something is wrong."""

import json

import pytest

from tests.unit.simulation.results import experiment
from vennue.cli import run
from vennue.cli.terminal import ExitCode
from vennue.simulation import papers
from vennue.simulation.papers.study import Findings, Study, Table


def findings(experiments, records):
    rows = tuple((record.policy, f"{record.jct_mean_s:.0f}") for record in records.of(experiments[0]))
    return Findings((Table("times", ("policy", "JCT, s"), rows),), {"drawn": "<svg/>"})


@pytest.fixture(autouse=True)
def tiny_study(monkeypatch):
    tiny = Study("tiny", "A small one.", 1.0, lambda _scale, _seeds: [experiment("fifo", "srsf")], findings)
    monkeypatch.setitem(papers.STUDIES, "tiny", tiny)


def test_without_a_study_all_are_listed(capsys):
    assert run(["papers"]) == ExitCode.OK
    first_words = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [word for word in first_words if word in papers.STUDIES] == list(papers.STUDIES)


def test_the_table_is_shown_and_written_with_the_figures_and_the_runs(capsys, tmp_path):
    assert run(["papers", "tiny", "-j", "1", "--out", str(tmp_path)]) == ExitCode.OK
    shown = capsys.readouterr()
    assert "JCT, s" in shown.out
    assert "written to" in shown.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drawn.svg", "runs.jsonl", "tiny.md"]
    assert (tmp_path / "tiny.md").read_text().startswith("### times (divided by 1, 5 seeds)\n\n| policy | JCT, s |\n")


def test_where_there_is_no_terminal_a_line_says_which_workload_is_being_run(capsys, tmp_path):
    run(["papers", "tiny", "-j", "1", "--out", str(tmp_path)])
    said = [line for line in capsys.readouterr().err.splitlines() if "% done" in line]
    assert said[0].startswith("0 % done; now ")
    assert len(said) == len(set(said))


def test_json_is_a_record_per_run(capsys, tmp_path):
    run(["papers", "tiny", "-j", "1", "--out", str(tmp_path), "--json"])
    assert [record["policy"] for record in json.loads(capsys.readouterr().out)] == ["fifo", "srsf"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speedup"], "did you mean 'speedups'?"),
        (["tiny", "--seeds", "0"], "seeds: must be at least 1"),
        (["tiny", "--scale", "0"], "scale: must be above 0"),
        (["tiny", "--jobs", "0"], "jobs: must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(arguments, said, capsys, tmp_path):
    out = tmp_path / "out"
    assert run(["papers", *arguments, "--out", str(out)]) == ExitCode.INVALID
    assert said in capsys.readouterr().err
    assert not out.exists()
