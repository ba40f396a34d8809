"""A model in fewer bits, for devices on slow links that ask for it: rounded by one of the codecs that updates use.

A rounded model is an encoded update that holds a model, and says in its metadata what the tensors' own types were
(``vennue.dtypes``, a JSON object), so that `unrounded` gives a model of the same tensors, near the first one. A device
that trains from it reports by how much training changed it, which is then added to the model itself.
"""

import json
import os
from typing import Final

import numpy as np

from vennue.core.errors import InvalidInput, InvalidModel
from vennue.tensors.codecs import BLOCK_ELEMENTS, CODEC_KEY, CODECS, Codec, Specs
from vennue.tensors.layout import ModelLayout, Tensor
from vennue.tensors.model import Array, HeldModel, MappedModel, assemble, narrowed, peak, widened

ROUNDINGS: Final = ("float16", "bfloat16", "int8")
"""The codecs in which a device may ask for a model."""
DTYPES_KEY: Final = "vennue.dtypes"


def write_rounded(model: MappedModel, rounding: str, fd: int) -> None:
    """Write a model in fewer bits to an empty file, block by block.

    Raises:
        InvalidModel: the codec has no number for one of the model's, or names collide.
    """
    codec = CODECS[rounding]
    layout = _layout(model.layout, codec)
    _write(fd, layout.header, 0)
    for tensor in model.layout.tensors:
        written: dict[str, int] = {}
        for start, stop in model.blocks(tensor, BLOCK_ELEMENTS):
            values = model.read(tensor, start, stop)
            parts: dict[str, Array] = {tensor.name: values}
            if tensor.is_floating:
                with np.errstate(over="ignore", invalid="ignore"):  # what is too large is found below
                    parts = codec.encode_tensor(tensor, widened(values, tensor.dtype))
            for name, part in parts.items():
                if layout.by_name[name].is_floating and not np.isfinite(peak(part, layout.by_name[name].dtype)):
                    raise InvalidModel(f"a number in it is too large for {rounding}", field=tensor.name)
                at = len(layout.header) + layout.by_name[name].start + written.get(name, 0)
                _write(fd, np.ascontiguousarray(part).view(np.uint8).data, at)
                written[name] = written.get(name, 0) + part.nbytes


def unrounded(file: bytes | bytearray | memoryview) -> bytes:
    """A model's file of the layout that it had before it was rounded.

    Raises:
        InvalidModel: it is no rounded model.
    """
    model = HeldModel(file)
    try:
        codec = CODECS[model.layout.metadata[CODEC_KEY]]
        dtypes = json.loads(model.layout.metadata[DTYPES_KEY])
        shapes = {name: model.layout.by_name[name].shape for name in dtypes}
        layout = ModelLayout.of((name, dtype, shapes[name]) for name, dtype in dtypes.items())
        codec.check_layout(model.layout, layout)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
        raise InvalidModel("it is no rounded model", field="model", value=repr(error)[:200]) from None
    stored = {tensor.name: _numbers(model, codec, tensor) for tensor in layout.tensors}
    return assemble(layout, stored)


def _layout(layout: ModelLayout, codec: Codec) -> ModelLayout:
    """That of a model's rounded form."""
    specs: list[tuple[str, str, tuple[int, ...]]] = []
    for tensor in layout.tensors:
        expected: Specs = codec.specs(tensor) if tensor.is_floating else {tensor.name: (tensor.dtype, tensor.shape)}
        specs += [(name, dtype, shape) for name, (dtype, shape) in expected.items() if shape is not None]
    if len({name for name, _, _ in specs}) < len(specs):
        raise InvalidModel("a tensor's name ends like those of its codec", field="model", fix="rename the tensor")
    dtypes = json.dumps({tensor.name: tensor.dtype for tensor in layout.tensors})
    return ModelLayout.of(specs, {CODEC_KEY: codec.name, DTYPES_KEY: dtypes})


def _numbers(model: MappedModel, codec: Codec, tensor: Tensor) -> Array:
    """A tensor's numbers, as its own type stores them."""
    if not tensor.is_floating:
        return model.read(model.layout.by_name[tensor.name])
    decoded = codec.read(model, tensor, 0, tensor.elements, np.empty(tensor.elements, np.float32))
    return narrowed(decoded, tensor.dtype)


def _write(fd: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count
