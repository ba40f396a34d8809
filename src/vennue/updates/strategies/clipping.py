"""Norm clipping: no device moves the mean further than a given length, whatever it reports.

Source: Sun et al., "Can You Really Backdoor Federated Learning?", 2019 (arXiv 1911.07963), section 3.2:
Δ ← Δ / max(1, ‖Δ‖₂ / M). The same clipping bounds sensitivity in DP-FedAvg: McMahan et al., ICLR 2018, Algorithm 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Share, Strategy, Update, check_positive


@dataclass(frozen=True)
class NormClipping(Strategy):
    """x ← x + η·Σ wᵢ·clip(Δᵢ) / Σ wᵢ, each change scaled down to the norm M where it is longer.

    Args:
        norm: M, the L2 norm over all floating tensors together.
        learning_rate: η, the server's learning rate.
    """

    name: ClassVar[str] = "norm-clipping"
    norm: float = 1.0
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        check_positive("norm", self.norm)
        check_positive("learning_rate", self.learning_rate)

    def share(self, update: Update) -> Share:
        length = update.change_norm()
        return Share(update.weight * min(1.0, self.norm / length) if length else update.weight, update.weight)

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + self.learning_rate * block.change
