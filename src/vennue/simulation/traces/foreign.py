"""Other projects' recordings, read into ours: FedScale's pickles and the Venn authors' eligibility list.

`load_plain` decodes a file as JSON or with `safe_pickle`, so nothing in it runs. The other functions check its content
record by record, name a wrong one by its key, and return what it stands for.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from vennue.core.errors import InvalidInput
from vennue.simulation.traces import safe_pickle
from vennue.simulation.traces.columns import Progress
from vennue.simulation.traces.devices import CLASSES, Capacity, DeviceTable, rows_with
from vennue.simulation.traces.model import IntArray, Trace


def load_plain(path: Path) -> object:
    """The plain value in a JSON file or, under any other name, in a pickle.

    Raises:
        InvalidInput: no such file, a broken one, or one that holds more than plain data.
    """
    if path.suffix.lower() != ".json":
        return safe_pickle.load(path)
    if not path.is_file():
        raise InvalidInput(f"no such file: {path}", field="path", value=str(path), fix="check the name")
    try:
        return cast(object, msgspec.json.decode(path.read_bytes()))
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{path.name} is not JSON: {error}", field="path", value=str(path), fix="check that the file is whole"
        ) from error


def kind(path: Path, content: object) -> Literal["behaviour", "capacity", "eligibility"]:
    """Which recording this is.

    Raises:
        InvalidInput: none that we know.
    """
    if isinstance(content, list | tuple):
        return "eligibility"
    record = next(iter(content.values()), None) if isinstance(content, Mapping) else None
    if isinstance(record, Mapping) and "active" in record:
        return "behaviour"
    if isinstance(record, Mapping) and "computation" in record:
        return "capacity"
    raise InvalidInput(
        f"{path.name} is neither client_behave_trace, client_device_capacity nor an eligibility list",
        field="path", value=str(path), fix="convert one of those, or write a table",
    )  # fmt: skip


def behaviour(
    path: Path,
    content: object,
    *,
    period_s: float | None = None,
    merge_gap_s: float | None = None,
    clock_h: float = 0.0,
    progress: Progress | None = None,
) -> Trace:
    """A trace from FedScale's ``client_behave_trace``: by client, lists ``active`` and ``inactive`` of seconds.

    Clients become devices 0, 1, 2, … in the file's order.

    Raises:
        InvalidInput: with the file, the client and the fix.
    """
    clients = _mapping(path, content, "clients")
    device: list[int] = []
    start_s: list[float] = []
    end_s: list[float] = []
    for number, (client, record) in enumerate(clients.items()):
        at = f"{path.name}, client {client!r}"
        active, inactive = (_numbers(at, record, field) for field in ("active", "inactive"))
        if len(active) != len(inactive):
            raise InvalidInput(
                f"{at}: {len(active)} starts and {len(inactive)} ends", field="inactive",
                value=len(inactive), limit=len(active), fix="give an end for every start",
            )  # fmt: skip
        device.extend([number] * len(active))
        start_s.extend(active)
        end_s.extend(inactive)
        if progress is not None and number % 1000 == 0:
            progress(number / len(clients))
    keys = list(clients)
    firsts = np.searchsorted(device, np.arange(len(keys)))

    def where(index: int) -> str:
        number = device[index]
        return f"{path.name}, client {keys[number]!r}, session {index - firsts[number]}"

    return Trace(
        device, start_s, end_s,
        period_s=period_s, merge_gap_s=merge_gap_s, clock_h=clock_h, name=path.name, where=where,
    )  # fmt: skip


def capacity(path: Path, content: object) -> Capacity:
    """Capacities from FedScale's ``client_device_capacity``: by client, ``computation`` (ms) and ``communication``.

    Raises:
        InvalidInput: with the file, the client and the fix.
    """
    records = _mapping(path, content, "devices")
    speeds: dict[str, list[float]] = {"computation": [], "communication": []}
    for client, record in records.items():
        at = f"{path.name}, client {client!r}"
        for field, values in speeds.items():
            values.append(_number(at, field, _entry(at, record, field)))
    try:
        return Capacity(speeds["computation"], speeds["communication"], listed=True)
    except InvalidInput as error:
        error.message = f"{path.name}: {error.message}"
        raise


def eligibility(path: Path, content: object) -> tuple[DeviceTable, IntArray]:
    """Devices from the Venn authors' eligibility list: for each, the numbers (1 to 4) of the classes that it meets.

    The list has no attributes, so each device becomes a phone model that meets exactly those of `CLASSES`.

    Raises:
        InvalidInput: with the file, the device and the fix.
    """
    if not isinstance(content, Sequence) or isinstance(content, str | bytes) or not content:
        raise InvalidInput(
            f"{path.name} is not a list of devices' classes", field="eligibility", value=type(content).__name__,
            fix="give a list with a list of class numbers for each device",
        )  # fmt: skip
    signatures = []
    for device, met in enumerate(content):
        if not isinstance(met, Iterable) or not all(number in range(1, len(CLASSES) + 1) for number in met):
            raise InvalidInput(
                f"{path.name}, device {device}: {met!r} is not a list of class numbers", field="eligibility",
                value=met, limit=len(CLASSES), fix=f"use the numbers 1 to {len(CLASSES)}",
            )  # fmt: skip
        signatures.append(sum({1 << int(number) - 1 for number in met}))
    return DeviceTable.phones(), rows_with(DeviceTable.phones(), signatures)


def _mapping(path: Path, content: object, what: str) -> Mapping[Any, object]:
    if not isinstance(content, Mapping) or not content:
        raise InvalidInput(
            f"{path.name} holds no {what}", field=what, value=type(content).__name__, limit=1,
            fix=f"give a dictionary of {what} with at least one entry",
        )  # fmt: skip
    return content


def _entry(at: str, record: object, field: str) -> object:
    if not isinstance(record, Mapping) or field not in record:
        raise InvalidInput(f"{at}: {field} is missing", field=field, fix=f"give {field}, or delete the record")
    return cast(object, record[field])


def _number(at: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{at}: {field} is {value!r}, not a number", field=field, value=value, fix="correct it")
    return value


def _numbers(at: str, record: object, field: str) -> list[float]:
    values = _entry(at, record, field)
    if not isinstance(values, list | tuple):
        raise InvalidInput(f"{at}: {field} is not a list", field=field, value=type(values).__name__, fix="give a list")
    return [_number(at, field, value) for value in values]
