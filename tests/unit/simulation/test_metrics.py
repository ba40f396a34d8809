"""Fair shares, against numbers worked out by hand."""

import numpy as np
import pytest

from vennue.core.job import JobSpec
from vennue.simulation.metrics import alone_s, jobs_at_once, met_fair_share, shares_taken
from vennue.simulation.options import Options
from vennue.simulation.run import simulate
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, Trace
from vennue.simulation.workload import JobTemplate
from vennue.simulation.world import World

MEAN = DevicePopulation(DeviceTable({"ram_gb": [4.0]}), Capacity([78.0], [13_736.0]))
ONCE = Options(poll_interval_s=0, anonymous_sessions=True, dispatch_s=0, lease_s=None, overcommit=1, horizon_s=50_000)
TRACE = Trace(np.arange(100), np.arange(100) * 10, np.arange(100) * 10 + 500, period_s=1000)  # one every 10 s


def job(arrival_s: float, demand: int = 2, rounds: int = 3) -> JobTemplate:
    return JobTemplate(JobSpec(name="j", demand=demand, rounds=rounds, deadline_s=300.0), arrival_s, 30.0)


def test_alone_a_round_takes_its_devices_at_the_full_rate_and_the_last_report_it_needs():
    world = World([job(0.0)], TRACE, MEAN, seed=0, options=ONCE)
    assert alone_s(world).tolist() == [pytest.approx(3 * (2 / 0.1 + 50))]


def test_a_job_alone_meets_itself_only():
    result = simulate([job(0.0)], "fifo", trace=TRACE, population=MEAN, options=ONCE)
    assert jobs_at_once(result).tolist() == [1.0]


def test_jobs_that_overlap_share_the_pool_for_that_time():
    result = simulate([job(0.0), job(0.0)], "fifo", trace=TRACE, population=MEAN, options=ONCE)
    first, second = (result.jobs["ended_s"]).tolist()
    expected = [1 + min(first, second) / first, 1 + min(first, second) / second]
    assert jobs_at_once(result).tolist() == pytest.approx(expected)


def test_an_unfinished_job_has_not_met_its_fair_share():
    result = simulate([job(0.0), job(0.0, rounds=9000)], "fifo", trace=TRACE, population=MEAN, options=ONCE)
    assert met_fair_share(result, np.array([1e9, 1e9])).tolist() == [True, False]


def test_a_job_takes_a_multiple_of_its_fair_share():
    result = simulate([job(0.0)], "fifo", trace=TRACE, population=MEAN, options=ONCE)
    took_s = float(result.jobs["ended_s"][0])
    assert shares_taken(result, np.array([took_s / 2.0])).tolist() == [2.0]
