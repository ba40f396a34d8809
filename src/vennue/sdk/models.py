"""Models on their way to the wire and back: mappings of names to arrays, as safetensors.

A model is a mapping of names to numpy arrays, or a PyTorch state dict; what implements ``__array__`` serves too. The
wire knows floating, integer and boolean tensors by name; their order there is the format's own (the widest types
first, then by name), so `restore` brings a model back in the order and in the kinds of the one that it came from.
numpy has no bfloat16: such tensors come as float32, and go out again in the type of the round's model.
"""

import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from vennue.core.errors import InvalidInput, InvalidModel, InvalidUpdate
from vennue.tensors.codecs import CODECS, CONTENT_KEY, PLAIN
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import HeldModel

Array = npt.NDArray[Any]
Model = Mapping[str, Any]
"""Names to numpy arrays or torch tensors."""

# The wire's name of each type, its name when serialised, and how numpy stores it (a bfloat16 as its bits).
_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "I64": ("int64", "<i8"),
    "I32": ("int32", "<i4"),
    "I16": ("int16", "<i2"),
    "I8": ("int8", "|i1"),
    "U64": ("uint64", "<u8"),
    "U32": ("uint32", "<u4"),
    "U16": ("uint16", "<u2"),
    "U8": ("uint8", "|u1"),
    "BOOL": ("bool", "|b1"),
}
_WIRE_NAMES: Final[Mapping[str, str]] = {name: wire for wire, (name, _) in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the wire holds it: its type's name (``"F32"``), shape and stored numbers."""

    dtype: str
    stored: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self.stored.shape

    def values(self) -> Array:
        """Its numbers as numpy can compute with them; a bfloat16 as float32."""
        if self.dtype != "BF16":
            return self.stored
        return (self.stored.astype(np.uint32) << 16).view(np.float32)


def parse(blob: bytes | mmap.mmap) -> dict[str, Tensor]:
    """The tensors of a blob, in its order, each with writable numbers of its own; those of a mapped one are read-only.

    Raises:
        InvalidModel: it is no safetensors file, or holds types other than floating, integer and boolean ones.
    """
    if isinstance(blob, mmap.mmap):
        model = HeldModel(memoryview(blob))
        return {each.name: Tensor(each.dtype, model.read(each).reshape(each.shape)) for each in model.layout.tensors}
    try:
        entries: list[tuple[str, dict[str, Any]]] = deserialize(blob)  # type: ignore[no-untyped-call]  # untyped there
    except SafetensorError as error:
        raise InvalidModel(f"the blob is no safetensors file: {error}", field="model") from error
    found: dict[str, Tensor] = {}
    for name, entry in entries:
        dtype, shape, data = entry["dtype"], entry["shape"], entry["data"]
        if dtype not in _TYPES:
            raise InvalidModel("its type is not supported", field=name, value=dtype, limit=", ".join(_TYPES))
        stored = np.dtype(_TYPES[dtype][1])
        flat = np.frombuffer(data, stored) if data else np.empty(0, stored)
        found[name] = Tensor(dtype, flat.reshape(shape))
    return found


def encode(model: Model) -> bytes:
    """A model as the bytes of a safetensors file. Equal models give equal bytes.

    Raises:
        InvalidModel: it is empty, a name is not text, or a value is not an array of numbers; names the tensor.
    """
    return _serialised(_tensors(model, InvalidModel))


def encode_update(update: Model, base: Mapping[str, Tensor], *, codec: str = "plain", as_change: bool = False) -> bytes:
    """A trained model as the bytes of an update to the round's model ``base``.

    Plain floating numbers of another width are rounded to the base's, since numpy widens them so easily.

    Args:
        update: the trained model.
        base: the round's model.
        codec: how it travels: one of `vennue.tensors.CODECS`.
        as_change: whether to send by how much training changed the base; coarse codecs always do.

    Raises:
        InvalidUpdate: names or shapes differ from the base's, a value cannot have the base's type, or a number is not
            finite.
    """
    tensors = _tensors(update, InvalidUpdate)
    if tensors.keys() != base.keys():
        missing, unknown = sorted(base.keys() - tensors.keys()), sorted(tensors.keys() - base.keys())
        said = [f"{what} {', '.join(names[:5])}" for what, names in (("lacks", missing), ("adds", unknown)) if names]
        raise InvalidUpdate(
            f"the update {' and '.join(said)}",
            field=(missing + unknown)[0],
            value=len(tensors),
            limit=len(base),
            fix="report the names of the task's model",
        )
    coder = CODECS[codec]
    as_change = as_change or coder.for_changes
    if coder is PLAIN and not as_change:
        return _serialised({name: _fitted(name, tensors[name], wanted) for name, wanted in base.items()})
    values: dict[str, Array] = {}
    for name, wanted in base.items():
        _check_fit(name, tensors[name], wanted)
        given, before = tensors[name].values(), wanted.values()
        is_floating = wanted.dtype in {"F64", "F32", "F16", "BF16"}
        wide = np.float64 if wanted.dtype == "F64" else np.float32
        values[name] = np.subtract(given, before, dtype=wide) if as_change and is_floating else given
    layout = ModelLayout.of((name, wanted.dtype, wanted.shape) for name, wanted in base.items())
    return coder.encode(values, layout=layout, metadata={CONTENT_KEY: "change"} if as_change else None)


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """The tensors as numpy arrays to compute with, the caller's to change."""
    return {name: _own(tensor.values()) for name, tensor in tensors.items()}


def state_dict(blob: bytes | mmap.mmap) -> dict[str, Any]:
    """The blob as a PyTorch state dict, on the CPU.

    Raises:
        InvalidInput: PyTorch is not installed.
    """
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise InvalidInput(
            "PyTorch is not installed", field="model", fix="pip install 'vennue[torch]', or use numpy arrays"
        ) from error
    tensors: dict[str, Any] = load(bytes(blob))
    return tensors


def restore(blob: bytes | mmap.mmap, like: Model) -> dict[str, Any]:
    """The blob as a model in the order and in the kinds of ``like``: numpy arrays, torch tensors on their devices.

    Raises:
        InvalidModel: the names differ from those of ``like``.
    """
    tensors = parse(blob)
    if tensors.keys() != like.keys():
        raise InvalidModel(
            "the names of the model that the server holds differ from yours",
            field="model",
            value=", ".join(sorted(tensors.keys() ^ like.keys())[:5]),
            fix="attach to the job with the model that it was started with",
        )
    torch = _torch()
    as_torch = state_dict(blob) if torch and any(isinstance(value, torch.Tensor) for value in like.values()) else {}
    restored: dict[str, Any] = {}
    for name, value in like.items():
        if torch and isinstance(value, torch.Tensor):
            restored[name] = as_torch[name].to(value.device)
        elif tensors[name].dtype == "BF16" and getattr(value, "dtype", None) and value.dtype.name == "bfloat16":
            restored[name] = _own(tensors[name].stored).view(value.dtype)
        else:
            restored[name] = _own(tensors[name].values())
    return restored


def _own(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()


def _tensors(model: Any, error: type[InvalidInput]) -> dict[str, Tensor]:
    if not isinstance(model, Mapping):
        raise error(
            f"a model is a mapping of names to arrays, not {type(model).__name__}",
            field="model",
            fix='give {"weights": numpy.asarray(…)}, or module.state_dict()',
        )
    if not model:
        raise error("a model needs at least one tensor", field="model", fix="give one")
    for name in model:
        if not isinstance(name, str) or not name or not name.isprintable() or name == "__metadata__":
            raise error("a tensor's name must be printable text", field="model", value=repr(name)[:200])
    return {name: _tensor(name, value, error) for name, value in model.items()}


def _tensor(name: str, value: Any, error: type[InvalidInput]) -> Tensor:
    torch = _torch()
    if torch and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise error(
                "a sparse or quantised tensor has no plain numbers", field=name, fix="convert it with to_dense()"
            )
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            return Tensor("BF16", np.asarray(value.view(torch.int16).numpy(), order="C").view(np.uint16))
        name_of_type = str(value.dtype).removeprefix("torch.")
        if name_of_type not in _WIRE_NAMES:
            raise _unsupported(name, name_of_type, error)
        value = value.numpy()
    elif not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__"):
        raise error(
            f"a tensor must be an array, not {type(value).__name__}",
            field=name,
            value=repr(value)[:80],
            fix="wrap it in numpy.asarray(…, dtype=numpy.float32)",
        )
    array = np.asarray(value, order="C")
    wire = _WIRE_NAMES.get(array.dtype.name)
    if wire is None:
        raise _unsupported(name, str(array.dtype), error)
    stored = np.dtype(_TYPES[wire][1])
    return Tensor(wire, array.view(stored) if wire == "BF16" else array.astype(stored, copy=False))


def _unsupported(name: str, dtype: str, error: type[InvalidInput]) -> InvalidInput:
    return error(
        f"a model cannot hold {dtype} numbers",
        field=name,
        value=dtype,
        limit=", ".join(_WIRE_NAMES),
        fix="convert it to float32",
    )


def _fitted(name: str, tensor: Tensor, wanted: Tensor) -> Tensor:
    """The tensor in the wanted type, its shape checked."""
    _check_fit(name, tensor, wanted)
    if tensor.dtype == wanted.dtype:
        return tensor
    with np.errstate(over="ignore"):  # what overflows is infinite, and the server refuses it by name
        if wanted.dtype == "BF16":
            return Tensor("BF16", _bfloat16(tensor.values().astype(np.float32)))
        return Tensor(wanted.dtype, tensor.values().astype(_TYPES[wanted.dtype][1]))


def _check_fit(name: str, tensor: Tensor, wanted: Tensor) -> None:
    if tensor.shape != wanted.shape:
        raise InvalidUpdate(
            f"its shape {tensor.shape} is not the model's {wanted.shape}",
            field=name,
            value=str(tensor.shape),
            limit=str(wanted.shape),
            fix="report the trained model itself, not a part of it",
        )
    if tensor.dtype == wanted.dtype:
        return
    kinds = {tensor.dtype.rstrip("0123456789"), wanted.dtype.rstrip("0123456789")}
    if not kinds <= {"F", "BF"}:
        raise InvalidUpdate(
            f"its type {tensor.dtype} is not the model's {wanted.dtype}",
            field=name,
            value=tensor.dtype,
            limit=wanted.dtype,
            fix="convert it with astype(…)",
        )


def _bfloat16(values: Array) -> Array:
    """The bits of the nearest bfloat16 numbers, ties to even; what is not a number stays so."""
    bits = np.atleast_1d(values).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(np.atleast_1d(values))] = 0x7FC0
    return rounded.reshape(values.shape)


def _serialised(tensors: Mapping[str, Tensor]) -> bytes:
    # The specifications hold addresses only: `tensors` keeps the numbers alive until they are copied.
    specs = {
        name: TensorSpec(
            dtype=_TYPES[tensor.dtype][0],
            shape=tensor.shape,
            data_ptr=tensor.stored.ctypes.data,
            data_len=tensor.stored.nbytes,
        )
        for name, tensor in tensors.items()
    }
    return bytes(serialize(specs))


def _torch() -> ModuleType | None:
    """PyTorch, if it is in use: without it no value can be a tensor."""
    return sys.modules.get("torch")
