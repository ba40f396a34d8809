"""FedAvgM: FedAvg with momentum on the server.

Source: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (arXiv 1909.06335), section 4: v ← βv + Δw, w ← w − v, there with Δw pointing away from the mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Strategy, check_fraction, check_positive


@dataclass(frozen=True)
class FedAvgM(Strategy):
    """v ← β·v + Δ, x ← x + η·v.

    Args:
        learning_rate: η, the server's learning rate.
        momentum: β; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedavgm"
    learning_rate: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_fraction("momentum", self.momentum)

    def slots(self) -> Mapping[str, float]:
        return {"velocity": 0.0}

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        velocity = memory["velocity"]
        velocity *= self.momentum
        velocity += block.change
        return block.base + self.learning_rate * velocity
