"""What it costs not to share: the same jobs and devices under policies that give each device to one job."""

import numba
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from vennue.core.errors import InvalidInput
from vennue.core.job import JobSpec
from vennue.core.plan import Plan, PoolView
from vennue.policies import Policy
from vennue.simulation.kernel import partition
from vennue.simulation.run import simulate
from vennue.simulation.tables import jct_s
from vennue.simulation.workload import JobTemplate

JOBS = [
    JobTemplate(JobSpec(name=f"job {n}", demand=150, rounds=3, deadline_s=1000.0), 30.0 * n, 30.0) for n in range(5)
]


@pytest.fixture(scope="module")
def average_s():
    def run(policy: str) -> float:
        return float(jct_s(simulate(JOBS, policy, options="faithful", engine="reference")).mean())

    return {policy: run(policy) for policy in ("fifo", "static-partition", "client-random")}


@pytest.mark.parametrize("policy", ["static-partition", "client-random"])
def test_jobs_take_longer_than_when_the_devices_are_shared(average_s, policy):
    assert average_s[policy] > 1.2 * average_s["fifo"]


class Latest(Policy):
    """Gives every device to the job that came last, whether or not that needs it."""

    name = "latest"
    work_conserving = False

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(view.everyone, choice=lambda device, draw, jobs: len(jobs) - 1)


class SaidSo(Latest):
    name = "latest-said-so"
    sees_everyone = True


def test_a_policy_of_ones_own_that_sees_everyone_runs_on_the_reference_engine():
    assert simulate(JOBS, SaidSo(), options="faithful").engine == "reference"


def test_the_kernel_refuses_a_plan_that_chooses_by_a_function_of_ones_own():
    with pytest.raises(InvalidInput, match="the function by which the policy's plan chooses"):
        simulate(JOBS, Latest(), options="faithful", engine="kernel")


@given(st.binary(max_size=partition.MAX_TEXT_BYTES))
def test_the_kernels_hash_is_the_one_of_the_library(text: bytes):
    assert int(hash_of(np.frombuffer(text.ljust(1, b"-"), np.uint8), len(text))) == xxhash.xxh64_intdigest(text)


@numba.njit(error_model="numpy")
def hash_of(text, size):
    return partition.xxh64(text, size)
