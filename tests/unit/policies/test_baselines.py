"""The baselines of spec section 5: each one's rule, on requests that it tells apart."""

from tests.unit.policies.worlds import jobs, region, request, view
from vennue.core.plan import PoolView
from vennue.policies import get_policy


def served(policy: str, *requests) -> str:
    """The jobs in the order in which the policy serves them."""
    seen = view(requests)
    return jobs(get_policy(policy).plan(seen), next(iter(seen.rates)))


def test_fifo_serves_jobs_as_they_arrived():
    assert served("fifo", request("b", needs=1), request("c", needs=2), request("a", needs=9)) == "abc"


def test_random_chooses_uniformly_at_each_check_in():
    assert get_policy("random").plan(view([request("a")])).choice == "uniform"


def test_the_other_policies_take_the_first():
    assert get_policy("random-order").plan(view([request("a")])).choice == "first"


def test_random_order_serves_by_lottery():
    assert served("random-order", request("a", lottery=0.9), request("b", lottery=0.1)) == "ba"


def test_random_order_first_finishes_what_is_being_filled():
    started = request("b", lottery=0.9, bound=1)
    assert served("random-order", request("a", lottery=0.1), started, request("c", lottery=0.05)) == "bca"


def test_srsf_serves_the_round_that_needs_the_fewest_devices():
    assert served("srsf", request("a", needs=5), request("b", needs=3), request("c", needs=4)) == "bca"


def test_srsf_counts_what_is_still_to_be_bound():
    assert served("srsf", request("a", needs=5), request("b", needs=4, bound=96)) == "ba"


def test_srsf_job_counts_the_rounds_to_come():
    # 2 rounds of 10 devices are fewer than 9 rounds of 3.
    assert served("srsf-job", request("a", needs=3, rounds_left=9), request("b", needs=10, rounds_left=2)) == "ba"


def test_srsf_job_counts_whole_rounds_also_when_one_is_half_bound():
    # a: 2 × 10 = 20 although only 1 device is missing now; b: 1 × 15.
    assert served("srsf-job", request("a", needs=1, bound=9, rounds_left=2), request("b", 0, 15, rounds_left=1)) == "ba"


def test_srsf_job_counts_only_the_open_round_of_a_job_without_an_end():
    assert served("srsf-job", request("a", needs=3, rounds_left=9), request("b", needs=10)) == "ba"


def test_las_serves_whoever_has_had_the_fewest_devices():
    assert served("las", request("a", attained=50, bound=1), request("b", attained=10, bound=40)) == "ba"


def test_a_job_of_weight_two_counts_as_half_as_long():
    assert served("srsf", request("a", needs=5), request("b", needs=8, weight=2.0)) == "ba"
    assert served("srsf-job", request("a", needs=5), request("b", needs=8, weight=2.0)) == "ba"
    assert served("las", request("a", attained=5), request("b", attained=8, weight=2.0)) == "ba"


def test_each_region_leaves_out_the_requests_it_does_not_cover():
    seen = view([request("a", 0), request("b", 1), request("c", 0)], {region(0): 1.0, region(1): 1.0})
    plan = get_policy("fifo").plan(seen)
    assert (jobs(plan, region(0)), jobs(plan, region(1)), jobs(plan, region(0, 1))) == ("ac", "b", "abc")


def test_a_plan_of_the_baselines_stands_until_something_happens():
    assert get_policy("fifo").plan(PoolView(0.0, [], {})).until == float("inf")
