"""What a trace looks like: how many devices, when they are there, for how long, and what they are.

A trace repeats, so all figures are those of the endless repetition: a session that runs past the end of the period
counts in the hours of the next one.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from vennue.core.job import DAY_S
from vennue.core.requirement import Requirement
from vennue.simulation.traces.devices import NOMINAL_WORKLOAD_S, DevicePopulation, task_time_s
from vennue.simulation.traces.model import CheckIns, FloatArray, IntArray, Trace, record

QUANTILES = (5, 10, 25, 50, 75, 90, 95, 99)
"""In percent."""


class Hour(msgspec.Struct, frozen=True):
    """A local clock hour, averaged over the days of the trace."""

    clock_h: int
    available: float
    """Share of the devices that are there."""
    check_ins_per_s: float


class Region(msgspec.Struct, frozen=True):
    """The devices that meet exactly these classes."""

    classes: tuple[str, ...]
    share: float
    """Of all check-ins."""
    check_ins_per_s: float


class TraceSummary(msgspec.Struct, frozen=True):
    """The figures of `summarise`. Quantiles are keyed by their percentage."""

    name: str
    devices: int
    sessions: int
    period_s: float
    check_ins_per_s: float
    sessions_per_device_day: float
    available: float
    """Share of the devices that are there, averaged over time."""
    device_available: dict[int, float]
    """Quantiles over devices of the share of time that a device is there."""
    length_s: dict[int, float]
    """Quantiles of the sessions' lengths."""
    mean_length_s: float
    task_s: dict[int, float]
    """Quantiles over check-ins of the time that a task of 30 s on the mean device takes."""
    hours: tuple[Hour, ...]
    regions: tuple[Region, ...]


def summarise(check_ins: CheckIns, population: DevicePopulation, classes: Mapping[str, Requirement]) -> TraceSummary:
    """Describe a trace, or the first day of an endless stream of check-ins, and the regions of some classes."""
    trace = check_ins if isinstance(check_ins, Trace) else record(check_ins, 1)
    devices, device = np.unique(trace.device, return_inverse=True)
    length_s = trace.end_s - trace.start_s
    drawn = population(trace.device)
    there = np.bincount(device, weights=length_s) / trace.period_s
    return TraceSummary(
        name=trace.name,
        devices=len(devices),
        sessions=len(trace),
        period_s=trace.period_s,
        check_ins_per_s=trace.rate_per_s,
        sessions_per_device_day=len(trace) / len(devices) / (trace.period_s / DAY_S),
        available=float(there.mean()),
        device_available=_quantiles(there),
        length_s=_quantiles(length_s),
        mean_length_s=float(length_s.mean()),
        task_s=_quantiles(task_time_s(drawn, NOMINAL_WORKLOAD_S)),
        hours=_hours(trace, len(devices)),
        regions=_regions(trace, drawn.row, population, classes),
    )


def _quantiles(values: FloatArray) -> dict[int, float]:
    return dict(zip(QUANTILES, np.percentile(values, QUANTILES).tolist(), strict=True))


def _hours(trace: Trace, devices: int) -> tuple[Hour, ...]:
    """Average availability and check-ins by clock hour, from their exact integrals over each hour of the trace."""
    edges_s = np.append(np.arange(0, trace.period_s, 3600), trace.period_s)
    starts = np.searchsorted(trace.start_s, edges_s)
    device_s = np.diff(_device_seconds(trace, edges_s) + _device_seconds(trace, edges_s + trace.period_s))
    clock = (edges_s[:-1] / 3600 + trace.clock_h).astype(np.int64) % 24
    hours_s = np.bincount(clock, weights=np.diff(edges_s), minlength=24)
    available = np.bincount(clock, weights=device_s, minlength=24)
    check_ins = np.bincount(clock, weights=np.diff(starts), minlength=24)
    return tuple(
        Hour(hour, float(available[hour] / hours_s[hour] / devices), float(check_ins[hour] / hours_s[hour]))
        for hour in range(24)
        if hours_s[hour] > 0
    )


def _device_seconds(trace: Trace, at_s: FloatArray) -> FloatArray:
    """Device-seconds of one repetition up to each moment: Σ max(0, t − start) − Σ max(0, t − end)."""
    end_s = np.sort(trace.end_s)

    def elapsed(sorted_s: FloatArray) -> FloatArray:
        passed = np.searchsorted(sorted_s, at_s)
        totals = np.concatenate(([0.0], np.cumsum(sorted_s)))
        total_s: FloatArray = passed * at_s - totals[passed]
        return total_s

    return elapsed(trace.start_s) - elapsed(end_s)


def _regions(
    trace: Trace, row: IntArray, population: DevicePopulation, classes: Mapping[str, Requirement]
) -> tuple[Region, ...]:
    names: Sequence[str] = list(classes)
    regions = population.regions(list(classes.values()))
    counts = np.bincount(regions.of_row[row], minlength=len(regions.signatures))
    found = [
        Region(
            tuple(name for bit, name in enumerate(names) if signature >> bit & 1),
            float(count / len(trace)),
            float(count / trace.period_s),
        )
        for signature, count in zip(regions.signatures, counts, strict=True)
        if count
    ]
    return tuple(sorted(found, key=lambda region: -region.share))
