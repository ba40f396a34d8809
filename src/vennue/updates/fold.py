"""The running weighted sum of updates, in place: what an open round costs is this, however many devices report.

A fold holds one number per floating number of the model, in float32 or float64, and a block of scratch. Updates are
checked before they come here, and are added whole, so nothing is ever half applied. The order of updates does not
matter beyond rounding.

Each block of an update is multiplied into the scratch, and added to the sum while it is in the second-level cache, so
memory sees one read of the update, and one read and one write of the sum for all updates that are added together.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np

from vennue.core.errors import StorageError
from vennue.tensors.codecs import BLOCK_ELEMENTS, Codec
from vennue.tensors.layout import ModelLayout, Tensor
from vennue.tensors.model import Array, MappedModel

Accumulator: TypeAlias = Literal["float32", "float64"]

MAX_MAGNITUDE: Final = 2.0**60
"""The largest number that an update may hold. No model has such numbers, but the sum of them, of ten million updates
with the largest weight, still fits float32, and so do a strategy's squares: no device alone makes a round overflow."""
MIN_WEIGHT: Final = 1e-6
MAX_WEIGHT: Final = 1e9


class Fold:
    """Σ weight · update over the floating tensors of a layout. One thread at a time.

    Args:
        layout: the round's model.
        accumulator: the dtype of the sum. A model that holds F64 is summed in float64 in any case.
    """

    def __init__(self, layout: ModelLayout, accumulator: Accumulator = "float32") -> None:
        self.layout = layout
        is_wide = accumulator == "float64" or any(tensor.dtype == "F64" for tensor in layout.floating)
        self.dtype: np.dtype[np.float32 | np.float64] = np.dtype(np.float64 if is_wide else np.float32)
        self.weight = 0.0
        """Σ weight."""
        self.updates = 0
        self._sums = np.zeros(sum(tensor.elements for tensor in layout.floating), self.dtype)
        self._scratch = np.empty(BLOCK_ELEMENTS, self.dtype)
        self._at: dict[str, slice] = {}
        position = 0
        for tensor in layout.floating:
            self._at[tensor.name] = slice(position, position + tensor.elements)
            position += tensor.elements

    def add(self, *updates: tuple[MappedModel, Codec, float]) -> None:
        """Add checked updates, each with its codec and weight. Takes time in proportion to their bytes, no memory.

        Several at once are up to half as fast again as one by one: a block of the sum stays in the cache for all.
        """
        for tensor in self.layout.floating:
            sums = self._sums[self._at[tensor.name]]
            for start in range(0, len(sums), BLOCK_ELEMENTS):
                block = sums[start : start + BLOCK_ELEMENTS]
                for update, codec, weight in updates:
                    codec.add(update, tensor, start, weight, block, self._scratch[: len(block)])
        self.weight += sum(weight for _, _, weight in updates)
        self.updates += len(updates)

    def mean(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> Array:
        """The weighted mean of elements ``start`` to ``stop`` of a floating tensor, flat, as a new array."""
        sums = self._sums[self._at[tensor.name]]
        return np.divide(sums[start:stop], self.dtype.type(self.weight))

    def result(self) -> dict[str, Array]:
        """The weighted mean of each floating tensor, in its shape and in the accumulator's dtype."""
        return {tensor.name: self.mean(tensor).reshape(tensor.shape) for tensor in self.layout.floating}

    def clear(self) -> None:
        """Begin anew: no update was added."""
        self._sums[...] = 0
        self.weight = 0.0
        self.updates = 0

    @cached_property
    def sums_layout(self) -> ModelLayout:
        """The layout in which the sums are stored: the floating tensors, in the accumulator's dtype."""
        dtype = f"F{8 * self.dtype.itemsize}"
        return ModelLayout.of(
            ((tensor.name, dtype, tensor.shape) for tensor in self.layout.floating),
            {"vennue.sums": "1"},
            keep_order=True,
        )

    def store(self, write: Callable[[bytes | memoryview], None]) -> None:
        """Write the sums as a safetensors file; ``weight`` and ``updates`` are the caller's to keep."""
        write(self.sums_layout.header)
        write(self._sums.data)

    def restore(self, sums: MappedModel, weight: float, updates: int) -> None:
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
        for stored in self.sums_layout.tensors:
            target = self._sums[self._at[stored.name]]
            for start, stop in sums.blocks(stored):
                target[start:stop] = sums.read(stored, start, stop)
        self.weight = weight
        self.updates = updates
