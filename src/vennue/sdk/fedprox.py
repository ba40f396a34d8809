"""FedProx on the device: a term of the loss that holds training near the round's model.

A device of a ``fedprox`` job minimises its loss plus μ/2·‖w − x‖², with x the round's model, so that devices with much
time or strange data do not drift. μ comes with the task: ``task.config["proximal_mu"]``.

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, equation 2.
"""

from collections.abc import Mapping
from typing import Any


def gradient(weights: Mapping[str, Any], base: Mapping[str, Any], mu: float) -> dict[str, Any]:
    """What the term adds to the loss's gradient: μ·(w − x), tensor by tensor.

    Args:
        weights: the weights as they are now, numpy arrays or torch tensors; those to be trained suffice.
        base: the round's model, ``task.model``.
        mu: μ.
    """
    return {name: mu * (value - base[name]) for name, value in weights.items()}


def penalty(weights: Mapping[str, Any], base: Mapping[str, Any], mu: float) -> Any:
    """The term itself: μ/2·‖w − x‖². Of torch tensors it is one, through which gradients flow.

    Args:
        weights: the weights as they are now, such as ``dict(module.named_parameters())``.
        base: the round's model, such as ``task.state_dict()``.
        mu: μ.
    """
    return mu / 2 * sum(((value - base[name]) ** 2).sum() for name, value in weights.items())
