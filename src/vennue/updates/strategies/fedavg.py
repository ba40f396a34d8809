"""FedAvg: the next model is the weighted mean of the devices' models.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
Algorithm 1; the server's learning rate: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Strategy, check_positive


@dataclass(frozen=True)
class FedAvg(Strategy):
    """x ← x + η·Δ, with Δ the mean change; at η = 1 the mean itself.

    Args:
        learning_rate: η, the server's learning rate.
    """

    name: ClassVar[str] = "fedavg"
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.mean if self.learning_rate == 1 else block.base + self.learning_rate * block.change
