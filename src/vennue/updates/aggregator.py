"""The aggregator of one attempt: updates in, exactly once each, and at the end the next model, durably.

An update's way: ``start_update`` opens a sink, chunks are written, ``finish`` checks every number and makes the update
durable in the spool; only then may the device be told. Whoever keeps the round's state decides whether it counts:
``fold`` adds it to the running sum, ``drop`` forgets it. ``aggregate`` takes exactly the updates that the round counted
and stores the next model. An update that is refused, at whatever point, leaves no trace but a count.

The disk is bounded, too: from time to time the sum takes the place of the updates in it, in the spool.

Everything is synchronous, and safe to call from several threads: uploads run side by side, folding is one at a time.
After a crash, constructing the aggregator again brings back every finished update, in the stored sum or by itself.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from vennue.core.errors import Conflict, InvalidUpdate, NotFound, TooLarge, TooLate
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.tensors.codecs import CODECS, codec_of
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import MappedModel
from vennue.updates.blobs import BlobStore, check_digest
from vennue.updates.commit import commit_model
from vennue.updates.fold import Accumulator, Fold
from vennue.updates.intake import Announcement, Receipt, Rules, UpdateSink
from vennue.updates.spool import Record, Spool
from vennue.updates.strategies import Content, FedAvg, Strategy

Weighting: TypeAlias = Literal["examples", "uniform"]

FOLD_TOGETHER: Final = 4
"""How many updates are folded at once; more are no faster."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The end of an attempt: the next model, what the strategy remembers for the next round, and what went in."""

    model: Digest
    memory: Mapping[str, Digest]
    assignments: frozenset[AssignmentId]
    weight: float
    metrics: Mapping[str, float]
    """The devices' metrics, each averaged over the updates that have it, with the updates' weights."""


class RoundAggregator:
    """One attempt's updates and their sum.

    Args:
        attempt: the attempt; only assignments of it are taken.
        base: the model that the round starts from; its header is the layout of every update.
        blobs: where the base is, and the next model goes.
        spool: the directory of all spools.
        content: what devices report, whole models or changes.
        weighting: whether an update counts by its examples, or like any other.
        accumulator: the dtype of the sum.
        codecs: the names of the codecs to accept; all by default.
        with_sha256: whether every receipt has the body's SHA-256, which takes as long as all the rest together.
            Otherwise it is computed only where one is announced.
        durable: whether finished updates survive a power loss, not only a crash of the process.
        spool_bytes: how many bytes of folded updates to keep, before the stored sum takes their place; eight models at
            least.

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
        content: Content = "model",
        weighting: Weighting = "examples",
        accumulator: Accumulator = "float32",
        codecs: Iterable[str] = tuple(CODECS),
        with_sha256: bool = False,
        durable: bool = False,
        spool_bytes: int = 4 * 2**30,
    ) -> None:
        self.attempt = attempt
        self.refused_updates = 0
        """How many updates were refused or broken off."""
        self.refused_bytes = 0
        """How many bytes had been received of those."""
        self._blobs = blobs
        self._base = MappedModel(blobs.path(base))
        self._rules = Rules(self._base.layout, content, frozenset(codecs), with_sha256)
        self._weighting = weighting

        self._spool = Spool(spool, attempt, durable=durable)
        self._spool_bytes = max(spool_bytes, 8 * self._base.layout.total_bytes)

        self._folding = threading.Lock()  # guards these; taken before the other lock, never after it
        self._fold = Fold(self._base.layout, accumulator)
        self._metrics = _Metrics()
        self._folded: set[AssignmentId] = set()
        self._folded_bytes = 0  # of those that are not in the stored sum
        self._stored: Record | None = None  # the sum of some of them, which cannot be taken out of it again

        self._lock = threading.Lock()  # guards these, and the counts
        self._finished: dict[AssignmentId, Record] = {}
        self._sinks: set[UpdateSink] = set()
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
    def finished(self) -> frozenset[AssignmentId]:
        """The assignments whose updates are durable, and not dropped."""
        with self._lock:
            return frozenset(self._finished)

    def receipt(self, assignment: AssignmentId) -> Receipt | None:
        """The answer to a repeated upload, if the assignment's update is durable."""
        record = self._finished.get(assignment)
        return None if record is None else Receipt.of(record, duplicate=True)

    def start_update(
        self,
        assignment: AssignmentId,
        weight: float = 1.0,
        *,
        metrics: Mapping[str, float] | None = None,
        content_length: int | None = None,
        sha256: Digest | None = None,
    ) -> UpdateSink:
        """Begin to receive an update. For one that is durable already, the sink ignores what is written to it.

        Args:
            assignment: whose update it is.
            weight: the number of examples that it was trained on.
            metrics: names and finite numbers, to be averaged beside the model.
            content_length: the size of the body, where it was announced.
            sha256: the digest that the body must have, where it was announced.

        Raises:
            TooLate: the attempt takes no more updates.
            Conflict: the assignment is of another attempt.
            InvalidUpdate: a weight or a metric that cannot be right.
            InvalidInput: ``sha256`` is no digest.
            TooLarge: ``content_length`` is more than an update of this model can have.
            StorageError: the spool cannot be written.
        """
        if attempt_of(assignment) != self.attempt:
            raise Conflict(
                "the assignment is of another attempt", field="assignment", value=assignment, limit=self.attempt
            )
        sha256 = None if sha256 is None else check_digest(sha256)
        announced = Announcement(assignment, float(weight), metrics or {}, content_length, sha256)
        if content_length is not None and content_length > self.max_update_bytes:
            raise TooLarge(
                "the update is larger than one of this model can be",
                field="body",
                value=content_length,
                limit=self.max_update_bytes,
            )
        with self._lock:
            duplicate = self.receipt(assignment)
            if not self._is_open and duplicate is None:
                raise TooLate("the attempt takes no more updates", field="attempt", value=self.attempt)
            writer = self._spool.begin(max_bytes=self.max_update_bytes) if duplicate is None else None
            sink = UpdateSink(announced, self._rules, writer, duplicate, self._sink_ended)
            if duplicate is None:
                self._sinks.add(sink)
        return sink

    def fold(self, *assignments: AssignmentId) -> None:
        """Add finished updates that count to the running sum; nothing happens to those that are in it already.

        Several at once are added faster than one by one.

        Raises:
            NotFound: there is no finished update of an assignment.
            StorageError: an update cannot be read.
        """
        with self._folding:
            self._fold_in(assignments)
            if self._folded_bytes > self._spool_bytes:
                self._store_sum()

    def drop(self, assignment: AssignmentId) -> None:
        """Forget an update that does not count after all; nothing happens where there is none.

        Raises:
            Conflict: it was folded, and is part of the stored sum.
        """
        with self._folding:
            if assignment in _summed(self._stored):
                raise Conflict("the update is part of a sum already", field="assignment", value=assignment)
            with self._lock:
                self._finished.pop(assignment, None)
            if assignment in self._folded:
                self._unfold()
            self._spool.remove(assignment)

    def aggregate(
        self,
        strategy: Strategy | None = None,
        *,
        assignments: Iterable[AssignmentId] | None = None,
        memory: Mapping[str, Digest] | None = None,
        round_number: int = 1,
    ) -> Aggregate:
        """Take no more updates, and store the next model, durably. May be repeated, if the disk was full, say.

        Args:
            strategy: what makes the next model of the mean; FedAvg by default.
            assignments: exactly those whose updates count; by default, all that are finished.
            memory: the strategy's memory, from the previous round's ``Aggregate``.
            round_number: which round this ends, from 1.

        Raises:
            Conflict: no update counts; or one that does not is part of the stored sum.
            NotFound: an update that counts is not there.
            Exception: as ``commit.commit_model``.
        """
        with self._lock:
            self._is_open = False
            counted = frozenset(self._finished if assignments is None else assignments)
        if not counted:
            raise Conflict("no update to aggregate", field="assignments", fix="try the round again")
        with self._folding:
            if not self._folded <= counted:
                self._unfold()
            if not self._folded <= counted:
                raise Conflict("an update that does not count is part of a sum already", field="assignments")
            self._fold_in(counted)
            model, kept = commit_model(
                self._fold,
                strategy or FedAvg(),
                self._base,
                self._blobs,
                content=self._rules.content,
                round_number=round_number,
                memory=memory,
            )
            return Aggregate(model, kept, counted, self._fold.weight, self._metrics.means())

    def close(self, *, discard: bool = True) -> None:
        """Take no more updates, break off those on their way, and remove the spool, unless a later process wants it."""
        with self._lock:
            self._is_open = False
            sinks = tuple(self._sinks)
        for sink in sinks:
            sink.abort()
        if discard:
            self._spool.discard()

    def _fold_in(self, assignments: Iterable[AssignmentId]) -> None:
        missing = sorted(set(assignments) - self._folded)
        with self._lock:
            for assignment in missing:
                if assignment not in self._finished:
                    raise NotFound("no finished update of this assignment", field="assignment", value=assignment)
            records = [self._finished[assignment] for assignment in missing]
        for first in range(0, len(records), FOLD_TOGETHER):
            together = records[first : first + FOLD_TOGETHER]
            updates = [
                MappedModel(record.path, size_bytes=record.body_bytes, known=self.layout, error=InvalidUpdate)
                for record in together
            ]
            weights = [self._weight(record) for record in together]
            self._fold.add(*zip(updates, (codec_of(update.layout) for update in updates), weights, strict=True))
            for record, weight in zip(together, weights, strict=True):
                self._metrics.add(record.meta["metrics"], weight)
                self._folded.add(AssignmentId(record.key))
                self._folded_bytes += record.body_bytes

    def _unfold(self) -> None:
        """Go back to the stored sum, or to the beginning."""
        if self._stored is None:
            self._fold.clear()
            self._metrics = _Metrics()
        else:
            about = self._stored.meta
            sums = MappedModel(self._stored.path, size_bytes=self._stored.body_bytes, known=self._fold.sums_layout)
            self._fold.restore(sums, about["weight"], about["updates"])
            self._metrics = _Metrics(**about["metrics"])
        self._folded = _summed(self._stored)
        self._folded_bytes = 0

    def _store_sum(self) -> None:
        """Let the sum take the place of the updates in it. A crash at any point leaves the one or the other."""
        with self._lock:
            finished = {assignment: self._finished[assignment] for assignment in self._folded}
        about = {
            "weight": self._fold.weight,
            "updates": self._fold.updates,
            "metrics": asdict(self._metrics),
            "receipts": {key: [r.body_bytes, r.meta["weight"], r.meta["sha256"]] for key, r in finished.items()},
        }
        number = 1 if self._stored is None else self._stored.meta["number"] + 1
        with self._spool.begin() as writer:
            self._fold.store(writer.write)
            stored, _ = writer.finish(f"sum.{number}", {"number": number, **about})
        covered = [*finished, *([] if self._stored is None else [self._stored.key])]
        self._stored = stored
        self._folded_bytes = 0
        for key in covered:
            self._spool.remove(key)

    def _recover(self) -> None:
        """Take over what an earlier process finished."""
        records = self._spool.records()
        sums = sorted((record for record in records if "receipts" in record.meta), key=lambda r: int(r.meta["number"]))
        if sums:
            self._stored = sums[-1]  # it covers those before it
            for key, (body_bytes, weight, sha256) in self._stored.meta["receipts"].items():
                meta = {"weight": weight, "metrics": {}, "sha256": sha256}
                self._finished[AssignmentId(key)] = Record(key, meta, self._stored.path, body_bytes)
            self._unfold()
        for record in records:
            if record in sums[:-1] or record.key in self._folded:
                self._spool.remove(record.key)
            elif record not in sums:
                self._finished[AssignmentId(record.key)] = record

    def _weight(self, record: Record) -> float:
        weight: float = record.meta["weight"]
        return weight if self._weighting == "examples" else 1.0

    def _sink_ended(self, sink: UpdateSink, record: Record | None) -> Record | None:
        with self._lock:
            self._sinks.discard(sink)
            if record is None:
                self.refused_updates += 1
                self.refused_bytes += sink.received_bytes
                return None
            earlier = self._finished.get(AssignmentId(record.key))
            if earlier is not None:
                if earlier is not record:  # the earlier update gave way to the stored sum meanwhile
                    self._spool.remove(record.key)
                return earlier
            if not self._is_open:
                # Published while the attempt was being closed: nobody was told, so it must not exist.
                self._spool.remove(record.key)
                raise TooLate("the attempt takes no more updates", field="attempt", value=self.attempt)
            self._finished[AssignmentId(record.key)] = record
            return record


def _summed(stored: Record | None) -> set[AssignmentId]:
    return set() if stored is None else {AssignmentId(key) for key in stored.meta["receipts"]}


@dataclass(slots=True)
class _Metrics:
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float], weight: float) -> None:
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + weight * value
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def means(self) -> dict[str, float]:
        return {name: self.sums[name] / self.weights[name] for name in self.sums}
