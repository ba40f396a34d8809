"""The generators against the statistics of recorded phones and of the Venn paper's trace, with stated tolerances.

Reference figures are those of 300 phones over six days (FLASH traces, plug-in sessions; "merged" joins gaps of up to a
minute) as measured apart from this code. Tolerances cover the fit's own error plus the sampling noise of 4000 devices.
"""

import numpy as np
import pytest

from vennue.core.errors import InvalidInput
from vennue.simulation.traces.devices import Capacity, phone_population, task_time_s
from vennue.simulation.traces.paper import PaperCheckIns
from vennue.simulation.traces.synth import synthesise

DAY_S = 86_400.0
DEVICES, DAYS = 4000, 6


@pytest.fixture(scope="module")
def trace():
    return synthesise(DEVICES, DAYS, seed=1)


@pytest.fixture(scope="module")
def habitual():
    return synthesise(DEVICES, DAYS, seed=1, habit=True)


def available(trace, step_s=3600.0):
    """Whether each device is there, by moment of the endlessly repeated trace: one row per moment."""
    there = np.zeros((int(trace.period_s / step_s), DEVICES), dtype=bool)
    for row, at_s in enumerate(np.arange(len(there)) * step_s):
        for moment_s in (at_s, at_s + trace.period_s):
            there[row, trace.device[(trace.start_s <= moment_s) & (moment_s < trace.end_s)]] = True
    return there


def device_fractions(trace):
    length_s = trace.end_s - trace.start_s
    return np.bincount(trace.device, weights=length_s, minlength=DEVICES) / trace.period_s


def test_devices_are_there_as_much_of_the_time_as_recorded_phones(trace):
    assert device_fractions(trace).mean() == pytest.approx(0.193, abs=0.01)


def test_availability_varies_between_devices_as_recorded(trace):
    found = np.quantile(device_fractions(trace), [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])
    assert found == pytest.approx([0.025, 0.049, 0.094, 0.161, 0.257, 0.367, 0.478], rel=0.2)


def test_devices_check_in_as_often_as_recorded(trace):
    assert len(trace) / DEVICES / DAYS == pytest.approx(2.56, rel=0.08)


def test_session_lengths_have_the_recorded_quantiles(trace):
    found = np.quantile(trace.end_s - trace.start_s, [0.1, 0.25, 0.5, 0.75, 0.9, 0.95])
    assert found == pytest.approx([320, 1056, 2994, 7111, 17_992, 27_095], rel=0.12)


def test_sessions_that_start_at_night_are_three_times_as_long(trace):
    hour = trace.start_s / 3600 % 24
    length_min = (trace.end_s - trace.start_s) / 60
    assert 55 <= length_min[(hour >= 10) & (hour < 19)].mean() <= 100
    assert 150 <= length_min[(hour >= 21) | (hour < 1)].mean() <= 270


def test_availability_peaks_at_night_and_is_lowest_around_noon(trace):
    by_hour = available(trace).reshape(DAYS, 24, DEVICES).mean(axis=(0, 2))
    assert by_hour.argmax() in (1, 2, 3)
    assert by_hour.argmin() in (11, 12, 13)
    assert by_hour.max() / by_hour.min() == pytest.approx(1.55, abs=0.15)


def test_the_clock_at_the_start_turns_the_day(trace):
    evening = synthesise(DEVICES, DAYS, seed=1, clock_h=18)
    by_hour = available(evening).reshape(DAYS, 24, DEVICES).mean(axis=(0, 2))
    assert (by_hour.argmax() + 18) % 24 in (1, 2, 3)


def test_a_higher_plug_in_rate_reaches_the_availability_of_fedscales_devices():
    trace = synthesise(DEVICES, DAYS, seed=1, rate=1.2)
    assert device_fractions(trace).mean() == pytest.approx(0.225, abs=0.012)


def test_devices_with_habits_come_back_a_day_later_as_recorded(trace, habitual):
    def again(trace, hours):
        there = available(trace)
        later = np.roll(there, -hours, axis=0)
        return (later & there).sum() / there.sum(), (later & ~there).sum() / (~there).sum()

    assert again(habitual, 24) == pytest.approx((0.345, 0.163), abs=0.02)
    assert again(habitual, 1) == pytest.approx((0.683, 0.076), abs=0.02)
    assert again(habitual, 6) == pytest.approx((0.288, 0.172), abs=0.02)
    assert again(trace, 24)[0] < 0.28


def test_habits_change_neither_how_much_nor_when_devices_are_there_on_the_whole(habitual):
    assert device_fractions(habitual).mean() == pytest.approx(0.193, abs=0.01)
    by_hour = available(habitual).reshape(DAYS, 24, DEVICES).mean(axis=(0, 2))
    assert by_hour.max() / by_hour.min() == pytest.approx(1.5, abs=0.15)


def test_flapping_sessions_are_as_many_and_as_short_as_the_raw_recording():
    trace = synthesise(DEVICES, DAYS, seed=1, flapping=True)
    length_s = trace.end_s - trace.start_s
    assert len(trace) / DEVICES / DAYS == pytest.approx(4.32, rel=0.08)
    assert np.quantile(length_s, [0.25, 0.5, 0.75, 0.9]) == pytest.approx([41, 944, 3736, 10_384], rel=0.15)
    shares = [(length_s > seconds).mean() for seconds in (60, 600, 3600, 10_800)]
    assert shares == pytest.approx([0.73, 0.56, 0.26, 0.10], abs=0.03)
    assert device_fractions(trace).mean() == pytest.approx(0.193, abs=0.01)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another():
    one, two, other = (synthesise(50, 2, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(one.start_s, two.start_s)
    assert np.array_equal(one.end_s, two.end_s)
    assert not np.array_equal(one.start_s[:20], other.start_s[:20])


def test_one_device_for_one_day_is_a_trace():
    assert synthesise(1, 1, seed=2).devices == 1


@pytest.mark.parametrize("field", ["devices", "days", "rate"])
def test_nothing_to_draw_is_refused(field):
    with pytest.raises(InvalidInput, match=f"{field}: must be above 0, got 0"):
        synthesise(**{"devices": 10, "days": 1, "rate": 1.0} | {field: 0})


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1.5])
@pytest.mark.parametrize("draw", [lambda seed: synthesise(2, 2, seed=seed), lambda seed: PaperCheckIns(seed=seed)])
def test_a_seed_that_is_none_is_refused(draw, seed):
    with pytest.raises(InvalidInput, match="seed: must be a whole number from 0 to 4294967295"):
        draw(seed)


def test_progress_runs_to_the_end():
    seen: list[float] = []
    synthesise(20, 1, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.fixture(scope="module")
def paper():
    blocks = list(PaperCheckIns(seed=1).blocks(2 * DAY_S))
    return [np.concatenate(column) for column in zip(*blocks, strict=True)]


def test_the_papers_check_ins_come_4_65_times_a_second(paper):
    time_s, _, _ = paper
    # 800 000 Poisson arrivals: a standard deviation of 0.11 %.
    assert len(time_s) / (2 * DAY_S) == pytest.approx(4.65, rel=0.005)


def test_the_papers_check_ins_swing_by_60_percent_over_the_day(paper):
    time_s, _, _ = paper
    per_s = np.histogram(time_s % DAY_S, bins=24, range=(0, DAY_S))[0] / 7200
    # The two hours around the peak average sin(π/12)/(π/12) = 0.9886 of its swing.
    assert per_s[[5, 6]].mean() == pytest.approx(4.65 * (1 + 0.6 * 0.9886), rel=0.02)
    assert per_s[[17, 18]].mean() == pytest.approx(4.65 * (1 - 0.6 * 0.9886), rel=0.03)


def test_the_papers_sessions_last_80_s_and_a_log_normal_time(paper):
    time_s, _, end_s = paper
    rest_s = end_s - time_s - 80
    assert rest_s.min() >= 0
    assert np.median(rest_s) == pytest.approx(300, rel=0.01)
    assert np.log(rest_s).std() == pytest.approx(1.2, rel=0.01)


def test_each_of_the_papers_sessions_is_another_device_in_time_order(paper):
    time_s, device, _ = paper
    assert np.array_equal(device, np.arange(len(time_s)))
    assert np.all(np.diff(time_s) >= 0)


def test_the_papers_tasks_take_as_long_and_are_lost_as_often_as_calibrated(paper):
    time_s, device, end_s = paper
    task_s = task_time_s(phone_population(Capacity.paper(), seed=1)(device), workload_s=30)
    assert np.quantile(task_s, [0.5, 0.8, 0.95]) == pytest.approx([73, 152, 335], rel=0.01)
    assert (task_s > end_s - time_s).mean() == pytest.approx(0.076, abs=0.002)


def test_the_papers_stream_does_not_depend_on_the_size_of_its_blocks():
    def columns(size):
        blocks = list(PaperCheckIns(seed=4).blocks(30_000, size=size))
        return [np.concatenate(column).tolist() for column in zip(*blocks, strict=True)]

    assert columns(1000) == columns(65_536)


@pytest.mark.parametrize("options", [{"rate_per_s": 0}, {"amplitude": 1.5}, {"rate_per_s": float("inf")}])
def test_a_stream_without_a_rate_is_refused(options):
    with pytest.raises(InvalidInput, match="must be"):
        PaperCheckIns(**options)
