"""Models on the wire and back: names, order, types, and what is refused."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save

from vennue.core.errors import InvalidModel, InvalidUpdate
from vennue.sdk.models import arrays, encode, encode_update, parse, restore, state_dict

DTYPES = [
    *(np.float16, np.float32, np.float64, np.bool_),
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
]
TENSORS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable())
MODELS = st.dictionaries(NAMES, TENSORS, min_size=1, max_size=5)


def base(**tensors):
    return parse(encode(tensors))


def bfloat16_blob(values):
    """A blob with one bfloat16 tensor, its bits written by hand: the upper half of a float32."""
    bits = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    header = b'{"w":{"dtype":"BF16","shape":[%d],"data_offsets":[0,%d]}}' % (len(bits), 2 * len(bits))
    return len(header).to_bytes(8, "little") + header + bits.tobytes()


@given(MODELS)
def test_a_model_comes_back_with_its_names_order_types_and_numbers(model):
    back = restore(encode(model), model)
    assert list(back) == list(model)
    for name, tensor in model.items():
        assert back[name].dtype == tensor.dtype
        np.testing.assert_array_equal(back[name], tensor)


@given(MODELS)
def test_what_is_encoded_is_what_the_safetensors_library_writes_and_reads(model):
    blob = encode(model)
    assert blob == save({name: np.asarray(tensor, order="C") for name, tensor in model.items()})
    assert load(blob).keys() == model.keys()


@given(MODELS, st.randoms())
def test_the_order_of_a_model_does_not_change_its_digest(model, rng):
    names = list(model)
    rng.shuffle(names)
    shuffled = {name: model[name] for name in names}
    assert hashlib.sha256(encode(shuffled)).digest() == hashlib.sha256(encode(model)).digest()


def test_arrays_that_are_transposed_or_big_endian_keep_their_numbers():
    model = {"t": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array([1.5, 2.5], ">f8")}
    back = restore(encode(model), model)
    assert back["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert back["b"].tolist() == [1.5, 2.5]


def test_arrays_that_come_back_may_be_changed_in_place():
    back = restore(encode({"w": np.zeros(2, np.float32)}), {"w": np.zeros(2, np.float32)})
    back["w"] += 1
    assert back["w"].tolist() == [1, 1]


def test_numpy_scalars_and_things_that_turn_into_arrays_are_tensors():
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.array([3.0], np.float32)

    found = arrays(parse(encode({"s": np.float32(2), "w": Wrapped()})))
    assert (found["s"].shape, found["w"].tolist()) == ((), [3.0])


def test_a_bfloat16_tensor_comes_as_float32():
    found = arrays(parse(bfloat16_blob([1.0, -2.5, 3.140625])))
    assert found["w"].dtype == np.float32
    assert found["w"].tolist() == [1.0, -2.5, 3.140625]


@pytest.mark.parametrize(
    ("value", "nearest"),
    [
        (1.0, 1.0),
        (1.00390625, 1.0),  # half way between 1 and its successor 1.0078125: to even
        (1.01171875, 1.015625),  # half way between 1.0078125 and 1.015625: to even
        (1.0079, 1.0078125),
        (-3.0e38, -226 * 2.0**120),  # in units of 2**120, -225.7
        (np.inf, np.inf),
        (3.4e38, np.inf),
    ],
)
def test_an_update_in_float32_is_rounded_to_the_bfloat16_of_the_model(value, nearest):
    update = encode_update({"w": np.array([value], np.float32)}, parse(bfloat16_blob([0.0])))
    assert parse(update)["w"].dtype == "BF16"
    assert arrays(parse(update))["w"].tolist() == [nearest]


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_what_is_not_a_number_is_not_one_in_bfloat16_either(bits):
    update = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(arrays(parse(encode_update({"w": update}, parse(bfloat16_blob([0.0])))))["w"]).all()


def test_an_update_that_numpy_widened_is_sent_in_the_models_type():
    update = encode_update({"w": np.array([0.1, 1e300])}, base(w=np.zeros(2, np.float32)))
    assert parse(update)["w"].stored.tolist() == [np.float32(0.1), np.inf]


def test_an_update_of_the_models_layout_has_its_header():
    model = {"b": np.zeros(3, np.float32), "a": np.zeros((2, 2), np.float16)}
    assert encode_update(model, parse(encode(model))) == encode(model)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1.0, 2.0], "must be an array, not list"),
        (3.0, "must be an array, not float"),
        (None, "must be an array, not NoneType"),
        (np.array(["a"]), "cannot hold <U1 numbers"),
        (np.array([None]), "cannot hold object numbers"),
        (np.array([1j]), "cannot hold complex128 numbers"),
        (np.array([1], "datetime64[s]"), r"cannot hold datetime64\[s\] numbers"),
    ],
)
def test_a_value_that_is_no_array_of_numbers_is_refused_by_its_name(value, said):
    with pytest.raises(InvalidModel, match=said) as caught:
        encode({"fine": np.zeros(1), "layer.bias": value})
    assert caught.value.field == "layer.bias"


@pytest.mark.parametrize("model", [np.zeros(3), [np.zeros(3)], {}, {3: np.zeros(1)}, {"": np.zeros(1)}])
def test_a_model_that_is_no_mapping_of_names_is_refused(model):
    with pytest.raises(InvalidModel) as caught:
        encode(model)
    assert caught.value.field == "model"


@pytest.mark.parametrize(
    ("update", "field", "said"),
    [
        ({"w": np.zeros(2, np.float32)}, "b", "the update lacks b"),
        ({"w": np.zeros(2), "b": np.zeros(1), "c": np.zeros(1)}, "c", "the update adds c"),
        ({"w": np.zeros(2), "c": np.zeros(1)}, "b", "the update lacks b and adds c"),
        ({"w": np.zeros((2, 1)), "b": np.zeros(1)}, "w", r"shape \(2, 1\) is not the model's \(2,\)"),
        ({"w": np.zeros(2, np.int64), "b": np.zeros(1)}, "w", "type I64 is not the model's F32"),
        ({"w": [0, 0], "b": np.zeros(1)}, "w", "not list"),
    ],
)
def test_an_update_unlike_the_model_is_refused_by_name(update, field, said):
    with pytest.raises(InvalidUpdate, match=said) as caught:
        encode_update(update, base(w=np.zeros(2, np.float32), b=np.zeros(1, np.float32)))
    assert caught.value.field == field


@pytest.mark.parametrize("blob", [b"", b"not safetensors at all", bfloat16_blob([1.0])[:-1]])
def test_bytes_that_are_no_model_are_refused(blob):
    with pytest.raises(InvalidModel, match="no safetensors file"):
        parse(blob)


def test_a_model_of_other_names_is_not_given_back_as_yours():
    with pytest.raises(InvalidModel, match="differ from yours") as caught:
        restore(encode({"a": np.zeros(1)}), {"b": np.zeros(1)})
    assert caught.value.value == "a, b"


# -- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.extras
def test_a_state_dict_comes_back_as_tensors_of_its_types(torch):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.float64).state_dict()
    model["half"] = torch.tensor([[1.5], [-2.0]], dtype=torch.bfloat16)
    back = restore(encode(model), model)
    assert list(back) == list(model)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in model.items())


@pytest.mark.extras
def test_parameters_that_require_gradients_are_tensors(torch):
    parameters = dict(torch.nn.Linear(2, 1).named_parameters())
    assert parse(encode(parameters)).keys() == {"weight", "bias"}


@pytest.mark.extras
def test_a_trained_state_dict_is_an_update_to_a_model_from_numpy(torch):
    update = encode_update({"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}, base(w=np.zeros(2, np.float32)))
    assert parse(update)["w"].stored.tolist() == [1.0, 2.0]


@pytest.mark.extras
def test_a_blob_gives_a_state_dict_to_load(torch):
    module = torch.nn.Linear(3, 2)
    module.load_state_dict(state_dict(encode({"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)})))
    assert module(torch.ones(3)).tolist() == [3.0, 3.0]


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["sparse", "complex64", "float8_e4m3fn"])
def test_tensors_without_plain_numbers_are_refused_by_name(torch, kind):
    tensor = torch.eye(2).to_sparse() if kind == "sparse" else torch.zeros(2).to(getattr(torch, kind))
    with pytest.raises(InvalidModel) as caught:
        encode({"w": tensor})
    assert caught.value.field == "w"
