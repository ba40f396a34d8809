"""Foreign pickles, without their power: plain containers, text, numbers, numpy scalars and nothing else.

A pickle is a program. This reader lets it build lists, dictionaries, tuples, sets, text, bytes and numbers, which need
no imports, and answers the few imports that recorded traces hold for their numpy scalars with inert stand-ins of its
own. Any other import is refused before anything runs. Vennue itself writes no pickles; FedScale's traces are pickles.
"""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Never

import numpy as np

from vennue.core.errors import InvalidInput

_PLAIN_NUMBERS = frozenset("biufc")


def load(path: Path) -> Any:
    """The plain value in a pickle file.

    Raises:
        InvalidInput: no such file, not a pickle, a broken one, or one that holds anything but plain data.
    """
    if not path.is_file():
        raise InvalidInput(f"no such file: {path}", field="path", value=str(path), fix="check the name")
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except InvalidInput as error:
        error.value = error.value or str(path)
        raise
    except Exception as error:  # a hostile pickle can raise anything, MemoryError included
        raise InvalidInput(
            f"{path.name} is not a readable pickle of plain data: {error!r}",
            field="path", value=str(path), fix="check that the file is whole, or save it as JSON or CSV",
        ) from error  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        stand_in = _STAND_INS.get((module_name.replace("numpy.core.", "numpy._core."), global_name))
        if stand_in is None:
            raise InvalidInput(
                f"the pickle wants to run {module_name}.{global_name}; it may only hold lists, dictionaries, numbers",
                field="path", value=f"{module_name}.{global_name}",
                fix="do not trust this file, or save its content as JSON or CSV",
            )  # fmt: skip
        return stand_in

    def persistent_load(self, pid: Any, /) -> Never:
        raise InvalidInput("the pickle refers to objects outside itself", field="path", fix="save plain data")


class _StandIn:
    """A callable without attributes, so that a pickle cannot change it either."""

    __slots__ = ()

    def __setstate__(self, state: object) -> Never:
        raise InvalidInput("the pickle wants to change a function", field="path", fix="do not trust this file")


class _Scalar(_StandIn):
    """``numpy._core.multiarray.scalar``: a number from its type and bytes."""

    __slots__ = ()

    def __call__(self, dtype: object, raw: object) -> object:
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise InvalidInput("the pickle holds a numpy value that is not a number", field="path", fix="save numbers")
        return np.frombuffer(raw, dtype.plain(), count=1)[0].item()


class _DType:
    """What a pickled numpy type says: a kind of number, a size and a byte order."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: object) -> None:
        self._code = code
        self._order = "="

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        self._order = "=" if order == "|" else str(order)

    def plain(self) -> "np.dtype[Any]":
        """The numpy type, if it is one of plain numbers."""
        code = self._code
        if not (isinstance(code, str) and code[:1] in _PLAIN_NUMBERS and code[1:] in ("1", "2", "4", "8", "16")):
            raise InvalidInput(f"the pickle holds numpy values of type {code!r}, not numbers", field="path")
        if self._order not in ("=", "<", ">"):
            raise InvalidInput(f"the pickle holds numpy values in byte order {self._order!r}", field="path")
        return np.dtype(self._order + code)


class _DTypeMaker(_StandIn):
    """``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, code: object, *flags: object) -> _DType:
        return _DType(code)


class _Latin1(_StandIn):
    """``_codecs.encode``: how old protocols write bytes."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise InvalidInput("the pickle wants to run a codec", field="path", fix="do not trust this file")
        return text.encode("latin1")


class _Dictionary(_StandIn):
    """``collections.OrderedDict``: dictionaries keep their order by themselves."""

    __slots__ = ()

    def __call__(self, items: object = ()) -> dict[object, object]:
        if not isinstance(items, list | tuple):
            raise InvalidInput("the pickle holds a strange dictionary", field="path", fix="save plain data")
        return dict(items)


_STAND_INS: Mapping[tuple[str, str], Callable[..., object]] = {
    ("numpy._core.multiarray", "scalar"): _Scalar(),
    ("numpy", "dtype"): _DTypeMaker(),
    ("_codecs", "encode"): _Latin1(),
    ("collections", "OrderedDict"): _Dictionary(),
}
