"""Small worlds for the core's tests: a policy that serves jobs in order of arrival, and devices by their memory."""

from vennue.core.assignment import Assignment
from vennue.core.effects import Commit
from vennue.core.events import CheckIn, Committed, OpenRound, Report, SubmitJob
from vennue.core.ids import DeviceId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.core.plan import Plan, PoolView
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA, Profile
from vennue.core.round import Attempt

MODEL = Digest("0" * 64)
RESULT = Digest("f" * 64)


class ArrivalOrder:
    """The simplest planner: every region serves the requests in the order in which their jobs arrived."""

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(sorted(view.requests, key=lambda request: request.arrival))


def profile(ram_gb: float = 4.0, **attributes: object) -> Profile:
    return DEFAULT_SCHEMA.check({"ram_gb": ram_gb, **attributes})


def pool_with_round(now: float = 0.0, **spec: object) -> Pool:
    """A pool with one job, ``j``, whose first round opened at ``now``."""
    pool = Pool(ArrivalOrder())
    open_job(pool, "j", now, **spec)
    return pool


def submit(pool: Pool, job: str, now: float = 0.0, **spec: object) -> None:
    fields = {"name": job, "demand": 2, **spec}
    pool.handle(SubmitJob(JobId(job), JobSpec(**fields)), now)  # type: ignore[arg-type]  # fields vary by test


def attempt(pool: Pool, job: str = "j") -> Attempt:
    """The job's attempt in progress."""
    found = pool.jobs[JobId(job)].attempt
    assert found is not None
    return found


def open_job(pool: Pool, job: str, now: float = 0.0, **spec: object) -> None:
    """Submit a job, and open its first round."""
    submit(pool, job, now, **spec)
    pool.handle(OpenRound(JobId(job), 1, MODEL), now)


def check_in(pool: Pool, device: str, now: float = 0.0, ram_gb: float = 4.0, **event: object):
    return pool.handle(CheckIn(DeviceId(device), profile(ram_gb), **event), now)  # type: ignore[arg-type]


def report(pool: Pool, assignment: Assignment, now: float = 0.0) -> bool:
    """The device's report; whether it counts now."""
    counted: bool = pool.handle(Report(assignment.id, assignment.device), now)
    return counted


def serve(pool: Pool, device: str, now: float = 0.0) -> str | None:
    """A device checks in, and reports at once if it is given a task: for which job."""
    assignment = check_in(pool, device, now)
    if assignment is None:
        return None
    report(pool, assignment, now)
    return str(assignment.job)


def commit_all(pool: Pool, now: float = 0.0) -> None:
    """Make the aggregates that the pool has asked for."""
    for effect in pool.drain():
        if isinstance(effect, Commit):
            pool.handle(Committed(effect.attempt, RESULT), now)
