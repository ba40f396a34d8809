"""The papers' experiments: what is kept of every run, and how it is set beside what was published."""

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.simulation.results import experiment
from vennue.core.errors import InvalidInput
from vennue.simulation.experiment import Experiment
from vennue.simulation.options import PRESETS, options
from vennue.simulation.papers import STUDIES, get_study, published, sharing
from vennue.simulation.papers.records import Record, Records, conditions, key, speedup
from vennue.simulation.papers.study import Findings, Study, Table, said
from vennue.simulation.tables import Estimate


def record(of: Experiment, policy: str, seed: int, jct_s: float, **fields: Any) -> Record:
    workload, scale, trace, assumed, _, _ = key(of, policy, seed)
    usual: dict[str, Any] = {
        "ended": "finished",
        "jobs": 50,
        "unfinished": 0,
        "jct_of_class_s": dict.fromkeys(published.OF_CLASS, jct_s),
        "scheduling_delay_s": 60.0,
        "collection_s": 30.0,
        "fair": 0.5,
        "slowest": 1.25,
        "end_s": 7200.0,
        "online_s": 1000.0,
        "busy_s": 250.0,
        "bound": 120,
        "used": 100,
        "check_ins": 1000,
        "engine": "kernel",
        "wall_s": 1.0,
    }
    return Record(
        workload=workload,
        scale=scale,
        trace=trace,
        conditions=assumed,
        policy=policy,
        seed=seed,
        jct_mean_s=jct_s,
        **(usual | fields),
    )


def recorded(study: Study, jct_s: Callable[[int, int], float], seeds: int = 3) -> tuple[list[Experiment], Records]:
    """All records of a study; a run's JCT by the number of its policy and its seed."""
    experiments = list(study.experiments(64.0, seeds))
    records = Records()
    for one in experiments:
        for number, policy in enumerate(one.labels):
            for seed in one.seeds:
                records.add(record(one, policy, seed, jct_s(number, seed)))
    return experiments, records


def findings(name: str) -> Findings:
    """Of a study in which each policy is faster than the one before."""
    study = get_study(name)
    return study.findings(*recorded(study, lambda number, seed: (1000.0 + seed) / (1 + number)))


@pytest.fixture
def small() -> Experiment:
    """An experiment that takes a second."""
    return experiment("fifo", "srsf", seeds=(0, 1), options=PRESETS["faithful"])


# -- records -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_recorded_is_not_made_again(small, tmp_path):
    records = Records(tmp_path)
    assert records.complete([small]) == []
    file = tmp_path / "runs.jsonl"
    first = file.read_bytes()
    again = Records(tmp_path)
    again.complete([small])
    assert (len(again), file.read_bytes()) == (4, first)


def test_records_are_read_as_they_were_written(small, tmp_path):
    written = Records(tmp_path)
    written.complete([small])
    assert Records(tmp_path).of(small) == written.of(small)


def test_only_what_is_missing_is_run(small):
    records = Records()
    records.add(record(small, "fifo", 0, 10.0))
    left = [(part.labels, part.seeds) for part in records.missing(small)]
    assert left == [(["srsf"], (0,)), (["fifo", "srsf"], (1,))]


def test_a_study_that_is_stopped_keeps_the_runs_that_ended(small):
    records = Records()
    patient = dataclasses.replace(small, options=options("faithful", deadlines=False))
    records.complete([small, patient], stop=lambda: len(records) > 0)
    assert (len(records.of(small)), len(records.of(patient))) == (4, 0)


def test_progress_ends_with_all_the_work(small):
    seen: list[tuple[float, str]] = []
    Records().complete([small], told=lambda part, what: seen.append((part, what)))
    assert (seen[-1], seen == sorted(seen)) == ((1.0, "tiny"), True)


def test_the_same_jobs_under_other_conditions_are_another_run(small):
    patient = dataclasses.replace(small, options=options("faithful", deadlines=False))
    records = Records()
    records.add(record(small, "fifo", 0, 10.0))
    assert records.of(patient) == []


def test_a_line_that_is_no_record_is_named(tmp_path):
    (tmp_path / "runs.jsonl").write_text("{}\n")
    with pytest.raises(InvalidInput, match="line 1, is no record") as caught:
        Records(tmp_path)
    assert caught.value.field == "out"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (options("faithful"), "faithful"),
        (options(), "default"),
        (options("default", batch_window_s=30.0), "default batch_window_s=30.0"),
    ],
)
def test_conditions_are_a_preset_and_what_differs_from_it(chosen, expected):
    assert conditions(chosen) == expected


def test_a_speedup_pairs_runs_of_one_seed(small):
    base = [record(small, "fifo", 0, 10.0), record(small, "fifo", 1, 90.0)]
    faster = [record(small, "srsf", 1, 30.0), record(small, "srsf", 0, 2.0), record(small, "srsf", 2, 1.0)]
    found = speedup(base, faster)
    assert found is not None
    assert found.each == (3.0, 5.0)


def test_a_record_has_the_figures_of_its_run(small):
    records = Records()
    records.complete([small])
    found = records.of(small)[0]
    # Two rounds of 10 and two of 20 devices end when four fifths have reported.
    assert (found.jobs, found.used, found.unfinished, found.ended) == (2, 48, 0, "finished")
    assert sum(found.jct_of_class_s.values()) / 2 == pytest.approx(found.jct_mean_s)


# -- studies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_every_figure_is_a_drawing_of_its_own_that_fits_a_document(name):
    for drawing in findings(name).figures.values():
        root = ET.fromstring(drawing)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(drawing) < 200_000
        assert "NaN" not in drawing
        assert "inf" not in drawing
        assert "var(" not in drawing  # which only browsers understand


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_of_a_table_has_all_its_columns(name):
    found = findings(name).tables
    assert found
    assert all(len(row) == len(table.head) for table in found for row in table.rows)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_without_records_says_so_in_every_cell_and_draws_nothing(name):
    study = get_study(name)
    found = study.findings(study.experiments(64.0, 2), Records())
    assert found.figures == {}
    assert "–" in found.tables[0].markdown()


@pytest.mark.parametrize("name", STUDIES)
def test_the_experiments_of_a_study_can_be_run(name):
    for one in get_study(name).experiments(512.0, 1):
        assert one.check().keys() == {0}


def test_speedups_stand_beside_the_published_ones():
    even = findings("speedups").tables[0].rows[0]
    # fifo is number 1, so twice as fast as number 0 under every seed; venn is number 5.
    assert even[:3] == ("even", "2.00 ± 0.00", "1.38")
    assert even[-2:] == ("6.00 ± 0.00", "1.87")


def test_the_ablation_names_the_parts_that_the_paper_has():
    rows = findings("ablation").tables[0].rows
    assert [(row[1], row[2], row[4]) for row in rows if row[0] == "low" and row[4]] == [
        ("fifo with matching", "3", "1.62"),
        ("venn", "1", "1.79"),
        ("venn", "3", "1.88"),
    ]


def test_fairness_ends_with_the_published_figures():
    assert findings("fairness").tables[0].rows[-1] == ("published", "venn, ε = 2", "1.60", "69", "")


def test_what_sharing_gains_is_measured_against_pools_that_do_not_share():
    # venn is number 5 and static-partition number 0, so it is six times as fast; utilisation and throughput are equal.
    gains = findings("sharing").tables[1].rows
    assert gains[2][:2] == ("JCT", "6.00 (venn over static-partition, 500 devices)")
    assert gains[0][1].startswith("1.00 ")


def test_the_jobs_that_share_ask_for_equal_work():
    first, *_ = sharing.experiments(1.0, 1)
    assert {job.demand * (job.rounds or 0) for job in first.workload.jobs} == {1500}


def test_an_unknown_study_suggests_the_nearest():
    with pytest.raises(InvalidInput, match="no study 'speedup'") as caught:
        get_study("speedup")
    assert caught.value.fix == "did you mean 'speedups'?"


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [(None, "–"), (Estimate(1.5, None, None, (1.5,)), "1.50"), (Estimate(1.5, 1.25, 1.75, (1.4, 1.6)), "1.50 ± 0.25")],
)
def test_an_estimate_is_said_with_half_its_interval(estimate, expected):
    assert said(estimate) == expected


def test_a_table_is_markdown():
    table = Table("t", ("a", "b"), (("x", "1"),))
    assert table.markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |"
