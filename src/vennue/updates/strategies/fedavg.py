"""FedAvg: the next model is the weighted mean of the devices' models. FedProx: the same, of models held near the base.

Sources: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
Algorithm 1; the server's learning rate: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, section 2;
FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from vennue.core.job import Setting
from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Strategy, check_not_negative, check_positive

PROXIMAL_MU: Final = "proximal_mu"
"""The setting by which devices are told μ."""


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


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg for devices that add μ/2·‖w − x‖² to their loss, which `vennue.sdk.fedprox` computes.

    Args:
        mu: μ, which devices find in their task's config as ``proximal_mu``; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedprox"
    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("mu", self.mu)

    def device_config(self) -> Mapping[str, Setting]:
        return {PROXIMAL_MU: self.mu}
