"""What the training command says of its runs: tables, figures, and what to do about data that is not there."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from benchmarks import training
from benchmarks.training import SETTINGS, Point, Run, contention_table, curves_table, draw_contention, draw_curves
from vennue.core.errors import InvalidInput
from vennue.demo.demo import DemoResult, JobResult, Reached, RunResult
from vennue.testing.fleet import FleetSummary

SETTING = replace(SETTINGS["clothes"], rounds=2, target=0.75)


def run(name, *accuracies, seconds=10.0):
    points = [
        Point(round=at, elapsed_s=at * seconds, loss=2 - accuracy, accuracy=accuracy)
        for at, accuracy in enumerate(accuracies)
    ]
    return Run(name=name, points=points, examples_per_round=100)


def job(name, *history):
    reached = [Reached(elapsed_s=at, loss=1 - accuracy, accuracy=accuracy) for at, accuracy in history]
    return JobResult(
        name=name, task="digits", requirement="true", private_requirement=None, demand=1, rounds=len(history) - 1,
        state="completed", jct_s=history[-1][0], scheduling_delay_s=0.0, collection_s=0.0, devices_bound=1,
        loss_before=1.0, loss_after=0.1, accuracy_before=0.1, accuracy_after=history[-1][1], history=reached,
    )  # fmt: skip


def under(policy, *jobs):
    return RunResult(policy=policy, average_jct_s=1.0, jobs=list(jobs), fleet=FleetSummary(devices=1))


RESULT = DemoResult(
    seed=1,
    runs=[
        under("venn", job("a", (0, 0.1), (2, 0.5), (4, 0.8)), job("b", (0, 0.1), (6, 0.5))),
        under("random-order", job("a", (0, 0.1), (5, 0.4), (12, 1.0)), job("b", (0, 0.1), (9, 0.7))),
    ],
    speedup=1.0,
    succeeded=True,
)


def test_a_table_of_curves_says_when_the_target_was_reached_and_when_not():
    table = curves_table(SETTING, [run("central", 0.1, 0.8, 0.9), run("fedavg", 0.1, 0.5, 0.7)])
    assert table.splitlines()[2:] == [
        "| central | 90.0% | 1.100 | 1 | 10 s |",
        "| fedavg | 70.0% | 1.300 | not reached |  |",
    ]


def test_time_to_accuracy_counts_to_what_every_run_reaches():
    # Both reach 0.8 in job a and 0.5 in job b; 98 % of that is asked for.
    assert contention_table(RESULT).splitlines()[2:] == [
        "| a | 78.4% | 4.0 s | 12.0 s | 3.00 |",
        "| b | 49.0% | 6.0 s | 9.0 s | 1.50 |",
        "| mean | | 5.0 s | 10.5 s | 2.10 |",
    ]


@pytest.mark.parametrize(
    ("draw", "lines"),
    [
        (lambda path: draw_curves(path, SETTING, [run("central", 0.1, 0.8), run("fedavg", 0.1, 0.7)]), 4),
        (lambda path: draw_contention(path, RESULT), 4),
    ],
)
def test_a_figure_is_one_small_file_that_stands_alone(draw, lines, tmp_path):
    path = tmp_path / "figures" / "f.svg"
    draw(path)
    root = ET.fromstring(path.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len([element for element in root.iter() if "curve" in element.get("class", "")]) == lines
    assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert path.stat().st_size < 200_000


def test_a_data_set_that_is_not_installed_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "FASHION_MNIST", tmp_path)
    training.fashion_mnist.cache_clear()
    with pytest.raises(InvalidInput, match="apt-get install dataset-fashion-mnist"):
        training.fashion_mnist()
