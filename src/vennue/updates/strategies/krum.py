"""Krum and Multi-Krum: the update, or the mean of the updates, that have the most company.

Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017,
section 4: the score of an update is the sum of its squared distances to its n − f − 2 nearest others; Krum takes the
one of the lowest score, Multi-Krum the mean of the m lowest. It needs n > 2f + 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from vennue.core.errors import Conflict
from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, check_count, check_positive
from vennue.updates.strategies.robust import Robust, UpdateSet

MOST_UPDATES: Final = 4096
"""So that their distances take no more than 256 MiB."""


@dataclass(frozen=True)
class Krum(Robust):
    """x ← x + η·Δ of the single update that is nearest to its n − f − 2 nearest others.

    Args:
        wrong: f, how many devices may be arbitrarily wrong.
        learning_rate: η, the server's learning rate.
    """

    name: ClassVar[str] = "krum"
    wrong: int = 1
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_count("wrong", self.wrong, least=0)
        check_positive("learning_rate", self.learning_rate)

    @property
    def least_updates(self) -> int:
        return 2 * self.wrong + 3

    @property
    def most_updates(self) -> int:
        return MOST_UPDATES

    def kept(self, count: int) -> int:
        """How many of ``count`` updates to average."""
        return 1

    def choose(self, updates: UpdateSet) -> Sequence[int]:
        count = len(updates)
        if count < self.least_updates:
            raise Conflict(
                f"{self.name} with {self.wrong} wrong devices needs {self.least_updates} updates",
                field="strategy_options.wrong",
                value=count,
                limit=self.least_updates,
                fix="ask for more devices, or tolerate fewer wrong ones",
            )
        scores = self.scores(updates)
        lowest = np.argsort(scores, kind="stable")[: self.kept(count)]  # of equal scores, the first update's
        return sorted(lowest.tolist())

    def scores(self, updates: UpdateSet) -> Array:
        """Each update's sum of squared distances to its n − f − 2 nearest others."""
        products = np.zeros((len(updates), len(updates)))
        for block in updates.blocks():
            wide = block.astype(np.float64)
            products += wide @ wide.T
        squares = products.diagonal()
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
        np.fill_diagonal(distances, np.inf)
        nearest = len(updates) - self.wrong - 2
        scores: Array = np.partition(distances, nearest - 1, axis=1)[:, :nearest].sum(axis=1)
        return scores

    def combine(self, changes: Array) -> Array:
        mean: Array = changes.mean(axis=0, dtype=np.float64)
        return mean

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + self.learning_rate * block.change


@dataclass(frozen=True)
class MultiKrum(Krum):
    """x ← x + η·mean of the m updates of the lowest scores.

    Args:
        wrong: f, how many devices may be arbitrarily wrong.
        learning_rate: η, the server's learning rate.
        keep: m, how many updates to average; by default n − f.
    """

    name: ClassVar[str] = "multi-krum"
    keep: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None:
            check_count("keep", self.keep, least=1)

    def kept(self, count: int) -> int:
        return min(count, count - self.wrong if self.keep is None else self.keep)
