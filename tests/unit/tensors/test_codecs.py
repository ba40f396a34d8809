"""Codecs: what they lose is bounded, what is malformed is refused by name, and decoding goes block by block."""

import math

import numpy as np
import pytest

from vennue.core.errors import InvalidInput, InvalidModel, InvalidUpdate
from vennue.tensors.codecs import BLOCK_ELEMENTS, CODEC_KEY, CODECS, INT8_GROUP, Cast, Int8, TopK, codec_of
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import Array, MappedModel, assemble, layout_of, load, save

# More than two blocks, and ends inside of a group of 256.
ELEMENTS = 2 * BLOCK_ELEMENTS + 1000
MODEL: dict[str, Array] = {
    "w": np.random.default_rng(1).standard_normal(ELEMENTS).astype(np.float32).reshape(-1, 8),
    "b": np.array([0.5, -0.25, 0.0], np.float32),
    "none": np.empty((0, 3), np.float32),
    "steps": np.array(7, np.int64),
}
LAYOUT = layout_of(MODEL)


@pytest.fixture
def mapped(tmp_path):
    def write(body: bytes) -> MappedModel:
        path = tmp_path / "update"
        path.write_bytes(body)
        return MappedModel(path, error=InvalidUpdate)

    return write


def check(codec, update):
    codec.check_layout(update.layout, LAYOUT)
    return [codec.peak(update, tensor) for tensor in LAYOUT.floating]


def decoded(codec, update, dtype=np.float32):
    """The whole update, decoded in blocks."""
    result = {}
    for tensor in LAYOUT.floating:
        blocks = [np.empty(0, dtype)]
        for start in range(0, tensor.elements, BLOCK_ELEMENTS):
            stop = min(start + BLOCK_ELEMENTS, tensor.elements)
            blocks.append(codec.read(update, tensor, start, stop, np.empty(stop - start, dtype)).copy())
        result[tensor.name] = np.concatenate(blocks).reshape(tensor.shape)
    return result


def added(codec, update, weight, dtype=np.float32):
    """The whole update, added with a weight to sums that begin at 1."""
    result = {}
    for tensor in LAYOUT.floating:
        sums = np.ones(tensor.elements, dtype)
        for start in range(0, tensor.elements, BLOCK_ELEMENTS):
            block = sums[start : start + BLOCK_ELEMENTS]
            codec.add(update, tensor, start, weight, block, np.empty_like(block))
        result[tensor.name] = sums.reshape(tensor.shape)
    return result


# The largest error relative to a number's own magnitude, or, for int8, to the largest of its group.
LOSSES = {"plain": 0.0, "float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0.5 / 127 * 1.0001}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_decoded_update_differs_by_no_more_than_its_codec_loses(name, dtype, mapped):
    codec = CODECS[name]
    update = mapped(codec.encode(MODEL))
    assert codec_of(update.layout) is codec
    check(codec, update)
    result = decoded(codec, update, dtype)
    for tensor in LAYOUT.floating:
        exact = MODEL[tensor.name].reshape(-1).astype(np.float64)
        groups = np.arange(len(exact)) // INT8_GROUP
        reference = np.abs(exact)
        if name == "int8":
            reference = np.array([reference[groups == group].max() for group in np.unique(groups)] + [0.0])[groups]
        error = np.abs(result[tensor.name].reshape(-1) - exact)
        # Below its smallest normal number, half precision loses up to half of its smallest step.
        assert (error <= LOSSES[name] * reference + (2.0**-25 if name == "float16" else 0)).all()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adding_is_the_same_as_decoding_and_then_adding(name, dtype, mapped):
    codec = CODECS[name]
    update = mapped(codec.encode(MODEL))
    values = decoded(codec, update, dtype)
    sums = added(codec, update, 2.5, dtype)
    for tensor_name, result in sums.items():
        assert (result == 1 + dtype(2.5) * values[tensor_name]).all()


@pytest.mark.parametrize("name", CODECS)
def test_peaks_bound_the_decoded_numbers(name, mapped):
    codec = CODECS[name]
    update = mapped(codec.encode(MODEL))
    values = decoded(codec, update, np.float64)
    for tensor, peak in zip(LAYOUT.floating, check(codec, update), strict=True):
        assert np.abs(values[tensor.name]).max(initial=0) <= peak <= np.abs(MODEL[tensor.name]).max(initial=0) * 1.02


def test_sizes_are_those_of_the_format():
    plain, half, bytes_, sparse = (
        len(CODECS[name].encode({"w": np.zeros(256_000, np.float32)})) // 1000
        for name in ("plain", "float16", "int8", "top-k")
    )
    assert (plain, half, bytes_, sparse) == (1024, 512, 260, 20)


def test_top_k_sends_the_largest_numbers_and_nothing_else(mapped):
    codec = TopK(0.1)
    values = np.array([0.0, -9.0, 1.0, 2.0, 8.0, 0.5, -0.5, 3.0, 0.0, 1.0], np.float32)
    body = load(codec.encode({"w": values}))
    assert body["w:indices"].tolist() == [1]
    assert body["w:values"].tolist() == [-9.0]
    assert load(TopK(0.21).encode({"w": values}))["w:indices"].tolist() == [1, 4, 7]
    assert load(TopK(1.0).encode({"w": values}))["w:values"].tolist() == values.tolist()


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, math.nan])
def test_top_k_of_no_fraction_is_refused(fraction):
    with pytest.raises(InvalidInput, match="not a fraction"):
        TopK(fraction)


def test_int8_of_zeros_is_zeros(mapped):
    update = mapped(Int8().encode({**MODEL, "w": np.zeros_like(MODEL["w"])}))
    assert (decoded(Int8(), update)["w"] == 0).all()


def test_an_update_that_names_no_codec_is_plain():
    assert codec_of(ModelLayout.parse(save(MODEL)[: len(LAYOUT.header)])) is CODECS["plain"]


def test_an_unknown_codec_is_refused_with_those_that_are_known():
    layout = layout_of(MODEL, {CODEC_KEY: "zip"})
    with pytest.raises(InvalidUpdate, match="no such codec") as refusal:
        codec_of(layout)
    assert refusal.value.limit == "plain, float32, float16, bfloat16, int8, top-k"
    assert refusal.value.fix == "choose one of these that the task takes"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None}, "w: the tensor is missing"),
        ({"steps": None}, "steps: the tensor is missing"),
        ({"v": np.zeros(3, np.float32)}, "v: the tensor is not in the round's model"),
        ({"b": np.zeros(3, np.float64)}, "b: its dtype is F64, the round's is F32"),
        ({"b": np.zeros(3, np.float16)}, "b: its dtype is F16, the round's is F32"),
        ({"steps": np.array(7, np.int32)}, "steps: its dtype is I32, the round's is I64"),
        ({"b": np.zeros(4, np.float32)}, "b: its shape is .4,., the round's is .3,."),
        ({"b": np.zeros((3, 1), np.float32)}, "b: its shape is .3, 1., the round's is .3,."),
    ],
)
def test_an_update_of_another_model_is_refused_with_the_tensor(change, message):
    model = {name: array for name, array in (MODEL | change).items() if array is not None}
    with pytest.raises(InvalidUpdate, match=message):
        CODECS["plain"].check_layout(layout_of(model), LAYOUT)


def test_a_name_that_ends_like_a_codecs_own_is_refused_when_it_collides():
    with pytest.raises(InvalidModel, match="rename the tensor"):
        Int8().encode({"w": np.zeros(2, np.float32), "w:scales": np.zeros(1, np.float32)})


def damaged(codec, **changes):
    """An encoded update with some of its stored tensors replaced."""
    body = codec.encode(MODEL)
    stored = load(body) | {name.replace("_", ":"): array for name, array in changes.items()}
    return assemble(layout_of(stored, {CODEC_KEY: codec.name}), stored)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_refused(bad, mapped):
    update = mapped(damaged(Int8(), b_scales=np.array([bad], np.float32)))
    with pytest.raises(InvalidUpdate, match=f"b:scales: element 0 is {bad}"):
        check(Int8(), update)


def test_too_few_scales_are_refused(mapped):
    update = mapped(damaged(Int8(), w_scales=np.ones(5, np.float32)))
    with pytest.raises(InvalidUpdate, match="w:scales: its shape is"):
        check(Int8(), update)


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        ([0, 3], [1.0, 1.0], "indices must ascend"),
        ([1, 1], [1.0, 1.0], "indices must ascend"),
        ([2, 1], [1.0, 1.0], "indices must ascend"),
        ([0, 2**32 - 1], [1.0, 1.0], "indices must ascend"),
        ([0, 2], [1.0], "1 values for 2 indices"),
        ([0, 2], [1.0, math.nan], "b:values: element 1 is nan"),
        ([[0], [2]], [1.0, 1.0], "b:indices: its shape is"),
    ],
)
def test_malformed_sparse_updates_are_refused(indices, values, message, mapped):
    update = mapped(damaged(TopK(), b_indices=np.array(indices, np.uint32), b_values=np.array(values, np.float32)))
    with pytest.raises(InvalidUpdate, match=message):
        check(TopK(), update)


def test_indices_must_ascend_across_blocks_too(mapped):
    count = BLOCK_ELEMENTS + 10
    indices = np.arange(count, dtype=np.uint32)
    indices[BLOCK_ELEMENTS] = indices[BLOCK_ELEMENTS - 1]
    update = mapped(damaged(TopK(), w_indices=indices, w_values=np.ones(count, np.float32)))
    with pytest.raises(InvalidUpdate, match="indices must ascend"):
        check(TopK(), update)


def test_a_sparse_update_may_leave_everything_out(mapped):
    nothing = {"w_indices": np.empty(0, np.uint32), "w_values": np.empty(0, np.float32)}
    update = mapped(damaged(TopK(), **nothing))
    check(TopK(), update)
    assert (decoded(TopK(), update)["w"] == 0).all()
    assert (added(TopK(), update, 2.0)["w"] == 1).all()


def test_a_half_precision_model_may_travel_wider(mapped):
    model = {"w": np.array([1.5, -2.0], np.float16)}
    body = Cast("float32", "F32").encode(model)
    update = mapped(body)
    CODECS["float32"].check_layout(update.layout, layout_of(model))
    assert load(body)["w"].dtype == np.float32


@pytest.mark.parametrize("carried", [False, True])
def test_a_codec_in_which_two_tensors_of_the_model_would_be_one_is_refused(carried):
    model = ModelLayout.of([("w", "F32", (4,)), ("w:scales", "U8" if carried else "F32", (1,))])
    parts = {"w": np.ones(4, np.int8), "w:scales": np.ones(1, np.uint8)}
    if not carried:
        parts = {"w": np.ones(4, np.int8), "w:scales": np.ones(1, np.int8), "w:scales:scales": np.ones(1, np.float32)}
    with pytest.raises(InvalidUpdate, match="cannot travel in int8") as refusal:
        Int8().check_layout(layout_of(parts, {CODEC_KEY: "int8"}), model)
    assert refusal.value.field == "w:scales"
