"""Traces: when devices are there. A trace is a stream of check-ins in time order, one per session, without end.

`CheckIns` is all that an engine needs: blocks of numpy columns, made as they are asked for. `Trace` makes them from
recorded or synthetic sessions, which it repeats with a period as often as the run needs; nothing it holds grows with
the horizon. `vennue.simulation.traces.paper` makes them from a rate alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

YEAR_S = 365.25 * DAY_S
MAX_SESSION_S = YEAR_S
MAX_TRACE_S = 10 * YEAR_S
"""What starts later, or lasts longer, is a slip of units or a date in seconds: the period would be as long."""
BLOCK_SIZE = 65_536
"""Check-ins per block: columns of half a megabyte, which fit a core's cache."""


class Block(NamedTuple):
    """Consecutive check-ins in time order, as equally long columns."""

    time_s: FloatArray
    device: IntArray
    end_s: FloatArray
    """When the session ends that begins with the check-in."""


def in_blocks(time_s: FloatArray, device: IntArray, end_s: FloatArray, until_s: float, size: int) -> Iterator[Block]:
    """Columns of check-ins in time order as blocks of at most ``size``, up to ``until_s``."""
    kept = int(np.searchsorted(time_s, until_s))
    for first in range(0, kept, size):
        part = slice(first, min(first + size, kept))
        yield Block(time_s[part], device[part], end_s[part])


class CheckIns(Protocol):
    """A stream of check-ins that can be started over and always gives the same."""

    name: str
    clock_h: float
    """The local clock hour at second 0."""

    @property
    def rate_per_s(self) -> float:
        """Check-ins per second, averaged over whole days."""
        ...

    def blocks(self, until_s: float = math.inf, *, extend_s: float = 0.0, size: int = BLOCK_SIZE) -> Iterator[Block]:
        """All check-ins before ``until_s`` in time order, at most ``size`` to a block, none empty.

        ``extend_s`` is added to every session's end. A device may then check in again before the end of its
        former session: the device stayed, and the later session is the one that counts.
        """
        ...


class Trace:
    """Sessions of devices, repeated with a period.

    Sessions are kept in the order of their starts. Rows may come in any order: sorting them loses nothing. What would
    change the meaning is refused: an end before its start, two sessions of one device at once, a time that is negative,
    beyond `MAX_TRACE_S` or not a number, and a session longer than `MAX_SESSION_S`. One without length is a device that
    asks once. A session that crosses the end of the period runs on into the next repetition, at most up to the next
    session of its device.

    Args:
        device: device ids, not negative.
        start_s: start of each session, seconds from the start of the trace.
        end_s: its end.
        period_s: length of a repetition. Sessions that start later are left out. By default the smallest number of
            whole days that holds every start.
        merge_gap_s: make one of a device's sessions that overlap or lie at most this far apart, instead of refusing
            overlaps.
        clock_h: local clock hour at second 0.
        name: what messages and reports call the trace.
        where: names row *i* of the columns in an error, such as its line in the file.

    Raises:
        InvalidInput: with the row, the value and the fix.
    """

    def __init__(
        self,
        device: npt.ArrayLike,
        start_s: npt.ArrayLike,
        end_s: npt.ArrayLike,
        *,
        period_s: float | None = None,
        merge_gap_s: float | None = None,
        clock_h: float = 0.0,
        name: str = "trace",
        where: Callable[[int], str] = "session {}".format,
    ) -> None:
        devices = np.asarray(device, dtype=np.int64)
        starts = np.asarray(start_s, dtype=np.float64)
        ends = np.array(end_s, dtype=np.float64)
        if not len(devices):
            raise InvalidInput(f"{name} holds no session", field="sessions", value=0, limit=1, fix="give another trace")
        _check_rows(devices, starts, ends, where)
        if merge_gap_s is None:
            by_device = np.lexsort((ends, starts, devices))
            _check_overlaps(devices, starts, ends, by_device, where)
        else:
            devices, starts, ends = merge_sessions(devices, starts, ends, merge_gap_s)
            by_device = np.arange(len(devices))
        if period_s is None:
            period_s = DAY_S * (math.floor(float(starts.max()) / DAY_S) + 1)
        if not 0 < period_s < math.inf:
            raise InvalidInput(f"must be above 0 s, got {period_s!r}", field="period_s", value=period_s, limit=0)
        by_device = by_device[starts[by_device] < period_s]
        if not len(by_device):
            raise InvalidInput(
                f"no session of {name} starts in the first {period_s:g} s",
                field="period_s", value=period_s, limit=float(starts.min()), fix="give a longer period",
            )  # fmt: skip
        _clip_at_wrap(devices, starts, ends, by_device, period_s)

        by_start = by_device[np.argsort(starts[by_device], kind="stable")]
        self.name = name
        self.clock_h = clock_h % 24.0
        self.period_s = float(period_s)
        self.device: IntArray = devices[by_start]
        self.start_s: FloatArray = starts[by_start]
        self.end_s: FloatArray = ends[by_start]

    def __len__(self) -> int:
        """Sessions in a period."""
        return len(self.device)

    @property
    def devices(self) -> int:
        """Distinct devices."""
        return len(np.unique(self.device))

    @property
    def rate_per_s(self) -> float:
        """Check-ins per second, averaged over a period."""
        return len(self) / self.period_s

    @property
    def online_s(self) -> float:
        """Time that devices are there in a period, added up."""
        return float((self.end_s - self.start_s).sum())

    def asks_per_s(self, poll_interval_s: float, extend_s: float = 0.0) -> float:
        """At most so many times a second does any device ask, averaged over a period, if idle ones ask again.

        ``extend_s`` is added to every session.
        """
        return (len(self) + (self.online_s + len(self) * extend_s) / poll_interval_s) / self.period_s

    def blocks(self, until_s: float = math.inf, *, extend_s: float = 0.0, size: int = BLOCK_SIZE) -> Iterator[Block]:
        """See `CheckIns.blocks`. Costs a few additions per check-in."""
        for repetition in itertools.count():
            offset_s = repetition * self.period_s
            for first in range(0, len(self), size):
                time_s = self.start_s[first : first + size] + offset_s
                ends = time_s[-1] >= until_s
                if ends:
                    time_s = time_s[: int(np.searchsorted(time_s, until_s))]
                if len(time_s):
                    part = slice(first, first + len(time_s))
                    yield Block(time_s, self.device[part], self.end_s[part] + (offset_s + extend_s))
                if ends:
                    return


def record(check_ins: CheckIns, days: int) -> Trace:
    """The first days of a stream as a trace that repeats them."""
    start_s, device, end_s = (np.concatenate(column) for column in zip(*check_ins.blocks(days * DAY_S), strict=True))
    return Trace(device, start_s, end_s, period_s=days * DAY_S, clock_h=check_ins.clock_h, name=check_ins.name)


def checked_seed(seed: int) -> int:
    """The seed, if numpy's generators take it.

    Raises:
        InvalidInput: it is not a whole number from 0 to 2³² − 1.
    """
    if seed != int(seed) or not 0 <= seed < 1 << 32:
        raise InvalidInput(
            f"must be a whole number from 0 to {(1 << 32) - 1}, got {seed!r}",
            field="seed", value=seed, limit=(1 << 32) - 1, fix="choose another seed",
        )  # fmt: skip
    return seed


def merge_sessions(
    device: IntArray, start_s: FloatArray, end_s: FloatArray, gap_s: float
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Sessions of one device that overlap or lie at most ``gap_s`` apart, made one. Ordered by device, then start."""
    order = np.lexsort((start_s, device))
    device, start_s, end_s = device[order], start_s[order], end_s[order]
    # The latest end so far within each device, exactly: ends by rank, ranks offset by device, one running maximum.
    distinct, rank = np.unique(end_s, return_inverse=True)
    new_device = np.concatenate(([True], device[1:] != device[:-1]))
    base = np.cumsum(new_device) * len(distinct)
    latest_s = distinct[np.maximum.accumulate(base + rank) - base]
    opens = new_device.copy()
    opens[1:] |= start_s[1:] > latest_s[:-1] + gap_s
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:], [len(device)])) - 1
    return device[first], start_s[first], latest_s[last]


def _check_rows(device: IntArray, start_s: FloatArray, end_s: FloatArray, where: Callable[[int], str]) -> None:
    if not len(device) == len(start_s) == len(end_s):
        lengths = f"{len(device)}, {len(start_s)} and {len(end_s)} rows"
        raise InvalidInput(
            f"device, start_s and end_s have {lengths}", field="sessions", fix="give columns of one length"
        )
    for column, values in (("start_s", start_s), ("end_s", end_s)):
        bad = _first(~np.isfinite(values))
        if bad is not None:
            raise InvalidInput(
                f"{where(bad)}: not a finite number", field=column, value=float(values[bad]),
                fix="give seconds from the start of the trace, or delete the row",
            )  # fmt: skip
    bad = _first(device < 0)
    if bad is not None:
        raise InvalidInput(
            f"{where(bad)}: device {device[bad]} is negative", field="device", value=int(device[bad]), limit=0,
            fix="number the devices from 0",
        )  # fmt: skip
    bad = _first(start_s < 0)
    if bad is not None:
        raise InvalidInput(
            f"{where(bad)}: the session starts at {start_s[bad]:.15g} s, before the trace does", field="start_s",
            value=float(start_s[bad]), limit=0, fix="shift all times so that the earliest is 0 or later",
        )  # fmt: skip
    bad = _first(end_s < start_s)
    if bad is not None:
        raise InvalidInput(
            f"{where(bad)}: the session ends at {end_s[bad]:.15g} s, before it starts at {start_s[bad]:.15g} s",
            field="end_s", value=float(end_s[bad]), limit=float(start_s[bad]), fix="swap the times or delete the row",
        )  # fmt: skip
    bad = _first(start_s > MAX_TRACE_S)
    if bad is not None:
        raise InvalidInput(
            f"{where(bad)}: the session starts at {start_s[bad]:.15g} s, more than ten years after the trace does",
            field="start_s", value=float(start_s[bad]), limit=MAX_TRACE_S,
            fix="give seconds from the start of the trace, not dates or milliseconds",
        )  # fmt: skip
    bad = _first(end_s - start_s > MAX_SESSION_S)
    if bad is not None:
        raise InvalidInput(
            f"{where(bad)}: the session from {start_s[bad]:.15g} s to {end_s[bad]:.15g} s is longer than a year",
            field="end_s", value=float(end_s[bad]), limit=float(start_s[bad]) + MAX_SESSION_S,
            fix="give its end in seconds from the start of the trace, or delete the row",
        )  # fmt: skip


def _check_overlaps(
    device: IntArray, start_s: FloatArray, end_s: FloatArray, by_device: IntArray, where: Callable[[int], str]
) -> None:
    earlier, later = by_device[:-1], by_device[1:]
    bad = _first((device[later] == device[earlier]) & (start_s[later] < end_s[earlier]))
    if bad is not None:
        one, two = int(earlier[bad]), int(later[bad])
        raise InvalidInput(
            f"{where(two)}: device {device[two]} starts a session at {start_s[two]:.15g} s, "
            f"while its session of {where(one)} lasts until {end_s[one]:.15g} s",
            field="start_s", value=float(start_s[two]), limit=float(end_s[one]),
            fix="merge them with `vennue trace convert --merge-gap 0`, or give the devices different ids",
        )  # fmt: skip


def _clip_at_wrap(
    device: IntArray, start_s: FloatArray, end_s: FloatArray, by_device: IntArray, period_s: float
) -> None:
    """End each device's last session, in place, no later than its first one of the next repetition starts."""
    changes = np.flatnonzero(np.diff(device[by_device])) + 1
    first = by_device[np.concatenate(([0], changes))]
    last = by_device[np.concatenate((changes, [len(by_device)])) - 1]
    end_s[last] = np.minimum(end_s[last], start_s[first] + period_s)


def _first(bad: npt.NDArray[np.bool_]) -> int | None:
    """Index of the first True, if any."""
    index = int(np.argmax(bad)) if len(bad) else 0
    return index if len(bad) and bad[index] else None
