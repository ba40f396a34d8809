"""Venn's scheduling (spec section 2) on worlds small enough to work out by hand.

Bit 0 is always the requirement that more devices meet: group 0 is the larger, later bits are scarcer.
"""

import pytest

from tests.unit.policies.worlds import jobs, region, request, view
from vennue.core.errors import InvalidInput
from vennue.core.ids import Signature
from vennue.core.plan import Request
from vennue.policies import get_policy

OWN, SHARED = region(0), region(0, 1)


def venn_sched(requests: list[Request], rates: dict[Signature, float], **parameters: object):
    return get_policy("venn-sched", **parameters).plan(view(requests, rates))


def owner(requests: list[Request], rates: dict[Signature, float]) -> str:
    """The job that comes first in the region that both groups cover."""
    return jobs(venn_sched(requests, rates), SHARED)[0]


# -- within a group --------------------------------------------------------------------------------------------------


def test_a_group_serves_its_smallest_remaining_demand_first():
    plan = venn_sched([request("a", needs=9), request("b", needs=2), request("c", needs=5)], {OWN: 1.0})
    assert jobs(plan, OWN) == "bca"


def test_with_the_job_as_scope_a_group_serves_the_job_with_least_left_first():
    requests = [request("a", needs=2, rounds_left=50), request("b", needs=9, rounds_left=3)]
    assert jobs(venn_sched(requests, {OWN: 1.0}, demand_scope="round"), OWN) == "ab"
    assert jobs(venn_sched(requests, {OWN: 1.0}, demand_scope="job"), OWN) == "ba"


def test_another_scope_is_refused_by_name():
    with pytest.raises(InvalidInput, match="demand_scope") as caught:
        get_policy("venn-sched", demand_scope="jobs")
    assert caught.value.value == "jobs"
    assert "'job'" in str(caught.value)


# -- initial allocation ----------------------------------------------------------------------------------------------


def test_the_scarcer_group_owns_what_both_can_use():
    assert owner([request("a", 0), request("b", 1)], {OWN: 0.6, SHARED: 0.4}) == "b"


def test_scarcity_is_by_rate_and_not_by_the_number_of_regions():
    # Group 1 covers three regions that bring 0.3/s together, group 0 two that bring 5.1/s.
    rates = {OWN: 5.0, SHARED: 0.1, region(1): 0.1, region(1, 2): 0.1}
    assert owner([request("a", 0), request("b", 1)], rates) == "b"


def test_behind_the_owner_come_the_other_groups_scarcest_first():
    rates = {region(0): 9.0, region(0, 1): 5.0, region(0, 1, 2): 1.0, region(0, 2): 1.0}
    plan = venn_sched([request("a", 0), request("b", 1), request("c", 2)], rates)
    assert jobs(plan, region(0, 1, 2)) == "cba"
    assert jobs(plan, region(0, 1)) == "ba"


def test_a_region_that_nobody_has_seen_serves_the_scarcest_group_first():
    plan = venn_sched([request("a", 0), request("b", 1), request("c", 2)], {OWN: 9.0, SHARED: 2.0, region(2): 1.0})
    assert jobs(plan, region(0, 1, 2)) == "cba"


def test_groups_of_equal_supply_go_by_the_arrival_of_their_first_job():
    rates = {SHARED: 1.0}
    assert owner([request("b", 0), request("a", 1)], rates) == "a"
    assert owner([request("a", 0), request("b", 1)], rates) == "a"


def test_a_group_without_any_device_does_not_disturb_the_others():
    requests = [request("a", 0), request("b", 1), request("c", 5)]
    plan = venn_sched(requests, {OWN: 0.6, SHARED: 0.4})
    assert jobs(plan, SHARED) == "ba"
    assert jobs(plan, region(5)) == "c"


def test_regions_never_checked_in_from_count_once_a_day():
    # Group 1 owns a region of rate zero. At 1/86400 a day a queue of one moves there slower than group 0 at 1/s, so
    # one job of group 0 cannot claim it, but a queue of 90000 can: 90000/1 > 1/(1/86400).
    rates = {OWN: 1.0, SHARED: 0.0}
    assert owner([request("a", 0, 1), request("b", 1, 1)], rates) == "b"
    assert owner([request("a", 0, 1, weight=90_000.0), request("b", 1, 1)], rates) == "a"


def test_a_pool_that_falls_idle_and_sees_its_supply_change_is_planned_for_again():
    policy = get_policy("venn-sched")
    policy.plan(view([request("a", 0)], {OWN: 1.0}))
    assert policy.plan(view([], {OWN: 2.0})).offers(OWN) == ()
    assert jobs(policy.plan(view([request("b", 0)], {OWN: 3.0})), OWN) == "b"


# -- reallocation ----------------------------------------------------------------------------------------------------


def test_a_longer_queue_takes_the_shared_region_over():
    # m'/|S'|: three requests at 0.5/s against one at 0.4/s.
    waiting = [request("a", 0, 1), request("b", 0, 1), request("c", 0, 1), request("d", 1, 4)]
    assert owner(waiting, {OWN: 0.5, SHARED: 0.4}) == "a"


def test_an_equal_pressure_moves_nothing():
    # One request at 0.4/s on each side.
    assert owner([request("a", 0, 1), request("b", 1, 4)], {OWN: 0.4, SHARED: 0.4}) == "b"


def test_requests_that_would_be_served_only_after_the_other_queue_do_not_count():
    # The scarce queue is done after 4/0.4 = 10 s. At 0.5/s group 0 serves 5 devices by then: with demands 5, 6, 7
    # one request of three, and 1/0.5 < 1/0.4.
    waiting = [request("a", 0, 5), request("b", 0, 6), request("c", 0, 7), request("d", 1, 4)]
    assert owner(waiting, {OWN: 0.5, SHARED: 0.4}) == "d"


def test_a_request_that_is_served_just_as_the_other_queue_ends_counts():
    # 1 + 4 devices at 0.5/s end at 10 s, as the scarce queue does: two requests of three, 2/0.5 > 1/0.4.
    waiting = [request("a", 0, 1), request("b", 0, 4), request("c", 0, 70), request("d", 1, 4)]
    assert owner(waiting, {OWN: 0.5, SHARED: 0.4}) == "a"


def test_a_group_that_holds_nothing_takes_nothing():
    # The scarcer groups share out all that group 0 can use: it has no rate of its own to compare, however many wait.
    waiting = [request(job, 0, 1) for job in "abcdefgh"] + [request("i", 1, 50), request("j", 2, 50)]
    plan = venn_sched(waiting, {region(0, 1): 0.5, region(0, 2): 0.4})
    assert jobs(plan, region(0, 1)) == "iabcdefgh"
    assert jobs(plan, region(0, 2)) == "jabcdefgh"


def test_the_larger_group_goes_on_with_the_next_scarcer_one_after_a_win():
    # Group 0: 4 requests at 1/s. Group 1 (0.9/s, 1 request): 4/1 > 1/0.9, taken; group 0 now has 5 requests at 1.9/s.
    # Group 2 (0.5/s, 1 request): its queue ends at 100/0.5 = 200 s, all five count: 5/1.9 > 1/0.5.
    waiting = [request(job, 0, 1) for job in "abcd"] + [request("e", 1, 100), request("f", 2, 100)]
    rates = {region(0): 1.0, region(0, 1): 0.9, region(0, 2): 0.5}
    plan = venn_sched(waiting, rates)
    assert jobs(plan, region(0, 1)) == "abcde"
    assert jobs(plan, region(0, 2)) == "abcdf"


def test_the_larger_group_stops_at_the_first_that_it_does_not_win_from():
    # Group 0 (4 requests, 1/s) does not win from group 1 (0.9/s, 4 requests: 4/1 < 4/0.9), so it does not try group 2,
    # which it would win from: 4/1 > 1/0.5.
    waiting = [request(job, 0, 1) for job in "abcd"] + [request(job, 1, 100) for job in "efgh"] + [request("i", 2, 99)]
    rates = {region(0): 1.0, region(0, 1): 0.9, region(0, 2): 0.5}
    plan = venn_sched(waiting, rates)
    assert jobs(plan, region(0, 1)) == "efghabcd"
    assert jobs(plan, region(0, 2)) == "iabcd"


def test_groups_that_share_no_region_are_passed_over():
    # Group 1 lies between group 0 and group 2 in supply, has the shorter queue per rate, and shares nothing.
    waiting = [request(job, 0, 1) for job in "abcd"] + [request(job, 1, 9) for job in "efgh"] + [request("i", 2, 99)]
    rates = {region(0): 1.0, region(1): 0.9, region(0, 2): 0.5}
    assert jobs(venn_sched(waiting, rates), region(0, 2)) == "abcdi"


def test_only_the_regions_that_the_larger_group_covers_move():
    waiting = [request(job, 0, 1) for job in "abcd"] + [request("e", 1, 100)]
    plan = venn_sched(waiting, {OWN: 1.0, SHARED: 0.4, region(1): 0.2, region(1, 2): 0.1})
    assert jobs(plan, SHARED) == "abcde"
    assert jobs(plan, region(1)) == jobs(plan, region(1, 2)) == "e"


def test_a_weight_counts_like_that_many_jobs():
    rates = {OWN: 0.5, SHARED: 0.4}
    assert owner([request("a", 0, 1), request("d", 1, 4)], rates) == "d"
    assert owner([request("a", 0, 1, weight=3.0), request("d", 1, 4)], rates) == "a"
