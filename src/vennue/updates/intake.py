"""How an update comes in: chunk by chunk into the spool, checked as early as it can be, and durable before its receipt.

The header is checked as soon as it is whole, so what is not an update of the round's model is refused before its body
is received. The numbers are checked when all of them are there, in one pass over the page cache, at several GB/s.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from vennue.core.errors import InvalidUpdate, TooLarge, TooLate
from vennue.core.ids import AssignmentId, Digest
from vennue.tensors.codecs import PLAIN, Codec, codec_of
from vennue.tensors.layout import HeaderReader, ModelLayout
from vennue.tensors.model import MappedModel
from vennue.updates.blobs import digest_mismatch
from vennue.updates.fold import MAX_MAGNITUDE, MAX_WEIGHT, MIN_WEIGHT
from vennue.updates.spool import Record, SpoolWriter
from vennue.updates.strategies import Content

MAX_METRICS: Final = 64
MAX_METRIC_NAME: Final = 128

_HEADER_SLACK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Receipt:
    """An update is durable: now, or, for a ``duplicate``, since an earlier upload for its assignment.

    ``sha256`` is that of the body that was stored, where it was computed.
    """

    assignment: AssignmentId
    body_bytes: int
    weight: float
    sha256: Digest | None
    duplicate: bool = False

    @classmethod
    def of(cls, record: Record, *, duplicate: bool = False) -> "Receipt":
        """The receipt of a spooled update."""
        sha256 = record.meta["sha256"]
        return cls(
            AssignmentId(record.key),
            record.body_bytes,
            record.meta["weight"],
            None if sha256 is None else Digest(sha256),
            duplicate,
        )


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is known of an update before its body. Constructing one checks it.

    Args:
        assignment: whose update it is.
        weight: the number of examples that it was trained on.
        metrics: names and finite numbers, to be averaged beside the model.
        content_length: the size of the body, where it was announced.
        sha256: the digest that the body must have, where it was announced.

    Raises:
        InvalidUpdate: a weight or a metric that cannot be right.
    """

    assignment: AssignmentId
    weight: float
    metrics: Mapping[str, float]
    content_length: int | None
    sha256: Digest | None

    def __post_init__(self) -> None:
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:  # false for what is not a number, too
            raise InvalidUpdate(
                f"a weight must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}",
                field="weight",
                value=self.weight,
                limit=MAX_WEIGHT,
                fix="send the number of examples that the update was trained on",
            )
        if len(self.metrics) > MAX_METRICS:
            raise InvalidUpdate("too many metrics", field="metrics", value=len(self.metrics), limit=MAX_METRICS)
        for name, value in self.metrics.items():
            if len(name) > MAX_METRIC_NAME or not name.isprintable():
                raise InvalidUpdate(
                    "a metric's name must be short printable text",
                    field="metrics",
                    value=name[:80],
                    limit=MAX_METRIC_NAME,
                )
            if not math.isfinite(value):
                raise InvalidUpdate("a metric must be finite", field=f"metrics.{name}", value=str(value))


@dataclass(frozen=True, slots=True)
class Rules:
    """What every update of a round must be like."""

    layout: ModelLayout
    content: Content
    codecs: frozenset[str]
    with_sha256: bool

    @property
    def max_header_bytes(self) -> int:
        """The longest header that can be right: codecs have longer names, and up to two tensors for one."""
        return 3 * len(self.layout.header) + _HEADER_SLACK_BYTES

    @property
    def max_body_bytes(self) -> int:
        """The size of the largest body that can be right: a codec may be wider than the model's dtype."""
        return self.max_header_bytes + 2 * self.layout.data_bytes

    def codec(self, update: ModelLayout) -> Codec:
        """The codec of an update with an acceptable header; ``InvalidUpdate`` otherwise."""
        codec = codec_of(update)
        if codec.name not in self.codecs:
            raise InvalidUpdate(
                "the round does not take this codec",
                field="codec",
                value=codec.name,
                limit=", ".join(sorted(self.codecs)),
            )
        if codec.is_sparse and self.content != "change":
            raise InvalidUpdate(
                "this codec leaves numbers out, so it carries changes, not models",
                field="codec",
                value=codec.name,
                fix="send the whole model in another codec",
            )
        codec.check_layout(update, self.layout)
        return codec


class UpdateSink:
    """An update on its way in: ``RoundAggregator.start_update`` makes it.

    ``duplicate`` is the receipt of an earlier upload for the same assignment, if there was one: it is the answer, and
    what is written is ignored. After any error the update is aborted. As a context manager, it aborts if unfinished.

    Args:
        announced: what is known of the update.
        rules: what it must be like.
        writer: where its body goes; ``None`` for a duplicate.
        duplicate: the earlier receipt.
        ended: called once, with the record when the update is durable, and ``None`` when it was refused or broken off.
            It returns the record that counts, which may be an earlier one, or refuses it by raising.
    """

    def __init__(
        self,
        announced: Announcement,
        rules: Rules,
        writer: SpoolWriter | None,
        duplicate: Receipt | None,
        ended: Callable[["UpdateSink", Record | None], Record | None],
    ) -> None:
        self.duplicate = duplicate
        self.received_bytes = 0
        self._announced = announced
        self._rules = rules
        self._writer = writer
        self._ended = ended
        self._reader = HeaderReader(max_header_bytes=rules.max_header_bytes, error=InvalidUpdate, known=rules.layout)
        self._layout: ModelLayout | None = None
        self._codec: Codec = PLAIN
        self._hash = hashlib.sha256() if rules.with_sha256 or announced.sha256 else None
        self._lock = threading.Lock()  # closing the aggregator aborts from another thread

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next chunk, of any size.

        Raises:
            InvalidUpdate: the header, once it is whole, is not that of an update of the round's model.
            TooLarge: more bytes than an update can have, or than the header calls for.
            StorageError: the disk is full.
            TooLate: the attempt was closed meanwhile.
        """
        with self._lock:
            self.received_bytes += len(chunk)
            if self.duplicate is not None:
                return
            writer = self._open_writer()
            try:
                if self._layout is None:
                    self._layout = self._reader.feed(chunk)
                    if self._layout is not None:
                        self._codec = self._rules.codec(self._layout)
                        self._check_length(self._layout.total_bytes)
                        writer.max_bytes = self._layout.total_bytes
                writer.write(chunk)
                if self._hash is not None:
                    self._hash.update(chunk)
            except BaseException:
                self._end()
                raise

    def finish(self) -> Receipt:
        """Check the whole update and make it durable; only then may the device be told.

        Raises:
            InvalidUpdate: it is cut off, or a number in it is not finite or too large.
            InvalidInput: it has another SHA-256 than announced.
            StorageError: it cannot be stored.
            TooLate: the attempt was closed meanwhile.
        """
        with self._lock:
            if self.duplicate is not None:
                return self.duplicate
            writer = self._open_writer()
            try:
                sha256 = self._check(writer)
                meta = {"weight": self._announced.weight, "metrics": dict(self._announced.metrics), "sha256": sha256}
                record, is_new = writer.finish(self._announced.assignment, meta)
                counted = self._end(record) or record
            except BaseException:
                self._end()
                raise
            self.duplicate = Receipt.of(counted, duplicate=True)
            return Receipt.of(counted, duplicate=not is_new or counted is not record)

    def abort(self) -> None:
        """Remove what was received. Does nothing after ``finish`` or ``abort``."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def _open_writer(self) -> SpoolWriter:
        if self._writer is None:
            raise TooLate("the update was broken off", field="assignment", value=self._announced.assignment)
        return self._writer

    def _end(self, record: Record | None = None) -> Record | None:
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        writer.abort()  # nothing happens to what is finished
        return self._ended(self, record)

    def _check_length(self, total_bytes: int) -> None:
        if total_bytes > self._rules.max_body_bytes:
            raise TooLarge(
                "the update is larger than one of this model can be",
                field="body",
                value=total_bytes,
                limit=self._rules.max_body_bytes,
            )
        announced = self._announced.content_length
        if announced is not None and announced != total_bytes:
            raise InvalidUpdate(
                "the header calls for another size of the body than was announced",
                field="body",
                value=announced,
                limit=total_bytes,
            )

    def _check(self, writer: SpoolWriter) -> Digest | None:
        """Check a body that should be whole; its SHA-256, where it was computed."""
        if self._layout is None or writer.body_bytes < self._layout.total_bytes:
            expected = None if self._layout is None else self._layout.total_bytes
            raise InvalidUpdate(
                "the update is cut off",
                field="body",
                value=writer.body_bytes,
                limit=expected,
                fix="send it again, whole",
            )
        sha256 = None if self._hash is None else Digest(self._hash.hexdigest())
        if sha256 is not None and self._announced.sha256 not in {None, sha256}:
            raise digest_mismatch(sha256, self._announced.sha256)
        update = MappedModel(writer.path, known=self._layout, error=InvalidUpdate)
        for tensor in self._rules.layout.floating:
            peak = self._codec.peak(update, tensor)
            limit = min(MAX_MAGNITUDE, tensor.largest)
            if peak > limit:
                raise InvalidUpdate(
                    f"a number in it is {peak:g}, too large to be averaged",
                    field=tensor.name,
                    value=peak,
                    limit=limit,
                    fix="leave out what diverged; a smaller learning rate may keep training from it",
                )
        return sha256
