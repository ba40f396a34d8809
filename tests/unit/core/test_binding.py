"""The binding table by itself: the order of offers, tiers, chance, expiries, and what it keeps."""

import pytest

from vennue.core.assignment import Outcome
from vennue.core.binding import BindingTable
from vennue.core.errors import Conflict, NotFound
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature
from vennue.core.plan import Offer, Plan, Request, Tier


def request(job: str, bit: int = 0, wanted: int = 1) -> Request:
    return Request(
        AttemptId(f"{job}.1.1"),
        JobId(job),
        bit,
        demand=wanted,
        wanted=wanted,
        opened_at=0.0,
        deadline_at=None,
        arrival=0,
        rounds_left=None,
        attained=0,
        lottery=0.0,
    )


def table(*requests: Request, plan: Plan | None = None, lease_s: float = 60.0) -> BindingTable:
    made = BindingTable()
    for each in requests:
        made.open(each, lease_s=lease_s)
    made.publish(plan or Plan.ordered(requests))
    return made


def bind(made: BindingTable, device: str, signature: int = 1, now: float = 0.0, **how: object) -> str | None:
    assignment = made.bind(DeviceId(device), Signature(signature), now, **how)  # type: ignore[arg-type]
    return None if assignment is None else assignment.id


def test_offers_are_taken_in_the_plans_order() -> None:
    made = table(request("a", wanted=2), request("b"))
    assert [bind(made, f"d{n}") for n in range(4)] == ["a.1.1.1", "a.1.1.2", "b.1.1.1", None]


def test_a_region_gets_only_what_it_covers() -> None:
    made = table(request("a", bit=1), request("b", bit=70))
    assert bind(made, "d", signature=1 << 70) == "b.1.1.1"


def test_a_request_that_opens_is_served_from_the_next_plan_on() -> None:
    made = table(request("a"))
    bind(made, "d")
    late = request("b")
    made.open(late, lease_s=60)
    assert bind(made, "e") is None
    made.publish(Plan.ordered([late]))
    assert bind(made, "e") == "b.1.1.1"


def test_opening_an_attempt_twice_is_a_conflict() -> None:
    made = table(request("a"))
    with pytest.raises(Conflict):
        made.open(request("a"), lease_s=60)


def test_a_slot_that_comes_back_is_offered_again_before_later_requests() -> None:
    made = table(request("a"), request("b"))
    first = bind(made, "d")
    bind(made, "e")
    made.settle(AssignmentId(first or ""), Outcome.LOST)
    assert bind(made, "f") == "a.1.1.2"


def test_a_reported_slot_does_not_come_back() -> None:
    made = table(request("a"))
    made.settle(AssignmentId(bind(made, "d") or ""), Outcome.REPORTED)
    assert bind(made, "e") is None


def test_a_device_outside_the_tier_goes_to_the_next_offer() -> None:
    a, b = request("a", wanted=2), request("b", wanted=2)
    plan = Plan([(0, (Offer(a.attempt, Tier(0, 10)),)), (0, (b.offer,))])
    made = table(a, b, plan=plan)
    answers = [bind(made, device, response_s=speed) for device, speed in [("slow", 10.0), ("fast", 9.9), ("mid", 20.0)]]
    assert answers == ["b.1.1.1", "a.1.1.1", "b.1.1.2"]


def test_a_declined_job_is_passed_over_for_this_device_only() -> None:
    made = table(request("a", wanted=2), request("b"))
    assert bind(made, "d", declined=frozenset({JobId("a")})) == "b.1.1.1"
    assert bind(made, "e") == "a.1.1.1"


@pytest.mark.parametrize(("draw", "job"), [(0.0, "a"), (0.34, "b"), (0.99, "c")])
def test_a_uniform_plan_picks_by_the_draw(draw: float, job: str) -> None:
    requests = [request(name) for name in "abc"]
    made = table(*requests, plan=Plan.ordered(requests, choice="uniform"))
    assert bind(made, "d", draw=draw) == f"{job}.1.1.1"


def test_leases_run_out_in_time_order_and_once() -> None:
    made = table(request("a", wanted=3), lease_s=60)
    bind(made, "d", now=0)
    bind(made, "e", now=10)
    assert [assignment.device for assignment in made.expire(60)] == ["d"]
    assert [assignment.device for assignment in made.expire(70)] == ["e"]
    assert made.expire(1000) == []


def test_closing_ends_what_is_live_and_repeats_harmlessly() -> None:
    made = table(request("a", wanted=2))
    bind(made, "d")
    assert [assignment.device for assignment in made.close(AttemptId("a.1.1"))] == ["d"]
    assert made.close(AttemptId("a.1.1")) == []
    with pytest.raises(NotFound):
        made.live(AssignmentId("a.1.1.1"))


def test_nothing_is_kept_for_devices_that_are_not_bound() -> None:
    made = table(request("a", wanted=1))
    for number in range(5_000):
        id = bind(made, f"d{number}", now=float(number))
        if id is not None:
            made.settle(AssignmentId(id), Outcome.ABORTED)
    assert all(size <= bound for _, size, bound in made.sizes())
