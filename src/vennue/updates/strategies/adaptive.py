"""FedAdagrad, FedAdam and FedYogi: the server's step is scaled per number by how much that number has moved.

Source: Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (arXiv 2003.00295), Algorithm 2:

    m ← β1·m + (1 − β1)·Δ
    v ← v + Δ²                          (FedAdagrad)
    v ← β2·v + (1 − β2)·Δ²              (FedAdam)
    v ← v − (1 − β2)·Δ²·sign(v − Δ²)    (FedYogi)
    x ← x + η·m / (√v + τ)

with m = 0 and v = τ² before the first round, and no bias correction. Defaults are those of the paper's experiments
(section 5): β1 = 0.9 and β2 = 0.99 (FedAdagrad: β1 = 0), τ = 10⁻³; η needs tuning.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Strategy, check_fraction, check_positive


@dataclass(frozen=True)
class Adaptive(Strategy):
    """What the three have in common.

    Args:
        learning_rate: η, the server's learning rate.
        beta_1: how much of the first moment, the mean change, is kept from round to round.
        tau: the degree of adaptivity; larger is closer to FedAvgM.
    """

    learning_rate: float = 0.1
    beta_1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_fraction("beta_1", self.beta_1)
        check_positive("tau", self.tau)

    def slots(self) -> Mapping[str, float]:
        return {"m": 0.0, "v": self.tau**2}

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        m, v = memory["m"], memory["v"]
        change = block.change
        m *= self.beta_1
        m += (1 - self.beta_1) * change
        self.adapt(v, change * change)
        return block.base + self.learning_rate * m / (np.sqrt(v) + self.tau)

    @abstractmethod
    def adapt(self, v: Array, square: Array) -> None:
        """Bring the second moment ``v`` up to date in place, with the square of the change."""


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """Step sizes only shrink: for sparse changes, as of embeddings."""

    name: ClassVar[str] = "fedadagrad"
    beta_1: float = 0.0

    def adapt(self, v: Array, square: Array) -> None:
        v += square


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """Step sizes follow an exponential mean of squared changes.

    Args:
        beta_2: how much of the second moment is kept from round to round.
    """

    name: ClassVar[str] = "fedadam"
    beta_2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("beta_2", self.beta_2)

    def adapt(self, v: Array, square: Array) -> None:
        v *= self.beta_2
        v += (1 - self.beta_2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """As FedAdam, but the second moment moves by no more than the squared change: steadier when changes are rare.

    Args:
        beta_2: how much of the second moment is kept from round to round.
    """

    name: ClassVar[str] = "fedyogi"
    beta_2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("beta_2", self.beta_2)

    def adapt(self, v: Array, square: Array) -> None:
        v -= (1 - self.beta_2) * square * np.sign(v - square)
