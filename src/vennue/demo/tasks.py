"""The demo's learning tasks: real models on real data, small enough that a hundred devices train on two cores.

A `Task` is what a job and its devices have in common. The job takes `initial_model` and `evaluate`; a device takes its
part of `partition` and calls `train`. A model is a mapping from names to float32 arrays. Nothing here reads a clock,
touches a global random state or does input and output, beyond reading data that ships in the package. The same
arguments give the same result on one machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vennue.core.errors import InvalidInput, NotFound
from vennue.demo import images, shakespeare
from vennue.demo.datasets import Dataset, Examples
from vennue.demo.network import Array, Model, Network


@dataclass(frozen=True)
class Training:
    """How a device trains: mini-batch stochastic gradient descent, until it has done its epochs or its steps.

    Args:
        learning_rate: the step along the negative gradient.
        batch_size: examples per step.
        epochs: passes over the local data.
        max_steps: the most steps in one round, so that a device with much data is not held up for long.

    Raises:
        InvalidInput: one of them is not above 0.
    """

    learning_rate: float
    batch_size: int
    epochs: int = 1
    max_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "epochs", "max_steps"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidInput(f"{value} would train nothing", field=name, value=value, fix="give more than 0")


class LocalResult(NamedTuple):
    """What a device reports: the model after its training, its weight in the average, and how it went."""

    model: dict[str, Array]
    examples: int
    """The different local examples that training used."""
    metrics: dict[str, float]
    """``loss``: mean cross-entropy over the batches, each before its step; ``steps``."""


class Score(NamedTuple):
    """How well a model does on held-out data."""

    loss: float
    """Mean cross-entropy in nats."""
    accuracy: float


@dataclass(frozen=True)
class Task:
    """A learning task, with settings under which it learns.

    Args:
        name: what a job specification calls it.
        title: one line for people.
        network: the form of its model.
        training: how its devices train by default.
        rounds: after how many rounds of ``devices_per_round`` it has learned most of what it will.
        devices_per_round: a demand that suits it.
        load: reads its data; called when data is first needed, and cheap to call again.
    """

    name: str
    title: str
    network: Network
    training: Training
    rounds: int
    devices_per_round: int
    load: Callable[[], Dataset]

    def initial_model(self, seed: int) -> dict[str, Array]:
        """A model that has not learned anything; one seed gives one model."""
        return self.network.initial_model(np.random.default_rng(seed))

    def partition(self, n_devices: int, seed: int) -> list[Examples]:
        """The training data dealt to devices: unevenly, no example twice, at least one each.

        Raises:
            InvalidInput: fewer devices than one, or more than the data goes round.
        """
        dataset = self.load()
        return [dataset.train.take(part) for part in dataset.split(n_devices, np.random.default_rng(seed))]

    def train(
        self, model: Model, data: Examples, rng: np.random.Generator, *, training: Training | None = None
    ) -> LocalResult:
        """Train a copy of ``model`` on a device's ``data``.

        Args:
            model: where to start; not changed.
            data: the device's local examples.
            rng: shuffles them.
            training: other settings than the task's own.

        Raises:
            InvalidModel: the model does not have the network's names and shapes.
            InvalidInput: there is nothing to train on.
        """
        self.network.check(model)
        if not len(data):
            raise InvalidInput("there are no local examples", field="data", value=0, limit=1)
        how = training or self.training
        trained = {name: values.astype(np.float32) for name, values in model.items()}
        learning_rate = np.float32(how.learning_rate)
        loss_sum, used, steps = 0.0, 0, 0
        for _ in range(how.epochs):
            order = rng.permutation(len(data))
            for start in range(0, len(order), how.batch_size)[: how.max_steps - steps]:
                batch = data.take(order[start : start + how.batch_size])
                loss, gradient = self.network.loss_and_gradient(trained, batch.inputs, batch.labels)
                for name, slope in gradient.items():
                    trained[name] -= learning_rate * slope
                loss_sum += loss * len(batch)
                used += len(batch)
                steps += 1
        return LocalResult(trained, min(used, len(data)), {"loss": loss_sum / used, "steps": float(steps)})

    def evaluate(self, model: Model) -> Score:
        """The model's score on the held-out data.

        Raises:
            InvalidModel: the model does not have the network's names and shapes.
        """
        self.network.check(model)
        held_out = self.load().held_out
        return Score(*self.network.loss_and_accuracy(model, held_out.inputs, held_out.labels))


_SYMBOLS = len(shakespeare.SYMBOLS)

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="next-character",
            title="next character of a speech, Shakespeare by speaker",
            network=Network(shakespeare.CONTEXT, (64,), _SYMBOLS, symbols=_SYMBOLS, embedding=12),
            training=Training(learning_rate=0.4, batch_size=32, max_steps=80),
            rounds=25,
            devices_per_round=10,
            load=shakespeare.next_characters,
        ),
        Task(
            name="clothes",
            title="articles of clothing, Fashion-MNIST at 14x14",
            network=Network(14 * 14, (64,), len(images.CLOTHES_CLASSES)),
            training=Training(learning_rate=0.2, batch_size=16, epochs=3),
            rounds=20,
            devices_per_round=10,
            load=images.clothes,
        ),
        Task(
            name="digits",
            title="handwritten digits at 8x8",
            network=Network(8 * 8, (32,), 10),
            training=Training(learning_rate=0.3, batch_size=8, epochs=5),
            rounds=15,
            devices_per_round=10,
            load=images.digits,
        ),
        Task(
            name="missing-letter",
            title="a letter missing from a speech, Shakespeare by speaker",
            network=Network(shakespeare.CONTEXT, (96,), len(shakespeare.LETTERS), symbols=_SYMBOLS, embedding=16),
            training=Training(learning_rate=0.5, batch_size=32, max_steps=80),
            rounds=20,
            devices_per_round=10,
            load=shakespeare.missing_letters,
        ),
    )
}


def task(name: str) -> Task:
    """The task of that name.

    Raises:
        NotFound: there is none.
    """
    try:
        return TASKS[name]
    except KeyError:
        raise NotFound(
            f"there is no task {name!r}", field="task", value=name, fix=f"one of {', '.join(TASKS)}"
        ) from None
