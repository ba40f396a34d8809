"""Device populations: what each device of a trace is, and how fast.

A population gives every device id a row of a table of phone models (its attributes, which decide the jobs it may
serve), a training speed and a link speed. It works for any number of devices and holds none of them: properties are
read off a 64-bit hash of the id and the seed, 16 bits for each, so the same device is the same in every run, whoever
asks and in whatever order. Recorded properties are listed instead: device *i* takes entry *i* modulo the list's length.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vennue import data
from vennue.core.errors import InvalidInput
from vennue.core.ids import Signature
from vennue.core.requirement import DEFAULT_SCHEMA, Attribute, AttributeSchema, Kind, Requirement
from vennue.simulation.traces.model import FloatArray, IntArray, checked_seed

MEAN_COMPUTATION_MS = 78.0
MEAN_COMMUNICATION_KBPS = 13_736.0
"""Means of FedScale's 500 000 device records, which the Venn simulator measures devices against."""
NOMINAL_WORKLOAD_S = 30.0
"""Training time of a task on the mean device, unless the job says otherwise."""
NOMINAL_LINK_S = 10.0
"""One transfer of the model over the mean link; a task makes two."""

CLASSES: Mapping[str, str] = {
    "general": "device.memory_score >= 10 && device.cpu_score >= 1 && device.android >= 6",
    "compute": "device.memory_score >= 10 && device.cpu_score >= 7 && device.android >= 6",
    "memory": "device.memory_score >= 1000 && device.cpu_score >= 1 && device.android >= 6",
    "high_performance": "device.memory_score >= 1000 && device.cpu_score >= 7 && device.android >= 6",
}
"""The requirements of the four eligibility classes of the Venn paper's evaluation, over AI-Benchmark scores."""

_LEVELS = 1 << 16
_MASK = np.uint64(_LEVELS - 1)


class Devices(NamedTuple):
    """Properties of a column of devices, as equally long columns."""

    row: IntArray
    """Row of the population's table."""
    computation_ms: FloatArray
    """Training time per sample."""
    communication_kbps: FloatArray


class Regions(NamedTuple):
    """The Venn diagram of some requirements over a table of devices."""

    signatures: list[Signature]
    """The regions that occur, by signature: bit *b* stands for the *b*-th requirement."""
    of_row: IntArray
    """For each row of the table, the index of its region in ``signatures``."""


class DeviceTable:
    """Kinds of devices: a row per kind, a column per public attribute.

    Columns hold numbers, truth values, text or lists of text, and None where a device lacks the attribute.

    Raises:
        InvalidInput: no row, columns of different lengths, or what a device could not send as an attribute.
    """

    def __init__(self, columns: Mapping[str, Sequence[object]]) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise InvalidInput(
                f"a table of devices needs at least one row and equally long columns, got {sorted(lengths)} rows",
                field="devices", value=sorted(lengths), limit=1, fix="give at least one device",
            )  # fmt: skip
        self.columns = {name: tuple(column) for name, column in columns.items()}
        self.schema = AttributeSchema({name: _attribute(name, column) for name, column in self.columns.items()})
        """The attributes that these devices have, and no others."""
        rows = zip(*self.columns.values(), strict=True)
        self.profiles = tuple(self.schema.check(dict(zip(self.columns, row, strict=True))) for row in rows)
        """What the devices of each row send."""

    @classmethod
    @lru_cache(maxsize=1)
    def phones(cls) -> "DeviceTable":
        """The 952 phone models that ship with Vennue."""
        shipped = data.read_csv("phone_models.csv.gz")
        return cls({name: text if name == "model" else [float(x) for x in text] for name, text in shipped.items()})

    def __len__(self) -> int:
        return len(self.profiles)

    def signatures(self, requirements: Sequence[Requirement]) -> list[Signature]:
        """Each row's region: bit *b* is set where it meets the *b*-th requirement. 4 µs per row and requirement."""
        found = []
        for profile in self.profiles:
            met = (1 << bit for bit, requirement in enumerate(requirements) if requirement.matches(profile))
            found.append(Signature(sum(met)))
        return found


class Capacity:
    """How devices' training and link speeds are spread.

    Args:
        computation_ms: training time per sample; None takes the ``latency_ms`` of the device's own model.
        communication_kbps: link speed. Both are values to choose from with equal chance, or, when ``listed``, the
            records of devices 0, 1, 2, …, over and over.
    """

    def __init__(
        self, computation_ms: npt.ArrayLike | None, communication_kbps: npt.ArrayLike, *, listed: bool = False
    ) -> None:
        self.listed = listed
        self.communication_kbps = _positive("communication_kbps", communication_kbps)
        self.computation_ms = None if computation_ms is None else _positive("computation_ms", computation_ms)
        if listed and self.computation_ms is not None and len(self.computation_ms) != len(self.communication_kbps):
            raise InvalidInput(
                f"{len(self.computation_ms)} training speeds and {len(self.communication_kbps)} link speeds",
                field="capacity", fix="give both speeds of every device",
            )  # fmt: skip

    @classmethod
    @lru_cache(maxsize=1)
    def fedscale(cls) -> "Capacity":
        """FedScale's devices: one of 139 phones' training times and, independently, a link (median 6.3 Mbit/s)."""
        shipped = data.read_json("capacity.json")
        link = shipped["communication_kbps"]
        log_kbps = np.interp(_midpoints(_LEVELS), link["level"], np.log(link["value"]))
        return cls(shipped["computation_ms"], np.exp(log_kbps))

    @classmethod
    @lru_cache(maxsize=1)
    def paper(cls) -> "Capacity":
        """Log-normal speeds (σ 0.9 and 1.2) about the means, which reproduce the Venn paper's average JCTs.

        Median task 73 s, 80 % within 152 s, 95 % within 335 s.
        """
        z = np.array([NormalDist().inv_cdf(level) for level in _midpoints(_LEVELS)])
        return cls(
            MEAN_COMPUTATION_MS * np.exp(0.9 * z - 0.9**2 / 2), MEAN_COMMUNICATION_KBPS * np.exp(1.2 * z - 1.2**2 / 2)
        )

    @classmethod
    @lru_cache(maxsize=1)
    def first_199(cls) -> "Capacity":
        """The records of FedScale's first 199 devices, to choose from."""
        shipped = data.read_csv("capacity_199.csv")
        return cls(*(np.array(shipped[name], dtype=np.float64) for name in ("computation_ms", "communication_kbps")))

    @classmethod
    @lru_cache(maxsize=1)
    def by_model(cls) -> "Capacity":
        """Training time from the device's own model (so that faster phones answer sooner), links as FedScale's."""
        return cls(None, cls.fedscale().communication_kbps)


class DevicePopulation:
    """What each device id of a trace stands for.

    Args:
        table: the kinds of devices.
        capacity: how their speeds are spread.
        weights: chance of each row of the table; equal by default.
        listed_rows: instead of chance, the rows of devices 0, 1, 2, …, over and over.
        seed: of the properties that are left to chance.
    """

    def __init__(
        self,
        table: DeviceTable,
        capacity: Capacity,
        *,
        weights: npt.ArrayLike | None = None,
        listed_rows: npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        self.table = table
        self.capacity = capacity
        self._salt = np.uint64(np.random.SeedSequence(checked_seed(seed)).generate_state(1, np.uint64)[0])
        self._listed_rows = None if listed_rows is None else np.asarray(listed_rows, dtype=np.int64)
        if self._listed_rows is not None:
            shares = np.bincount(self._listed_rows, minlength=len(table)).astype(np.float64)
        else:
            shares = np.ones(len(table)) if weights is None else np.array(weights, dtype=np.float64)
        if len(shares) != len(table) or not np.all(shares >= 0) or not 0 < shares.sum() < math.inf:
            raise InvalidInput(
                "needs a weight of at least 0 for each device, not all 0", field="weights", limit=0, fix="correct them"
            )
        self.shares: FloatArray = shares / shares.sum()
        """Expected share of devices in each row of the table."""
        self._row_of_level = np.searchsorted(np.cumsum(self.shares), _midpoints(_LEVELS)).clip(max=len(table) - 1)
        if capacity.computation_ms is None:
            if "latency_ms" not in table.columns:
                raise InvalidInput(
                    "training times by model need the devices' latency_ms", field="capacity", value="model",
                    fix="add a column latency_ms, or use the capacity fedscale",
                )  # fmt: skip
            self._latency_ms = _positive("latency_ms", table.columns["latency_ms"])

    def __call__(self, device: IntArray) -> Devices:
        """The properties of these devices: a hash and three look-ups each."""
        bits = _hash(device, self._salt)
        if self._listed_rows is not None:
            row: IntArray = self._listed_rows[device % len(self._listed_rows)]
        else:
            row = self._row_of_level[(bits & _MASK).astype(np.int64)]
        capacity = self.capacity
        if capacity.computation_ms is None:
            computation_ms = self._latency_ms[row]
        else:
            computation_ms = self._choose(capacity.computation_ms, device, bits >> np.uint64(16))
        return Devices(row, computation_ms, self._choose(capacity.communication_kbps, device, bits >> np.uint64(32)))

    def _choose(self, values: FloatArray, device: IntArray, bits: npt.NDArray[np.uint64]) -> FloatArray:
        if self.capacity.listed:
            return values[device % len(values)]
        level = (bits & _MASK).astype(np.int64)
        return values[level if len(values) == _LEVELS else level * len(values) >> 16]

    def regions(self, requirements: Sequence[Requirement]) -> Regions:
        """The Venn diagram of these requirements over the table."""
        of_row = self.table.signatures(requirements)
        signatures = sorted(set(of_row))
        index = {signature: i for i, signature in enumerate(signatures)}
        return Regions(signatures, np.array([index[signature] for signature in of_row], dtype=np.int64))

    def region_shares(self, requirements: Sequence[Requirement]) -> dict[Signature, float]:
        """Expected share of devices in each region of these requirements, zero shares left out."""
        regions = self.regions(requirements)
        shares = np.bincount(regions.of_row, weights=self.shares, minlength=len(regions.signatures))
        return {
            signature: float(share) for signature, share in zip(regions.signatures, shares, strict=True) if share > 0
        }


@lru_cache(maxsize=1)
def class_requirements() -> tuple[Requirement, ...]:
    """The parsed requirements of `CLASSES`, in its order."""
    return tuple(Requirement.parse(text) for text in CLASSES.values())


def task_time_s(devices: Devices, workload_s: float) -> FloatArray:
    """How long each device takes for a task: training, and a transfer of the model either way.

    ``workload_s`` is the training time of the mean device. Formula of the Venn simulator (computation relative to
    78 ms per sample, link relative to 13 736 kbit/s, 10 s per transfer over the mean link).
    """
    training_s = workload_s * (devices.computation_ms / MEAN_COMPUTATION_MS)
    return training_s + 2 * NOMINAL_LINK_S * MEAN_COMMUNICATION_KBPS / devices.communication_kbps


def phone_population(capacity: Capacity | None = None, *, seed: int = 0) -> DevicePopulation:
    """The shipped phone models, weighted so that the four classes cover what they do in the Venn paper's evaluation.

    Venn's 959 devices fall into the regions of `CLASSES` in other proportions than the 952 models of the table (its
    compute-rich half holds 51.6 % of devices against 42.8 %), so each region's models share its published weight.
    """
    table = DeviceTable.phones()
    region = table.signatures(class_requirements())
    models = Counter(region)
    published = Counter(data.read_json("capacity.json")["eligibility"])
    weights = [published[f"{signature:x}"] / models[signature] for signature in region]
    return DevicePopulation(table, capacity or Capacity.fedscale(), weights=weights, seed=seed)


def rows_with(table: DeviceTable, signatures: Sequence[int]) -> IntArray:
    """For each signature over `CLASSES`, a row of the table in that region: its models in turn.

    Raises:
        InvalidInput: no model of the table lies in the region.
    """
    models: dict[int, list[int]] = {}
    for row, signature in enumerate(table.signatures(class_requirements())):
        models.setdefault(signature, []).append(row)
    seen: dict[int, int] = {}
    rows = np.empty(len(signatures), dtype=np.int64)
    for device, wanted in enumerate(signatures):
        region = models.get(wanted)
        if region is None:
            met = [name for bit, name in enumerate(CLASSES) if wanted >> bit & 1]
            raise InvalidInput(
                f"device {device}: no phone model meets exactly the classes {', '.join(met) or 'none'}",
                field="eligibility", value=wanted, limit=sorted(models), fix="check the list's class numbers",
            )  # fmt: skip
        rows[device] = region[seen.get(wanted, 0) % len(region)]
        seen[wanted] = seen.get(wanted, 0) + 1
    return rows


def _attribute(name: str, column: Sequence[object]) -> Attribute:
    """What a column holds, by its first value; as the pool defines it where it knows the name."""
    sample = next((value for value in column if value is not None), None)
    kind: Kind = "number"
    if isinstance(sample, bool):
        kind = "bool"
    elif isinstance(sample, str):
        kind = "string"
    elif isinstance(sample, list | tuple):
        kind = "strings"
    known = DEFAULT_SCHEMA.get(name)
    return known if known is not None and known.kind == kind else Attribute(kind)


def _positive(field: str, values: npt.ArrayLike | Sequence[object]) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if not len(array) or len(bad):
        found = f"entry {bad[0]} is {array[bad[0]]:g}" if len(bad) else "there is none"
        raise InvalidInput(f"must be finite and above 0: {found}", field=field, limit=0, fix="correct the capacities")
    return array


def _midpoints(count: int) -> FloatArray:
    return (np.arange(count) + 0.5) / count


def _hash(device: IntArray, salt: np.uint64) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014) over salted ids."""
    x = device.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
