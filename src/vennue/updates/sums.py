"""Partial sums: what many updates come to, with the names of those in it, so that it counts once or not at all.

A leaf sends them to the root, or to the next leaf, in place of the updates; and an aggregator stores its own, so that
its spool does not grow with the devices. The numbers are a safetensors file (`fold.Fold.store`); this is what is known
beside them.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from vennue.core.errors import InvalidUpdate
from vennue.core.ids import AssignmentId, Digest
from vennue.updates.fold import MAX_WEIGHT, MIN_WEIGHT, Totals

MAX_METRIC_NAME: Final = 128
MAX_METRICS: Final = 1024
"""How many metrics a round has; those of devices that name yet others are left out."""
MAX_METRIC: Final = 1e100
"""The largest magnitude of a metric: with the largest weights, the sum of any number of them is finite."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Receipt:
    """An update is durable: now, or, for a ``duplicate``, since an earlier upload for its assignment.

    ``sha256`` is that of the body that was stored, where it was computed; ``token`` is what its device proved with that
    the assignment is its own, where the caller gave it; ``version`` is that of the model that its device was given, for
    asynchronous jobs, whose model changes in the meantime.
    """

    assignment: AssignmentId
    body_bytes: int
    weight: float
    sha256: Digest | None
    duplicate: bool = False
    token: str = ""
    version: int = 0


@dataclass(slots=True)
class MetricSums:
    """The devices' metrics, each summed with the weights of the updates that have it."""

    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float], weight: float) -> None:
        """Add one update's."""
        for name, value in metrics.items():
            self._add(name, weight * value, weight)

    def add_sums(self, other: "MetricSums") -> None:
        """Add those of another sum."""
        for name, value in other.sums.items():
            self._add(name, value, other.weights[name])

    def copy(self) -> "MetricSums":
        """The same, to be kept while this one goes on."""
        return MetricSums(dict(self.sums), dict(self.weights))

    def means(self) -> dict[str, float]:
        """The weighted mean of each. One that has overflowed, in a spool from before there was a limit, is left out."""
        means = {name: self.sums[name] / self.weights[name] for name in self.sums}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}

    def _add(self, name: str, value: float, weight: float) -> None:
        if name in self.sums:
            self.sums[name] += value
            self.weights[name] += weight
        elif len(self.sums) < MAX_METRICS:
            self.sums[name] = value
            self.weights[name] = weight


@dataclass(frozen=True, slots=True)
class Partial:
    """A sum of updates of one attempt. Constructing one checks it.

    Raises:
        InvalidUpdate: something in it cannot be right.
    """

    id: str
    """Its name, unique for ever."""
    totals: Totals
    metrics: MetricSums
    receipts: Mapping[AssignmentId, Receipt]
    """Those of the updates in it."""

    def __post_init__(self) -> None:
        totals, metrics = self.totals, self.metrics
        if not _ID.fullmatch(self.id):
            raise InvalidUpdate(
                "a partial sum's id must be 1 to 64 letters, digits, dashes or underscores",
                field="id",
                value=self.id[:64],
            )
        if not self.receipts or totals.updates != len(self.receipts):
            raise InvalidUpdate(
                "it must name each of its updates, once, and have some",
                field="reports",
                value=len(self.receipts),
                limit=max(totals.updates, 1),
            )
        for receipt in self.receipts.values():
            if not MIN_WEIGHT <= receipt.weight <= MAX_WEIGHT or receipt.body_bytes < 0:
                raise InvalidUpdate(
                    f"what it says of report {receipt.assignment[:200]} cannot be right",
                    field="reports",
                    value=f"{receipt.body_bytes} bytes of weight {receipt.weight:g}",
                    limit=f"weights from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}",
                )
        limit = MAX_WEIGHT * len(self.receipts)
        if not MIN_WEIGHT <= totals.weight < math.inf or not 0 <= totals.models <= limit:
            raise InvalidUpdate("its weight cannot be right", field="weight", value=totals.weight, limit=limit)
        if metrics.sums.keys() != metrics.weights.keys() or len(metrics.sums) > MAX_METRICS:
            raise InvalidUpdate("its metrics' sums and weights differ", field="metrics", value=len(metrics.sums))
        for name, value in metrics.sums.items():
            weight = metrics.weights[name]
            if len(name) > MAX_METRIC_NAME or not 0 < weight <= limit or not abs(value) <= MAX_METRIC * limit:
                raise InvalidUpdate("it cannot be right", field=f"metrics.{name[:80]}", value=value)

    def to_meta(self) -> dict[str, Any]:
        """JSON to keep beside the numbers."""
        return {
            "id": self.id,
            "totals": asdict(self.totals),
            "metrics": asdict(self.metrics),
            "receipts": [[r.assignment, r.body_bytes, r.weight, r.sha256, r.token] for r in self.receipts.values()],
        }

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Self:
        """What ``to_meta`` has written."""
        receipts = [
            Receipt(AssignmentId(assignment), body_bytes, weight, sha256, token=token)
            for assignment, body_bytes, weight, sha256, token in meta["receipts"]
        ]
        return cls(
            meta["id"],
            Totals(**meta["totals"]),
            MetricSums(**meta["metrics"]),
            {receipt.assignment: receipt for receipt in receipts},
        )
