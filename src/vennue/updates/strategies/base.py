"""What a strategy is: how the round's mean becomes the next model.

A strategy works number by number, so it is given the model in blocks that fit the processor's cache, and never needs a
model in memory. What it remembers from round to round (momenta) are numbers of the same kind, one per number of the
model and slot; the data plane stores each slot as a blob beside the model. A strategy of one's own:

    class Halfway(Strategy):
        name = "halfway"

        def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
            return block.base + 0.5 * block.change
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from vennue.core.errors import InvalidInput
from vennue.tensors.model import Array

Content: TypeAlias = Literal["model", "change"]
"""What devices report: the model after training, or by how much training changed it."""


@dataclass(frozen=True, slots=True)
class Block:
    """The same elements of the round's base model and of the mean of what was reported, flat.

    ``base`` and ``reported`` are arrays of one length in the fold's dtype (float32 or float64).
    """

    base: Array
    reported: Array
    content: Content
    round_number: int
    """The round that ends with this step, from 1."""

    @property
    def mean(self) -> Array:
        """The mean of the devices' models."""
        return self.reported if self.content == "model" else self.base + self.reported

    @property
    def change(self) -> Array:
        """By how much the devices' models differ from the base, on average: minus the pseudo-gradient."""
        return self.reported if self.content == "change" else self.reported - self.base


class Strategy(ABC):
    """How the round's mean becomes the next model. It holds options only, so one instance serves many jobs.

    ``name`` is what jobs call it by. Options are the fields of a dataclass.
    """

    name: ClassVar[str]

    def slots(self) -> Mapping[str, float]:
        """What it remembers per number of the model: the slots' names, each with its value before the first round."""
        return {}

    @abstractmethod
    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        """The next model's numbers.

        Args:
            block: base and mean, which it leaves as they are.
            memory: the slots' arrays for these elements, to be changed in place for the next round.

        Returns:
            An array of the same length. Numbers that are not finite make the round fail, and change nothing.
        """


def check_positive(option: str, value: float) -> None:
    """``InvalidInput`` unless an option is a finite number above 0."""
    if not (_is_number(value) and value > 0):
        raise InvalidInput("it must be a finite number above 0", field=f"strategy.{option}", value=value, limit=0)


def check_fraction(option: str, value: float) -> None:
    """``InvalidInput`` unless an option is a number from 0 to below 1."""
    if not (_is_number(value) and 0 <= value < 1):
        raise InvalidInput("it must be from 0 to below 1", field=f"strategy.{option}", value=value, limit=1)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
