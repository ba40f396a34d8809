"""Pace steering, the pool's clock and task tokens: small things that many devices depend upon."""

import base64
import hashlib
import hmac
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vennue.control.clock import pool_clock
from vennue.control.pacing import Pacing
from vennue.control.tokens import Tokens
from vennue.core.errors import Forbidden, InvalidInput
from vennue.core.ids import AssignmentId, DeviceId


@given(draw=st.floats(0, 1, exclude_max=True), active=st.booleans(), short=st.booleans())
def test_a_device_is_always_called_back_later_than_now(draw, active, short):
    wait_s = Pacing(short_s=2, busy_s=20, idle_s=200, spread=0.25).retry_after_s(active=active, short=short, draw=draw)
    base_s = 2 if short else 20 if active else 200
    assert 0.75 * base_s <= wait_s <= 1.25 * base_s


def test_devices_answered_at_one_moment_return_spread_over_the_whole_span():
    rng = random.Random(1)
    pacing = Pacing(short_s=1, busy_s=10, idle_s=100, spread=0.5)
    waits = [pacing.retry_after_s(active=False, short=False, draw=rng.random()) for _ in range(10_000)]
    in_tenths = [sum(50 + 10 * tenth <= wait < 60 + 10 * tenth for wait in waits) for tenth in range(10)]
    assert min(in_tenths) > 900
    assert max(in_tenths) < 1100


@pytest.mark.parametrize(
    "bounds",
    [
        {"short_s": 0},
        {"short_s": 10, "busy_s": 5},
        {"busy_s": 700},
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


def test_a_token_is_the_device_and_an_hmac_of_assignment_and_device():
    token = Tokens(b"s" * 32).issue(AssignmentId("a.1.1.1"), DeviceId("phone"))
    name, mac = token.split(".")
    assert base64.urlsafe_b64decode(name + "===") == b"phone"
    expected = hmac.new(b"s" * 32, b"a.1.1.1\0phone", hashlib.sha256).digest()
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
