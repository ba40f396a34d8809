"""What a strategy is: how a round's updates become the next model.

A strategy says with which share each update enters the round's mean, and what becomes of the mean. It works number by
number, so it is given the model in blocks that fit the processor's cache, and never needs a model in memory. What it
remembers from round to round (momenta) are numbers of the same kind, one per number of the model and slot; the data
plane stores each slot as a blob beside the model. A strategy of one's own:

    class Halfway(Strategy):
        name = "halfway"

        def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
            return block.base + 0.5 * block.change

Strategies that need all updates side by side, as a median does, subclass `vennue.updates.strategies.robust.Robust`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from vennue.core.errors import InvalidInput, StrategyFailed, VennueError, described
from vennue.core.job import Setting
from vennue.tensors.codecs import Content
from vennue.tensors.model import Array

_OR: Final = "or leave it out for the default"


class Share(NamedTuple):
    """How an update enters the mean change: Σ coefficient · change / Σ weight."""

    coefficient: float
    weight: float


@dataclass(frozen=True, slots=True)
class Update:
    """What a strategy may know of an update to decide its share.

    ``weight`` is its number of examples, or 1 where the job weights uniformly; ``metrics`` what the device said beside
    it; ``staleness`` how many model updates older its base is than the present model (asynchronous jobs).
    ``change_norm()`` is the L2 norm of its change, and costs a pass over it.
    """

    weight: float
    metrics: Mapping[str, float]
    staleness: int
    change_norm: Callable[[], float]


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
    """How a round's updates become the next model. It holds options only, so one instance serves many jobs.

    ``name`` is what jobs call it by. Options are the fields of a dataclass.
    """

    name: ClassVar[str]

    @property
    def least_updates(self) -> int:
        """It can make nothing of fewer."""
        return 1

    @property
    def most_updates(self) -> int | None:
        """It can take no more, where there is a bound."""
        return None

    def slots(self) -> Mapping[str, float]:
        """What it remembers per number of the model: the slots' names, each with its value before the first round."""
        return {}

    def device_config(self) -> Mapping[str, Setting]:
        """What the devices must know of it: added to each round's config."""
        return {}

    def check(self, weight: float, metrics: Mapping[str, float]) -> None:  # noqa: B027 - most strategies need nothing
        """Refuse an update whose weight or metrics the strategy can make no share of, by raising InvalidUpdate."""

    def share(self, update: Update) -> Share:
        """How an update enters the mean; by default, by its weight. The coefficient is from 0 to 10⁹."""
        return Share(update.weight, update.weight)

    @abstractmethod
    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        """The next model's numbers.

        Args:
            block: base and mean, which it leaves as they are.
            memory: the slots' arrays for these elements, to be changed in place for the next round.

        Returns:
            An array of the same length. Numbers that are not finite make the round fail, and change nothing.
        """


@contextmanager
def failures_told(strategy: Strategy) -> Iterator[None]:
    """Whatever a strategy raises in here becomes a `StrategyFailed` with its file and line; our own errors stay."""
    try:
        yield
    except VennueError:
        raise
    except Exception as error:  # a strategy of somebody's own may raise anything
        raise StrategyFailed(
            f"the strategy {strategy.name} fails: {described(error, type(strategy).__module__)}",
            field="strategy",
            value=strategy.name,
            fix="repair it, or choose another",
        ) from error


def check_positive(option: str, value: float) -> None:
    """``InvalidInput`` unless an option is a finite number above 0."""
    if not (is_number(value) and value > 0):
        raise InvalidInput(
            "it must be a finite number above 0",
            field=f"strategy_options.{option}",
            value=value,
            limit=0,
            fix=f"give a number above 0, {_OR}",
        )


def check_fraction(option: str, value: float, *, below: float = 1.0) -> None:
    """``InvalidInput`` unless an option is a number from 0 to below a bound."""
    if not (is_number(value) and 0 <= value < below):
        raise InvalidInput(
            f"it must be from 0 to below {below:g}",
            field=f"strategy_options.{option}",
            value=value,
            limit=below,
            fix=f"give a number such as {0.9 * below:g}, {_OR}",
        )


def check_not_negative(option: str, value: float) -> None:
    """``InvalidInput`` unless an option is a finite number from 0."""
    if not (is_number(value) and value >= 0):
        raise InvalidInput(
            "it must be a finite number from 0",
            field=f"strategy_options.{option}",
            value=value,
            limit=0,
            fix=f"give 0 or a number above it, {_OR}",
        )


def check_count(option: str, value: object, *, least: int) -> None:
    """``InvalidInput`` unless an option is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(
            f"it must be a whole number of at least {least}",
            field=f"strategy_options.{option}",
            value=value,
            limit=least,
            fix=f"give a number such as {least + 1}, {_OR}",
        )


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
