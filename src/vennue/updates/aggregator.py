"""The aggregator of one attempt: updates in, exactly once each, and at the end the next model, durably.

An update's way: ``start_update`` opens a sink, chunks are written, ``finish`` checks every number and makes the update
durable in the spool; only then may the device be told. Whoever keeps the round's state decides whether it counts:
``fold`` adds it to the running sum, ``drop`` forgets it. ``aggregate`` takes exactly the updates that the round counted
and stores the next model. An update that is refused, at whatever point, leaves no trace but a count.

Everything is synchronous, and safe to call from several threads: uploads run side by side, folding is one at a time.
After a crash, constructing the aggregator again brings back every finished update; none of them is folded yet.
"""

import threading
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from vennue.core.errors import Conflict, InvalidUpdate, NotFound, TooLarge, TooLate
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.updates.blobs import BlobStore, check_digest
from vennue.updates.codecs import CODECS, codec_of
from vennue.updates.commit import commit_model
from vennue.updates.fold import Accumulator, Fold
from vennue.updates.intake import Announcement, Receipt, Rules, UpdateSink
from vennue.updates.layout import ModelLayout
from vennue.updates.spool import Record, Spool
from vennue.updates.strategies import Content, FedAvg, Strategy
from vennue.updates.tensors import MappedModel

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

        self._folding = threading.Lock()  # guards these three; taken before the other lock, never after it
        self._fold = Fold(self._base.layout, accumulator)
        self._metrics = _Metrics()
        self._folded: set[AssignmentId] = set()

        self._spool = Spool(spool, attempt, durable=durable)
        self._lock = threading.Lock()  # guards these four, and the counts
        self._finished = {AssignmentId(record.key): record for record in self._spool.records()}
        self._to_fold: set[AssignmentId] = set()
        self._sinks: set[UpdateSink] = set()
        self._is_open = True

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

    def fold(self, assignment: AssignmentId) -> None:
        """Add a finished update to the running sum; nothing happens when it is in it already.

        Threads that wait here for one another have their updates added together, by the first that can go on.

        Raises:
            NotFound: there is no finished update of that assignment.
        """
        with self._lock:
            self._record(assignment)
            self._to_fold.add(assignment)
        with self._folding:
            with self._lock:
                together, self._to_fold = self._to_fold, set()
            self._fold_in(together)

    def drop(self, assignment: AssignmentId) -> None:
        """Forget an update that does not count after all; nothing happens where there is none."""
        with self._folding, self._lock:
            self._finished.pop(assignment, None)
            self._to_fold.discard(assignment)
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
            Conflict: no update counts.
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

    def _record(self, assignment: AssignmentId) -> Record:
        record = self._finished.get(assignment)
        if record is None:
            raise NotFound("no finished update of this assignment", field="assignment", value=assignment)
        return record

    def _fold_in(self, assignments: AbstractSet[AssignmentId]) -> None:
        missing = sorted(assignments - self._folded)
        for first in range(0, len(missing), FOLD_TOGETHER):
            together = missing[first : first + FOLD_TOGETHER]
            updates = []
            for record in map(self._record, together):
                update = MappedModel(record.path, size_bytes=record.body_bytes, known=self.layout, error=InvalidUpdate)
                updates.append((update, codec_of(update.layout), self._weight(record)))
                self._metrics.add(record.meta["metrics"], self._weight(record))
            self._fold.add(*updates)
            self._folded.update(together)

    def _unfold(self) -> None:
        self._fold.clear()
        self._metrics = _Metrics()
        self._folded.clear()

    def _weight(self, record: Record) -> float:
        weight: float = record.meta["weight"]
        return weight if self._weighting == "examples" else 1.0

    def _sink_ended(self, sink: UpdateSink, record: Record | None) -> None:
        with self._lock:
            self._sinks.discard(sink)
            if record is None:
                self.refused_updates += 1
                self.refused_bytes += sink.received_bytes
            elif self._is_open:
                self._finished[AssignmentId(record.key)] = record
            elif record.key not in self._finished:
                # Published while the attempt was being closed: nobody was told, so it must not exist.
                self._spool.remove(record.key)
                raise TooLate("the attempt takes no more updates", field="attempt", value=self.attempt)


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
