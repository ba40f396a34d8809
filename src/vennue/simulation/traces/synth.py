"""Synthetic sessions that behave like recorded phones: any number of devices and days, from a seed.

Each device is a renewal process. Unplugged, it plugs in at a rate that depends on the clock hour and on the device
(Gamma with shape 2, at least 0.08); plugged in, it stays for a length drawn from the quantiles of recorded sessions
that began in the same two hours, stretched by a factor of the device (log-normal, σ 0.25, shorter for devices that plug
in often). The parameters were fitted to 300 phones over six days (`vennue/data/README.md`); what the generator must
reproduce, and how closely it does, is tested in ``tests/unit/simulation/test_trace_synth.py``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vennue import data
from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S
from vennue.simulation.traces.model import FloatArray, IntArray, Trace, checked_seed

HABIT_SHARE = 0.75
HABIT_WIDTH_H = 1.5
HABIT_RATE = 1.26
"""With habits, three in four plug-ins cluster (σ 1.5 h) around an hour of the device's own, so a device that is there
now is there with chance 0.35 a day later, as recorded (0.345). The rate makes up for plug-ins that find the device
plugged in already. Fitted to the recorded availability after 1, 6, 12 and 24 h."""

FLAP_CUTS = 0.69
FLAP_SHARE = 0.6
FLAP_MAX_S = 60.0
"""With flapping, a session is cut 0.69 times on average (1.69 raw sessions were recorded per session with gaps up to a
minute merged), six in ten cuts after less than a minute (a quarter of raw sessions are shorter than 41 s)."""

_WARM_UP_DAYS = 3


def synthesise(
    devices: int,
    days: int = 5,
    *,
    seed: int = 0,
    rate: float = 1.0,
    clock_h: float = 0.0,
    habit: bool = False,
    flapping: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """Sessions of ``devices`` devices, to be repeated every ``days`` days.

    Devices that are plugged in when the trace begins checked in before it; as the trace repeats, the sessions that run
    past its end stand for them.

    Args:
        devices: how many, at least 1. About 2.7 sessions each a day; 150 000 of them check in as often as the devices
            of the Venn paper's trace, 4.65 times a second.
        days: length of the trace.
        seed: of all that is drawn.
        rate: factor on the plug-in rate; 1.2 makes 22.5 % of devices available, as in FedScale's trace.
        clock_h: local clock hour at second 0.
        habit: give each device hours of its own.
        flapping: break sessions by gaps of up to a minute, as chargers with loose contacts do.
        progress: called with the fraction done, now and then.

    Raises:
        InvalidInput: no devices, no days, a rate that is not above 0, or no hour of a day.
    """
    for field, value in (("devices", devices), ("days", days), ("rate", rate)):
        if not value > 0:
            raise InvalidInput(f"must be above 0, got {value!r}", field=field, value=value, limit=0, fix="give more")
    if not 0 <= clock_h < 24:
        raise InvalidInput(
            f"must be an hour of the day, from 0 to below 24, got {clock_h:g}", field="clock", value=clock_h, limit=24,
            fix="write 22.5 for half past ten in the evening",
        )  # fmt: skip
    rng = np.random.default_rng(checked_seed(seed))
    device, start_s, end_s = _renew(rng, devices, days, _hazards(rate, habit=habit), clock_h, progress)
    if flapping:
        device, start_s, end_s = _flap(rng, device, start_s, end_s)
    # Milliseconds keep files short. Rounding keeps order, so sessions still do not overlap.
    start_s, end_s = np.round(start_s, 3), np.round(end_s, 3)
    inside = start_s < days * DAY_S
    if not inside.any():
        raise InvalidInput(
            f"{devices} devices begin no session in {days} days", field="devices", value=devices, fix="draw more"
        )
    return Trace(
        device[inside], start_s[inside], end_s[inside],
        period_s=days * DAY_S, clock_h=clock_h, name=f"synth-{devices}x{days}",
    )  # fmt: skip


class _Hazards(NamedTuple):
    """Plug-in rates by habit (rows) and clock hour (columns)."""

    per_h: FloatArray
    cumulative: FloatArray
    """Expected plug-ins from midnight to each hour, 0 to 24."""


@lru_cache(maxsize=1)
def _parameters() -> dict[str, FloatArray]:
    return {
        name: np.asarray(value, dtype=np.float64) for name, value in data.read_json("synthetic_sessions.json").items()
    }


def _hazards(rate: float, *, habit: bool) -> _Hazards:
    parameters = _parameters()
    per_h = rate * parameters["rate_scale"] * parameters["start_rate_per_unplugged_device_hour"][None, :]
    if habit:
        hours = np.arange(24)
        apart_h = (hours[None, :] - hours[:, None] + 12) % 24 - 12
        bump = np.exp(-((apart_h / HABIT_WIDTH_H) ** 2) / 2)
        bump /= bump.mean(axis=1, keepdims=True)
        per_h = HABIT_RATE * per_h * (1 - HABIT_SHARE + HABIT_SHARE * bump)
    return _Hazards(per_h, np.concatenate((np.zeros((len(per_h), 1)), np.cumsum(per_h, axis=1)), axis=1))


def _renew(
    rng: np.random.Generator,
    devices: int,
    days: int,
    hazards: _Hazards,
    clock_h: float,
    progress: Callable[[float], None] | None,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """All devices at once, a session of each per step, from a few days before the trace to its end."""
    parameters = _parameters()
    shape = float(parameters["device_rate_gamma_shape"])
    factor = np.maximum(parameters["device_rate_floor"], rng.gamma(shape, 1 / shape, devices))
    stretch = np.exp(rng.normal(0, parameters["device_log_duration_sigma"], devices))
    stretch *= factor ** parameters["duration_rate_exponent"]
    habit = rng.integers(0, len(hazards.per_h), devices)

    first_h, last_h = clock_h, clock_h + 24.0 * days
    now_h = np.full(devices, first_h - 24.0 * _WARM_UP_DAYS)
    active = np.arange(devices)
    parts: list[tuple[IntArray, FloatArray, FloatArray]] = []
    while len(active):
        start_h = _next_start_h(
            hazards, habit[active], now_h[active], rng.exponential(size=len(active)) / factor[active]
        )
        length_s = _length_s(start_h, rng.random(len(active))) * stretch[active]
        end_h = start_h + np.maximum(length_s, 1.0) / 3600
        kept = (start_h >= first_h) & (start_h < last_h)
        parts.append((active[kept], (start_h[kept] - first_h) * 3600, (end_h[kept] - first_h) * 3600))
        now_h[active] = end_h
        active = active[end_h < last_h]
        if progress is not None:
            progress(1 - len(active) / devices)
    device, start_s, end_s = (np.concatenate(column) for column in zip(*parts, strict=True))
    return device, start_s, end_s


def _next_start_h(hazards: _Hazards, habit: IntArray, now_h: FloatArray, wait: FloatArray) -> FloatArray:
    """When the integrated rate since ``now_h`` reaches ``wait``, by inverting its piecewise linear integral."""
    per_h, cumulative = hazards
    per_day = cumulative[habit, -1]
    day, hour = np.divmod(now_h, 24.0)
    slot = np.minimum(hour.astype(np.int64), 23)
    target = day * per_day + cumulative[habit, slot] + per_h[habit, slot] * (hour - slot) + wait
    day, rest = np.divmod(target, per_day)
    slot = np.minimum((cumulative[habit, 1:] <= rest[:, None]).sum(axis=1), 23)
    start_h: FloatArray = day * 24 + slot + (rest - cumulative[habit, slot]) / per_h[habit, slot]
    return start_h


def _length_s(start_h: FloatArray, level: FloatArray) -> FloatArray:
    """Quantiles of the lengths of sessions that start at these clock hours."""
    parameters = _parameters()
    levels, lengths_s = parameters["quantile_levels"], parameters["duration_quantiles_s_by_2h_block"]
    block = (start_h % 24 // 2).astype(np.int64)
    position = np.interp(level, levels, np.arange(len(levels)))
    below = np.minimum(position.astype(np.int64), len(levels) - 2)
    part = position - below
    length_s: FloatArray = lengths_s[block, below] * (1 - part) + lengths_s[block, below + 1] * part
    return length_s


def _flap(
    rng: np.random.Generator, device: IntArray, start_s: FloatArray, end_s: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Cut sessions into pieces up to a minute apart, a cut of each session per step, from its start on."""
    cuts = rng.geometric(1 / (1 + FLAP_CUTS), len(device)) - 1
    cursor_s = start_s.copy()
    pieces: list[tuple[IntArray, FloatArray, FloatArray]] = []
    for step in range(int(cuts.max(initial=0))):
        cut = np.flatnonzero(cuts > step)
        left_s = end_s[cut] - cursor_s[cut]
        short_s = FLAP_MAX_S ** rng.random(len(cut))
        piece_s = np.where(rng.random(len(cut)) < FLAP_SHARE, short_s, left_s * rng.random(len(cut)))
        gap_s = FLAP_MAX_S ** rng.random(len(cut))
        fits = piece_s + gap_s < left_s
        cut, piece_s, gap_s = cut[fits], piece_s[fits], gap_s[fits]
        pieces.append((device[cut], cursor_s[cut], cursor_s[cut] + piece_s))
        cursor_s[cut] += piece_s + gap_s
    pieces.append((device, cursor_s, end_s))
    flapping_device, flapping_start_s, flapping_end_s = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return flapping_device, flapping_start_s, flapping_end_s
