"""The network's loss and gradient: against numbers worked out by hand, and against finite differences."""

import math

import numpy as np
import pytest

from vennue.core.errors import InvalidModel
from vennue.demo.network import Array, Network

LOGISTIC = Network(inputs=5, hidden=(), classes=3)
DEEP = Network(inputs=5, hidden=(7, 4), classes=3)
EMBEDDED = Network(inputs=4, hidden=(6,), classes=5, symbols=9, embedding=3)


@pytest.mark.parametrize("network", [LOGISTIC, DEEP, EMBEDDED], ids=["logistic", "deep", "embedded"])
def test_the_gradient_equals_central_differences_in_every_coordinate(network):
    rng = np.random.default_rng(3)
    model = {name: rng.normal(size=shape) for name, shape in network.shapes.items()}
    shape = (8, network.inputs)
    inputs: Array = rng.integers(0, network.symbols, shape) if network.symbols else rng.normal(size=shape)
    labels = rng.integers(0, network.classes, 8)
    _, gradient = network.loss_and_gradient(model, inputs, labels)
    step = 1e-6
    for name, values in model.items():
        for index in np.ndindex(values.shape):
            centre = values[index]
            values[index] = centre + step
            above, _ = network.loss_and_gradient(model, inputs, labels)
            values[index] = centre - step
            below, _ = network.loss_and_gradient(model, inputs, labels)
            values[index] = centre
            assert gradient[name][index] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-8)


def test_a_logistic_regression_gives_the_loss_and_gradient_worked_out_by_hand():
    # Logits (ln 3, 0) mean probabilities (3/4, 1/4); the true label is the first.
    network = Network(inputs=1, hidden=(), classes=2)
    model = {"output.weight": np.array([[math.log(3), 0.0]]), "output.bias": np.zeros(2)}
    loss, gradient = network.loss_and_gradient(model, np.array([[1.0]]), np.array([0]))
    assert loss == pytest.approx(math.log(4 / 3))
    assert gradient["output.weight"] == pytest.approx(np.array([[-0.25, 0.25]]))
    assert gradient["output.bias"] == pytest.approx(np.array([-0.25, 0.25]))


def test_a_model_of_zeros_guesses_uniformly():
    model = {name: np.zeros(shape) for name, shape in DEEP.shapes.items()}
    loss, _ = DEEP.loss_and_accuracy(model, np.ones((4, 5)), np.array([0, 1, 2, 0]))
    assert loss == pytest.approx(math.log(3))


def test_accuracy_is_the_share_of_examples_whose_largest_output_is_their_label():
    network = Network(inputs=2, hidden=(), classes=2)
    model = {"output.weight": np.eye(2), "output.bias": np.zeros(2)}
    inputs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    _, accuracy = network.loss_and_accuracy(model, inputs, np.array([0, 1, 1, 1]))
    assert accuracy == 0.75


def test_outputs_in_the_thousands_do_not_overflow():
    network = Network(inputs=1, hidden=(), classes=2)
    model = {"output.weight": np.array([[5000.0, -5000.0]], dtype=np.float32), "output.bias": np.zeros(2, np.float32)}
    loss, _ = network.loss_and_gradient(model, np.ones((1, 1), np.float32), np.array([1]))
    assert loss == 10_000.0


def test_a_new_model_has_the_networks_shapes_in_float32_and_finite_weights():
    model = EMBEDDED.initial_model(np.random.default_rng(0))
    assert {name: values.shape for name, values in model.items()} == {
        "embedding": (9, 3),
        "hidden1.weight": (12, 6),
        "hidden1.bias": (6,),
        "output.weight": (6, 5),
        "output.bias": (5,),
    }
    assert all(values.dtype == np.float32 and np.isfinite(values).all() for values in model.values())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"output.bias": np.zeros(4)}, "output.bias"),
        ({"output.bias": None}, "output.bias"),
        ({"extra": np.zeros(1)}, "extra"),
    ],
    ids=["wrong shape", "missing", "unknown"],
)
def test_a_model_of_another_form_is_refused_by_the_name_of_the_array(change, field):
    model = LOGISTIC.initial_model(np.random.default_rng(0)) | change
    with pytest.raises(InvalidModel) as refusal:
        LOGISTIC.check({name: values for name, values in model.items() if values is not None})
    assert refusal.value.field == field
