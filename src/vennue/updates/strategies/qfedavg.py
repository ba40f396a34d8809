"""q-FedAvg: devices on which the model does badly weigh more, so that accuracy is spread more evenly over them.

Source: Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020 (arXiv 1905.10497), Algorithm 2. With
L = 1/η and Δw = L·(w − w_k):

    w ← w − Σ F_k^q·Δw_k / Σ (q·F_k^(q−1)·‖Δw_k‖² + L·F_k^q)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from vennue.core.errors import InvalidUpdate
from vennue.tensors.model import Array
from vennue.updates.strategies.base import Block, Share, Strategy, Update, check_not_negative, check_positive

LEAST_LOSS: Final = 1e-10
"""Added to every loss, so that the power of a loss of 0 is defined; as in the authors' own code."""
MOST: Final = 1e9
"""The largest weight·L·F^q, so that no device makes a round overflow."""


@dataclass(frozen=True)
class QFedAvg(Strategy):
    """A weighted step towards devices of high loss; at q = 0, the plain mean.

    Devices must report the metric ``loss``: the round's model's loss on their data *before* they train it. The paper
    draws devices in proportion to their data and averages them alike: for that, weight uniformly.

    Args:
        q: the degree of fairness; larger evens out more.
        learning_rate: η, the devices' learning rate, whose inverse stands for the loss's Lipschitz constant.
    """

    name: ClassVar[str] = "q-fedavg"
    q: float = 1.0
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        check_not_negative("q", self.q)
        check_positive("learning_rate", self.learning_rate)

    def check(self, weight: float, metrics: Mapping[str, float]) -> None:
        loss = metrics.get("loss")
        if loss is None:
            raise InvalidUpdate(
                "q-fedavg needs the loss of the round's model on the device's data",
                field="metrics.loss",
                fix='report it, as in metrics={"loss": loss_before_training}',
            )
        if not loss >= 0 or weight * self._power(loss, self.q) / self.learning_rate > MOST:
            raise InvalidUpdate(
                "the loss is negative, or too large to be raised to the power q",
                field="metrics.loss",
                value=loss,
                limit=MOST,
                fix="report a loss that is bounded, such as a mean cross-entropy",
            )

    def share(self, update: Update) -> Share:
        lipschitz = 1 / self.learning_rate
        loss = update.metrics["loss"]
        power = self._power(loss, self.q)
        curvature = 0.0
        if self.q > 0:
            curvature = self.q * self._power(loss, self.q - 1) * (lipschitz * update.change_norm()) ** 2
        weight = curvature + lipschitz * power
        return Share(update.weight * lipschitz * power, update.weight * weight)

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + block.change

    @staticmethod
    def _power(loss: float, exponent: float) -> float:
        try:
            return float((loss + LEAST_LOSS) ** exponent)
        except OverflowError:
            return float("inf")
