"""A round's updates side by side: the same few numbers of all of them at a time, for strategies that compare them.

Memory does not grow with the model, and by a kilobyte per update: what is read lies in the page cache, and goes from
this process's memory as the walk moves on. No more than some files are open at once, however many updates there are.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from vennue.core.errors import InvalidModel, InvalidUpdate
from vennue.tensors.codecs import BLOCK_ELEMENTS, INT8_GROUP, codec_of, is_change
from vennue.tensors.layout import ModelLayout, Tensor
from vennue.tensors.model import Array, MappedModel, widened
from vennue.updates.strategies.base import Block, failures_told
from vennue.updates.strategies.robust import Robust

BUDGET_BYTES: Final = 64 * 2**20
OPEN_FILES: Final = 128


@dataclass(frozen=True, slots=True)
class SpooledUpdate:
    """Where a checked update is: a file that begins with its body."""

    path: Path
    body_bytes: int


class SpooledSet:
    """Checked updates of one model, as changes. One thread at a time.

    Args:
        base: the round's model.
        updates: the updates, in the order in which strategies see them.
        budget_bytes: how much memory a block of all updates takes, but at least ``INT8_GROUP`` numbers of each.
    """

    def __init__(
        self, base: MappedModel, updates: Sequence[SpooledUpdate], *, budget_bytes: int = BUDGET_BYTES
    ) -> None:
        self.base = base
        self._updates = updates
        self._layouts: list[ModelLayout] = [base.layout] * len(updates)
        self._open: OrderedDict[int, MappedModel] = OrderedDict()
        self._budget_bytes = budget_bytes
        self._read_bytes = 0
        per_update = budget_bytes // (8 * max(1, len(updates)))
        self.step = min(BLOCK_ELEMENTS, max(INT8_GROUP, per_update // INT8_GROUP * INT8_GROUP))
        """How many numbers of each update a block has."""

    def __len__(self) -> int:
        return len(self._updates)

    def blocks(self) -> Iterator[Array]:
        """Walk the whole model: the changes of all updates (rows) to a few numbers (columns)."""
        everyone = range(len(self))
        for tensor in self.base.layout.floating:
            for start, stop in self.base.blocks(tensor, self.step):
                yield self.changes(everyone, tensor, start, stop)

    def changes(self, chosen: Sequence[int], tensor: Tensor, start: int, stop: int) -> Array:
        """The changes of some updates (rows) to elements ``start`` to ``stop`` (columns), as a new array.

        ``start`` is a multiple of ``INT8_GROUP``. float32, or float64 for a tensor of F64.
        """
        base = widened(self.base.read(tensor, start, stop), tensor.dtype)
        rows = np.empty((len(chosen), stop - start), base.dtype)
        for row, index in zip(rows, chosen, strict=True):
            update = self._update(index)
            values = codec_of(update.layout).read(update, tensor, start, stop, row)
            if is_change(update.layout):
                row[...] = values
            else:
                np.subtract(values, base, out=row, casting="same_kind")
        self._read_bytes += rows.nbytes
        if self._read_bytes > self._budget_bytes:
            for update in self._open.values():
                update.release()
            self._read_bytes = 0
        return rows

    def _update(self, index: int) -> MappedModel:
        update = self._open.pop(index, None)
        if update is None:
            at = self._updates[index]
            update = MappedModel(at.path, size_bytes=at.body_bytes, known=self._layouts[index], error=InvalidUpdate)
            self._layouts[index] = update.layout
            if len(self._open) >= OPEN_FILES:
                self._open.popitem(last=False)
        self._open[index] = update
        return update


class Combined:
    """What a robust strategy makes of a set, for `commit.commit_model`, block by block."""

    def __init__(self, strategy: Robust, updates: SpooledSet) -> None:
        self.layout = updates.base.layout
        is_wide = any(tensor.dtype == "F64" for tensor in self.layout.floating)
        self.dtype: np.dtype[np.float32 | np.float64] = np.dtype(np.float64 if is_wide else np.float32)
        self._strategy = strategy
        self._updates = updates
        with failures_told(strategy):
            self._chosen = strategy.choose(updates)

    def block(self, tensor: Tensor, start: int, stop: int, base: Array, round_number: int) -> Block:
        """Those elements for the strategy's step."""
        combined = np.empty(stop - start, self.dtype)
        for first in range(start, stop, self._updates.step):
            last = min(first + self._updates.step, stop)
            changes = self._updates.changes(self._chosen, tensor, first, last)
            with failures_told(self._strategy):
                made = np.asarray(self._strategy.combine(changes))
            if made.shape != (last - first,):
                raise InvalidModel(
                    f"the strategy {self._strategy.name} returned another shape",
                    field="strategy",
                    value=str(made.shape),
                    limit=f"({last - first},)",
                )
            combined[first - start : last - start] = made
        return Block(base, combined, "change", round_number)
