"""The end of a round: from what the updates come to, as a sum or side by side, to the next model's blob.

Base model, what was reported and the strategy's memory are walked together; what comes out is written to the blob
store as it is computed, so the memory that this takes is a few blocks, for a model of any size. Nothing exists before
all of it is durable. The new model has the base's header, byte by byte, and the base's integer tensors.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from vennue.core.errors import InvalidInput, InvalidModel
from vennue.core.ids import AssignmentId, Digest
from vennue.tensors.codecs import BLOCK_ELEMENTS
from vennue.tensors.layout import ModelLayout, Tensor
from vennue.tensors.model import Array, MappedModel, narrowed, peak, widened
from vennue.updates.blobs import BlobStore, BlobWriter
from vennue.updates.strategies.base import Block, Strategy, failures_told

STRATEGY_KEY: Final = "vennue.strategy"
SLOT_KEY: Final = "vennue.slot"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What an aggregation made: the next model, what the strategy remembers for the next round, and what went in."""

    model: Digest
    memory: Mapping[str, Digest]
    assignments: frozenset[AssignmentId]
    weight: float
    metrics: Mapping[str, float]
    """The devices' metrics, each averaged over the updates that have it, with the updates' weights."""


class Reported(Protocol):
    """What a round's updates come to: a fold's mean, or what a robust strategy makes of the set."""

    layout: ModelLayout
    dtype: np.dtype[np.float32 | np.float64]

    def block(self, tensor: Tensor, start: int, stop: int, base: Array, round_number: int) -> Block:
        """Elements ``start`` to ``stop`` of a floating tensor, with those of the base, for the strategy's step."""
        ...


def commit_model(
    reported: Reported,
    strategy: Strategy,
    base: MappedModel,
    blobs: BlobStore,
    *,
    round_number: int = 1,
    memory: Mapping[str, Digest] | None = None,
) -> tuple[Digest, dict[str, Digest]]:
    """Store the next model, durably.

    Args:
        reported: at least one update, of the base's layout.
        strategy: what makes a model of it.
        base: the model that the round started from.
        blobs: where the results go, and where the memory comes from.
        round_number: which round this ends, from 1.
        memory: the strategy's slots as the previous round left them; ``None`` at first.

    Returns:
        The digests of the next model and of each of the strategy's slots.

    Raises:
        InvalidModel: the strategy's numbers are not finite, or too large for the model's dtype.
        InvalidInput: the memory is not this strategy's, or not of this model.
        NotFound: a blob of the memory is gone.
        StorageError: a result cannot be stored; or (`FileDamaged`) what it is made of was cut off.
        StrategyFailed: a strategy of the user's raises.
    """
    base.check_whole()
    slots = [_Slot(name, first, strategy, reported, memory, blobs) for name, first in strategy.slots().items()]
    with ExitStack() as stack:
        model_writer = stack.enter_context(blobs.create(size_bytes=base.layout.total_bytes, within_quota=False))
        model_writer.write(base.layout.header)
        for slot in slots:
            slot.begin(stack.enter_context(blobs.create(size_bytes=slot.layout.total_bytes, within_quota=False)))
        for tensor in base.layout.tensors:
            for start, stop in base.blocks(tensor, BLOCK_ELEMENTS):
                stored = base.read(tensor, start, stop)
                if tensor.is_floating:
                    wide = widened(stored, tensor.dtype, np.empty(stop - start, reported.dtype))
                    block = reported.block(tensor, start, stop, wide, round_number)
                    arrays = {slot.name: slot.read(tensor, start, stop) for slot in slots}
                    stored = narrowed(_stepped(strategy, block, arrays), tensor.dtype)
                    _check_finite(stored, tensor.dtype, f"{strategy.name}: {tensor.name}")
                    for slot in slots:
                        slot.write(tensor, arrays[slot.name])
                model_writer.write(stored.view(np.uint8).data)
        kept = {slot.name: slot.commit() for slot in slots}
        return model_writer.commit(), kept


class _Slot:
    """One of the numbers that a strategy remembers per number of the model: read from a blob, written to the next."""

    def __init__(
        self,
        name: str,
        first: float,
        strategy: Strategy,
        reported: Reported,
        memory: Mapping[str, Digest] | None,
        blobs: BlobStore,
    ) -> None:
        self.name = name
        self._first = first
        self._dtype = reported.dtype
        specs = [(tensor.name, f"F{8 * reported.dtype.itemsize}", tensor.shape) for tensor in reported.layout.floating]
        metadata = {STRATEGY_KEY: strategy.name, SLOT_KEY: name}
        self.layout = ModelLayout.of(specs, metadata, keep_order=True)
        self._before: MappedModel | None = None
        if memory is not None:
            if name not in memory:
                raise InvalidInput(f"{strategy.name} remembers {name}, which is missing", field=f"memory.{name}")
            self._before = MappedModel(blobs.path(memory[name]))
            if self._before.layout.header != self.layout.header:
                raise InvalidInput(
                    f"it is not what {strategy.name} remembers of this model",
                    field=f"memory.{name}",
                    value=memory[name],
                    fix="begin without memory when the strategy, its accumulator or the model changes",
                )

    def begin(self, writer: BlobWriter) -> None:
        self._writer = writer
        writer.write(self.layout.header)

    def read(self, tensor: Tensor, start: int, stop: int) -> Array:
        if self._before is None:
            return np.full(stop - start, self._first, self._dtype)
        return self._before.read(self.layout.by_name[tensor.name], start, stop).copy()

    def write(self, tensor: Tensor, values: Array) -> None:
        _check_finite(values, self.layout.by_name[tensor.name].dtype, f"memory.{self.name}: {tensor.name}")
        self._writer.write(values.view(np.uint8).data)

    def commit(self) -> Digest:
        return self._writer.commit()


def _stepped(strategy: Strategy, block: Block, memory: Mapping[str, Array]) -> Array:
    with np.errstate(all="ignore"), failures_told(strategy):  # what is not finite is refused below, and fails this job
        values = np.asarray(strategy.step(block, memory), order="C")
    if values.dtype.kind not in "fiub":
        raise InvalidModel(
            f"the strategy {strategy.name} returned what are no real numbers",
            field="strategy",
            value=str(values.dtype),
            limit=str(block.base.dtype),
        )
    if values.shape != block.base.shape:
        raise InvalidModel(
            f"the strategy {strategy.name} returned another shape",
            field="strategy",
            value=str(values.shape),
            limit=str(block.base.shape),
        )
    return values


def _check_finite(stored: Array, dtype: str, field: str) -> None:
    if not math.isfinite(peak(stored, dtype)):
        raise InvalidModel(
            "the strategy's result is not finite",
            field=field,
            fix="lower the server's learning rate, or use a robust strategy if devices report extreme numbers",
        )
