"""A small feed-forward classifier in numpy, with its gradient written by hand.

Every learning task of the demo is a classification under cross-entropy, so one network serves them all: an optional
embedding of symbols, any number of rectified hidden layers, and a softmax. It holds no weights: a model is a mapping
from names to arrays, passed in and handed back, never changed in place. Arithmetic keeps the model's own precision:
training runs in float32, the tests check the gradient in float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vennue.core.errors import InvalidModel

Array: TypeAlias = NDArray[Any]
Model: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Network:
    """The form of a classifier.

    Args:
        inputs: numbers per example; with an embedding, symbols per example.
        hidden: the width of each hidden layer; none makes it a logistic regression.
        classes: how many labels there are.
        symbols: how many different symbols there are; 0 takes the inputs as numbers, without an embedding.
        embedding: the width of a symbol's embedding.
    """

    inputs: int
    hidden: tuple[int, ...]
    classes: int
    symbols: int = 0
    embedding: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every array of a model, from the inputs to the outputs."""
        shapes: dict[str, tuple[int, ...]] = {}
        width = self.inputs
        if self.symbols:
            shapes["embedding"] = (self.symbols, self.embedding)
            width *= self.embedding
        for layer, next_width in zip(self._layers, (*self.hidden, self.classes), strict=True):
            shapes[f"{layer}.weight"] = (width, next_width)
            shapes[f"{layer}.bias"] = (next_width,)
            width = next_width
        return shapes

    @property
    def _layers(self) -> tuple[str, ...]:
        return (*(f"hidden{number}" for number in range(1, len(self.hidden) + 1)), "output")

    def initial_model(self, rng: np.random.Generator) -> dict[str, Array]:
        """Random weights in float32, zero biases.

        A weight's variance is 2 / fan-in, which keeps the scale of rectified layers (He et al. 2015, section 2.2).
        The output layer starts a hundred times smaller in variance, so that the first guess is nearly uniform over
        the classes whatever the inputs.
        """
        model = {}
        for name, shape in self.shapes.items():
            if name.endswith(".bias"):
                values = np.zeros(shape)
            elif name == "embedding":
                values = rng.normal(0.0, 1.0, shape)
            else:
                deviation = np.sqrt(2.0 / shape[0]) * (0.1 if name == "output.weight" else 1.0)
                values = rng.normal(0.0, deviation, shape)
            model[name] = values.astype(np.float32)
        return model

    def check(self, model: Model) -> None:
        """Raise `InvalidModel` unless the model has exactly this network's names and shapes."""
        found = {name: values.shape for name, values in model.items()}
        if found != self.shapes:
            name = next(n for n in (*self.shapes, *found) if found.get(n) != self.shapes.get(n))
            raise InvalidModel(
                f"its shape is {found.get(name, 'missing')}, the network's is {self.shapes.get(name, 'missing')}",
                field=name,
                value=found.get(name),
                limit=self.shapes.get(name),
                fix="start from this task's initial model",
            )

    def loss_and_accuracy(self, model: Model, inputs: Array, labels: Array) -> tuple[float, float]:
        """Mean cross-entropy (nats) and the share of examples whose most probable label is the true one."""
        logits = self._activations(model, inputs)[-1]
        log_probabilities = _log_softmax(logits)
        loss = -log_probabilities[np.arange(len(labels)), labels].mean()
        return float(loss), float((logits.argmax(axis=1) == labels).mean())

    def loss_and_gradient(self, model: Model, inputs: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """Mean cross-entropy (nats) of a batch, and its derivative with respect to every array of the model."""
        activations = self._activations(model, inputs)
        log_probabilities = _log_softmax(activations.pop())
        rows = np.arange(len(labels))
        loss = -log_probabilities[rows, labels].mean()

        # The derivative of the mean cross-entropy with respect to the logits: (probabilities - one-hot) / batch.
        delta = np.exp(log_probabilities)
        delta[rows, labels] -= 1.0
        delta /= len(labels)

        gradient: dict[str, Array] = {}
        for layer in reversed(self._layers):
            below = activations.pop()
            gradient[f"{layer}.weight"] = below.T @ delta
            gradient[f"{layer}.bias"] = delta.sum(axis=0)
            if activations or self.symbols:
                delta = delta @ model[f"{layer}.weight"].T
            if activations:
                delta *= below > 0.0
        if self.symbols:
            # One product with the one-hot inputs sums the rows that share a symbol; np.add.at takes several times
            # as long at these sizes.
            one_hot = np.zeros((inputs.size, self.symbols), dtype=delta.dtype)
            one_hot[np.arange(inputs.size), inputs.ravel()] = 1.0
            gradient["embedding"] = one_hot.T @ delta.reshape(inputs.size, self.embedding)
        return float(loss), gradient

    def _activations(self, model: Model, inputs: Array) -> list[Array]:
        """What enters each layer, and last the logits."""
        values = model["embedding"][inputs].reshape(len(inputs), -1) if self.symbols else inputs
        activations = [values]
        for layer in self._layers:
            values = values @ model[f"{layer}.weight"] + model[f"{layer}.bias"]
            if layer != "output":
                values = np.maximum(values, 0.0)
            activations.append(values)
        return activations


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities
