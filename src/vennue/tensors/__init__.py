"""What a model is, and how its numbers travel: shared by the data plane and the SDK, so that they cannot disagree.

``layout`` is what a model's header says, strictly checked; ``model`` saves, loads and maps models; ``codecs`` encode
updates for the way, and decode them block by block. It imports only the core.
"""

from vennue.tensors.codecs import CODECS, Codec
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import Array, check_model, load, save

__all__ = ["CODECS", "Array", "Codec", "ModelLayout", "check_model", "load", "save"]
