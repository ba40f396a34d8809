"""Check-ins that a server recorded, as a trace and a population: what happened once, under whatever policy.

Each recorded check-in is a session of a device of its own, of the kind that was recorded. A recording of a day or more
is cut to whole days, so that it can be repeated; a shorter one is repeated as it is. Some recorded check-ins are of
devices that asked again, and those that were busy did not ask, so another policy would have met somewhat others.
"""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S
from vennue.core.requirement import AttributeSchema
from vennue.simulation.traces.devices import Capacity, DevicePopulation, DeviceTable
from vennue.simulation.traces.model import BLOCK_SIZE, Block, FloatArray, IntArray, in_blocks

FORMAT = "vennue-check-ins"
VERSION = 1
SUFFIX = ".jsonl"
SESSION_S = 3600.0
"""How long a recorded device is taken to stay: nobody recorded when it left."""


class Recording:
    """What was recorded: when which kind of device checked in.

    Attributes:
        time_s: seconds from the recording's first check-in on.
        kind: row in ``kinds``.
        kinds: attributes of each kind; those of the first are not known.
    """

    def __init__(self, path: Path) -> None:
        """Read a file, or all of a folder.

        Raises:
            InvalidInput: nothing was recorded there, or it is no recording; with the file and the line.
        """
        self.path = path
        self.kinds: list[dict[str, Any]] = [{}]
        numbers: dict[str, int] = {"{}": 0}
        times: list[float] = []
        rows: list[int] = []
        for file in sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]:
            _read(file, self.kinds, numbers, times, rows)
        if not times:
            raise InvalidInput(
                f"{path} holds no recorded check-in", field="replay", value=str(path),
                fix="name a file or the folder that `vennue serve --record` writes to",
            )  # fmt: skip
        time_s = np.array(times)
        order = np.argsort(time_s, kind="stable")
        self.time_s: FloatArray = time_s[order] - time_s[order[0]]
        self.kind: IntArray = np.array(rows)[order]

    def check_ins(self) -> "Replay":
        """The check-ins, repeated without end."""
        return Replay(self.time_s, self.kind, len(self.kinds), name=self.path.name)

    def population(self, capacity: Capacity | None = None, *, seed: int = 0) -> DevicePopulation:
        """What the trace's devices are; how fast they are was not recorded."""
        names = sorted({name for kind in self.kinds for name in kind})
        columns: dict[str, list[object]] = {name: [kind.get(name) for kind in self.kinds] for name in names}
        table = DeviceTable(columns or {"kind": [None] * len(self.kinds)})
        return DevicePopulation(table, capacity or Capacity.paper(), listed_rows=np.arange(len(self.kinds)), seed=seed)


class Replay:
    """A `CheckIns` stream: recorded check-ins, again and again, each time of other devices of the same kinds."""

    def __init__(self, time_s: FloatArray, kind: IntArray, kinds: int, *, name: str) -> None:
        self.name = name
        self.clock_h = 0.0
        length_s = float(time_s[-1])
        days = int(length_s // DAY_S)
        # The time to the first check-in of the next repetition is the usual one between two.
        self.period_s = days * DAY_S if days else length_s + max(length_s / max(len(time_s) - 1, 1), 1.0)
        count = int(np.searchsorted(time_s, self.period_s))
        self._time_s = time_s[:count]
        self._device = np.arange(count) * kinds + kind[:count]
        self._devices = count * kinds

    @property
    def rate_per_s(self) -> float:
        """Check-ins per second."""
        return len(self._time_s) / self.period_s

    def blocks(self, until_s: float = math.inf, *, extend_s: float = 0.0, size: int = BLOCK_SIZE) -> Iterator[Block]:
        """See `CheckIns.blocks`."""
        for repetition in itertools.count():
            if repetition * self.period_s >= until_s:
                return
            time_s = self._time_s + repetition * self.period_s
            device = self._device + repetition * self._devices
            yield from in_blocks(time_s, device, time_s + (SESSION_S + extend_s), until_s, size)


def is_recording(path: Path) -> bool:
    """Whether a name is that of a recording: a folder, or a file of JSON lines."""
    return path.is_dir() or path.name.endswith(SUFFIX)


@lru_cache(maxsize=2)
def read_recording_of(path: Path) -> Recording:
    """A recording, read once for its trace and its population."""
    return Recording(path)


def _read(
    file: Path, kinds: list[dict[str, Any]], numbers: dict[str, int], times: list[float], rows: list[int]
) -> None:
    """Add a file's check-ins, giving equal kinds of all files one number."""
    started_at = 0.0
    local: dict[int, int] = {0: 0}
    for number, line in enumerate(_lines(file), start=1):
        try:
            content = msgspec.json.decode(line)
            if number == 1:
                if content["format"] != FORMAT or content["version"] > VERSION:
                    raise InvalidInput(
                        f"{file.name} is no recording that this version reads", field="replay", value=str(file),
                        fix="give what `vennue serve --record` wrote, or a newer Vennue",
                    )  # fmt: skip
                started_at = float(content["started_at"])
            elif isinstance(content, list):
                since_s, kind = content
                times.append(started_at + float(since_s))
                rows.append(local[kind])
            else:
                attributes = dict(AttributeSchema.open().check(content["attributes"]).attributes)
                key = msgspec.json.encode(attributes, order="sorted").decode()
                if key not in numbers:
                    numbers[key] = len(kinds)
                    kinds.append(attributes)
                local[content["kind"]] = numbers[key]
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{file.name}, line {number}: no recorded check-in: {error}", field="replay", value=str(file),
                fix="delete the line, or give another file",
            ) from error  # fmt: skip


def _lines(file: Path) -> Iterator[bytes]:
    """The whole lines of a file: a server that was killed may have left half of one at the end."""
    try:
        with file.open("rb") as opened:
            for line in opened:
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise InvalidInput(
            f"cannot read {file}: {error.strerror}", field="replay", value=str(file), fix="check its name"
        ) from error
