"""The running sum of an attempt's updates: brought to precisely those that are asked for, and stored in their place.

What counts whole or not at all is a *unit*: an update, a leaf's partial sum, or the stored sum of some of them. The sum
is one fold, made when it is first needed; one thread at a time works with it.
"""

import math
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from vennue.core.errors import Conflict, InvalidModel, InvalidUpdate
from vennue.core.ids import AssignmentId
from vennue.tensors.codecs import codec_of, is_change
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import HeldModel, MappedModel
from vennue.updates.fold import MAX_WEIGHT, Fold, Term
from vennue.updates.norm import change_norm
from vennue.updates.plan import RoundPlan, Weighting
from vennue.updates.spool import Record, Spool
from vennue.updates.strategies import Update
from vennue.updates.strategies.base import failures_told
from vennue.updates.sums import MetricSums, Partial, Receipt

FOLD_TOGETHER: Final = 4
"""How many updates are folded at once; more are no faster."""
SMALL_BYTES: Final = 64 * 1024
"""To open and map the file of a smaller update takes longer than to fold it."""
HELD_BYTES: Final = 256 * 1024
"""As much as a fold's scratch."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What counts whole or not at all: its record in the spool, and the receipts of the updates in it.

    ``partial`` is what is known of it where it is a sum.
    """

    record: Record
    receipts: Mapping[AssignmentId, Receipt]
    partial: Partial | None = None

    @classmethod
    def of(cls, record: Record) -> "Unit":
        """The unit that a record holds."""
        if "receipts" in record.meta:
            partial = Partial.from_meta(record.meta)
            return cls(record, partial.receipts, partial)
        meta = record.meta
        assignment = AssignmentId(record.key)
        receipt = Receipt(
            assignment,
            record.body_bytes,
            meta["weight"],
            meta["sha256"],
            token=meta["token"],
            version=meta.get("version", 0),
        )
        return cls(record, {assignment: receipt})

    @property
    def key(self) -> str:
        """Its name in the spool."""
        return self.record.key

    def weight(self, weighting: Weighting) -> float:
        """What its updates weigh."""
        return weight_of(self.receipts.values(), weighting)

    def mapped(self, known: ModelLayout | None, held: bytes | None = None) -> MappedModel:
        """Its numbers, from memory if they are still held there."""
        if held is not None:
            return HeldModel(held, known=known, error=InvalidUpdate)
        record = self.record
        return MappedModel(record.path, size_bytes=record.body_bytes, known=known, error=InvalidUpdate)


def weight_of(receipts: Collection[Receipt], weighting: Weighting) -> float:
    """What some updates weigh together."""
    return float(len(receipts)) if weighting == "uniform" else sum(receipt.weight for receipt in receipts)


class Held:
    """Small updates that are still in memory when they are folded. Safe to use from several threads.

    Args:
        max_bytes: how much they may take together; others are read from their files.
    """

    def __init__(self, max_bytes: int = HELD_BYTES) -> None:
        self._lock = threading.Lock()
        self._bodies: dict[str, bytes] = {}
        self._bytes_left = max_bytes

    def keep(self, key: str, body: bytes) -> None:
        """Hold an update, if it is small and there is room."""
        with self._lock:
            if len(body) <= min(SMALL_BYTES, self._bytes_left) and key not in self._bodies:
                self._bodies[key] = body
                self._bytes_left -= len(body)

    def take(self, key: str) -> bytes | None:
        """Hold an update no more; it, if it was held."""
        with self._lock:
            body = self._bodies.pop(key, None)
            if body is not None:
                self._bytes_left += len(body)
        return body


class RunningSum:
    """The sum of some units.

    Args:
        base: the model that whole models are changes of.
        plan: which share each update has, and the precision of the sum.
    """

    def __init__(self, base: MappedModel, plan: RoundPlan) -> None:
        self.base = base
        self.units: dict[str, Unit] = {}
        """Those in the sum, by their keys."""
        self.metrics = MetricSums()
        self.held = Held()
        self.stored: Unit | None = None
        """The stored sum, which is in it for good."""
        self.unstored_bytes = 0
        """How much disk the other ones take."""
        self._plan = plan
        self._fold: Fold | None = None

    @property
    def fold(self) -> Fold:
        """The numbers."""
        if self._fold is None:
            self._fold = Fold(self.base.layout, self._plan.accumulator)
        return self._fold

    def make(self, units: Mapping[str, Unit], counted: frozenset[AssignmentId], staleness: Mapping[str, int]) -> None:
        """Bring the sum to precisely these units.

        Args:
            units: by key.
            counted: whose updates count.
            staleness: as for ``add``.

        Raises:
            Conflict: an update that does not count is part of a unit, or of the stored sum.
        """
        if not self.units.keys() <= units.keys():
            self.reset()
        if not self.units.keys() <= units.keys() or any(not u.receipts.keys() <= counted for u in units.values()):
            raise Conflict("an update that does not count is part of a sum already", field="assignments")
        self.add(units, staleness)

    def add(self, units: Mapping[str, Unit], staleness: Mapping[str, int]) -> None:
        """Add the units that are not in it yet; several at once are faster than one by one.

        Args:
            units: by key.
            staleness: how many model updates older than the present model an update's base is, by assignment, where
                that is not 0.

        Raises:
            InvalidModel: the strategy gives an update a share that makes no sense.
            StorageError: a unit cannot be read.
        """
        # Not `units.keys() - self.units.keys()`, which looks at all that are in the sum.
        missing = [units[key] for key in sorted(units) if key not in self.units]
        updates = [unit for unit in missing if unit.partial is None]
        for first in range(0, len(updates), FOLD_TOGETHER):
            together = updates[first : first + FOLD_TOGETHER]
            terms = [self._term(unit, staleness.get(unit.key, 0)) for unit in together]
            with self._whole():
                self.fold.add(*terms)
            for unit in together:
                self.metrics.add(unit.record.meta["metrics"], unit.weight(self._plan.weighting))
                self._is_in(unit)
        for unit in missing:
            if unit.partial is not None:
                sums = unit.mapped(None)
                with self._whole():
                    self.fold.add_sums(sums, unit.partial.totals)
                self.metrics.add_sums(unit.partial.metrics)
                self._is_in(unit)

    def reset(self) -> None:
        """Go back to the stored sum, or to the beginning."""
        self.units = {}
        self.unstored_bytes = 0
        self.metrics = MetricSums()
        self._fold = None
        if self.stored is None or self.stored.partial is None:
            return
        try:
            self.fold.restore(self.stored.mapped(self.fold.sums_layout), self.stored.partial.totals)
        except BaseException:
            self._fold = None  # it may hold half of the stored sum, to which nothing must be added
            raise
        self.metrics.add_sums(self.stored.partial.metrics)
        self.units[self.stored.key] = self.stored

    def forget(self, gone: Mapping[str, Unit]) -> None:
        """Units have left: begin anew without them, if any was in the sum."""
        if not self.units.keys().isdisjoint(gone):
            if self.stored is not None and self.stored.key in gone:
                self.stored = None
            self.reset()

    def store(self, spool: Spool) -> Unit:
        """Store the sum as one unit, in place of all that are in it, and return it. They stay on the disk.

        Raises:
            StorageError: it cannot be stored; nothing was changed.
        """
        number = 1 if self.stored is None else self.stored.record.meta["number"] + 1
        partial = self.partial(f"sum-{number}")
        with spool.begin() as writer:
            self.fold.store(writer.write)
            record, _ = writer.finish(f"sum.{number}", {"number": number, **partial.to_meta()})
        self.stored = Unit(record, partial.receipts, partial)
        self.units = {record.key: self.stored}
        self.unstored_bytes = 0
        return self.stored

    def partial(self, id: str) -> Partial:
        """What must be known of the sum beside its numbers."""
        receipts = {receipt.assignment: receipt for unit in self.units.values() for receipt in unit.receipts.values()}
        return Partial(id, self.fold.totals, self.metrics.copy(), receipts)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What fails in the middle of an addition, as memory may, leaves nothing of it in the sum."""
        try:
            yield
        except BaseException:
            self.reset()
            raise

    def _is_in(self, unit: Unit) -> None:
        self.units[unit.key] = unit
        self.unstored_bytes += unit.record.body_bytes

    def _term(self, unit: Unit, staleness: int) -> Term:
        update = unit.mapped(self.base.layout, self.held.take(unit.key))
        codec, changes = codec_of(update.layout), is_change(update.layout)
        about = Update(
            weight=unit.weight(self._plan.weighting),
            metrics=unit.record.meta["metrics"],
            staleness=staleness,
            change_norm=lambda: change_norm(self.base, update, codec, is_change=changes),
        )
        with failures_told(self._plan.strategy):
            share = self._plan.strategy.share(about)
            makes_sense = 0 <= share.coefficient <= MAX_WEIGHT and 0 < share.weight < math.inf
        if not makes_sense:
            raise InvalidModel(
                f"the strategy {self._plan.strategy.name} gives an update a share that makes no sense",
                field="strategy",
                value=str(share),
                limit=f"a coefficient from 0 to {MAX_WEIGHT:g}, and a finite weight above 0",
            )
        return Term(update, codec, share.coefficient, share.weight, changes)
