"""FedBuff: asynchronous rounds of K buffered updates, each the less worth the older the model is that it started from.

Source: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (arXiv 2106.06639),
Algorithm 1 and section 5.1 (staleness scaling): w ← w + η·(1/K)·Σ s(τᵢ)·Δᵢ with s(τ) = 1/√(1 + τ).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Share, Strategy, Update, check_not_negative, check_positive


@dataclass(frozen=True)
class FedBuff(Strategy):
    """x ← x + η·Σ wᵢ·s(τᵢ)·Δᵢ / Σ wᵢ, with s(τ) = (1 + τ)^−a and τ how many model updates old an update's base is.

    The sum of the weights is not discounted, so stale updates make smaller steps. The paper's 1/K is uniform weighting.
    In a synchronous round nothing is stale, and it is FedAvg.

    Args:
        learning_rate: η, the server's learning rate.
        staleness_exponent: a; 0.5 is the paper's, 0 counts stale updates in full.
    """

    name: ClassVar[str] = "fedbuff"
    learning_rate: float = 1.0
    staleness_exponent: float = 0.5

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_not_negative("staleness_exponent", self.staleness_exponent)

    def share(self, update: Update) -> Share:
        return Share(update.weight * (1 + update.staleness) ** -self.staleness_exponent, update.weight)

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + self.learning_rate * block.change
