"""``vennue simulate`` as its users run it: a process, its output, its files, its signals, its page in a browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vennue.cli import run
from vennue.cli.terminal import ExitCode

TINY = """
name: tiny
classes: {any: "true", fast: {cpu_score: 7}}
arrivals: {kind: fixed, gap_s: 6000, first_s: 60}
jobs:
  - {name: a, class: any, demand: 10, rounds: 2}
  - {name: b, class: fast, demand: 20, rounds: 2}
"""
FAST = ("--trace", "phones", "--preset", "faithful", "--engine", "reference")
"""Three hundred phones that ask once per session: few events, many hours."""
LONG = """
name: long
jobs: [{name: a, demand: 1000, rounds: 10000, deadline_s: 1000}]
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def vennue(*arguments: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command, and check its exit code."""
    command = [str(Path(sys.executable).with_name("vennue")), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_policies_are_compared_in_a_table_with_units(tiny, tmp_path):
    said = vennue("simulate", tiny, "--policy", "random-order,fifo,venn", "-j", 1, *FAST, folder=tmp_path).stdout
    lines = [line.split() for line in said.splitlines()]
    assert [line[0] for line in lines if line[0] in {"random-order", "fifo", "venn"}] == 2 * [
        "random-order",
        "fifo",
        "venn",
    ]
    assert re.search(r"avg, (s|min|h) +median, \1 +p95, \1 +speedup, × +fair, % +open", said)
    assert "delay, s  collection, s  at work, %" in said


def test_a_run_that_only_the_reference_engine_can_make_says_so_before_the_work(tiny, tmp_path):
    arguments = ("--policy", "fifo", "--set", "batch_window_s=1", "--set", "horizon_s=100000", "-j", 1, *FAST[:-2])
    noted = vennue("simulate", tiny, *arguments, folder=tmp_path).stderr.splitlines()
    assert noted[0].startswith("note: fifo is simulated at about twenty thousand check-ins a second")


def test_json_is_one_document_and_nothing_else(tiny, tmp_path):
    done = vennue("simulate", tiny, "--policy", "fifo,venn", "--seeds", 2, "--json", *FAST, folder=tmp_path)
    document = json.loads(done.stdout)
    assert [policy["policy"] for policy in document["policies"]] == ["fifo", "venn"]
    assert len(document["policies"][1]["speedup"]["each"]) == 2
    assert document["experiment"]["workload"]["name"] == "tiny"


def test_everything_that_can_be_written_is_written(tiny, tmp_path):
    pytest.importorskip("pyarrow")
    outputs = ("--report", "out.html", "--parquet", "tables", "--perfetto", "out.json.gz")
    vennue("simulate", tiny, "--policy", "fifo,venn", *outputs, *FAST, folder=tmp_path)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    tables = {f"tables/{name}.parquet" for name in ("runs", "jobs", "attempts", "usage", "regions")}
    assert made == {"tiny.yaml", "out.html", "out.json.gz", "tables/experiment.json", *tables}


def test_a_name_that_is_like_none_gets_the_list_instead_of_a_guess(capsys):
    assert run(["simulate", "nope"]) == ExitCode.INVALID
    error = capsys.readouterr().err
    assert "one of compute, even" in error
    assert "did you mean" not in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "venm"), "did you mean 'venn"),
        (("--policy", "venn:tier=2"), "did you mean 'tiers'"),
        (("--set", "poll_intervals=2"), "did you mean 'poll_interval_s'"),
        (("--set", "poll_interval_s=often"), "poll_interval_s"),
        (("--set", "poll_interval_s=-1"), "it is 60 in the preset default; docs/simulation.md tells"),
        (("--set", "dispatch_s=inf"), "dispatch_s"),
        (("--set", "batch_window_s=31"), "batch_window_s"),
        (("--trace", "phone"), "did you mean 'phones'"),
        (("--capacity", "papers"), "did you mean 'paper'"),
        (("--trace", "bad.csv"), "bad.csv, line 3: the session ends"),
        (("--trace", "words.csv"), "words.csv, line 2"),
        (("--devices", "none.csv"), "none.csv holds no device"),
        (("--set", "horizon_s=50", "--preset", "faithful"), "horizon_s"),
        (("--seeds", "0"), "at least 1"),
        (("--scale", "0"), "above 0"),
        (("--preset", "fathful"), "faithful"),
    ],
)
def test_bad_input_is_named_with_its_fix_before_the_work(tiny, tmp_path, arguments, said, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("device,start_s,end_s\n0,0,50\n1,70,60\n")
    (tmp_path / "words.csv").write_text("device,start_s,end_s\n0,zero,50\n")
    (tmp_path / "none.csv").write_text("device,cpu_score\n")
    assert run(["simulate", str(tiny), *arguments]) == ExitCode.INVALID
    error = capsys.readouterr().err
    assert said in error
    assert "fix:" in error


def test_a_report_that_cannot_be_written_is_known_before_the_work(tiny, tmp_path):
    error = vennue("simulate", tiny, "--report", "missing/out.html", folder=tmp_path, code=1).stderr
    assert "report: cannot write missing/out.html" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_leaves_a_partial_result_that_says_so(tmp_path, number, processes):
    (tmp_path / "long.yaml").write_text(LONG)
    command = ["simulate", "long.yaml", "--policy", "fifo,srsf,las", "-j", str(processes), "--engine", "reference"]
    program = f"""
import sys, vennue.cli, vennue.simulation.experiment as experiment, vennue.cli.simulate as cli
run = experiment.run_experiment
def begun(*args, told, **kwargs):
    def say(fraction, ended):
        if fraction > 0:
            print("begun", flush=True)
        told(fraction, ended)
    return run(*args, told=say, **kwargs)
cli.run_experiment = begun
if __name__ == "__main__":
    sys.exit(vennue.cli.run({[*command, "--report", "out.html"]!r}))
"""
    (tmp_path / "program.py").write_text(program)
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(number)
        output, error = running.communicate(timeout=250)
    assert running.returncode == 130, error
    assert "≥" in output
    assert "interrupted" in error
    assert "interrupted" in (tmp_path / "out.html").read_text()


@pytest.mark.services("chromium")
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_the_page_opens_offline_in_a_browser(tiny, tmp_path, ground):
    policies = ("--policy", "random-order,fifo,venn", "--seeds", 2)
    vennue("simulate", tiny, *policies, "--report", "out.html", *FAST, folder=tmp_path)
    # A script that the test adds says what a reader would see; the page itself has none.
    probe = """<script>addEventListener("load", () => {
      const wide = [...document.querySelectorAll("svg text")].filter(text => {
        const [box, page] = [text.getBoundingClientRect(), document.body.getBoundingClientRect()];
        return box.width && (box.left < page.left - 1 || box.right > page.right + 1);
      });
      document.title = JSON.stringify({
        fetched: performance.getEntriesByType("resource").length,
        figures: document.querySelectorAll("figure").length,
        panels: [...document.querySelectorAll(".panel")].filter(panel => panel.offsetHeight).length,
        wide: wide.map(text => text.textContent),
        scrolls: document.documentElement.scrollWidth > innerWidth,
        page: getComputedStyle(document.body).backgroundColor,
      });
    })</script>"""
    page = (tmp_path / "out.html").read_text()
    (tmp_path / "probed.html").write_text(page.replace("</body>", probe + "</body>"))
    chromium = shutil.which("chromium")
    assert chromium is not None
    scheme = {"dark": 0, "light": 1}[ground]
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--blink-settings=preferredColorScheme={scheme}",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,900", "--virtual-time-budget=5000",
            "--enable-logging=stderr",
            "--dump-dom", (tmp_path / "probed.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=250, check=True, env=os.environ | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, "the page complains in the browser's console"
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None
    seen = json.loads(found[1].replace("&quot;", '"'))
    assert (seen["fetched"], seen["figures"], seen["panels"]) == (0, 9, 1)
    assert seen["wide"] == []
    assert not seen["scrolls"]
    assert seen["page"] == {"light": "rgb(252, 252, 251)", "dark": "rgb(19, 21, 25)"}[ground]
