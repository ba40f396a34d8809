"""The pool keeps its invariants through any history: a Hypothesis state machine that shrinks to a readable story."""

import hashlib
import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from tests.unit.core.pools import MODEL, ArrivalOrder, profile
from vennue.core.assignment import Assignment
from vennue.core.batch import Collected
from vennue.core.effects import Commit
from vennue.core.errors import InvariantViolated, VennueError
from vennue.core.events import (
    Abort,
    Accept,
    CancelJob,
    CheckIn,
    CommitFailed,
    Committed,
    CompleteJob,
    Contact,
    Decline,
    Event,
    OpenRound,
    Recover,
    Report,
    SubmitJob,
    Tick,
)
from vennue.core.ids import AssignmentId, DeviceId, Digest, JobId, attempt_id
from vennue.core.invariants import Auditor
from vennue.core.job import After, JobSpec
from vennue.core.plan import Plan, PoolView
from vennue.core.pool import Pool
from vennue.core.tenant import Quota

DEVICES = [DeviceId(f"d{n}") for n in range(6)]
RAM_GB = [1, 4, 8]
REQUIREMENTS = ["true", "device.ram_gb >= 4", "device.ram_gb >= 8", "device.ram_gb < 4"]
DEMANDS = st.integers(1, 3)
TENANTS = ["free", "capped", "borrower", "daily"]
QUOTAS = {
    "capped": Quota(devices=1, borrow=False),
    "borrower": Quota(devices=1),
    "daily": Quota(devices_per_day=3),
}
THIEF = DeviceId("thief")


class LotteryOrder:
    """Another order, so that policies can be swapped in the middle."""

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(sorted(view.requests, key=lambda request: request.lottery))


class Uniform:
    """Binding by chance."""

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(view.requests, choice="uniform")


class Raises:
    """A policy with a defect."""

    def plan(self, view: PoolView) -> Plan:
        raise RuntimeError("a defect in somebody's policy")


PLANNERS = [ArrivalOrder, LotteryOrder, Uniform, Raises]


class PoolMachine(RuleBasedStateMachine):
    """Owners, devices, the data plane and the clock do what they like; the auditor checks after every step."""

    jobs: Bundle[JobId] = Bundle("jobs")
    assignments: Bundle[Assignment] = Bundle("assignments")
    commits: Bundle[Commit] = Bundle("commits")

    @initialize(
        target=jobs,
        planner=st.sampled_from(PLANNERS[:3]),
        demands=st.tuples(DEMANDS, DEMANDS),
        tenants=st.tuples(st.sampled_from(TENANTS), st.sampled_from(TENANTS)),
        batch_window_s=st.sampled_from([0.0, 0.0, 2.0]),
    )
    def start(self, planner: type, demands: tuple[int, int], tenants: tuple[str, str], batch_window_s: float) -> Any:
        """A pool with two jobs whose first rounds are open."""
        self.now = 0.0
        self.planner = planner
        self.batch_window_s = batch_window_s
        self.audited = Auditor(self.new_pool())
        self.submitted = 0
        self.under_way: set[Commit] = set()
        first, second = (
            self.open_job(
                JobSpec(name="j", demand=demand, requirement=needs, lease_s=20.0, deadline_s=50.0, tenant=tenant)
            )
            for demand, needs, tenant in zip(demands, REQUIREMENTS, tenants, strict=False)
        )
        return multiple(first, second)

    def new_pool(self) -> Pool:
        return Pool(self.planner(), seed=7, quotas=QUOTAS, batch_window_s=self.batch_window_s)

    def do(self, event: Event) -> Any:
        """Apply an event; a refusal is fine, a broken invariant is not."""
        try:
            return self.audited.handle(event, self.now)
        except InvariantViolated:
            raise
        except VennueError:
            return None

    def submit_job(self, spec: JobSpec) -> JobId:
        self.submitted += 1
        job = JobId(f"j{self.submitted}")
        self.do(SubmitJob(job, spec))
        return job

    def open_job(self, spec: JobSpec) -> JobId:
        job = self.submit_job(spec)
        self.do(OpenRound(job, 1, MODEL))
        return job

    def bound(self, *answers: Any) -> Any:
        """The assignments among the answers; those of a batch are bound when its window ends."""
        if any(isinstance(answer, Collected) for answer in answers):
            self.now += self.batch_window_s
            self.do(Tick())
            answers = tuple(self.audited.pool.table.assignments())
        return multiple(*(answer for answer in answers if isinstance(answer, Assignment)))

    def new_commits(self) -> Any:
        """The aggregates that the data plane is to make. Those of a process that died are never finished."""
        commits = [effect for effect in self.audited.drain() if isinstance(effect, Commit)]
        self.under_way.update(commits)
        return multiple(*commits)

    @rule(
        target=jobs,
        requirement=st.sampled_from(REQUIREMENTS),
        demand=DEMANDS,
        overcommit=st.sampled_from([1.0, 1.5, "auto"]),
        deadline_s=st.sampled_from([None, 50.0]),
        rounds=st.sampled_from([None, 1, 2]),
        private_requirement=st.sampled_from([None, None, "device.samples > 10"]),
        max_attempts=st.sampled_from([None, 2]),
        tenant=st.sampled_from(TENANTS),
    )
    def submit(self, **fields: Any) -> JobId:
        return self.open_job(JobSpec(name="j", lease_s=20.0, **fields))

    @rule(target=jobs, buffer_size=st.integers(1, 2), demand=DEMANDS, staleness=st.sampled_from([None, 0]))
    def submit_asynchronous(self, buffer_size: int, demand: int, staleness: int | None) -> JobId:
        return self.open_job(
            JobSpec(name="a", mode="async", demand=demand, buffer_size=buffer_size, max_staleness=staleness, rounds=3)
        )

    @rule(
        target=jobs,
        predecessors=st.lists(jobs, min_size=1, max_size=2, unique=True),
        when=st.sampled_from(["completed", "ended"]),
        time_limit_s=st.sampled_from([None, 100.0]),
        silence_limit_s=st.sampled_from([30.0, 1000.0]),
        opens=st.booleans(),
    )
    def submit_after(self, predecessors: list[JobId], when: Any, *, opens: bool, **limits: Any) -> Any:
        after = tuple(After(job=job, when=when) for job in predecessors)
        spec = JobSpec(name="f", demand=1, rounds=1, after=after, **limits)
        job = self.open_job(spec) if opens else self.submit_job(spec)
        return job if job in self.audited.pool.jobs else multiple()  # a predecessor may have failed

    @rule(job=jobs)
    def contact(self, job: JobId) -> None:
        self.do(Contact(job))

    @rule(job=jobs, ahead=st.sampled_from([0, 0, 1]))
    def open_round(self, job: JobId, ahead: int) -> None:
        self.do(OpenRound(job, self.audited.pool.jobs[job].committed + 1 + ahead, MODEL))

    @rule(job=jobs, how=st.sampled_from([CancelJob, CompleteJob]))
    def end_job(self, job: JobId, how: type[CancelJob] | type[CompleteJob]) -> None:
        self.do(how(job))

    @rule(target=assignments, device=st.sampled_from(DEVICES), ram=st.sampled_from(RAM_GB), draw=st.floats(0, 0.999))
    def check_in(self, device: DeviceId, ram: int, draw: float) -> Any:
        return self.bound(self.do(CheckIn(device, profile(ram), draw=draw)))

    @rule(target=assignments, devices=st.lists(st.sampled_from(DEVICES), min_size=2, unique=True))
    def many_check_in(self, devices: list[DeviceId]) -> Any:
        return self.bound(*[self.do(CheckIn(device, profile(8))) for device in devices])

    @rule(assignment=assignments)
    def accept(self, assignment: Assignment) -> None:
        self.do(Accept(assignment.id, assignment.device))

    @rule(target=assignments, assignment=assignments)
    def decline(self, assignment: Assignment) -> Any:
        answer = self.do(Decline(assignment.id, assignment.device, declined=frozenset({assignment.job})))
        return multiple() if answer is None else answer

    @rule(assignment=assignments)
    def abort(self, assignment: Assignment) -> None:
        self.do(Abort(assignment.id, assignment.device))

    @rule(target=commits, assignment=assignments, times=st.integers(1, 2))
    def report(self, assignment: Assignment, times: int) -> Any:
        """On time, twice, or long after the assignment ended: whatever its present state makes it."""
        for _ in range(times):
            self.do(Report(assignment.id, assignment.device))
        return self.new_commits()

    @rule(target=commits)
    def all_report(self) -> Any:
        for assignment in self.audited.pool.table.assignments():
            self.do(Report(assignment.id, assignment.device))
        return self.new_commits()

    @rule(assignment=assignments)
    def a_thief_reports(self, assignment: Assignment) -> None:
        if self.audited.pool.awaits(assignment.id) is None:  # else the shell knows the device, by its token
            assert self.do(Report(assignment.id, THIEF)) is None

    @rule(target=commits, commit=consumes(commits), twice=st.booleans())
    def aggregate(self, commit: Commit, twice: bool) -> Any:
        if commit not in self.under_way:
            return multiple()
        result = Digest(hashlib.sha256(" ".join(commit.assignments).encode()).hexdigest())
        for _ in range(1 + twice):
            self.do(Committed(commit.attempt, result))
        return self.new_commits()

    @rule(commit=consumes(commits))
    def fail_to_aggregate(self, commit: Commit) -> None:
        if commit in self.under_way:
            self.do(CommitFailed(commit.attempt, "disk full"))

    @rule(job=jobs, round_number=st.integers(1, 3), number=st.integers(1, 3))
    def commit_out_of_the_blue(self, job: JobId, round_number: int, number: int) -> None:
        attempt = self.audited.pool.jobs[job].attempt
        if attempt is None or not attempt.committing:
            assert self.do(Committed(attempt_id(job, round_number, number), MODEL)) is None

    @rule(target=commits, seconds=st.sampled_from([1.0, 19.0, 25.0, 60.0, 700.0, -30.0]))
    def wait(self, seconds: float) -> Any:
        self.now += seconds
        self.do(Tick())
        return self.new_commits()

    @rule(planner=st.sampled_from([*PLANNERS[:3], *PLANNERS]))
    def change_policy(self, planner: type) -> None:
        self.planner = planner
        self.audited.pool.set_planner(planner())
        self.audited.work_conserving = planner is not Raises

    @rule(target=commits)
    def crash_and_recover(self) -> Any:
        """The process dies; a new one starts from what the ledger and the data plane hold."""
        before = self.audited
        self.new_commits()
        self.under_way.clear()
        pool = self.new_pool()
        pool.restore(before.ledger_jobs.values(), before.open_in_ledger(), self.now)
        self.audited = Auditor(pool, before.ledger_jobs.values(), before.ledger_attempts.values())
        self.audited.work_conserving = self.planner is not Raises
        self.do(Tick())
        for id, job in before.pool.jobs.items():
            recovered = pool.jobs[id]
            assert (recovered.state, recovered.committed, recovered.model) == (job.state, job.committed, job.model)
            assert recovered.waits_for == (set() if job.state.terminal else job.waits_for)
        for attempt in before.pool.attempts():
            counted = {AssignmentId(name) for name in (*attempt.request.reported, *attempt.committing)}
            self.do(Recover(attempt.id, tuple(Report(name, before._counted[name]) for name in counted)))
            again = pool.jobs[attempt.job].attempt
            if again is not None and again.id == attempt.id:  # it may have reached its job's own limit meanwhile
                assert {*again.request.reported, *again.committing} == counted
        return self.new_commits()


class _LongerMachine(PoolMachine):
    """The same, searched for longer."""


PoolMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
_LongerMachine.TestCase.settings = settings(
    max_examples=2000 if os.environ.get("CI") else 500, stateful_step_count=30, deadline=None
)
TestPoolKeepsItsInvariants = PoolMachine.TestCase
TestPoolKeepsItsInvariantsForLonger = pytest.mark.slow_suite(_LongerMachine.TestCase)
