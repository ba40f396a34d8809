"""numpy models as named arrays; and what all bridges have in common, which needs no framework."""

import sys

import numpy as np
import pytest

from vennue.core.errors import InvalidInput, InvalidModel
from vennue.integrations import sklearn, torch
from vennue.integrations.numpy import load, weights


class Layer:
    activation = np.tanh

    def __init__(self):
        self.weight = np.ones((2, 3), np.float32)
        self.bias = np.zeros(3)
        self.learning_rate = 0.1


def test_arrays_are_named_by_the_way_to_them_and_the_rest_is_left_out():
    model = {"layers": [Layer(), Layer()], "steps": np.array(7)}
    assert [*weights(model)] == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "steps"]


def test_a_single_array_is_a_model():
    assert weights(np.arange(2.0))["weights"].tolist() == [0, 1]


def test_weights_are_copies():
    layer = Layer()
    weights(layer)["bias"][:] = 5
    assert layer.bias.tolist() == [0, 0, 0]


def test_what_is_loaded_is_written_in_place_and_rounded_to_the_type_that_is_there():
    layer = Layer()
    held = layer.weight
    load(layer, {"weight": np.full((2, 3), 0.1), "bias": np.array([1.0, 2.0, 3.0])})
    assert held.dtype == np.float32
    assert held[0, 0] == np.float32(0.1)
    assert layer.bias.tolist() == [1, 2, 3]


def test_an_object_that_refers_back_to_its_owner_is_walked_once():
    owner, layer = Layer(), Layer()
    vars(owner)["inner"], vars(layer)["owner"] = layer, owner
    assert [*weights(owner)] == ["weight", "bias", "inner.weight", "inner.bias"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight": np.ones((2, 3))}, "bias: the array is missing"),
        ({"weight": np.ones((2, 3)), "bias": np.ones(3), "more": np.ones(1)}, "more: the array is not in this model"),
        ({"weight": np.ones((2, 3)), "bias": np.ones(4)}, r"bias: its shape \(4,\) is not this model's \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(given, message):
    layer = Layer()
    with pytest.raises(InvalidModel, match=message):
        load(layer, given)
    assert layer.weight.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"rate": 0.5}, "holds no numpy array"),
        ({"bias": np.float32(1)}, "bias: a single number cannot be written to in place"),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, r"a\.b: two arrays have this name"),
    ],
)
def test_what_is_no_model_is_refused_with_the_fix(model, message):
    with pytest.raises(InvalidModel, match=message):
        weights(model)


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        (lambda: torch.weights(Layer()), "torch"),
        (lambda: torch.load(Layer(), {}), "torch"),
        (lambda: sklearn.weights(Layer()), "sklearn"),
        (lambda: sklearn.initialise(Layer(), features=2), "sklearn"),
    ],
)
def test_a_framework_that_is_not_installed_is_named_with_the_extra_that_installs_it(call, extra, monkeypatch):
    for module in ("torch", "sklearn", "sklearn.base"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=rf"is not installed \(pip install 'vennue\[{extra}\]'\)"):
        call()
