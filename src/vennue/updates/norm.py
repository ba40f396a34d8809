"""How long an update's change is: what norm clipping and q-FedAvg need, in one pass, block by block."""

import math

import numpy as np

from vennue.tensors.codecs import BLOCK_ELEMENTS, Codec
from vennue.tensors.model import MappedModel, widened


def change_norm(base: MappedModel, update: MappedModel, codec: Codec, *, is_change: bool) -> float:
    """The L2 norm of a checked update's change to all floating numbers of the base, computed in float64."""
    square = 0.0
    change = np.empty(BLOCK_ELEMENTS, np.float64)
    for tensor in base.layout.floating:
        for start, stop in base.blocks(tensor, BLOCK_ELEMENTS):
            block = change[: stop - start]
            block[...] = codec.read(update, tensor, start, stop, block)
            if not is_change:
                block -= widened(base.read(tensor, start, stop), tensor.dtype)
            square += float(np.dot(block, block))
    return math.sqrt(square)
