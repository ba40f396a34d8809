"""Bridges to learning frameworks, one module each: `numpy`, `torch` and `sklearn`.

A bridge is two functions. ``weights(model)`` names a model's arrays, as jobs send and devices report them;
``load(model, weights)`` puts such arrays into a model, in place:

    load(model, round.run(weights(model)))                   # a job's round
    load(model, task.model)                                  # a device's task: begin with what the round names,
    task.report(weights(model), examples=n)                  # and report what training made of it

A framework is imported when one of the functions is called, so these modules can be imported without any.
"""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from vennue.core.errors import InvalidInput, InvalidModel


def framework(module: str, *, name: str, extra: str) -> ModuleType:
    """A framework's module.

    Raises:
        InvalidInput: it is not installed; names the extra that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidInput(
            f"{name} is not installed", field="model", value=module, fix=f"pip install 'vennue[{extra}]'"
        ) from error


def check_fit(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that arrays have the names and the shapes of a model's own.

    Raises:
        InvalidModel: with the first array that does not fit. Nothing has been changed.
    """
    for name in sorted(own.keys() ^ given.keys()):
        what = "is missing" if name in own else "is not in this model"
        raise InvalidModel(f"the array {what}", field=name, fix="make the model in the same form as the job's owner")
    for name, array in own.items():
        found, wanted = tuple(given[name].shape), tuple(array.shape)
        if found != wanted:
            raise InvalidModel(
                f"its shape {found} is not this model's {wanted}",
                field=name,
                value=str(found),
                limit=str(wanted),
                fix="make the model in the same form as the job's owner",
            )
