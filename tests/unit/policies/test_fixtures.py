"""The worked example of the papers, in the real pool: one device per second, every other one with emoji data."""

import pytest

from vennue.core.events import CheckIn, OpenRound, SubmitJob
from vennue.core.ids import DeviceId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.policies import get_policy

DAY_S = 1000.0
"""Long enough to know the supply; even, so that the first device after it has emoji data."""
EMOJI = DEFAULT_SCHEMA.check({"data": ["keyboard", "emoji"]})
KEYBOARD = DEFAULT_SCHEMA.check({"data": ["keyboard"]})


def scheduling_delays_s(policy: str, demands: tuple[int, int, int]) -> list[float]:
    """J1 needs keyboard data; J2 and J3 need emoji data. How long each waits for its devices."""
    pool = Pool(get_policy(policy))
    check_in(pool, 0.0, DAY_S)
    for number, demand in enumerate(demands, start=1):
        kind = "keyboard" if number == 1 else "emoji"
        job = JobId(f"J{number}")
        spec = JobSpec(name=job, demand=demand, requirement=f'"{kind}" in device.data')
        pool.handle(SubmitJob(job, spec), DAY_S)
        pool.handle(OpenRound(job, 1, Digest("0" * 64)), DAY_S)
    check_in(pool, DAY_S, DAY_S + 40)
    return [attempt.scheduling_delay_s for attempt in sorted(pool.attempts(), key=lambda attempt: attempt.id)]


def check_in(pool: Pool, after_s: float, until_s: float) -> None:
    for t in range(int(after_s) + 1, int(until_s) + 1):
        pool.handle(CheckIn(DeviceId(f"d{t}"), EMOJI if t % 2 else KEYBOARD), float(t))


@pytest.mark.parametrize(("demands", "delays_s"), [((3, 4, 3), [3, 17, 9]), ((3, 6, 3), [3, 21, 9])])
def test_smallest_first_lets_the_job_that_any_device_can_serve_take_the_scarce_ones(demands, delays_s):
    assert scheduling_delays_s("srsf", demands) == delays_s
    assert sum(delays_s) == (29 if demands == (3, 4, 3) else 33)


@pytest.mark.parametrize(("demands", "delays_s"), [((3, 4, 3), [6, 13, 5]), ((3, 6, 3), [6, 17, 5])])
@pytest.mark.parametrize("policy", ["venn-sched", "venn"])
def test_venn_keeps_the_scarce_devices_for_the_jobs_that_need_them(policy, demands, delays_s):
    assert scheduling_delays_s(policy, demands) == delays_s
    assert sum(delays_s) == (24 if demands == (3, 4, 3) else 28)
