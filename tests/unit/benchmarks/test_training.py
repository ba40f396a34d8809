"""What the training command says of its runs: tables, figures, and what to do about data that is not there."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from benchmarks import training
from benchmarks.training import (
    SETTINGS,
    Contention,
    Point,
    Run,
    contention_table,
    curves_table,
    draw_contention,
    draw_curves,
    main,
)
from vennue.core.errors import InvalidInput

SETTING = replace(SETTINGS["clothes"], rounds=2, target=0.75)


def run(name, *accuracies, seconds=10.0):
    points = [
        Point(round=at, elapsed_s=at * seconds, loss=2 - accuracy, accuracy=accuracy)
        for at, accuracy in enumerate(accuracies)
    ]
    return Run(name=name, points=points, examples_per_round=100)


def under(policy, **jobs):
    """What came of jobs whose models were so accurate after so many hours."""
    points = {
        name: [Point(round=at, elapsed_s=3600.0 * hour, loss=1.0, accuracy=accuracy) for at, (hour, accuracy) in found]
        for name, found in ((name, list(enumerate(history))) for name, history in jobs.items())
    }
    return Contention(policy=policy, jobs=points)


RUNS = [
    under("venn", a=[(0, 0.1), (2, 0.5), (4, 0.8)], b=[(0, 0.1), (6, 0.5)]),
    under("random-order", a=[(0, 0.1), (5, 0.4), (12, 1.0)], b=[(0, 0.1), (9, 0.7)]),
]


def test_a_table_of_curves_says_when_the_target_was_reached_and_when_not():
    table = curves_table(SETTING, [run("central", 0.1, 0.8, 0.9), run("fedavg", 0.1, 0.5, 0.7)])
    assert table.splitlines()[2:] == [
        "| central | 90.0% | 1.100 | 1 | 10 s |",
        "| fedavg | 70.0% | 1.300 | not reached |  |",
    ]


def test_time_to_accuracy_counts_to_what_every_run_reaches():
    # Both reach 0.8 in job a and 0.5 in job b; 98 % of that is asked for.
    assert contention_table(RUNS).splitlines()[2:] == [
        "| a | 78.4% | 4.0 h | 12.0 h |",
        "| b | 49.0% | 6.0 h | 9.0 h |",
        "| mean | | 5.0 h | 10.5 h |",
        "| speedup | | 2.10 | 1.00 |",
        "| last round, mean | | 5.0 h | 10.5 h |",
    ]


@pytest.mark.parametrize(
    ("draw", "lines"),
    [
        (lambda path: draw_curves(path, SETTING, [run("central", 0.1, 0.8), run("fedavg", 0.1, 0.7)]), 4),
        (lambda path: draw_contention(path, RUNS), 4),
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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("curves --rounds 0", "argument --rounds: must be at least 1, got 0"),
        ("curves --task nosuch", "argument --task: invalid choice: 'nosuch'"),
        ("contention --jobs nosuch.yaml", "nosuch.yaml"),
        ("contention --policies nosuch", "there is no policy 'nosuch'"),
        ("contention --output FILE/x", "Not a directory"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_told_in_a_line(line, said, tmp_path, capsys):
    (tmp_path / "file").touch()
    way, *rest = line.replace("FILE", str(tmp_path / "file")).split()
    with pytest.raises(SystemExit) as ended:
        main([way, "--output", str(tmp_path), *rest])
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("benchmarks.training")
    assert said in told
