"""How an update's numbers travel: as they are, in half precision, as scaled bytes, or only the largest of them.

Every encoded update is a safetensors file. Its tensors are those of the round's model, the floating ones each replaced
by what the codec makes of it. The fold decodes block by block, so no codec ever holds a decoded update. The metadata
says what the numbers are:

| key | value | without it |
|---|---|---|
| ``vennue.codec`` | the codec's name | ``plain`` |
| ``vennue.content`` | ``model``: the trained numbers; ``change``: how much training changed them | ``model`` |

| codec | a floating tensor ``t`` travels as |
|---|---|
| ``plain`` | itself |
| ``float32``, ``float16``, ``bfloat16`` | itself, in that dtype |
| ``int8`` | ``t`` in I8, and ``t:scales``: an F32 for each 256 numbers, by which they are multiplied |
| ``top-k`` | ``t:indices``, ascending, in U32 (or U64), and ``t:values`` in F32; all others are zero |
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import numpy as np

from vennue.core.errors import InvalidInput, InvalidModel, InvalidUpdate, did_you_mean
from vennue.tensors.layout import ModelLayout, Tensor
from vennue.tensors.model import BLOCK_BYTES, Array, MappedModel, assemble, layout_of, narrowed, widened

CODEC_KEY: Final = "vennue.codec"
CONTENT_KEY: Final = "vennue.content"

Content: TypeAlias = Literal["model", "change"]
"""What an update holds: the numbers after training, or by how much training changed them."""

INT8_GROUP: Final = 256
"""How many numbers share a scale, which makes 1.6 % more bytes."""

BLOCK_ELEMENTS: Final = BLOCK_BYTES // 4
"""Decoded blocks have this many float32 numbers."""

Specs = dict[str, tuple[str, tuple[int, ...] | None]]


class Codec(ABC):
    """One way to encode an update. It has no state; an instance serves any number of updates.

    ``is_sparse`` codecs leave numbers out, as if they were zero: they can carry changes to a model, not models. Those
    that are ``for_changes`` are coarse, and changes, which are small, lose less by it than models.
    """

    name: str
    is_sparse: bool = False
    for_changes: bool = False

    @abstractmethod
    def specs(self, tensor: Tensor) -> Specs:
        """The names of the tensors that a floating tensor becomes, with dtype and shape (``None``: any flat one)."""

    @abstractmethod
    def encode_tensor(self, tensor: Tensor, values: Array) -> dict[str, Array]:
        """A floating tensor's numbers, flat, as what ``specs`` names."""

    @abstractmethod
    def peak(self, update: MappedModel, tensor: Tensor) -> float:
        """A bound on the decoded magnitudes of a tensor.

        Raises:
            InvalidUpdate: something in it cannot be decoded, or is not finite.
        """

    @abstractmethod
    def read(self, update: MappedModel, tensor: Tensor, start: int, stop: int, out: Array) -> Array:
        """Decoded elements ``start`` to ``stop`` of a tensor; ``start`` is a multiple of ``INT8_GROUP``.

        ``out``, of that length in the dtype to compute with, may receive them; or they are a read-only view elsewhere.
        """

    def add(self, update: MappedModel, tensor: Tensor, start: int, weight: float, sums: Array, scratch: Array) -> None:
        """Add the elements of a tensor from ``start`` on, times a weight, to ``sums``.

        ``start`` is as for ``read``, and ``scratch`` is as long as ``sums`` and of the same dtype.
        """
        values = self.read(update, tensor, start, start + len(sums), scratch)
        if values.dtype != sums.dtype:  # numpy computes faster with one width than it mixes two
            scratch[...] = values
            values = scratch
        np.multiply(values, sums.dtype.type(weight), out=scratch)
        np.add(sums, scratch, out=sums)

    def encode(
        self,
        update: Mapping[str, Array],
        *,
        layout: ModelLayout | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> bytes:
        """A whole update, encoded.

        Args:
            update: every tensor's numbers.
            layout: that of the round's model; by default the one that the arrays' own types make. numpy has no
                bfloat16, so numbers of BF16 tensors are given as float32.
            metadata: what else the file's metadata says.

        Raises:
            InvalidUpdate: a number is not finite: rounding would hide it.
            InvalidModel: a dtype or a name that cannot travel.
        """
        specs: list[tuple[str, str, tuple[int, ...]]] = []
        stored: dict[str, Array] = {}
        for tensor in (layout or layout_of(update)).tensors:
            values = np.asarray(update[tensor.name]).reshape(-1)
            parts: dict[str, Array] = {tensor.name: values}
            expected: Specs = {tensor.name: (tensor.dtype, tensor.shape)}
            if tensor.is_floating:
                if not np.isfinite(values).all():
                    raise InvalidUpdate("a number is not finite", field=tensor.name, fix="report what has not diverged")
                parts, expected = self.encode_tensor(tensor, values), self.specs(tensor)
            specs += [
                (name, dtype, (len(parts[name]),) if shape is None else shape)
                for name, (dtype, shape) in expected.items()
            ]
            stored |= parts
        if len(stored) < len(specs):
            raise InvalidModel("a tensor's name ends like those of its codec", field="model", fix="rename the tensor")
        said = dict(metadata or {})
        if self is not PLAIN:
            said[CODEC_KEY] = self.name
        return assemble(ModelLayout.of(specs, said), stored)

    def check_layout(self, update: ModelLayout, model: ModelLayout) -> None:
        """Check that an encoded update has the tensors of a model.

        Raises:
            InvalidUpdate: with the tensor that is missing, unknown, or of another shape or dtype.
        """
        if update is model and self is PLAIN:
            return
        expected: Specs = {}
        for tensor in model.tensors:
            specs = self.specs(tensor) if tensor.is_floating else {tensor.name: (tensor.dtype, tensor.shape)}
            if not expected.keys().isdisjoint(specs):
                raise InvalidUpdate(
                    f"the round's model cannot travel in {self.name}: two of its tensors would be one",
                    field=tensor.name,
                    value=self.name,
                    fix="use another codec, or rename the tensor",
                )
            expected |= specs
        for name in sorted(expected.keys() ^ update.by_name.keys()):
            what = "is missing" if name in expected else "is not in the round's model"
            raise InvalidUpdate(f"the tensor {what}", field=name[:200], fix="train the model that the round names")
        for name, (dtype, shape) in expected.items():
            found = update.by_name[name]
            if found.dtype != dtype:
                raise InvalidUpdate(
                    f"its dtype is {found.dtype}, the round's is {dtype}",
                    field=name,
                    value=found.dtype,
                    limit=dtype,
                    fix="convert it, or name in the metadata the codec that it is in: vennue.codec",
                )
            if found.shape != shape and not (shape is None and len(found.shape) == 1):
                raise InvalidUpdate(
                    f"its shape is {found.shape}, the round's is {shape}",
                    field=name,
                    value=str(found.shape),
                    limit=str(shape),
                    fix="report the whole model that the round names, in its shapes",
                )


class Cast(Codec):
    """Numbers as numbers, in one dtype for all tensors; ``None`` keeps each tensor's own."""

    def __init__(self, name: str, dtype: str | None) -> None:
        self.name = name
        self._dtype = dtype

    def specs(self, tensor: Tensor) -> Specs:
        return {tensor.name: (self._dtype or tensor.dtype, tensor.shape)}

    def encode_tensor(self, tensor: Tensor, values: Array) -> dict[str, Array]:
        return {tensor.name: narrowed(values, self._dtype or tensor.dtype)}

    def peak(self, update: MappedModel, tensor: Tensor) -> float:
        return update.peak(update.layout.by_name[tensor.name], error=InvalidUpdate)

    def read(self, update: MappedModel, tensor: Tensor, start: int, stop: int, out: Array) -> Array:
        tensor = update.layout.by_name[tensor.name]
        stored = update.read(tensor, start, stop)
        return stored if tensor.dtype in {"F32", "F64"} else widened(stored, tensor.dtype, out)


class Int8(Codec):
    """Numbers in [-127, 127] times a scale per group: an error of at most 1/254 of the group's largest magnitude."""

    name = "int8"
    for_changes = True

    def specs(self, tensor: Tensor) -> Specs:
        groups = -(-tensor.elements // INT8_GROUP)
        return {tensor.name: ("I8", tensor.shape), _scales(tensor): ("F32", (groups,))}

    def encode_tensor(self, tensor: Tensor, values: Array) -> dict[str, Array]:
        groups = np.zeros((-(-len(values) // INT8_GROUP), INT8_GROUP), np.float32)
        groups.reshape(-1)[: len(values)] = values
        scales = np.abs(groups).max(axis=1, initial=0) / np.float32(127)
        scaled = np.divide(groups, scales[:, None], out=np.zeros_like(groups), where=scales[:, None] > 0)
        rounded = np.rint(scaled).clip(-127, 127).astype(np.int8).reshape(-1)[: len(values)]
        return {tensor.name: rounded, _scales(tensor): scales}

    def peak(self, update: MappedModel, tensor: Tensor) -> float:
        return 128 * update.peak(update.layout.by_name[_scales(tensor)], error=InvalidUpdate)

    def read(self, update: MappedModel, tensor: Tensor, start: int, stop: int, out: Array) -> Array:
        out[...] = update.read(update.layout.by_name[tensor.name], start, stop)
        scales = update.read(update.layout.by_name[_scales(tensor)], start // INT8_GROUP, -(-stop // INT8_GROUP))
        whole = len(out) // INT8_GROUP
        groups = out[: whole * INT8_GROUP].reshape(whole, INT8_GROUP)
        np.multiply(groups, scales[:whole, None], out=groups)
        if whole < len(scales):
            out[whole * INT8_GROUP :] *= scales[whole]
        return out


class TopK(Codec):
    """The numbers of largest magnitude and where they stand: for changes, most of which hardly matter.

    Args:
        fraction: which part of each tensor travels, rounded up to whole numbers; matters to ``encode`` only.
    """

    name = "top-k"
    is_sparse = True
    for_changes = True

    def __init__(self, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise InvalidInput("not a fraction", field="fraction", value=fraction, limit="above 0, at most 1")
        self._fraction = fraction

    def specs(self, tensor: Tensor) -> Specs:
        return {
            _indices(tensor): ("U32" if tensor.elements < 2**32 else "U64", None),
            _values(tensor): ("F32", None),
        }

    def encode_tensor(self, tensor: Tensor, values: Array) -> dict[str, Array]:
        kept = math.ceil(self._fraction * len(values))
        largest = np.sort(np.argpartition(np.abs(values), len(values) - kept)[len(values) - kept :])
        return {_indices(tensor): largest, _values(tensor): values[largest]}

    def peak(self, update: MappedModel, tensor: Tensor) -> float:
        indices, values = self._parts(update, tensor)
        if indices.elements != values.elements:
            raise InvalidUpdate(
                f"{values.elements} values for {indices.elements} indices",
                field=indices.name,
                value=values.elements,
                limit=indices.elements,
            )
        last = -1
        for start, stop in update.blocks(indices):
            block = update.read(indices, start, stop)
            if not (block[0] > last and (block[1:] > block[:-1]).all() and block[-1] < tensor.elements):
                raise InvalidUpdate(
                    "indices must ascend, and stay inside of the tensor", field=indices.name, limit=tensor.elements - 1
                )
            last = int(block[-1])
        return update.peak(values, error=InvalidUpdate)

    def read(self, update: MappedModel, tensor: Tensor, start: int, stop: int, out: Array) -> Array:
        out[...] = 0
        where, values = self._between(update, tensor, start, stop)
        out[where] = values
        return out

    def add(self, update: MappedModel, tensor: Tensor, start: int, weight: float, sums: Array, scratch: Array) -> None:
        where, values = self._between(update, tensor, start, start + len(sums))
        sums[where] += values * sums.dtype.type(weight)  # an index occurs once

    def _between(self, update: MappedModel, tensor: Tensor, start: int, stop: int) -> tuple[Array, Array]:
        """What travels of the elements ``start`` to ``stop``: where they stand, counted from ``start``, and they."""
        indices, values = self._parts(update, tensor)
        where = update.read(indices)
        first, last = np.searchsorted(where, np.array([start, stop], where.dtype)).tolist()
        return where[first:last].astype(np.intp) - start, update.read(values, first, last)

    def _parts(self, update: MappedModel, tensor: Tensor) -> tuple[Tensor, Tensor]:
        return update.layout.by_name[_indices(tensor)], update.layout.by_name[_values(tensor)]


PLAIN: Final = Cast("plain", None)
CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        PLAIN,
        Cast("float32", "F32"),
        Cast("float16", "F16"),
        Cast("bfloat16", "BF16"),
        Int8(),
        TopK(),
    )
}
"""Every codec that an update may name."""


def codec_of(update: ModelLayout) -> Codec:
    """The codec that an update names; ``InvalidUpdate`` if there is no such codec."""
    name = update.metadata.get(CODEC_KEY, PLAIN.name)
    codec = CODECS.get(name)
    if codec is None:
        raise InvalidUpdate(
            "no such codec",
            field=CODEC_KEY,
            value=name[:80],
            limit=", ".join(CODECS),
            fix=did_you_mean(name, CODECS, "choose one of these that the task takes"),
        )
    return codec


def is_change(update: ModelLayout) -> bool:
    """Whether an update holds changes, not a whole model; ``InvalidUpdate`` if it says neither."""
    content = update.metadata.get(CONTENT_KEY, "model")
    if content not in {"model", "change"}:
        raise InvalidUpdate(
            "no such content",
            field=CONTENT_KEY,
            value=content[:80],
            limit="model, change",
            fix="write model for the numbers after training, change for by how much training changed them",
        )
    return content == "change"


def _scales(tensor: Tensor) -> str:
    return f"{tensor.name}:scales"


def _indices(tensor: Tensor) -> str:
    return f"{tensor.name}:indices"


def _values(tensor: Tensor) -> str:
    return f"{tensor.name}:values"
