"""A trace of sessions: order, lazy repetition, and what it refuses."""

import itertools

import numpy as np
import pytest

from vennue.core.errors import InvalidInput
from vennue.simulation.traces.model import Trace, merge_sessions, record
from vennue.simulation.traces.paper import PaperCheckIns

DAY_S = 86_400.0


def stream(trace, until_s, **options):
    blocks = list(trace.blocks(until_s, **options))
    return [(float(t), int(d), float(e)) for block in blocks for t, d, e in zip(*block, strict=True)]


def test_check_ins_come_in_time_order_whatever_the_order_of_the_rows():
    trace = Trace([2, 0, 1], [30, 10, 20], [35, 15, 25], period_s=100)
    assert stream(trace, 100) == [(10, 0, 15), (20, 1, 25), (30, 2, 35)]


def test_sessions_repeat_with_the_period_as_long_as_they_are_asked_for():
    trace = Trace([7], [10], [60], period_s=100)
    assert stream(trace, 310) == [(10, 7, 60), (110, 7, 160), (210, 7, 260)]


def test_nothing_is_made_beyond_what_is_asked_for():
    trace = Trace([7, 8], [10, 20], [60, 70], period_s=100)
    endless = trace.blocks()
    first_million_s = itertools.takewhile(lambda block: block.time_s[0] < 1_000_000, endless)
    assert sum(len(block.time_s) for block in first_million_s) == 20_000


def test_a_check_in_at_the_horizon_is_beyond_it():
    trace = Trace([7], [10], [60], period_s=100)
    assert stream(trace, 110) == [(10, 7, 60)]


def test_the_stream_does_not_depend_on_the_size_of_its_blocks():
    trace = Trace([0, 1, 2, 0], [1, 2, 3, 50], [40, 41, 42, 90], period_s=100)
    assert stream(trace, 270, size=1) == stream(trace, 270, size=3) == stream(trace, 270)


def test_blocks_are_never_empty_nor_larger_than_asked():
    trace = Trace([0, 1, 2], [1, 2, 3], [4, 5, 6], period_s=10)
    assert [len(block.time_s) for block in trace.blocks(12.5, size=2)] == [2, 1, 2]


def test_ends_can_be_extended_without_moving_the_check_ins():
    trace = Trace([7], [10], [60], period_s=100)
    assert stream(trace, 120, extend_s=80) == [(10, 7, 140), (110, 7, 240)]


def test_a_session_across_the_end_of_the_period_runs_on_up_to_the_devices_next_session():
    trace = Trace([1, 1, 2], [20, 90, 95], [30, 140, 140], period_s=100)
    assert stream(trace, 100) == [(20, 1, 30), (90, 1, 120), (95, 2, 140)]


def test_sessions_that_start_after_the_period_are_left_out():
    trace = Trace([1, 2], [20, 120], [30, 130], period_s=100)
    assert (len(trace), trace.devices) == (1, 1)


def test_the_default_period_is_the_whole_days_that_hold_every_start():
    trace = Trace([1, 2], [20, DAY_S], [30, 3 * DAY_S])
    assert trace.period_s == 2 * DAY_S
    assert trace.rate_per_s == 2 / (2 * DAY_S)


@pytest.mark.parametrize(
    ("device", "start_s", "end_s", "field", "said"),
    [
        ([0, 1], [5, 9], [6, 8], "end_s", "session 1: the session ends at 8 s, before it starts at 9 s"),
        (
            [0, 0],
            [5, 7],
            [8, 9],
            "start_s",
            "session 1: device 0 starts a session at 7 s, while its session of session 0",
        ),
        ([0, -1], [5, 7], [8, 9], "device", "session 1: device -1 is negative"),
        ([0], [-5], [8], "start_s", "session 0: the session starts at -5 s, before the trace does"),
        ([0], [5], [np.nan], "end_s", "session 0: not a finite number"),
        ([0], [np.inf], [np.inf], "start_s", "session 0: not a finite number"),
        ([0, 1], [5, 5], [8, 1e300], "end_s", "session 1: the session from 5 s to 1e+300 s is longer than a year"),
        ([0], [1.7e9], [1.7e9 + 60], "start_s", "session 0: the session starts at 1700000000 s, more than ten years"),
        ([], [], [], "sessions", "trace holds no session"),
        ([0], [5], [8, 9], "sessions", "1, 1 and 2 rows"),
    ],
)
def test_a_row_without_meaning_is_refused_by_number(device, start_s, end_s, field, said):
    with pytest.raises(InvalidInput) as caught:
        Trace(device, start_s, end_s)
    assert caught.value.field == field
    assert said in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("period_s", [0, -5, np.inf, np.nan])
def test_a_period_that_never_repeats_is_refused(period_s):
    with pytest.raises(InvalidInput, match="period_s: must be above 0 s"):
        Trace([0], [5], [8], period_s=period_s)


def test_a_period_before_the_first_session_is_refused():
    with pytest.raises(InvalidInput, match="no session of trace starts in the first 4 s"):
        Trace([0], [5], [8], period_s=4)


def test_sessions_that_touch_are_two_and_a_session_may_have_no_length():
    assert len(Trace([0, 0, 0], [5, 8, 8], [8, 8, 9])) == 3


def test_devices_ask_at_most_once_at_the_start_and_once_per_poll():
    trace = Trace([0, 1], [0, 10], [60, 70], period_s=100)
    assert trace.asks_per_s(30) == (2 + 2 * 60 / 30) / 100
    assert trace.asks_per_s(30, extend_s=30) == (2 + 2 * 90 / 30) / 100


def test_merging_joins_overlaps_and_gaps_up_to_the_limit_and_no_further():
    device, start_s, end_s = merge_sessions(
        np.array([1, 0, 0, 0, 0]), np.array([0.0, 0, 2, 12, 30]), np.array([99.0, 10, 5, 20, 31]), 2.0
    )
    assert device.tolist() == [0, 0, 1]
    assert start_s.tolist() == [0, 30, 0]
    assert end_s.tolist() == [20, 31, 99]


def test_a_trace_can_merge_what_overlaps_instead_of_refusing_it():
    trace = Trace([0, 0], [5, 7], [8, 9], merge_gap_s=0)
    assert stream(trace, DAY_S) == [(5, 0, 9)]


def test_recording_a_stream_keeps_its_first_days():
    check_ins = PaperCheckIns(rate_per_s=0.05, seed=3)
    trace = record(check_ins, 2)
    assert trace.period_s == 2 * DAY_S
    assert stream(trace, 2 * DAY_S) == stream(check_ins, 2 * DAY_S)
