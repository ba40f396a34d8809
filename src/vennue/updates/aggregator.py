"""The aggregator of one attempt: updates in, exactly once each, and at the end the next model, durably.

An update's way: ``start_update`` opens a sink, chunks are written, ``finish`` checks every number and makes the update
durable in the spool; only then may the device be told. Whoever keeps the round's state decides whether it counts:
``fold`` adds it to the running sum, ``drop`` forgets it. ``aggregate`` takes exactly the updates that the round counted
and stores the next model. An update that is refused, at whatever point, leaves no trace but a count.

Aggregators form a tree. A leaf's ``partial`` writes the sum of some of its updates, with the assignments in it; the
next one takes it in by ``start_partial``, as durably as an update, and ``take`` makes it stand for its assignments once
the round has counted all of them, which is durable in its turn. What is in it cannot be taken out again, so it counts
whole or not at all.

The disk is bounded, too: from time to time the sum takes the place of the updates in it, in the spool. Strategies over
the set of updates are the exception: they need each of them until the end.

Everything is synchronous, and safe to call from several threads: uploads run side by side, folding is one at a time.
After a crash, constructing the aggregator again brings back every finished update, in a sum that was taken, in the
stored sum or by itself.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vennue.core.errors import Conflict, NotFound, TooLate
from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import MappedModel
from vennue.updates.blobs import BlobStore, check_digest
from vennue.updates.checks import check_length, check_own, check_room, check_same_reports, check_weight
from vennue.updates.commit import Aggregate, Reported, commit_model
from vennue.updates.intake import Announcement, PartialSink, Rules, UpdateSink
from vennue.updates.plan import RoundPlan
from vennue.updates.running import RunningSum, Unit
from vennue.updates.spares import Spares
from vennue.updates.spool import Record, Spool
from vennue.updates.strategies import Robust
from vennue.updates.strategies.base import failures_told
from vennue.updates.sums import MetricSums, Partial, Receipt
from vennue.updates.update_set import Combined, SpooledSet, SpooledUpdate


class RoundAggregator:
    """One attempt's updates and their sum.

    Args:
        attempt: the attempt; only assignments of it are taken.
        base: the model that the round starts from; its header is the layout of every update.
        blobs: where the base is, and the next model goes.
        spool: the directory of all spools.
        plan: how updates are taken and become the next model.
        with_sha256: whether every receipt has the body's SHA-256, which takes as long as all the rest together.
            Otherwise it is computed only where one is announced.
        durable: whether finished updates survive a power loss, not only a crash of the process.
        spool_bytes: how many bytes of folded updates to keep, before the stored sum takes their place; eight models at
            least.
        spares: the server's files to write updates over; without them, each update's file is created and removed.

    Raises:
        NotFound: the base is not there.
        InvalidModel: the base is not a well-formed model. Its values are not checked: see ``tensors.check_model``.
        StorageError: the spool cannot be used, or was written by a newer version of this program.
    """

    def __init__(
        self,
        attempt: AttemptId,
        base: Digest,
        blobs: BlobStore,
        spool: Path,
        *,
        plan: RoundPlan | None = None,
        with_sha256: bool = False,
        durable: bool = False,
        spool_bytes: int = 4 * 2**30,
        spares: Spares | None = None,
    ) -> None:
        self.attempt = attempt
        self.refused_updates = 0
        """How many updates were refused or broken off."""
        self.refused_bytes = 0
        """How many bytes had been received of those."""
        self._blobs = blobs
        self._base = MappedModel(blobs.path(base))
        self._plan = plan or RoundPlan()
        self._rules = Rules(self._base.layout, self._plan, with_sha256)
        self._spool = Spool(spool, attempt, durable=durable, spares=spares)
        self._spool_bytes = max(spool_bytes, 8 * self._base.layout.total_bytes)

        self._folding = threading.Lock()  # guards these; taken before the other lock, never after it
        self._sum = RunningSum(self._base, self._plan)
        self._staleness: dict[str, int] = {}

        self._lock = threading.Lock()  # guards these, and the counts
        self._finished: dict[AssignmentId, Unit] = {}
        self._waiting: dict[str, Unit] = {}  # partial sums that were not taken yet, by id
        self._sinks: set[UpdateSink | PartialSink] = set()
        self._is_open = True

        self._recover()

    @property
    def layout(self) -> ModelLayout:
        """The round's model."""
        return self._rules.layout

    @property
    def max_update_bytes(self) -> int:
        """The size of the largest body that can be right."""
        return self._rules.max_body_bytes

    @property
    def max_partial_bytes(self) -> int:
        """The size of the largest partial sum that can be right."""
        return self._rules.max_partial_bytes

    @property
    def finished(self) -> Mapping[AssignmentId, Receipt]:
        """The receipts of all updates that are durable and not dropped, those within taken sums included."""
        with self._lock:
            return {assignment: unit.receipts[assignment] for assignment, unit in self._finished.items()}

    @property
    def units(self) -> list[Mapping[AssignmentId, Receipt]]:
        """The same receipts, together where they count together."""
        with self._lock:
            units = {unit.key: unit.receipts for unit in self._finished.values()}
        return list(units.values())

    @property
    def waiting(self) -> tuple[Partial, ...]:
        """The partial sums that are durable, and neither taken nor dropped."""
        with self._lock:
            return tuple(unit.partial for unit in self._waiting.values() if unit.partial is not None)

    def receipt(self, assignment: AssignmentId) -> Receipt | None:
        """The answer to a repeated upload, if the assignment's update is durable."""
        unit = self._finished.get(assignment)
        return None if unit is None else replace(unit.receipts[assignment], duplicate=True)

    # -- in -----------------------------------------------------------------------------------------------------------

    def start_update(
        self,
        assignment: AssignmentId,
        weight: float = 1.0,
        *,
        metrics: Mapping[str, float] | None = None,
        content_length: int | None = None,
        sha256: Digest | None = None,
        token: str = "",
        version: int = 0,
    ) -> UpdateSink:
        """Begin to receive an update. For one that is durable already, the sink ignores what is written to it.

        `Announcement` says what the arguments are.

        Raises:
            TooLate: the attempt takes no more updates.
            Conflict: the assignment is of another attempt.
            InvalidUpdate: a weight or a metric that cannot be right, or a metric that the strategy needs is missing.
            InvalidInput: ``sha256`` is no digest.
            TooLarge: ``content_length`` is more than an update of this model can have.
            StorageError: the spool cannot be written, or the disk has room for nothing that comes of the update.
        """
        check_own([assignment], self.attempt)
        sha256 = None if sha256 is None else check_digest(sha256)
        announced = Announcement(assignment, float(weight), metrics or {}, content_length, sha256, token, version)
        own_weight = announced.weight if self._plan.weighting == "examples" else 1.0
        with failures_told(self._plan.strategy):
            self._plan.strategy.check(own_weight, announced.metrics)
        check_length(content_length, self.max_update_bytes)
        with self._lock:
            duplicate = self.receipt(assignment)
            if duplicate is None:
                self._check_open()
                check_room(self._spool.directory, self.layout, self._plan, len(self._sinks))
            writer = self._spool.begin(max_bytes=self.max_update_bytes) if duplicate is None else None
            sink = UpdateSink(announced, self._rules, writer, duplicate, self._update_ended)
            if duplicate is None:
                self._sinks.add(sink)
        return sink

    def start_partial(self, partial: Partial) -> PartialSink:
        """Begin to receive the sum of some of the attempt's updates. It counts once it was taken.

        Raises:
            TooLate: the attempt takes no more updates.
            Conflict: an assignment in it is of another attempt, or the round cannot use sums.
            InvalidUpdate: it weighs another sum than its reports do together.
            StorageError: the spool cannot be written.
        """
        check_own(partial.receipts, self.attempt)
        if self._plan.keeps_updates:
            raise Conflict(
                "this round needs every update by itself", field="partial", value=partial.id, fix="pass updates on"
            )
        check_weight(partial, self._plan)
        with self._lock:
            self._check_open()
            writer = self._spool.begin(max_bytes=self._rules.max_partial_bytes)
            sink = PartialSink(partial, self._rules, writer, self._partial_ended)
            self._sinks.add(sink)
        return sink

    def take(self, id: str) -> None:
        """A partial sum counts, in place of updates that came for its assignments. Repeating it is safe.

        When this returns, that is durable: after a crash it counts again. Only then may anybody be told.

        Raises:
            NotFound: there is no such sum.
            Conflict: an assignment in it is in another sum.
            StorageError: it cannot be made durable, and does not count.
        """
        with self._folding, self._lock:
            unit = self._waiting.get(id)
            if unit is None:
                if any(taken.partial is not None and taken.partial.id == id for taken in self._finished.values()):
                    return
                raise NotFound("there is no such partial sum", field="partial", value=id)
            for assignment in unit.receipts:
                other = self._finished.get(assignment)
                if other is not None and other.partial is not None:
                    raise Conflict("a report in it is part of another sum", field="assignment", value=assignment)
            taken = replace(unit, record=self._spool.take(unit.key))
            del self._waiting[id]
            self._replace_by(taken)

    def drop(self, assignment: AssignmentId) -> None:
        """Forget an update that does not count after all; nothing happens where there is none.

        Raises:
            Conflict: it is part of a sum.
        """
        with self._folding:
            with self._lock:
                unit = self._finished.get(assignment)
                if unit is None:
                    return
                if unit.partial is not None:
                    raise Conflict("the update is part of a sum already", field="assignment", value=assignment)
                del self._finished[assignment]
            self._sum.forget({unit.key: unit})
            self._remove(unit.key)

    def drop_partial(self, id: str) -> None:
        """Forget a partial sum that was not taken; nothing happens where there is none."""
        with self._lock:
            unit = self._waiting.pop(id, None)
        if unit is not None:
            self._remove(unit.record.key)

    # -- out ----------------------------------------------------------------------------------------------------------

    def fold(self, *assignments: AssignmentId, staleness: Mapping[AssignmentId, int] | None = None) -> None:
        """Add finished updates that count to the running sum; nothing happens to those that are in it already.

        Several at once are added faster than one by one.

        Args:
            assignments: whose updates.
            staleness: how many model updates older than the present model their bases are, where that is not 0.

        Raises:
            NotFound: there is no finished update of an assignment.
            StorageError: an update cannot be read.
        """
        with self._folding:
            self._staleness.update({str(assignment): by for assignment, by in (staleness or {}).items()})
            units = self._units(assignments)
            if isinstance(self._plan.strategy, Robust):
                return
            self._sum.add(units, self._staleness)
            if self._sum.unstored_bytes > self._spool_bytes and not self._plan.keeps_updates:
                self._store_sum()

    def aggregate(
        self,
        *,
        assignments: Iterable[AssignmentId] | None = None,
        memory: Mapping[str, Digest] | None = None,
        round_number: int = 1,
    ) -> Aggregate:
        """Store the next model, durably. May be repeated, if the disk was full, say.

        A synchronous round takes no more updates from here on. An asynchronous one goes on with ``go_on``.

        Args:
            assignments: exactly those whose updates count; by default, all that are finished.
            memory: the strategy's memory, from the previous round's ``Aggregate``.
            round_number: which round this ends, from 1.

        Raises:
            Conflict: no update counts, or too few for the strategy; or one that does not is part of a sum.
            NotFound: an update that counts is not there.
            Exception: as ``commit.commit_model``.
        """
        with self._lock:
            self._is_open &= self._plan.asynchronous
            counted = frozenset(self._finished if assignments is None else assignments)
        if not counted:
            raise Conflict("no update to aggregate", field="assignments", fix="try the round again")
        with self._folding:
            units = self._units(counted)
            reported, metrics = self._reported(units, counted)
            model, kept = commit_model(
                reported, self._plan.strategy, self._base, self._blobs, round_number=round_number, memory=memory
            )
            weight = sum(unit.weight(self._plan.weighting) for unit in units.values())
        return Aggregate(model, kept, counted, weight, metrics.means())

    def go_on(self, model: Digest, counted: Iterable[AssignmentId]) -> None:
        """An aggregate has become a commit: an asynchronous attempt goes on from its model, without the updates in it.

        Not before: until the commit is on record, a crash needs the updates.

        Raises:
            StorageError: an update cannot be removed from the disk. It does not count any more all the same.
        """
        with self._folding:
            self._base = self._sum.base = MappedModel(self._blobs.path(model))
            self._release(frozenset(counted))

    def partial(
        self, id: str, assignments: Iterable[AssignmentId], write: Callable[[bytes | memoryview], None]
    ) -> Partial:
        """Write the sum of exactly these updates, for another aggregator; what must be told with it.

        They stay here until they are released, or dropped because the other one refuses some of them.

        Raises:
            NotFound: one of them is not there.
            Conflict: one that is not named is in a sum with one that is.
        """
        with self._folding:
            counted = frozenset(assignments)
            self._sum.make(self._units(counted), counted, self._staleness)
            self._sum.fold.store(write)
            partial = self._sum.partial(id)
            self._sum.reset()  # its memory is for whoever sums up next
            return partial

    def release(self, assignments: Iterable[AssignmentId]) -> None:
        """Forget updates that have gone on, as a partial sum. Their receipts are the caller's to keep."""
        with self._folding:
            self._release(frozenset(assignments))

    def close(self, *, discard: bool = True) -> None:
        """Take no more updates, break off those on their way, and remove the spool, unless a later process wants it."""
        with self._lock:
            self._is_open = False
            sinks = tuple(self._sinks)
        for sink in sinks:
            sink.abort()
        if discard:
            is_idle = self._folding.acquire(blocking=False)
            try:
                self._spool.discard(reuse=is_idle)  # whoever still folds reads files that must not be written over
            finally:
                if is_idle:
                    self._folding.release()
        else:
            with self._folding:
                pass  # whoever still folds is done with the spool before another aggregator may have it

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _reported(self, units: Mapping[str, Unit], counted: frozenset[AssignmentId]) -> tuple[Reported, MetricSums]:
        """What exactly these come to, and their metrics."""
        if not isinstance(self._plan.strategy, Robust):
            self._sum.make(units, counted, self._staleness)
            return self._sum.fold, self._sum.metrics
        metrics = MetricSums()
        updates: list[SpooledUpdate] = []
        for _, unit in sorted(units.items()):
            metrics.add(unit.record.meta["metrics"], unit.weight(self._plan.weighting))
            updates.append(SpooledUpdate(unit.record.path, unit.record.body_bytes))
        return Combined(self._plan.strategy, SpooledSet(self._base, updates)), metrics

    def _units(self, assignments: Iterable[AssignmentId]) -> dict[str, Unit]:
        """The units that hold the updates of these assignments, by key."""
        units: dict[str, Unit] = {}
        with self._lock:
            for assignment in assignments:
                unit = self._finished.get(assignment)
                if unit is None:
                    raise NotFound("no finished update of this assignment", field="assignment", value=assignment)
                units[unit.key] = unit
        return units

    def _store_sum(self) -> None:
        """Let the sum take the place of the updates in it. A crash at any point leaves the one or the other."""
        covered = tuple(self._sum.units)
        stored = self._sum.store(self._spool)
        with self._lock:
            self._finished |= dict.fromkeys(stored.receipts, stored)
        for key in covered:
            self._remove(key)

    def _remove(self, key: str) -> None:
        self._sum.held.take(key)
        self._spool.remove(key)

    def _release(self, gone: frozenset[AssignmentId]) -> None:
        with self._lock:
            units = {unit.key: unit for a in gone if (unit := self._finished.pop(a, None)) is not None}
        self._sum.forget(units)
        for assignment in gone:
            self._staleness.pop(assignment, None)
        for key in units:
            self._remove(key)

    def _recover(self) -> None:
        """Take over what an earlier process finished."""
        records = self._spool.records()
        sums = sorted((r for r in records if "number" in r.meta), key=lambda r: int(r.meta["number"]))
        if sums:
            stored = self._sum.stored = Unit.of(sums[-1])  # it covers those before it
            self._finished |= dict.fromkeys(stored.receipts, stored)
            self._sum.reset()
        for record in records:
            if record in sums:
                if record is not sums[-1]:
                    self._remove(record.key)
                continue
            unit = Unit.of(record)
            if self._sum.stored is not None and unit.receipts.keys() <= self._sum.stored.receipts.keys():
                self._remove(record.key)
            elif unit.partial is None:
                counted = self._finished.setdefault(AssignmentId(record.key), unit)
                if counted is not unit:  # a sum has taken its place
                    self._remove(record.key)
            elif record.taken:
                self._replace_by(unit)
            else:
                self._waiting[unit.partial.id] = unit

    def _replace_by(self, taken: Unit) -> None:
        """A sum stands for its assignments from now on."""
        for assignment in taken.receipts:
            update = self._finished.get(assignment)
            if update is not None and update.partial is None:
                self._sum.forget({update.key: update})
                self._remove(update.key)
            self._finished[assignment] = taken

    def _update_ended(self, sink: Any, record: Record | None) -> Receipt | None:
        with self._lock:
            record = self._ended(sink, record)
            if record is None:
                return None
            unit = Unit.of(record)
            (assignment,) = unit.receipts
            counted = self._finished.setdefault(assignment, unit)
            if counted.record is record:
                if sink.whole_body and not isinstance(self._plan.strategy, Robust):
                    self._sum.held.keep(record.key, sink.whole_body)
                return unit.receipts[assignment]
            self._remove(record.key)  # a sum has taken its place meanwhile
            return self.receipt(assignment)

    def _partial_ended(self, sink: Any, record: Record | None) -> bool | None:
        with self._lock:
            record = self._ended(sink, record)
            if record is None:
                return None
            unit = Unit.of(record)
            assert unit.partial is not None, "a partial sum's record says what is in it"
            try:
                check_same_reports(unit.partial, sink.partial)
            except Conflict:
                self._count_refused(sink)
                raise
            if any(other.record is record for other in self._finished.values()):
                return False
            return self._waiting.setdefault(unit.partial.id, unit) is unit

    def _ended(self, sink: Any, record: Record | None) -> Record | None:
        """Note that a sink has ended: its record, if it has one that may exist."""
        self._sinks.discard(sink)
        if record is None:
            self._count_refused(sink)
        elif not self._is_open and record.key not in self._finished:
            # Published while the attempt was being closed: nobody was told, so it must not exist.
            self._remove(record.key)
            raise TooLate("the attempt takes no more updates", field="attempt", value=self.attempt)
        return record

    def _count_refused(self, sink: Any) -> None:
        self.refused_updates += 1
        self.refused_bytes += sink.received_bytes

    def _check_open(self) -> None:
        if not self._is_open:
            raise TooLate("the attempt takes no more updates", field="attempt", value=self.attempt)
