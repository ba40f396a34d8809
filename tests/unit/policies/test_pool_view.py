"""What the pool tells a policy, and when it asks one again."""

from vennue.core.events import CheckIn, Committed, OpenRound, Report, SubmitJob, Tick
from vennue.core.ids import DeviceId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.core.plan import Plan, PoolView, Request
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.policies import Policy

J = JobId("j")
MODEL = Digest("0" * 64)
ANY = DEFAULT_SCHEMA.check({})


class Watching(Policy):
    """Serves in any order, and remembers what it was shown."""

    name = "watching"

    def __init__(self, until: float = float("inf")) -> None:
        super().__init__()
        self.until = until
        self.seen: list[PoolView] = []

    def plan(self, view: PoolView) -> Plan:
        self.seen.append(view)
        return Plan([(r.bit, (r.offer,)) for r in view.requests], until=self.until)


def pool_with_round(policy: Policy, **spec: object) -> Pool:
    pool = Pool(policy)
    pool.handle(SubmitJob(J, JobSpec(name="j", demand=1, deadline_s=60.0, **spec)), 10.0)  # type: ignore[arg-type]
    pool.handle(OpenRound(J, 1, MODEL), 20.0)
    return pool


def check_in(pool: Pool, now: float):
    return pool.handle(CheckIn(DeviceId(f"d{now}"), ANY), now)


def request_at(pool: Pool, policy: Watching, now: float) -> Request:
    check_in(pool, now)
    return policy.seen[-1].requests[0]


def test_a_request_knows_when_its_job_arrived_and_since_when_its_round_waits():
    policy = Watching()
    request = request_at(pool_with_round(policy), policy, 21.0)
    assert (request.arrived_at, request.opened_at, request.waiting_since, request.committed) == (10.0, 20.0, 20.0, 0)


def test_a_round_that_is_tried_again_has_been_waiting_since_its_first_attempt():
    policy = Watching()
    request = request_at(pool_with_round(policy), policy, 100.0)
    assert (request.attempt, request.opened_at, request.waiting_since) == ("j.1.2", 100.0, 20.0)


def test_the_next_round_starts_its_own_wait():
    policy = Watching()
    pool = pool_with_round(policy)
    assignment = check_in(pool, 30.0)
    pool.handle(Report(assignment.id, assignment.device), 40.0)
    pool.handle(Committed(assignment.attempt, MODEL), 41.0)
    pool.handle(OpenRound(J, 2, MODEL), 50.0)
    request = request_at(pool, policy, 51.0)
    assert (request.arrived_at, request.waiting_since, request.committed) == (10.0, 50.0, 1)


def test_an_asynchronous_job_counts_its_model_updates_as_rounds():
    policy = Watching()
    pool = Pool(policy)
    pool.handle(SubmitJob(J, JobSpec(name="j", demand=2, mode="async", buffer_size=1)), 0.0)
    pool.handle(OpenRound(J, 1, MODEL), 0.0)
    assignment = check_in(pool, 1.0)
    pool.handle(Report(assignment.id, assignment.device), 2.0)
    pool.handle(Committed(assignment.attempt, MODEL), 3.0)
    assert assignment.request.committed == 1


def test_a_plan_that_says_until_when_it_stands_is_made_afresh_then():
    policy = Watching(until=50.0)
    pool = pool_with_round(policy, min_fraction=1.0)
    pool.plan()
    pool.handle(Tick(), 49.9)
    pool.plan()
    assert [view.now for view in policy.seen] == [20.0]
    check_in(pool, 50.0)
    assert [view.now for view in policy.seen] == [20.0, 50.0]


def test_a_plan_that_was_out_of_date_when_made_is_not_made_again_and_again():
    policy = Watching(until=0.0)
    pool = pool_with_round(policy)
    for _ in range(3):
        pool.plan()
    assert len(policy.seen) == 1


def test_a_policy_that_fails_is_asked_again_only_when_something_happens():
    class FailingFrom50S(Watching):
        name = "failing-from-50-s"

        def plan(self, view: PoolView) -> Plan:
            plan = super().plan(view)
            if view.now >= 50.0:
                raise ZeroDivisionError
            return plan

    policy = FailingFrom50S(until=50.0)
    pool = pool_with_round(policy)
    for now in (20.0, 50.0, 51.0, 52.0):
        pool.handle(Tick(), now)
        pool.plan()
    assert [view.now for view in policy.seen] == [20.0, 50.0]
