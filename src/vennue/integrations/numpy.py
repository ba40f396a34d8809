"""Models written in numpy: any nest of mappings, sequences and objects with arrays in it.

Arrays are named by the way to them, keys and attributes joined by dots: ``layers.0.weight``. Whatever is no array
(learning rates, names of activations) is not part of the model and stays as it is. `load` writes into the arrays that
are there, so views of them, and optimisers that hold them, see the new numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidModel
from vennue.integrations import check_fit

Array = npt.NDArray[Any]


def weights(model: Any) -> dict[str, Array]:
    """Copies of a model's arrays, by name.

    Raises:
        InvalidModel: there is none, a name occurs twice, or a number stands where an array must.
    """
    return {name: array.copy() for name, array in _arrays(model).items()}


def load(model: Any, weights: Mapping[str, Any]) -> None:
    """Write arrays into a model's own, each rounded to the type that is there.

    Raises:
        InvalidModel: a name or a shape differs; nothing has been changed.
    """
    own = _arrays(model)
    check_fit(own, weights)
    for name, array in own.items():
        array[...] = weights[name]


def _arrays(model: Any) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, array in _walk(model, "", set()):
        if name in found:
            raise InvalidModel("two arrays have this name", field=name, fix="leave dots out of keys")
        found[name] = array
    if not found:
        raise InvalidModel("it holds no numpy array", field="model", value=type(model).__name__, fix="give one")
    return found


def _walk(part: Any, name: str, above: set[int]) -> Iterator[tuple[str, Array]]:
    if isinstance(part, np.ndarray):
        yield name or "weights", part
        return
    if isinstance(part, np.generic):
        raise InvalidModel(
            "a single number cannot be written to in place", field=name or "model", fix="keep it as numpy.array(…)"
        )
    if isinstance(part, Mapping):
        inside = [(str(key), value) for key, value in part.items()]
    elif isinstance(part, list | tuple):
        inside = [(str(at), value) for at, value in enumerate(part)]
    else:
        inside = list(getattr(part, "__dict__", {}).items())
    if id(part) in above:  # an object that refers back to one that holds it
        return
    for key, value in inside:
        if not isinstance(value, type) and not callable(value):
            yield from _walk(value, f"{name}.{key}" if name else key, above | {id(part)})
