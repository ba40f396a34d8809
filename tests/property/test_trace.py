"""Traces of any shape: blocks are in order, repeat exactly, and merging does what its definition says."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vennue.simulation.traces.model import Trace, merge_sessions
from vennue.simulation.traces.synth import synthesise


@st.composite
def sessions(draw):
    """Sessions that do not overlap within a device, in any order, with whole-second times."""
    rows = []
    for device in range(draw(st.integers(1, 4))):
        now = 0
        for gap, length in draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5)):
            rows.append((device, now + gap, now + gap + length))
            now += gap + length
    return draw(st.permutations(rows))


def stream(trace, until_s, size):
    blocks = list(trace.blocks(until_s, size=size))
    assert all(0 < len(block.time_s) <= size for block in blocks)
    return [row for block in blocks for row in zip(*(column.tolist() for column in block), strict=True)]


@given(sessions(), st.integers(0, 100), st.integers(1, 7), st.integers(0, 500))
def test_blocks_are_the_repeated_sessions_in_time_order(rows, longer, size, until_s):
    device, start_s, end_s = zip(*rows, strict=True)
    period_s = max(start_s) + 1 + longer
    trace = Trace(device, start_s, end_s, period_s=period_s)
    expected = sorted(
        (start + repetition * period_s, one)
        for one, start, _ in rows
        for repetition in range(until_s // period_s + 1)
        if start + repetition * period_s < until_s
    )
    found = stream(trace, until_s, size)
    assert sorted((time_s, one) for time_s, one, _ in found) == expected
    assert [time_s for time_s, _, _ in found] == sorted(time_s for time_s, _, _ in found)


@given(sessions(), st.integers(0, 100))
def test_no_device_has_two_sessions_at_once_even_across_repetitions(rows, longer):
    device, start_s, end_s = zip(*rows, strict=True)
    period_s = max(start_s) + 1 + longer
    last_end: dict[int, float] = {}
    for time_s, one, end in stream(Trace(device, start_s, end_s, period_s=period_s), 3 * period_s, 1000):
        assert time_s >= last_end.get(one, 0)
        assert end >= time_s
        last_end[one] = end


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=20),
    st.integers(0, 5),
)
def test_merged_sessions_cover_the_same_time_and_lie_further_apart_than_the_gap(rows, gap_s):
    device = np.array([one for one, _, _ in rows])
    start_s = np.array([float(start) for _, start, _ in rows])
    end_s = start_s + [length for _, _, length in rows]
    merged = list(zip(*(column.tolist() for column in merge_sessions(device, start_s, end_s, gap_s)), strict=True))
    assert merged == sorted(merged)
    for (one, _, end), (other, start, _) in itertools.pairwise(merged):
        assert one != other or start > end + gap_s
    for one, start, length in rows:
        assert any(one == other and low <= start and start + length <= high for other, low, high in merged)
    starts = {(one, float(start)) for one, start, _ in rows}
    ends = {(one, float(start + length)) for one, start, length in rows}
    assert all((one, low) in starts and (one, high) in ends for one, low, high in merged)


@given(
    st.integers(10, 30), st.integers(2, 3), st.integers(0, 2**32 - 1), st.floats(0, 24), st.booleans(), st.booleans()
)
def test_synthetic_traces_of_any_size_are_traces(devices, days, seed, clock_h, habit, flapping):
    trace = synthesise(devices, days, seed=seed, clock_h=clock_h, habit=habit, flapping=flapping)
    assert trace.period_s == days * 86_400
    assert trace.start_s.min() >= 0
    assert trace.start_s.max() < trace.period_s
    assert set(trace.device.tolist()) <= set(range(devices))
