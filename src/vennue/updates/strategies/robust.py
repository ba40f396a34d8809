"""Robust strategies: over all of a round's updates side by side, so that some of them may be arbitrarily wrong.

They read the spooled updates instead of a running sum: in blocks of a few numbers of all updates, so that memory does
not grow with the model, and hardly with the updates; but the disk holds every update until the round ends, and no leaf
can sum them on the way. Each device counts alike, whatever number of examples it claims: a weight is as easily made up
as an update.

Source of the median and the trimmed mean: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018 (arXiv 1803.01498), Definitions 1 and 2.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np

from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Strategy, check_fraction, check_positive

_COLUMNS: Final = 4096
_SLACK: Final = 1e-9
"""So that a tenth of ten is one, whatever binary fractions make of it."""


class UpdateSet(Protocol):
    """A round's updates, in a fixed order."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Array]:
        """Walk the whole model: the changes of all updates (rows) to a few of its numbers (columns), float32."""
        ...


class Robust(Strategy):
    """A strategy over the set of updates. A subclass says how numbers, one from each update, become one.

    class Middle(Robust):
        name = "middle"

        def combine(self, changes: Array) -> Array:
            return (changes.min(axis=0) + changes.max(axis=0)) / 2
    """

    def choose(self, updates: UpdateSet) -> Sequence[int]:
        """Which updates to combine, by their position, in ascending order; all by default."""
        return range(len(updates))

    @abstractmethod
    def combine(self, changes: Array) -> Array:
        """One number per column.

        Args:
            changes: of the chosen updates (rows) to some of the model's numbers (columns). It may be overwritten.
        """

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + block.change


@dataclass(frozen=True)
class Median(Robust):
    """x ← x + η·median(Δ), number by number: right as long as fewer than half of the devices are wrong.

    Args:
        learning_rate: η, the server's learning rate.
    """

    name: ClassVar[str] = "median"
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)

    def combine(self, changes: Array) -> Array:
        low, high = (len(changes) - 1) // 2, len(changes) // 2
        return _of_ordered(changes, lambda ordered: (ordered[:, low] + ordered[:, high]) / 2)

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + self.learning_rate * block.change


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """x ← x + η·mean of Δ without the ⌊β·n⌋ largest and as many smallest numbers, number by number.

    Args:
        trim: β, the share of updates left out at each end: right as long as no more devices than that are wrong.
        learning_rate: η, the server's learning rate.
    """

    name: ClassVar[str] = "trimmed-mean"
    trim: float = 0.1
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_fraction("trim", self.trim, below=0.5)
        check_positive("learning_rate", self.learning_rate)

    @property
    def least_updates(self) -> int:
        """Of fewer, none would be left out: it would be the mean, which a single wrong device moves anywhere."""
        return 1 if self.trim == 0 else math.ceil(min((1 - _SLACK) / self.trim, 1e15))

    def combine(self, changes: Array) -> Array:
        count = len(changes)
        left_out = int(self.trim * count + _SLACK)
        kept = slice(left_out, count - left_out)
        return _of_ordered(changes, lambda ordered: ordered[:, kept].mean(axis=1, dtype=np.float64))

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + self.learning_rate * block.change


def _of_ordered(changes: Array, combine: Callable[[Array], Array]) -> Array:
    """What ``combine`` makes of the columns, given some of them as rows whose numbers ascend.

    Numbers are sorted that lie side by side, in the processor's cache: to partition them where they lie, one below
    the other, takes four times as long.
    """
    parts = []
    for start in range(0, changes.shape[1], _COLUMNS):
        ordered = np.ascontiguousarray(changes[:, start : start + _COLUMNS].T)
        ordered.sort(axis=1)
        parts.append(combine(ordered))
    return np.concatenate(parts)
