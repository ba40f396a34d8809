"""Real training reaches a real target: through a server process, a fleet of 300 phones and each strategy's own step.

And jobs that contend for these phones, in virtual time.
"""

import asyncio
from dataclasses import replace

import pytest

from benchmarks.training import FASHION_MNIST, SETTINGS, central, contention, federated
from vennue.core.job import JobSpec
from vennue.demo.jobs import DemoJob

pytestmark = [pytest.mark.slow_suite, pytest.mark.timeout(600)]


@pytest.mark.parametrize("at", [0, 1], ids=["fedavg", "fedadam"])
def test_clothes_are_told_apart_by_what_the_fleet_has_learned(at, tmp_path):
    setting = replace(SETTINGS["clothes"], rounds=20)
    run = asyncio.run(federated(setting, setting.ways[at], tmp_path, seed=1))
    assert run.points[0].accuracy < 0.2
    assert len(run.points) == 21
    # In 40 rounds they reach 0.75; central training on as many examples, 0.85.
    assert max(point.accuracy for point in run.points) > 0.6


def test_the_whole_of_fashion_mnist_is_learned_as_far_as_its_first_rounds_go(tmp_path):
    if not FASHION_MNIST.exists():
        pytest.skip("needs the data set: on Debian and Ubuntu, apt-get install dataset-fashion-mnist")
    setting = replace(SETTINGS["fashion-mnist"], rounds=15)
    run = asyncio.run(federated(setting, setting.ways[0], tmp_path, seed=1))
    alone = central(setting, run.examples_per_round, seed=1)
    assert run.points[-1].accuracy > 0.7
    assert alone.points[-1].accuracy > 0.8


def test_contention_is_the_same_run_each_time_and_everybody_learns():
    jobs = [
        DemoJob(task="digits", job=JobSpec(name=name, demand=demand, rounds=3, requirement=requirement, lease_s=1500.0))
        for name, demand, requirement in (("many", 40, "true"), ("few", 5, "device.cpu_score >= 7"))
    ]
    first, second = (contention("venn", jobs, seed=1) for _ in range(2))
    assert first == second
    assert all(len(points) == 4 and points[-1].loss < points[0].loss for points in first.jobs.values())
