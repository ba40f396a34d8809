"""Waits between tries: their ceilings, their jitter, their bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vennue.core.errors import InvalidInput
from vennue.sdk.retry import Retry


@given(st.integers(1, 10_000), st.integers(0, 2**32), st.floats(0, 100))
def test_a_wait_lies_between_what_the_server_asked_for_and_the_ceiling_above_it(failures, seed, asked_s):
    wait_s = Retry(first_s=0.5, most_s=8.0).wait_s(failures, random.Random(seed), asked_s)
    assert asked_s <= wait_s <= asked_s + min(8.0, 0.5 * 2 ** min(failures - 1, 5))


def test_waits_of_a_fleet_are_spread_over_the_whole_range():
    waits = sorted(Retry(first_s=1.0).wait_s(1, random.Random(seed)) for seed in range(1000))
    assert [round(waits[at], 1) for at in (0, 249, 499, 749, 999)] == [0.0, 0.2, 0.5, 0.7, 1.0]


def test_another_try_is_allowed_until_the_attempts_are_used_up():
    retry = Retry(attempts=3, total_s=100)
    assert [retry.allows(failures, 0.0) for failures in (1, 2, 3)] == [True, True, False]


def test_another_try_is_allowed_until_the_time_is_used_up():
    retry = Retry(attempts=100, total_s=60)
    assert [retry.allows(1, elapsed) for elapsed in (59.0, 60.0, 60.1)] == [True, True, False]


@pytest.mark.parametrize(
    "bounds",
    [{"attempts": 0}, {"first_s": -1.0}, {"most_s": float("nan")}, {"total_s": float("inf")}, {"work_s": -1.0}],
)
def test_bounds_that_make_no_sense_are_refused_by_name(bounds):
    with pytest.raises(InvalidInput) as caught:
        Retry(**bounds)
    assert caught.value.field == next(iter(bounds))
