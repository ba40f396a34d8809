"""Pace steering, the pool's clock and task tokens: small things that many devices depend upon."""

import base64
import hashlib
import heapq
import hmac
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vennue.control.clock import pool_clock
from vennue.control.pacing import Pace, Pacing, Want
from vennue.control.tokens import Tokens
from vennue.core.errors import Forbidden, InvalidInput
from vennue.core.ids import AssignmentId, DeviceId


@given(draw=st.floats(0, 1, exclude_max=True), want=st.sampled_from([Want.SHORT, Want.BUSY, Want.IDLE]))
def test_in_a_small_pool_a_device_waits_the_least_wait_of_its_kind_spread_by_half(draw, want):
    wait_s = Pace(Pacing()).retry_after_s(want, 1000.0, draw)
    base_s = {Want.SHORT: 0.5, Want.BUSY: 1.0, Want.IDLE: 2.0}[want]
    assert wait_s == pytest.approx(base_s * (0.5 + draw))


def settled(want, devices, *, until_s, **bounds):
    """The check-ins in each second of devices that come back when they are told, from a herd of all at once."""
    pace, rng = Pace(Pacing(**bounds)), random.Random(1)
    due = [rng.uniform(0, 5) for _ in range(devices)]
    heapq.heapify(due)
    by_second: Counter[int] = Counter()
    while (now := due[0]) < until_s:
        by_second[int(now)] += 1
        heapq.heapreplace(due, now + pace.retry_after_s(want, now, rng.random()))
    return by_second


@pytest.mark.parametrize(("want", "share"), [(Want.SHORT, 0.5), (Want.BUSY, 0.3), (Want.IDLE, 0.2)])
def test_a_large_pool_checks_in_at_its_share_of_the_budget(want, share):
    by_second = settled(want, 20_000, until_s=1200, check_ins_per_s=400)
    rate = sum(by_second[second] for second in range(600, 1200)) / 600
    assert rate == pytest.approx(400 * share, rel=0.15)


def test_ten_thousand_devices_that_return_within_five_seconds_of_a_restart_come_back_one_by_one():
    by_second = settled(Want.IDLE, 10_000, until_s=400)
    # The herd is 2000 a second; the budget of idle devices is 40 a second.
    assert sum(by_second[second] for second in range(5)) >= 10_000
    assert max(by_second[second] for second in range(5, 400)) <= 80
    assert sum(by_second[second] for second in range(100, 400)) / 300 == pytest.approx(40, rel=0.15)


def test_no_wait_is_longer_than_the_longest_however_large_the_pool():
    pace = Pace(Pacing(longest_s=60, check_ins_per_s=1))
    waits = [pace.retry_after_s(Want.IDLE, 0.0, 0.5) for _ in range(1000)]
    assert max(waits) == 60.0


def test_devices_that_are_due_are_counted_no_more_whether_they_came_or_not():
    pace = Pace(Pacing(longest_s=10))
    for _ in range(1000):
        pace.retry_after_s(Want.BUSY, 5000.0, 0.5)
    assert pace.away(5000.0) == 1000
    assert pace.away(5020.0) == 0


def test_devices_that_a_request_needs_do_not_wait_for_those_that_no_job_wants():
    pace = Pace(Pacing())
    for _ in range(100_000):
        pace.retry_after_s(Want.IDLE, 0.0, 0.5)
    assert pace.retry_after_s(Want.SHORT, 0.0, 0.5) == 0.5


@pytest.mark.parametrize(
    "bounds",
    [
        {"short_s": 0},
        {"short_s": 10, "busy_s": 5},
        {"busy_s": 700},
        {"longest_s": 1},
        {"check_ins_per_s": 0},
        {"idle_s": float("inf")},
        {"idle_s": float("nan")},
        {"spread": 1.0},
        {"spread": -0.1},
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(InvalidInput):
        Pacing(**bounds)


def test_pool_time_starts_with_the_wall_and_runs_with_the_monotonic_clock():
    wall, monotonic = iter([5000.0, 99.0]), iter([100.0, 101.0, 105.5])  # the wall's clock is set back later
    clock = pool_clock(wall=lambda: next(wall), monotonic=lambda: next(monotonic))
    assert [clock(), clock()] == [5001.0, 5005.5]


def test_pool_time_never_starts_before_what_the_ledger_holds():
    assert pool_clock(7000.0, wall=lambda: 5000.0, monotonic=lambda: 100.0)() == 7000.0


def test_a_token_is_the_device_and_an_hmac_of_assignment_and_device_under_the_attempt_s_key():
    token = Tokens(b"s" * 32).issue(AssignmentId("a.1.1.1"), DeviceId("phone"))
    name, mac = token.split(".")
    assert base64.urlsafe_b64decode(name + "===") == b"phone"
    key = hmac.new(b"s" * 32, b"attempt\0a.1.1", hashlib.sha256).digest()
    expected = hmac.new(key, b"a.1.1.1\0phone", hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(mac + "=") == expected


@given(device=st.text(min_size=1, max_size=128).filter(str.isprintable), secret=st.binary(min_size=32, max_size=32))
def test_any_device_is_known_by_its_token_and_by_no_other_pool_s(device, secret):
    assignment = AssignmentId("job-1.1.1.1")
    token = Tokens(secret).issue(assignment, DeviceId(device))
    assert Tokens(secret).device(assignment, token) == device
    with pytest.raises(Forbidden):
        Tokens(secret).device(AssignmentId("job-1.1.1.2"), token)
    with pytest.raises(Forbidden):
        Tokens(secret + b"x").device(assignment, token)


@given(token=st.text(max_size=300))
def test_any_text_that_is_no_token_is_forbidden(token):
    with pytest.raises(Forbidden):
        Tokens(b"s" * 32).device(AssignmentId("job-1.1.1.1"), token)
