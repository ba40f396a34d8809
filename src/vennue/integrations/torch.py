"""PyTorch modules: all of a module's state, parameters and buffers, of any type that a model can hold.

Floating tensors are what a job averages. Integer and boolean ones, such as the batches that a batch norm has counted,
go to the devices and come back as the job sent them. Tensors stay on the device, and of the type, that the module has
them in; what is no tensor (a module's extra state) does not travel, and stays.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from vennue.core.errors import InvalidModel
from vennue.integrations import check_fit, framework


def weights(module: Any) -> dict[str, Any]:
    """Copies of a module's tensors, by their names in its state dict, on the CPU.

    Raises:
        InvalidInput: PyTorch is not installed.
        InvalidModel: it is no module, or a lazy one that has seen no input yet.
    """
    return {name: tensor.detach().cpu().clone() for name, tensor in _tensors(_torch(), module).items()}


def load(module: Any, weights: Mapping[str, Any]) -> None:
    """Put tensors, or numpy arrays, into a module.

    Raises:
        InvalidInput: PyTorch is not installed.
        InvalidModel: a name or a shape differs, and nothing has been changed; or as for `weights`.
    """
    torch = _torch()
    own = _tensors(torch, module)
    check_fit(own, weights)
    state = {name: value if torch.is_tensor(value) else torch.tensor(value) for name, value in weights.items()}
    # A state dict may hold more than tensors: that part is the module's own.
    module.load_state_dict({**module.state_dict(), **state})


def _torch() -> ModuleType:
    return framework("torch", name="PyTorch", extra="torch")


def _tensors(torch: ModuleType, module: Any) -> dict[str, Any]:
    if not isinstance(module, torch.nn.Module):
        raise InvalidModel(
            f"it is no module but {type(module).__name__}", field="model", fix="give the torch.nn.Module itself"
        )
    tensors = {name: value for name, value in module.state_dict().items() if torch.is_tensor(value)}
    for name, value in tensors.items():
        if torch.nn.parameter.is_lazy(value):
            raise InvalidModel("it has no shape yet", field=name, fix="run the module once, on any input")
    return tensors
