"""Runs on a real Ray cluster, which is started on this machine for the test."""

import pytest

from vennue.simulation.experiment import Experiment, PolicyChoice, run_experiment
from vennue.simulation.options import options
from vennue.simulation.workload import parse

pytestmark = [pytest.mark.extras, pytest.mark.slow_suite]
ray = pytest.importorskip("ray", reason="Ray is not installed: `make test-rest` installs it")

WORKLOAD = """
name: tiny
jobs:
- {name: a, demand: 3, rounds: 4, deadline_s: 600}
- {name: b, demand: 5, rounds: 2, deadline_s: 600}
"""


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_changes_no_result():
    experiment = Experiment(
        workload=parse(WORKLOAD),
        policies=(PolicyChoice("fifo"), PolicyChoice("srsf")),
        seeds=(0, 1),
        trace="phones",
        options=options("faithful"),
        engine="reference",
    )
    here = run_experiment(experiment)
    there = run_experiment(experiment, cluster=True)
    assert there.failures == []
    assert [(run.policy, run.seed) for run in there.runs] == [(run.policy, run.seed) for run in here.runs]
    assert [run.jobs["ended_s"].tolist() for run in there.runs] == [run.jobs["ended_s"].tolist() for run in here.runs]
