"""The running weighted sum of updates, in place: what an open round costs is this, however many devices report.

A fold holds one number per floating number of the model, in float32 or float64, and a block of scratch. Updates are
checked before they come here, and are added whole, so nothing is ever half applied. The order of updates does not
matter beyond rounding.

Each block of an update is multiplied into the scratch, and added to the sum while it is in the second-level cache, so
memory sees one read of the update, and one read and one write of the sum for all updates that are added together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from vennue.core.errors import StorageError
from vennue.tensors.codecs import BLOCK_ELEMENTS, Codec
from vennue.tensors.layout import ModelLayout, Tensor
from vennue.tensors.model import Array, MappedModel
from vennue.updates.strategies.base import Block

Accumulator: TypeAlias = Literal["float32", "float64"]

MAX_MAGNITUDE: Final = 2.0**60
"""The largest number that an update may hold. No model has such numbers, but the sum of them, of ten million updates
with the largest weight, still fits float32, and so do a strategy's squares: no device alone makes a round overflow."""
MIN_WEIGHT: Final = 1e-6
MAX_WEIGHT: Final = 1e9


class Term(NamedTuple):
    """A checked update and how it enters the mean: Σ coefficient · update / Σ weight.

    ``is_change`` tells that it holds by how much training changed the base, not the trained numbers.
    """

    update: MappedModel
    codec: Codec
    coefficient: float
    weight: float
    is_change: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """What is known of a sum beside its numbers.

    ``weight`` is Σ weight; ``models`` is Σ coefficient over those updates that are whole models, so that many times
    the base is in the sum; ``updates`` is how many there are.
    """

    weight: float = 0.0
    models: float = 0.0
    updates: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.weight + other.weight, self.models + other.models, self.updates + other.updates)


class Fold:
    """Σ coefficient · update over the floating tensors of a layout. One thread at a time.

    Args:
        layout: the round's model.
        accumulator: the dtype of the sum. A model that holds F64 is summed in float64 in any case.
    """

    def __init__(self, layout: ModelLayout, accumulator: Accumulator = "float32") -> None:
        self.layout = layout
        self.totals = Totals()
        is_wide = accumulator == "float64" or any(tensor.dtype == "F64" for tensor in layout.floating)
        self.dtype: np.dtype[np.float32 | np.float64] = np.dtype(np.float64 if is_wide else np.float32)
        self._sums = np.zeros(sum(tensor.elements for tensor in layout.floating), self.dtype)
        self._scratch = np.empty(BLOCK_ELEMENTS, self.dtype)
        self._at: dict[str, slice] = {}
        position = 0
        for tensor in layout.floating:
            self._at[tensor.name] = slice(position, position + tensor.elements)
            position += tensor.elements

    def add(self, *terms: Term) -> None:
        """Add checked updates. Takes time in proportion to their bytes, no memory.

        Several at once are up to half as fast again as one by one: a block of the sum stays in the cache for all.
        """
        for tensor in self.layout.floating:
            sums = self._sums[self._at[tensor.name]]
            for start in range(0, len(sums), BLOCK_ELEMENTS):
                block = sums[start : start + BLOCK_ELEMENTS]
                for update, codec, coefficient, _, _ in terms:
                    codec.add(update, tensor, start, coefficient, block, self._scratch[: len(block)])
        for _, _, coefficient, weight, is_change in terms:
            self.totals += Totals(weight, 0.0 if is_change else coefficient, 1)

    def add_sums(self, sums: MappedModel, totals: Totals) -> None:
        """Add what another fold of the same model has stored, in float32 or float64."""
        for stored in sums.layout.tensors:
            target = self._sums[self._at[stored.name]]
            for start, stop in sums.blocks(stored):
                np.add(target[start:stop], sums.read(stored, start, stop), out=target[start:stop], casting="same_kind")
        self.totals += totals

    def mean(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> Array:
        """The weighted mean of elements ``start`` to ``stop`` of a floating tensor, flat, as a new array."""
        sums = self._sums[self._at[tensor.name]][start:stop]
        limits = np.finfo(self.dtype)
        if float(limits.tiny) <= self.totals.weight <= float(limits.max):
            return np.divide(sums, self.dtype.type(self.totals.weight))
        return np.divide(sums, np.float64(self.totals.weight)).astype(self.dtype)  # a strategy's own weights

    def block(self, tensor: Tensor, start: int, stop: int, base: Array, round_number: int) -> Block:
        """Those elements for a strategy's step.

        A mean of models is exactly that. Where there are changes, too, or shares that a strategy made smaller, the
        base is taken out of the sum, and what is left is a mean change.
        """
        mean = self.mean(tensor, start, stop)
        if self.totals.models == self.totals.weight:
            return Block(base, mean, "model", round_number)
        if self.totals.models:
            mean -= self.dtype.type(self.totals.models / self.totals.weight) * base
        return Block(base, mean, "change", round_number)

    def result(self) -> dict[str, Array]:
        """The weighted mean of each floating tensor, in its shape and in the accumulator's dtype."""
        return {tensor.name: self.mean(tensor).reshape(tensor.shape) for tensor in self.layout.floating}

    def clear(self) -> None:
        """Begin anew: no update was added."""
        self._sums[...] = 0
        self.totals = Totals()

    @cached_property
    def sums_layout(self) -> ModelLayout:
        """The layout in which the sums are stored: the floating tensors, in the accumulator's dtype."""
        return sums_layout(self.layout, self.dtype.itemsize)

    def store(self, write: Callable[[bytes | memoryview], None]) -> None:
        """Write the sums as a safetensors file; ``totals`` is the caller's to keep."""
        write(self.sums_layout.header)
        write(self._sums.data)

    def restore(self, sums: MappedModel, totals: Totals) -> None:
        """Go on from sums that were stored, exactly.

        Raises:
            StorageError: they are those of another model, or of another accumulator.
        """
        if sums.layout.header != self.sums_layout.header:
            raise StorageError(
                "the stored sums are not of this model and accumulator",
                field="accumulator",
                value=str(self.dtype),
                fix="go on with the accumulator that the round began with",
            )
        self.clear()
        self.add_sums(sums, totals)


def sums_layout(layout: ModelLayout, itemsize: int) -> ModelLayout:
    """The layout of the sums of a model's floating tensors, in float32 (4 bytes) or float64 (8)."""
    return ModelLayout.of(
        ((tensor.name, f"F{8 * itemsize}", tensor.shape) for tensor in layout.floating),
        {"vennue.sums": "1"},
        keep_order=True,
    )
