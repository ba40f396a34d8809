"""How an update comes in: chunk by chunk into the spool, checked as early as it can be, and durable before its receipt.

The header is checked as soon as it is whole, so what is not an update of the round's model is refused before its body
is received. The numbers are checked when all of them are there, in one pass over the body, or over the page cache when
it came in several chunks, at several GB/s. A partial sum comes in the same way.
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from vennue.core.errors import InvalidUpdate, TooLarge, TooLate
from vennue.core.ids import AssignmentId, Digest
from vennue.tensors.codecs import CODEC_KEY, PLAIN, Codec, codec_of, is_change
from vennue.tensors.layout import HeaderReader, ModelLayout
from vennue.tensors.model import HeldModel, MappedModel
from vennue.updates.blobs import digest_mismatch
from vennue.updates.fold import MAX_MAGNITUDE, MAX_WEIGHT, MIN_WEIGHT, sums_layout
from vennue.updates.plan import RoundPlan
from vennue.updates.spool import Record, SpoolWriter
from vennue.updates.sums import MAX_METRIC, MAX_METRIC_NAME, Partial, Receipt

MAX_DEVICE_METRICS: Final = 64

_HEADER_SLACK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is known of an update before its body. Constructing one checks it.

    Args:
        assignment: whose update it is.
        weight: the number of examples that it was trained on.
        metrics: names and finite numbers, to be averaged beside the model.
        content_length: the size of the body, where it was announced.
        sha256: the digest that the body must have, where it was announced.
        token: what proves that the assignment is the sender's, kept with the update.
        version: that of the model that the device was given, kept with the update.

    Raises:
        InvalidUpdate: a weight or a metric that cannot be right.
    """

    assignment: AssignmentId
    weight: float
    metrics: Mapping[str, float]
    content_length: int | None
    sha256: Digest | None
    token: str
    version: int = 0

    def __post_init__(self) -> None:
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:  # false for what is not a number, too
            raise InvalidUpdate(
                f"a weight must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}",
                field="weight",
                value=self.weight,
                limit=MAX_WEIGHT,
                fix="send the number of examples that the update was trained on",
            )
        if len(self.metrics) > MAX_DEVICE_METRICS:
            raise InvalidUpdate(
                "too many metrics",
                field="metrics",
                value=len(self.metrics),
                limit=MAX_DEVICE_METRICS,
                fix="send those that the job's owner looks at",
            )
        for name, value in self.metrics.items():
            if len(name) > MAX_METRIC_NAME or not name.isprintable():
                raise InvalidUpdate(
                    "a metric's name must be short printable text",
                    field="metrics",
                    value=name[:80],
                    limit=MAX_METRIC_NAME,
                    fix="give it a name such as loss",
                )
            if not abs(value) <= MAX_METRIC:  # false for what is not a number, too
                raise InvalidUpdate(
                    f"a metric must be finite, and from {-MAX_METRIC:g} to {MAX_METRIC:g}",
                    field=f"metrics.{name}",
                    value=value,
                    limit=MAX_METRIC,
                    fix="leave out a metric that has diverged",
                )


@dataclass(frozen=True, slots=True)
class Rules:
    """What every update of a round must be like."""

    layout: ModelLayout
    plan: RoundPlan
    with_sha256: bool

    @property
    def max_header_bytes(self) -> int:
        """The longest header that can be right: codecs have longer names, and up to two tensors for one."""
        return 3 * len(self.layout.header) + _HEADER_SLACK_BYTES

    @property
    def max_body_bytes(self) -> int:
        """The size of the largest body that can be right: a codec may be wider than the model's dtype."""
        return self.max_header_bytes + 2 * self.layout.data_bytes

    @property
    def max_partial_bytes(self) -> int:
        """The size of the largest partial sum that can be right."""
        return self.max_header_bytes + 4 * self.layout.data_bytes

    def codec(self, update: ModelLayout) -> Codec:
        """The codec of an update with an acceptable header; ``InvalidUpdate`` otherwise."""
        codec = codec_of(update)
        if codec.name not in self.plan.codecs:
            raise InvalidUpdate(
                "the round does not take this codec",
                field="codec",
                value=codec.name,
                limit=", ".join(self.plan.codecs),
                fix=_allowed(self.plan.codecs),
            )
        if not is_change(update):
            if codec.is_sparse:
                raise InvalidUpdate(
                    "this codec leaves numbers out, so it carries changes, not models",
                    field="codec",
                    value=codec.name,
                    fix="send the change, and say so in the metadata: vennue.content = change",
                )
            if self.plan.asynchronous:  # a model says little where updates start from different ones
                raise InvalidUpdate(
                    "the job is asynchronous, so it takes changes, not models",
                    field="content",
                    value="model",
                    fix="send the change, and say so in the metadata: vennue.content = change",
                )
        codec.check_layout(update, self.layout)
        return codec


def _allowed(codecs: tuple[str, ...]) -> str:
    """What a device may use instead: a task names no codec where only ``plain`` is taken."""
    if codecs == (PLAIN.name,):
        return f"send it as {PLAIN.name}: each tensor in the model's own type"
    return f"use one of {', '.join(codecs)}, and name it in the metadata: {CODEC_KEY}"


Done = TypeVar("Done")


class _Sink(ABC, Generic[Done]):
    """A body on its way into the spool. After any error it is aborted. As a context manager, it aborts if unfinished.

    Args:
        reader: of its header.
        max_bytes: how long it may be.
        writer: where it goes; ``None`` for what is there already.
        ended: called once, with the record when it is durable, and with ``None`` when it was refused or broken off. It
            says what became of a record, or refuses it by raising.
    """

    def __init__(
        self,
        reader: HeaderReader,
        max_bytes: int,
        writer: SpoolWriter | None,
        ended: "Callable[[_Sink[Done], Record | None], Done | None]",
    ) -> None:
        self.received_bytes = 0
        self._reader = reader
        self._max_bytes = max_bytes
        self._layout: ModelLayout | None = None
        self._whole = b""  # the body, if it came as one chunk
        self._writer = writer
        self._ended = ended
        self._lock = threading.Lock()  # closing the aggregator aborts from another thread
        self._is_first = True

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next chunk, of any size. Of what is there already, it is ignored.

        Raises:
            InvalidUpdate: the header, once it is whole, is not one of the round's.
            TooLarge: more bytes than it can have, or than the header calls for.
            StorageError: the disk is full.
            TooLate: the attempt was closed meanwhile.
        """
        with self._lock:
            self.received_bytes += len(chunk)
            if self._is_repeat():
                return
            writer = self._open_writer()
            try:
                if self._layout is None:
                    self._layout = self._reader.feed(chunk)
                    if self._layout is not None:
                        self._check_header(self._layout)
                        self._check_size(self._layout.total_bytes)
                        writer.max_bytes = self._layout.total_bytes
                        if isinstance(chunk, bytes) and len(chunk) == self._layout.total_bytes:
                            self._whole = chunk
                writer.write(chunk)
                self._saw(chunk)
            except BaseException:
                self._end()
                raise

    @property
    def whole_body(self) -> bytes:
        """The body that was spooled, if it came as one chunk; empty otherwise."""
        return self._whole if self._is_first else b""

    def abort(self) -> None:
        """Remove what was received. Does nothing after it was finished or aborted."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def _is_repeat(self) -> bool:
        return False

    @abstractmethod
    def _check_header(self, layout: ModelLayout) -> None:
        """Refuse a header that is not one of the round's."""

    @abstractmethod
    def _check_body(self, body: MappedModel) -> None:
        """Refuse numbers that cannot be right."""

    def _saw(self, chunk: bytes | bytearray | memoryview) -> None:
        """A chunk was written."""

    def _check_size(self, total_bytes: int) -> None:
        if total_bytes > self._max_bytes:
            raise TooLarge(
                "it is larger than one of this model can be",
                field="body",
                value=total_bytes,
                limit=self._max_bytes,
                fix="send the tensors of the task's model alone",
            )

    def _finish(self, key: str, meta: Callable[[], Mapping[str, Any]]) -> Done:
        """Check a body that should be whole and make it durable; what became of it."""
        writer = self._open_writer()
        try:
            layout = self._layout
            if layout is None or writer.body_bytes < layout.total_bytes:
                raise InvalidUpdate(
                    "it is cut off",
                    field="body",
                    value=writer.body_bytes,
                    limit=None if layout is None else layout.total_bytes,
                    fix="send it again, whole",
                )
            about = meta()
            self._check_body(
                HeldModel(self._whole, known=layout, error=InvalidUpdate)
                if self._whole
                else MappedModel(Path(writer.file), size_bytes=writer.body_bytes, known=layout, error=InvalidUpdate)
            )
            record, self._is_first = writer.finish(key, about)
            done = self._end(record)
        except BaseException:
            self._end()
            raise
        assert done is not None, "a record becomes something, or is refused"
        return done

    def _open_writer(self) -> SpoolWriter:
        if self._writer is None:
            raise TooLate("the upload was broken off, or its round has closed", field="assignment")
        return self._writer

    def _end(self, record: Record | None = None) -> Done | None:
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        writer.abort()  # nothing happens to what is finished
        return self._ended(self, record)


class UpdateSink(_Sink[Receipt]):
    """An update on its way in: ``RoundAggregator.start_update`` makes it.

    If there was an earlier upload for the same assignment, its receipt is the answer, and what is written is ignored.
    """

    def __init__(
        self,
        announced: Announcement,
        rules: Rules,
        writer: SpoolWriter | None,
        duplicate: Receipt | None,
        ended: Callable[[_Sink[Receipt], Record | None], Receipt | None],
    ) -> None:
        reader = HeaderReader(max_header_bytes=rules.max_header_bytes, error=InvalidUpdate, known=rules.layout)
        super().__init__(reader, rules.max_body_bytes, writer, ended)
        self._earlier = duplicate
        self._announced = announced
        self._rules = rules
        self._codec: Codec = PLAIN
        self._hash = hashlib.sha256() if rules.with_sha256 or announced.sha256 else None

    @property
    def duplicate(self) -> Receipt | None:
        """The receipt that repeats get; ``None`` as long as there is none."""
        return None if self._earlier is None else replace(self._earlier, duplicate=True)

    def finish(self) -> Receipt:
        """Check the whole update and make it durable; only then may the device be told.

        Raises:
            InvalidUpdate: it is cut off, or a number in it is not finite or too large.
            InvalidInput: it has another SHA-256 than announced.
            StorageError: it cannot be stored.
            TooLate: the attempt was closed meanwhile.
        """
        with self._lock:
            if self._earlier is not None:
                return replace(self._earlier, duplicate=True)
            receipt = self._finish(self._announced.assignment, self._meta)
            if not self._is_first:  # the body that is stored is another upload's
                receipt = replace(receipt, duplicate=True)
            self._earlier = receipt
            return receipt

    def _is_repeat(self) -> bool:
        return self._earlier is not None

    def _check_header(self, layout: ModelLayout) -> None:
        self._codec = self._rules.codec(layout)
        announced = self._announced.content_length
        if announced is not None and announced != layout.total_bytes:
            raise InvalidUpdate(
                "the header calls for another size of the body than was announced",
                field="body",
                value=announced,
                limit=layout.total_bytes,
            )

    def _saw(self, chunk: bytes | bytearray | memoryview) -> None:
        if self._hash is not None:
            self._hash.update(chunk)

    def _meta(self) -> Mapping[str, Any]:
        announced = self._announced
        sha256 = None if self._hash is None else Digest(self._hash.hexdigest())
        if sha256 is not None and announced.sha256 not in {None, sha256}:
            raise digest_mismatch(sha256, announced.sha256)
        return {
            "weight": announced.weight,
            "metrics": dict(announced.metrics),
            "sha256": sha256,
            "token": announced.token,
            "version": announced.version,
        }

    def _check_body(self, body: MappedModel) -> None:
        for tensor in self._rules.layout.floating:
            peak = self._codec.peak(body, tensor)
            limit = min(MAX_MAGNITUDE, tensor.largest)
            if peak > limit:
                raise InvalidUpdate(
                    f"a number in it is {peak:g}, too large to be averaged",
                    field=tensor.name,
                    value=peak,
                    limit=limit,
                    fix="leave out what diverged; a smaller learning rate may keep training from it",
                )


class PartialSink(_Sink[bool]):
    """A partial sum on its way in: ``RoundAggregator.start_partial`` makes it."""

    def __init__(
        self,
        partial: Partial,
        rules: Rules,
        writer: SpoolWriter,
        ended: Callable[[_Sink[bool], Record | None], bool | None],
    ) -> None:
        reader = HeaderReader(max_header_bytes=rules.max_header_bytes, error=InvalidUpdate)
        super().__init__(reader, rules.max_partial_bytes, writer, ended)
        self.partial = partial
        self._rules = rules

    def finish(self) -> bool:
        """Check the whole sum and make it durable: whether it is new; it counts once it was taken.

        Raises:
            InvalidUpdate: it is cut off, or a number in it is not finite or too large.
            Conflict: a sum of other reports has its id.
            StorageError: it cannot be stored.
            TooLate: the attempt was closed meanwhile.
        """
        with self._lock:
            return self._finish(partial_key(self.partial.id), self.partial.to_meta)

    def _check_header(self, layout: ModelLayout) -> None:
        if layout.header not in {sums_layout(self._rules.layout, itemsize).header for itemsize in (4, 8)}:
            raise InvalidUpdate("it is not a sum of updates of the round's model", field="body")

    def _check_body(self, body: MappedModel) -> None:
        for tensor in body.layout.tensors:
            peak = body.peak(tensor, error=InvalidUpdate)
            limit = MAX_MAGNITUDE * MAX_WEIGHT * len(self.partial.receipts)
            if peak > limit:
                raise InvalidUpdate(f"a number in it is {peak:g}", field=tensor.name, value=peak, limit=limit)


def partial_key(id: str) -> str:
    """The key under which a partial sum is spooled."""
    return f"partial.{id}"
