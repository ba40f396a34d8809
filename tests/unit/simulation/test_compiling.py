"""Half a minute of compiling is announced, once, and only where it really comes."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vennue.simulation.experiment import Experiment, PolicyChoice, run_experiment
from vennue.simulation.kernel import caching, compiling
from vennue.simulation.options import Options
from vennue.simulation.workload import load

SAID = "Compiling the simulator: about half a minute, once per installation"


@pytest.fixture
def smallest(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """The smallest runs that are asked for, which compile nothing here."""
    made: list[None] = []
    monkeypatch.setattr(compiling, "run_smallest", lambda: made.append(None))
    compiling.make_ready.cache_clear()
    yield made
    compiling.make_ready.cache_clear()


def test_it_is_said_once_where_there_is_no_compiled_code(smallest, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "is_kept", lambda: False)
    compiling.make_ready()
    compiling.make_ready()
    assert [record.message for record in caplog.records] == [SAID]
    assert caplog.records[0].levelno == logging.WARNING  # which a program that has set up no logging sees, too
    assert len(smallest) == 1


def test_nothing_is_said_where_the_code_is_kept(smallest, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "is_kept", lambda: True)
    compiling.make_ready()
    assert (caplog.records, smallest) == ([], [])


def test_code_that_was_kept_by_an_earlier_process_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(caching, "_BESIDE_BYTE_CODE", tmp_path)
    monkeypatch.setattr(caching._config, "CACHE_DIR", "")
    assert not caching.is_kept()
    folder = tmp_path / f"kernel-{caching.digest()}" / "kernel_0"
    folder.mkdir(parents=True)
    (folder / "loop.advance-39.py311.nbi").touch()  # an index alone is of a process that was killed
    assert not caching.is_kept()
    (folder / "loop.advance-39.py311.1.nbc").touch()
    assert caching.is_kept()


@pytest.mark.parametrize(
    ("asked", "times"),
    [({}, 1), ({"engine": "reference"}, 0), ({"validate": True}, 0), ({"batch_window_s": 5.0}, 0)],
)
def test_processes_that_run_the_kernel_find_it_compiled(asked, times, smallest, monkeypatch):
    monkeypatch.setattr(compiling, "is_kept", lambda: False)
    monkeypatch.setattr("vennue.simulation.parallel.in_processes", lambda _, runs, *rest: [None for _ in runs])
    window_s = asked.get("batch_window_s", 0.0)
    given = {name: value for name, value in asked.items() if name != "batch_window_s"}
    run_experiment(
        Experiment(
            workload=load("even").scaled(64),
            policies=(PolicyChoice("fifo"),),
            seeds=(0, 1),
            options=Options(horizon_s=60.0, batch_window_s=window_s),
            **given,
        ),
        workers=2,
    )
    assert len(smallest) == times


@pytest.mark.slow_suite
@pytest.mark.timeout(600)
def test_a_users_first_simulation_says_that_it_compiles_and_the_second_does_not(tmp_path: Path):
    command = [
        str(Path(sys.executable).with_name("vennue")), "simulate", "even", "--scale", "1000", "--policy", "fifo,srsf",
        "--set", "horizon_s=3600", "-j", "2",
    ]  # fmt: skip
    said = [
        subprocess.run(
            command, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert [text.count(SAID) for text in said] == [1, 0]
