"""Trees of leaves under faults from a seed, in virtual time: aggregates are exactly what was acknowledged.

What goes wrong, and what is checked, is told in `vennue.testing.leaves`.
"""

import pytest

from vennue.testing.simulate import simulate_leaves

SEEDS = 40
MORE_SEEDS = 260


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_report_that_is_acknowledged_counts_once_through_leaves_that_die(seed):
    simulate_leaves(seed)


@pytest.mark.slow_suite
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + MORE_SEEDS, 20))
def test_each_report_that_is_acknowledged_counts_once_in_further_histories(first):
    for seed in range(first, first + 20):
        simulate_leaves(seed)


def test_simulations_of_leaves_do_what_they_are_for():
    """On the average, each sees rounds, sums that counted, servers that start again, and faults of every kind."""
    runs = [simulate_leaves(seed) for seed in range(12)]
    assert sum(run.commits for run in runs) > len(runs)
    assert sum(run.world.sums for run in runs) > 2 * len(runs)
    assert sum(run.world.starts for run in runs) > 3 * len(runs)
    faults = {fault for run in runs for fault in run.world.network.injected}
    assert {"drop", "delay", "duplicate", "replay", "disconnect"} <= faults
    assert {len(run.world.leaves) for run in runs} == {1, 2, 3}
