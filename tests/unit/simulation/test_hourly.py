"""Check-ins from rates by the hour."""

import math

import numpy as np
import pytest

from vennue.core.errors import InvalidInput
from vennue.simulation.traces.hourly import HourlyCheckIns


def columns(check_ins, until_s, **options):
    blocks = list(check_ins.blocks(until_s, **options))
    return [np.concatenate(column) for column in zip(*blocks, strict=True)]


def test_each_hour_and_kind_has_the_check_ins_of_its_rate():
    rates = np.zeros((24, 2))
    rates[0] = 1.0, 0.0
    rates[1] = 0.5, 0.25
    time_s, device, end_s = columns(HourlyCheckIns(rates, session_s=100.0), 86_400 + 3600)
    kind, hour = device % 2, time_s // 3600
    counts = [[int(((hour == h) & (kind == k)).sum()) for k in (0, 1)] for h in (0, 1, 24)]
    expected = [[3600, 0], [1800, 900], [3600, 0]]  # the 25th hour is like the first
    for found, wanted in zip(np.ravel(counts), np.ravel(expected), strict=True):
        assert abs(found - wanted) <= 4 * math.sqrt(wanted)
    assert np.all(np.diff(time_s) >= 0)
    assert np.all(end_s - time_s == pytest.approx(100.0))
    assert len(np.unique(device)) == len(device)


def test_the_same_seed_gives_the_same_check_ins_in_blocks_of_any_size():
    stream = HourlyCheckIns([[0.3, 0.2]], seed=7)
    whole, small = columns(stream, 9000.0), columns(stream, 9000.0, size=11)
    assert [column.tolist() for column in whole] == [column.tolist() for column in small]


def test_its_rate_is_the_day_s_average():
    assert HourlyCheckIns([[1.0, 1.0], [0.0, 1.0]]).rate_per_s == 1.5


@pytest.mark.parametrize("rates", [[], [[]], [[0.0]], [[-1.0]], [[math.nan]], [1.0]])
def test_rates_that_make_no_stream_are_refused(rates):
    with pytest.raises(InvalidInput):
        HourlyCheckIns(rates)
