"""Safetensors against the library that defines them, and against bytes that nobody meant to be a model."""

import json

import numpy as np
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vennue.core.errors import InvalidModel
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import load, save

DTYPES = ["u8", "i8", "f8", "f4", "u4", "i4", "f2", "u2", "i2", "i1", "u1", "?"]
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)
ARRAYS = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from(DTYPES),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    st.integers(0, 9),
)
MODELS = st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=6)


@given(MODELS)
def test_saving_gives_the_bytes_of_the_library_and_loading_gives_the_model_back(model):
    data = save(model)
    assert data == safetensors.numpy.save(model)
    loaded = load(data)
    assert loaded.keys() == model.keys()
    for name, array in model.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert (loaded[name] == array).all()


@given(MODELS, st.data())
def test_a_damaged_file_is_refused_or_is_a_well_formed_model(model, data):
    good = save(model)
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = data.draw(
        st.sampled_from([good[:at], good[:at] + b"\0" + good[at + 1 :], good[:at] + b"9" + good[at:], good + good[at:]])
    )
    try:
        loaded = load(damaged)
    except InvalidModel:
        return
    assert len(damaged) == 8 + int.from_bytes(damaged[:8], "little") + sum(array.nbytes for array in loaded.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32", "U8"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON | st.binary(max_size=64))
def test_any_header_is_refused_with_a_reason_or_is_a_layout_without_holes(content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    try:
        layout = ModelLayout.parse(len(text).to_bytes(8, "little") + text)
    except InvalidModel:
        return
    assert layout.tensors[0].start == 0
    assert all(a.stop == b.start for a, b in zip(layout.tensors, layout.tensors[1:], strict=False))
