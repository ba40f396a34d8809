"""Rounded models: near the model, in its types, in the bytes that the codec promises."""

import numpy as np
import pytest

from vennue.core.errors import InvalidModel
from vennue.tensors.codecs import BLOCK_ELEMENTS
from vennue.tensors.model import Array, HeldModel, load, save
from vennue.tensors.rounded import ROUNDINGS, unrounded, write_rounded


@pytest.fixture
def rounded(tmp_path):
    def make(model: bytes, rounding: str) -> bytes:
        path = tmp_path / rounding
        with path.open("wb") as file:
            write_rounded(HeldModel(model), rounding, file.fileno())
        return bytes(path.read_bytes())

    return make


MODEL: dict[str, Array] = {
    "dense": np.linspace(-1, 1, 2 * BLOCK_ELEMENTS + 300, dtype=np.float32),
    "wide": np.linspace(0, 3, 1000).reshape(10, 100),
    "half": np.linspace(-2, 2, 77).astype(np.float16),
    "scalar": np.array(0.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "steps": np.array([7, 2**40], np.int64),
    "mask": np.array([True, False]),
}


@pytest.mark.parametrize(
    ("rounding", "relative", "absolute"), [("float16", 2**-11, 2**-25), ("bfloat16", 2**-8, 0), ("int8", 0, 3 / 250)]
)
def test_a_rounded_model_is_near_and_has_the_names_shapes_and_types_of_the_model(rounded, rounding, relative, absolute):
    near = load(unrounded(rounded(save(MODEL), rounding)))
    assert near.keys() == MODEL.keys()
    for name, values in MODEL.items():
        assert near[name].dtype == values.dtype
        np.testing.assert_allclose(near[name], values, rtol=relative, atol=absolute)
        if values.dtype.kind != "f":
            np.testing.assert_array_equal(near[name], values)


def test_half_precision_that_the_model_has_already_is_not_changed_by_float16(rounded):
    model = save({"w": MODEL["half"]})
    assert load(unrounded(rounded(model, "float16")))["w"].tobytes() == MODEL["half"].tobytes()


@pytest.mark.parametrize(("rounding", "share"), [("float16", 0.5), ("bfloat16", 0.5), ("int8", 0.254)])
def test_a_rounded_model_takes_a_half_or_a_quarter_of_the_bytes(rounded, rounding, share):
    model = save({"w": np.random.default_rng(0).normal(size=100_000).astype(np.float32)})
    assert len(rounded(model, rounding)) / len(model) == pytest.approx(share, abs=2e-3)


@pytest.mark.parametrize(("rounding", "value"), [("float16", 1e5), ("bfloat16", 1e300), ("int8", 1e300)])
def test_a_number_that_would_become_infinite_is_refused(rounded, rounding, value):
    with pytest.raises(InvalidModel, match=f"too large for {rounding}"):
        rounded(save({"w": np.array([1.0, value])}), rounding)


def test_a_name_that_the_codec_needs_is_refused(rounded):
    with pytest.raises(InvalidModel, match="ends like those of its codec"):
        rounded(save({"w": np.zeros(3), "w:scales": np.zeros(3)}), "int8")


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_is_no_rounded_model_is_refused(rounded, rounding):
    file = rounded(save({"w": np.zeros(300, np.float32)}), rounding)
    unknown_type = file.replace(rb"\"F32", rb"\"F99")
    for wrong in (save({"w": np.zeros(3)}), file[:-1], unknown_type, b""):
        assert wrong != file
        with pytest.raises(InvalidModel):
            unrounded(wrong)
