"""Vennue's own trace files, and the one place that turns what a user names into check-ins and devices.

A trace is a table with a row per session: ``device`` (whole number), ``start_s``, ``end_s`` (seconds from the start of
the trace), in any order. Devices are a table with a row per device, or per model with a ``weight``: public attributes
under their own names and, if known, ``computation_ms`` and ``communication_kbps``.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from vennue import data
from vennue.core.errors import InvalidInput, did_you_mean
from vennue.core.job import DAY_S
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.simulation.traces import foreign
from vennue.simulation.traces.columns import Progress, Table, is_table, read_header, read_table, write_table
from vennue.simulation.traces.devices import Capacity, DevicePopulation, DeviceTable, phone_population
from vennue.simulation.traces.model import CheckIns, IntArray, Trace
from vennue.simulation.traces.paper import PaperCheckIns
from vennue.simulation.traces.recorded import is_recording, read_recording_of
from vennue.simulation.traces.synth import synthesise

SESSION_COLUMNS = ("device", "start_s", "end_s")
AUTHORS_COLUMNS = ("ID", "start", "end")
PAPER_DEVICES = 150_000
"""Synthetic devices that check in as often as those of the Venn paper's trace."""

_NOT_ATTRIBUTES = ("device", "weight", "computation_ms", "communication_kbps")

CAPACITIES: Mapping[str, Callable[[], Capacity]] = {
    "fedscale": Capacity.fedscale,
    "first-199": Capacity.first_199,
    "model": Capacity.by_model,
    "paper": Capacity.paper,
}
TRACES = ("paper", "phones", "synth")


def read_recording(
    path: Path,
    *,
    period_s: float | None = None,
    merge_gap_s: float | None = None,
    clock_h: float = 0.0,
    progress: Progress | None = None,
) -> Trace | Capacity | tuple[DeviceTable, IntArray]:
    """What a file holds: sessions, capacities, or devices (a table of kinds, and the kind of each).

    Sessions come from our CSV or Parquet, the Venn authors' CSV (``ID``, ``start``, ``end``), or FedScale's
    ``client_behave_trace``; capacities from its ``client_device_capacity``; devices from the authors' eligibility
    list. The other arguments are those of `Trace`.

    Raises:
        InvalidInput: with the file, the row and the fix.
    """
    if is_table(path):
        authors = set(read_header(path)) >= set(AUTHORS_COLUMNS)
        device, start_s, end_s = names = AUTHORS_COLUMNS if authors else SESSION_COLUMNS
        table = read_table(path, names, progress=progress)
        return Trace(
            table.whole_numbers(device), table.numbers(start_s), table.numbers(end_s),
            period_s=period_s, merge_gap_s=merge_gap_s, clock_h=clock_h, name=path.name, where=table.where,
        )  # fmt: skip
    content = foreign.load_plain(path)
    kind = foreign.kind(path, content)
    if kind == "capacity":
        return foreign.capacity(path, content)
    if kind == "eligibility":
        return foreign.eligibility(path, content)
    return foreign.behaviour(
        path, content, period_s=period_s, merge_gap_s=merge_gap_s, clock_h=clock_h, progress=progress
    )


def read_trace(
    path: Path, *, period_s: float | None = None, clock_h: float = 0.0, progress: Progress | None = None
) -> Trace:
    """The sessions in a file, as `read_recording`.

    Raises:
        InvalidInput: with the file, the row and the fix.
    """
    found = read_recording(path, period_s=period_s, clock_h=clock_h, progress=progress)
    if not isinstance(found, Trace):
        raise InvalidInput(
            f"{path.name} holds devices, not sessions", field="trace", value=str(path), fix="give a trace"
        )
    return found


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace as CSV, gzipped CSV or Parquet, by the name's ending, in order of start.

    Raises:
        InvalidInput: the name's ending says no kind of table.
        StorageError: the file cannot be written.
    """
    write_table(path, dict(zip(SESSION_COLUMNS, (trace.device, trace.start_s, trace.end_s), strict=True)))


def phone_trace() -> Trace:
    """The recorded plug-in sessions of 300 phones, five days from 18:00, that ship with Vennue.

    In the five days 292 of them are plugged in: three never are, and five only later. The recording breaks some
    sessions off and goes on in the same second; those are one here.
    """
    shipped = data.read_csv("phone_sessions.csv.gz")
    device, start_s, end_s = ([float(text) for text in shipped[name]] for name in SESSION_COLUMNS)
    return Trace(device, start_s, end_s, period_s=5 * DAY_S, merge_gap_s=0, clock_h=18.0, name="phones")


def open_check_ins(spec: str, *, seed: int = 0, progress: Progress | None = None) -> CheckIns:
    """The check-ins that a user names.

    ``paper`` is the calibrated stream, ``phones`` the shipped sessions, ``synth`` (or ``synth:DEVICES`` or
    ``synth:DEVICESxDAYS``) a synthetic trace, and anything else a file of ours, the authors' CSV, a FedScale pickle, or
    what a server recorded.

    Raises:
        InvalidInput: neither a name nor a readable file.
    """
    if spec == "paper":
        return PaperCheckIns(seed=seed)
    if spec == "phones":
        return phone_trace()
    synthetic = re.fullmatch(r"synth(?::(\d+)(?:x(\d+))?)?", spec)
    if synthetic:
        devices, days = synthetic.groups()
        return synthesise(int(devices or PAPER_DEVICES), int(days or 5), seed=seed, progress=progress)
    path = Path(spec)
    if not path.exists():
        raise InvalidInput(
            f"{spec!r} is neither a file nor one of {', '.join(TRACES)}", field="trace", value=spec, limit=TRACES,
            fix=did_you_mean(spec, TRACES, "check the file's name"),
        )  # fmt: skip
    return read_recording_of(path).check_ins() if is_recording(path) else read_trace(path, progress=progress)


def open_population(devices: str | None = None, capacity: str | None = None, *, seed: int = 0) -> DevicePopulation:
    """The devices that a user names.

    Args:
        devices: a table of devices, the authors' eligibility list, or what a server recorded; the shipped phone models
            by default.
        capacity: ``fedscale``, ``paper``, ``first-199``, ``model``, or a file of capacities; by default those in the
            table of devices, else ``fedscale``.
        seed: of what is left to chance.

    Raises:
        InvalidInput: neither a name nor a readable file, or no devices in it.
    """
    speeds = None if capacity is None else open_capacity(capacity)
    if devices is None:
        return phone_population(speeds, seed=seed)
    path = Path(devices)
    if is_recording(path):
        return read_recording_of(path).population(speeds, seed=seed)
    if not is_table(path):
        table, rows = foreign.eligibility(path, foreign.load_plain(path))
        return DevicePopulation(table, speeds or Capacity.fedscale(), listed_rows=rows, seed=seed)
    return _population(read_table(path), speeds, seed)


def open_capacity(spec: str) -> Capacity:
    """The capacities that a user names: one of `CAPACITIES`, a table, or FedScale's pickle or JSON.

    Raises:
        InvalidInput: neither a name nor a readable file.
    """
    named = CAPACITIES.get(spec)
    if named is not None:
        return named()
    path = Path(spec)
    if not path.exists():
        raise InvalidInput(
            f"{spec!r} is neither a file nor one of {', '.join(CAPACITIES)}",
            field="capacity", value=spec, limit=tuple(CAPACITIES),
            fix=did_you_mean(spec, CAPACITIES, "check the file's name"),
        )  # fmt: skip
    if not is_table(path):
        return foreign.capacity(path, foreign.load_plain(path))
    return _capacity(read_table(path, ("computation_ms", "communication_kbps")))


def _capacity(table: Table, order: IntArray | slice = slice(None)) -> Capacity:
    try:
        return Capacity(table.numbers("computation_ms")[order], table.numbers("communication_kbps")[order], listed=True)
    except InvalidInput as error:
        error.message = f"{table.path.name}: {error.message}"
        raise


def _population(table: Table, capacity: Capacity | None, seed: int) -> DevicePopulation:
    if not len(table):
        raise InvalidInput(
            f"{table.path.name} holds no device", field="devices", value=0, limit=1, fix="give at least one row"
        )
    order = _by_device(table) if "device" in table.columns else np.arange(len(table))
    if capacity is None and {"computation_ms", "communication_kbps"} <= set(table.columns):
        capacity = _capacity(table, order)
    names = [name for name in table.columns if name not in _NOT_ATTRIBUTES]
    # Requirements are evaluated once for each kind of device, however many devices are of a kind.
    kinds: dict[tuple[object, ...], int] = {}
    columns = [table.values(name, numeric=_is_numeric(name)) for name in names]
    row = np.array([kinds.setdefault(kind, len(kinds)) for kind in zip(*columns, strict=True)] or [0] * len(table))
    distinct = DeviceTable(dict(zip(names, zip(*kinds, strict=True), strict=True)) if kinds else {"kind": ["any"]})
    capacity = capacity or Capacity.fedscale()
    if "weight" in table.columns:
        return DevicePopulation(distinct, capacity, weights=np.bincount(row, table.numbers("weight")), seed=seed)
    return DevicePopulation(distinct, capacity, listed_rows=row[order], seed=seed)


def _is_numeric(name: str) -> bool:
    known = DEFAULT_SCHEMA.get(name)
    return known is not None and known.kind == "number"


def _by_device(table: Table) -> IntArray:
    """The order of the rows by device, which must be numbered from 0 without gaps."""
    device = table.whole_numbers("device")
    order = np.argsort(device, kind="stable")
    bad = np.flatnonzero(device[order] != np.arange(len(device)))
    if len(bad):
        row = int(order[bad[0]])
        raise InvalidInput(
            f"{table.where(row)}: device {device[row]} where {bad[0]} should come", field="device",
            value=int(device[row]), limit=int(bad[0]), fix="number the devices 0, 1, 2, … without gaps or repeats",
        )  # fmt: skip
    return order
