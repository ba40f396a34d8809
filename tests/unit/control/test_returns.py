"""Devices that give tasks back: how long a job passes them over, and how little of them is remembered."""

from vennue.control.returns import MAX_DEVICES, MAX_JOBS, Returns
from vennue.core.ids import DeviceId, JobId

JOB = JobId("job")
DEVICE = DeviceId("device")


def test_waits_double_up_to_a_minute_and_never_end_the_job_for_the_device():
    returns, now, waits = Returns(), 100.0, []
    for _ in range(9):
        returns.note(DEVICE, JOB, now, most_s=600.0)
        wait_s = next(s for s in range(200) if JOB not in returns.barred(DEVICE, now + s))
        waits.append(wait_s)
        now += wait_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_what_was_given_back_long_ago_counts_no_more():
    returns = Returns()
    for now in (100.0, 100.0, 100.0):
        returns.note(DEVICE, JOB, now, most_s=600.0)
    returns.note(DEVICE, JOB, 164.0, most_s=600.0)  # the wait ended at 104, a minute ago
    assert returns.barred(DEVICE, 164.9) == {JOB}
    assert returns.barred(DEVICE, 165.0) == set()


def test_a_counted_report_forgives_its_own_job_only():
    returns, other = Returns(), JobId("other")
    returns.note(DEVICE, JOB, 0.0, most_s=60.0)
    returns.note(DEVICE, other, 0.0, most_s=60.0)
    returns.forgive(DEVICE, JOB)
    assert returns.barred(DEVICE, 0.5) == {other}
    returns.forgive(DEVICE, other)
    returns.forgive(DEVICE, other)
    assert len(returns) == 0


def test_memory_is_bounded_by_devices_and_by_jobs_and_the_latest_stay():
    returns = Returns()
    for number in range(MAX_DEVICES + 10):
        returns.note(DeviceId(f"d{number}"), JOB, 0.0, most_s=60.0)
    assert len(returns) == MAX_DEVICES
    assert returns.barred(DeviceId("d9"), 0.0) == set()
    assert returns.barred(DeviceId("d10"), 0.0) == {JOB}
    for number in range(MAX_JOBS + 10):
        returns.note(DEVICE, JobId(f"j{number}"), 0.0, most_s=60.0)
    assert returns.barred(DEVICE, 0.0) == {f"j{number}" for number in range(10, MAX_JOBS + 10)}
