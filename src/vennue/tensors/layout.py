"""What a model's header says, checked before anything else is believed: the strict half of reading safetensors.

The format is eight bytes of header length, a JSON header, then the tensors' bytes. Headers come from strangers, so
every statement in one is verified, and every later part of the data plane works on a ``ModelLayout``, which cannot lie.

Floating tensors (F64, F32, F16, BF16) are what learning changes, and are aggregated. Integer and boolean tensors, such
as a BatchNorm layer's counter, are carried: an update must hold them with the right shape and dtype, but their values
are ignored, and an aggregate takes them from the round's base model. A mean of counters has no meaning.

Format: https://huggingface.co/docs/safetensors, section "Format".
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from vennue.core.errors import InvalidInput, InvalidModel

MAX_HEADER_BYTES: Final = 4 * 2**20
"""Some 45 000 tensors. While one is parsed, no other thread runs: 16 MiB of brackets stopped a server for 3 s."""
LENGTH_BYTES: Final = 8

_MAX_RANK: Final = 32
_MAX_ELEMENTS: Final = 2**60 - 1  # an empty array must have a shape that numpy can make, in float64, too
_MAX_NAME: Final = 1024  # errors and logs name tensors
_METADATA: Final = "__metadata__"

# In the order in which the safetensors library lays tensors out: the widest first.
STORED: Final[Mapping[str, np.dtype[Any]]] = {
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "BF16": np.dtype("<u2"),  # numpy has no bfloat16: kept as its bits, widened where it is computed with
    "F16": np.dtype("<f2"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""The numpy dtype in which each safetensors dtype is stored."""

_LARGEST: Final = {
    "F64": float(np.finfo(np.float64).max),
    "F32": float(np.finfo(np.float32).max),
    "F16": 65504.0,
    "BF16": float((2 - 2.0**-7) * 2.0**127),
}
_ORDER: Final = {name: position for position, name in enumerate(STORED)}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a layout.

    ``dtype`` is safetensors' name for it (``"F32"``), ``shape`` its dimensions, ``start`` and ``stop`` the span of its
    bytes, counted from the start of the data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def stored(self) -> np.dtype[Any]:
        """The numpy dtype in which its elements are stored; a BF16's bits are ``uint16``."""
        return STORED[self.dtype]

    @property
    def is_floating(self) -> bool:
        """Whether it is aggregated; otherwise it is carried."""
        return self.dtype in _LARGEST

    @property
    def largest(self) -> float:
        """The largest finite number of a floating dtype."""
        return _LARGEST[self.dtype]

    @property
    def elements(self) -> int:
        """How many numbers it holds: 1 for a scalar."""
        return (self.stop - self.start) // self.stored.itemsize


@dataclass(frozen=True)
class ModelLayout:
    """What a model's header says: its tensors in the order of their bytes, and nothing that is not so.

    ``header`` is the file's beginning, verbatim: length and JSON. Two files with equal headers have equal layouts.
    """

    tensors: tuple[Tensor, ...]
    header: bytes
    metadata: Mapping[str, str]

    @classmethod
    def parse(cls, header: bytes, *, error: type[InvalidInput] = InvalidModel) -> "ModelLayout":
        """Check a header, length prefix included.

        Raises:
            InvalidInput: as the given ``error`` class, with what is wrong. Whatever the bytes, nothing else is raised.
        """
        entries = _parse_json(header[LENGTH_BYTES:], error)
        metadata = entries.pop(_METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise error("metadata must map text to text", field=f"header.{_METADATA}", fix="write numbers as text")
        tensors = sorted(
            (_parse_tensor(name, entry, error) for name, entry in entries.items()),
            key=lambda tensor: (tensor.start, tensor.stop),
        )
        if not tensors:
            raise error("the file holds no tensor", field="header", fix="send a model with at least one tensor")
        position = 0
        for tensor in tensors:
            if tensor.start != position:
                what = "overlaps the tensor before it" if tensor.start < position else "leaves a hole before it"
                raise error(f"its data {what}", field=tensor.name, value=tensor.start, limit=position)
            position = tensor.stop
        return cls(tuple(tensors), header, metadata)

    @classmethod
    def of(
        cls,
        tensors: Iterable[tuple[str, str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
        *,
        keep_order: bool = False,
    ) -> "ModelLayout":
        """Lay out tensors given as (name, dtype, shape), in the words of the safetensors library.

        They are put in its order, the widest dtype first, then by name, unless ``keep_order``.
        """
        if not keep_order:
            tensors = sorted(tensors, key=lambda tensor: (_ORDER[tensor[1]], tensor[0]))
        header: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
        position = 0
        for name, dtype, shape in tensors:
            stop = position + math.prod(shape) * STORED[dtype].itemsize
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, stop]}
            position = stop
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % LENGTH_BYTES)
        return cls.parse(len(text).to_bytes(LENGTH_BYTES, "little") + text)

    @cached_property
    def by_name(self) -> Mapping[str, Tensor]:
        """The tensors by their names."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def floating(self) -> tuple[Tensor, ...]:
        """The tensors that are aggregated."""
        return tuple(tensor for tensor in self.tensors if tensor.is_floating)

    @property
    def data_bytes(self) -> int:
        """The size of all tensors."""
        return self.tensors[-1].stop

    @property
    def total_bytes(self) -> int:
        """The size of a whole file of this layout."""
        return len(self.header) + self.data_bytes


class HeaderReader:
    """Finds the header at the beginning of a stream of chunks.

    Args:
        max_header_bytes: the longest JSON to accept.
        error: what to raise on a malformed header.
        known: a layout whose header needs no second check when the stream repeats it byte by byte.
    """

    def __init__(
        self,
        *,
        max_header_bytes: int = MAX_HEADER_BYTES,
        error: type[InvalidInput] = InvalidModel,
        known: ModelLayout | None = None,
    ) -> None:
        self._max_header_bytes = max_header_bytes
        self._error = error
        self._known = known
        self._seen = bytearray()

    def feed(self, chunk: bytes | bytearray | memoryview) -> ModelLayout | None:
        """Take the next chunk; the layout, once the header is whole."""
        view = memoryview(chunk).cast("B")
        known = self._known
        if known is not None and not self._seen and view[: len(known.header)] == known.header:
            return known
        if len(self._seen) < LENGTH_BYTES:
            missing = LENGTH_BYTES - len(self._seen)
            self._seen += view[:missing]
            view = view[missing:]
            if len(self._seen) < LENGTH_BYTES:
                return None
        length = int.from_bytes(self._seen[:LENGTH_BYTES], "little")
        if length > self._max_header_bytes:
            raise self._error(
                f"the header claims to be {length} bytes long",
                field="header",
                value=length,
                limit=self._max_header_bytes,
                fix="send a safetensors file",
            )
        self._seen += view[: LENGTH_BYTES + length - len(self._seen)]
        if len(self._seen) < LENGTH_BYTES + length:
            return None
        header = bytes(self._seen)
        if known is not None and header == known.header:
            return known
        return ModelLayout.parse(header, error=self._error)


def _parse_json(text: bytes, error: type[InvalidInput]) -> dict[str, Any]:
    fix = "send a safetensors file"
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=lambda pairs: _unique(pairs, error))
    except (ValueError, RecursionError) as cause:
        raise error(f"the header is not JSON: {cause}", field="header", fix=fix) from None
    if not isinstance(parsed, dict):
        raise error("the header is not a JSON object", field="header", fix=fix)
    return parsed


def _unique(pairs: list[tuple[str, Any]], error: type[InvalidInput]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise error("the header names it twice", field=twice[:200], fix="give each tensor a name of its own")
    return entries


def _parse_tensor(name: str, entry: object, error: type[InvalidInput]) -> Tensor:
    field = name[:200]
    if len(name) > _MAX_NAME or not name.isprintable():  # lone surrogates, too, which no file or log could hold
        raise error("a tensor's name must be short printable text", field="header", value=ascii(field), limit=_MAX_NAME)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise error("its entry must be {dtype, shape, data_offsets}", field=field)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORED:
        known = ", ".join(STORED)
        raise error("its dtype is not supported", field=field, value=str(dtype)[:20], limit=known, fix="use F32")
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        raise error(f"its shape must be at most {_MAX_RANK} sizes from 0", field=field, value=str(shape)[:200])
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise error("its data_offsets must be [start, stop]", field=field, value=str(offsets)[:200])
    start, stop = offsets
    size = math.prod(shape) * STORED[dtype].itemsize
    claimed = stop - start
    if claimed != size:
        needed = size if size < 2**64 else "more"
        raise error(f"shape and dtype need {needed} bytes, but it claims {claimed}", field=field, value=claimed)
    if math.prod(filter(None, shape)) > _MAX_ELEMENTS:
        raise error(
            "it is empty, and its other sizes are larger than an array can have",
            field=field,
            value=str(shape)[:200],
            limit=_MAX_ELEMENTS,
        )
    return Tensor(name, dtype, tuple(shape), start, stop)


def _are_sizes(value: object) -> bool:
    # The format's integers are unsigned 64-bit; `type`, because JSON's true is an int to Python.
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**64 for size in value)
