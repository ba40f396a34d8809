"""What it costs not to share: the same jobs and devices under policies that give each device to one job."""

import pytest

from vennue.core.job import JobSpec
from vennue.simulation.run import simulate
from vennue.simulation.tables import jct_s
from vennue.simulation.workload import JobTemplate

JOBS = [
    JobTemplate(JobSpec(name=f"job {n}", demand=150, rounds=3, deadline_s=1000.0), 30.0 * n, 30.0) for n in range(5)
]


@pytest.fixture(scope="module")
def average_s():
    def run(policy: str) -> float:
        return float(jct_s(simulate(JOBS, policy, options="faithful", engine="reference", validate=True)).mean())

    return {policy: run(policy) for policy in ("fifo", "static-partition", "client-random")}


@pytest.mark.parametrize("policy", ["static-partition", "client-random"])
def test_jobs_take_longer_than_when_the_devices_are_shared(average_s, policy):
    assert average_s[policy] > 1.2 * average_s["fifo"]


def test_the_reference_engine_is_taken_since_the_kernel_knows_no_requests_that_need_nobody():
    assert simulate(JOBS, "static-partition").engine == "reference"
