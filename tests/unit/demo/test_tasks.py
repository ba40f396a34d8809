"""The tasks: local training does what it says, and every task learns when its devices' models are averaged."""

import dataclasses
import math
from itertools import islice

import numpy as np
import pytest

from vennue.core.errors import InvalidInput, InvalidModel, NotFound
from vennue.demo.datasets import Examples
from vennue.demo.tasks import TASKS, Training, task


def federated(learning, *, rounds, n_devices=100, seed=0):
    """The score before and after ``rounds`` of federated averaging (McMahan et al. 2017, algorithm 1)."""
    rng = np.random.default_rng(seed)
    local = learning.partition(n_devices, seed)
    model = learning.initial_model(seed)
    before = learning.evaluate(model)
    for _ in range(rounds):
        chosen = rng.choice(n_devices, learning.devices_per_round, replace=False)
        results = [learning.train(model, local[device], rng) for device in chosen]
        total = sum(result.examples for result in results)
        model = {name: sum(r.examples / total * r.model[name] for r in results).astype(np.float32) for name in model}
    return before, learning.evaluate(model)


@pytest.mark.parametrize(
    ("name", "classes", "rounds", "loss_below", "accuracy_above"),
    [
        ("next-character", 38, 8, 2.40, 0.30),
        ("clothes", 10, 10, 1.00, 0.60),
        ("digits", 10, 12, 0.80, 0.70),
        ("missing-letter", 26, 8, 1.65, 0.48),
    ],
)
def test_a_task_learns_by_federated_averaging(name, classes, rounds, loss_below, accuracy_above):
    before, after = federated(task(name), rounds=rounds)
    assert before.loss == pytest.approx(math.log(classes), abs=0.05)
    assert before.accuracy < 0.25
    assert after.loss < loss_below
    assert after.accuracy > accuracy_above


@pytest.mark.parametrize("learning", TASKS.values(), ids=TASKS)
def test_a_partition_is_uneven_and_serves_a_fleet_of_a_thousand(learning):
    sizes = [len(data) for data in learning.partition(100, seed=0)]
    assert max(sizes) > 3 * min(sizes)
    assert len(learning.partition(1000, seed=0)) == 1000


@pytest.mark.parametrize("learning", TASKS.values(), ids=TASKS)
def test_one_seed_gives_one_result_and_another_seed_another(learning):
    def outcome(seed):
        data = learning.partition(20, seed)[7]
        return learning.train(learning.initial_model(seed), data, np.random.default_rng(seed)).model

    first, again, other = outcome(1), outcome(1), outcome(2)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("learning", TASKS.values(), ids=TASKS)
def test_training_leaves_the_given_model_as_it_was_and_returns_float32(learning):
    model = learning.initial_model(0)
    copy = {name: values.copy() for name, values in model.items()}
    result = learning.train(model, learning.partition(100, 0)[0], np.random.default_rng(0))
    assert all(np.array_equal(model[name], copy[name]) for name in model)
    assert {name: (v.shape, v.dtype) for name, v in result.model.items()} == {
        name: (v.shape, np.dtype(np.float32)) for name, v in copy.items()
    }


def test_one_step_over_all_local_data_moves_by_the_learning_rate_times_the_gradient():
    digits = task("digits")
    data = digits.partition(100, 0)[0]
    model = digits.initial_model(0)
    loss, gradient = digits.network.loss_and_gradient(model, data.inputs, data.labels)
    one_step = Training(learning_rate=0.5, batch_size=len(data))
    result = digits.train(model, data, np.random.default_rng(0), training=one_step)
    for name, values in model.items():
        assert result.model[name] == pytest.approx(values - 0.5 * gradient[name], abs=1e-6)
    assert result.metrics == {"loss": pytest.approx(loss), "steps": 1.0}


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps", "examples"),
    [(1, 100, 5, 18), (3, 100, 15, 18), (3, 7, 7, 18), (1, 2, 2, 8), (2, 3, 3, 12)],
)
def test_training_stops_at_its_epochs_or_its_steps_and_counts_different_examples(epochs, max_steps, steps, examples):
    digits = task("digits")
    data = digits.load().train.take(np.arange(18))
    how = Training(learning_rate=0.1, batch_size=4, epochs=epochs, max_steps=max_steps)
    result = digits.train(digits.initial_model(0), data, np.random.default_rng(0), training=how)
    assert (result.metrics["steps"], result.examples) == (steps, examples)


def test_training_without_local_examples_is_refused():
    digits = task("digits")
    nothing = Examples(np.empty((0, 64), np.float32), np.empty(0, np.uint8))
    with pytest.raises(InvalidInput, match="no local examples"):
        digits.train(digits.initial_model(0), nothing, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["learning_rate", "batch_size", "epochs", "max_steps"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_training_setting_that_would_train_nothing_is_refused_by_name(name, value):
    with pytest.raises(InvalidInput) as refusal:
        dataclasses.replace(task("digits").training, **{name: value})
    assert refusal.value.field == name


def test_the_model_of_one_task_is_refused_by_another():
    model = task("digits").initial_model(0)
    with pytest.raises(InvalidModel):
        task("clothes").evaluate(model)
    with pytest.raises(InvalidModel):
        task("clothes").train(model, next(islice(task("clothes").partition(5, 0), 1)), np.random.default_rng(0))


def test_an_unknown_task_is_refused_with_the_names_there_are():
    with pytest.raises(NotFound, match="next-character, clothes, digits, missing-letter"):
        task("translation")
