"""The figures of an experiment, against values worked out by hand, and the tables that they come from."""

import json

import numpy as np
import pytest

from tests.unit.simulation.results import experiment, results, run_result
from vennue.simulation.experiment import run_experiment
from vennue.simulation.options import options
from vennue.simulation.tables import Estimate, document, speedup, student_t, summarise, write_parquet


def test_an_estimate_has_students_interval():
    # Values 1, 2, 3: mean 2, standard error 1/√3, t = 4.303 at 2 degrees of freedom.
    estimate = Estimate.of([1.0, 2.0, 3.0])
    assert estimate is not None
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((2.0, 2 - 2.484, 2 + 2.484), abs=1e-3)


def test_an_estimate_from_one_seed_has_no_interval():
    assert Estimate.of([1.5]) == Estimate(1.5, None, None, (1.5,))


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (4, 2.776), (40, 2.0211), (60, 2.0003), (120, 1.9799)])
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_t(freedom) == pytest.approx(quantile, abs=2e-4)


def test_completion_times_are_averaged_over_all_jobs():
    (summary,) = summarise(results(run_result(jct_s=(100, 300)), run_result(seed=1, jct_s=(200, 400))))
    assert (summary.jct_mean_s, summary.jct_p50_s, summary.jobs) == (250.0, 250.0, 4)
    assert summary.jct_p95_s == pytest.approx(385.0)  # numpy's linear rule: 300 + 0.85 × 100


def test_an_unfinished_job_counts_with_its_time_so_far_and_marks_the_averages():
    (summary,) = summarise(results(run_result(jct_s=(100, None), end_s=1000)))
    assert (summary.jct_mean_s, summary.unfinished, summary.lower_bound) == (400.0, 1, True)  # (100 + 1000 − 300) / 2


def test_speedups_are_paired_by_seed():
    base = [run_result("fifo", 0, jct_s=(200, 200)), run_result("fifo", 1, jct_s=(900, 900))]
    runs = [run_result("venn", 0, jct_s=(100, 100)), run_result("venn", 1, jct_s=(300, 300))]
    estimate = speedup(base, runs)
    assert estimate is not None
    assert estimate.each == (2.0, 3.0)
    assert estimate.mean == 2.5


def test_a_seed_without_its_partner_is_left_out_of_the_comparison():
    estimate = speedup([run_result("fifo", 0)], [run_result("venn", 0), run_result("venn", 1)])
    assert estimate is not None
    assert len(estimate.each) == 1


def test_speedups_may_be_of_one_class_alone():
    estimate = speedup([run_result(jct_s=(100, 300))], [run_result(jct_s=(200, 100))], "fast")
    assert estimate is not None
    assert estimate.mean == 3.0


def test_time_per_round_is_told_apart_by_what_it_was_spent_on():
    # Of each job: one committed round (30 s + 10 s), and 20 s in an attempt that had 5 of its 10 devices.
    (summary,) = summarise(results(run_result()))
    spent_s = (summary.scheduling_delay_s, summary.collection_s, summary.starved_s, summary.retried_s)
    assert spent_s == (30.0, 10.0, 20.0, 0.0)


def test_the_share_of_jobs_within_their_fair_share_is_over_all_seeds():
    # Alone, jobs take 100 s; a-1 and b-2 are never there together in the first run, and overlap in the second.
    runs = [run_result(jct_s=(100, 101)), run_result(seed=1, jct_s=(900, 600))]
    found = results(*runs, alone_s={0: np.array([100.0, 100.0]), 1: np.array([800.0, 100.0])})
    assert summarise(found)[0].fair == 0.5


def test_waste_is_told_by_its_cause():
    (summary,) = summarise(results(run_result()))
    shares = (summary.used, summary.aborted, summary.straggling, summary.lost)
    assert shares == pytest.approx((18 / 30, 6 / 30, 4 / 30, 2 / 30))


def test_utilisation_is_device_time_at_work_over_device_time_online():
    (summary,) = summarise(results(run_result()))
    assert summary.utilisation == 0.25


def test_a_document_for_programs_holds_figures_failures_and_parameters():
    found = document(results(run_result("fifo"), run_result("venn")))
    text = json.loads(json.dumps(found))
    assert [policy["policy"] for policy in text["policies"]] == ["fifo", "venn"]
    assert text["policies"][1]["speedup"]["mean"] == 1.0
    assert text["experiment"]["options"]["poll_interval_s"] == 60.0
    assert text["runs"][0]["check_ins"] == 1000
    assert text["stopped"] is False


def test_parquet_tables_hold_a_row_for_every_job_and_attempt(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = run_experiment(experiment("fifo", "venn", options=options("faithful")))
    write_parquet(tmp_path / "tables", found)
    jobs = parquet.read_table(tmp_path / "tables" / "jobs.parquet").to_pydict()
    attempts = parquet.read_table(tmp_path / "tables" / "attempts.parquet").to_pydict()
    assert jobs["policy"] == ["fifo", "fifo", "venn", "venn"]
    assert len(attempts["job"]) == sum(len(run.attempts["job"]) for run in found.runs)
    assert json.loads((tmp_path / "tables" / "experiment.json").read_text())["trace"] == "paper"
