"""The fold: an exact weighted mean to rounding, in place, in little memory."""

import math
import tracemalloc

import numpy as np
import pytest

from vennue.tensors.codecs import CODECS, PLAIN
from vennue.tensors.model import Array, MappedModel, layout_of, save
from vennue.updates.fold import Fold, Term, Totals


@pytest.fixture
def mapped(tmp_path):
    def write(model) -> MappedModel:
        path = tmp_path / "update"
        path.write_bytes(save(model))
        return MappedModel(path)

    return write


def plain(update: MappedModel, weight: float = 1.0) -> Term:
    return Term(update, PLAIN, weight, weight)


def test_the_mean_is_weighted(mapped):
    fold = Fold(layout_of({"a": np.zeros(2, np.float32), "b": np.zeros((1, 2), np.float32)}))
    fold.add(plain(mapped({"a": np.array([1, 2], np.float32), "b": np.array([[4, 8]], np.float32)}), 3))
    fold.add(plain(mapped({"a": np.array([5, -2], np.float32), "b": np.array([[0, 0]], np.float32)}), 1))
    assert fold.totals.weight == 4
    assert fold.totals.updates == 2
    result = fold.result()
    assert result["a"].tolist() == [2, 1]  # (3·1 + 5) / 4, (3·2 − 2) / 4
    assert result["b"].tolist() == [[3, 6]]


def test_the_mean_of_one_update_is_that_update(mapped):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    fold = Fold(layout_of({"a": values}))
    fold.add(plain(mapped({"a": values}), 1))
    assert (fold.result()["a"] == values).all()


@pytest.mark.parametrize(("coefficient", "weight"), [(1e9, 1e45), (1e-30, 1e-42)])
def test_a_strategy_s_weight_may_be_larger_or_smaller_than_the_accumulator_s_numbers(mapped, coefficient, weight):
    values = np.array([2.0**60, -(2.0**50), 1.0], np.float32)
    fold = Fold(layout_of({"a": values}))
    fold.add(Term(mapped({"a": values}), PLAIN, coefficient, weight))
    assert fold.result()["a"] == pytest.approx(values.astype(np.float64) * coefficient / weight, rel=1e-6)


def test_integer_tensors_are_not_summed(mapped):
    model: dict[str, Array] = {"a": np.ones(2, np.float32), "steps": np.array(5, np.int64)}
    fold = Fold(layout_of(model))
    fold.add(plain(mapped(model), 1))
    assert list(fold.result()) == ["a"]


def test_a_part_of_a_tensor_is_asked_for(mapped):
    fold = Fold(layout_of({"a": np.zeros(5, np.float32), "b": np.zeros(5, np.float32)}))
    fold.add(plain(mapped({"a": np.zeros(5, np.float32), "b": np.arange(5, dtype=np.float32)}), 2))
    assert fold.mean(fold.layout.by_name["b"], 1, 3).tolist() == [1, 2]


@pytest.mark.parametrize(("accumulator", "dtype"), [("float32", np.float32), ("float64", np.float64)])
def test_the_accumulator_is_chosen(accumulator, dtype, mapped):
    fold = Fold(layout_of({"a": np.zeros(1, np.float32)}), accumulator)
    fold.add(plain(mapped({"a": np.ones(1, np.float32)}), 1))
    assert fold.result()["a"].dtype == dtype


def test_a_float64_model_is_summed_in_float64(mapped):
    fold = Fold(layout_of({"a": np.zeros(1), "b": np.zeros(1, np.float32)}))
    for value in (1.0, 2.0**-40):
        fold.add(plain(mapped({"a": np.array([value]), "b": np.zeros(1, np.float32)}), 1))
    assert fold.result()["a"][0] == (1 + 2.0**-40) / 2


def test_a_float64_accumulator_keeps_what_float32_would_lose(mapped):
    layout = layout_of({"a": np.zeros(1, np.float32)})
    means = {}
    for accumulator in ("float32", "float64"):
        fold = Fold(layout, accumulator)
        for value in (2.0**25, 1.0, -(2.0**25)):
            fold.add(plain(mapped({"a": np.array([value], np.float32)}), 1))
        means[accumulator] = float(fold.result()["a"][0])
    assert means == {"float32": 0.0, "float64": 1 / 3}


@pytest.mark.parametrize("accumulator", ["float32", "float64"])
def test_many_updates_give_the_exact_mean_to_rounding(accumulator, mapped):
    generator = np.random.default_rng(5)
    updates = generator.standard_normal((200, 3)).astype(np.float32)
    weights = generator.integers(1, 500, 200)
    fold = Fold(layout_of({"a": updates[0]}), accumulator)
    for update, weight in zip(updates, weights, strict=True):
        fold.add(plain(mapped({"a": update}), float(weight)))
    total = int(weights.sum())
    for index in range(3):
        exact = math.fsum(int(w) * float(u[index]) for u, w in zip(updates, weights, strict=True)) / total
        # Each step rounds a sum whose magnitude is at most Σ w·|x|.
        bound = math.fsum(int(w) * abs(float(u[index])) for u, w in zip(updates, weights, strict=True)) / total
        epsilon = np.finfo(accumulator).eps
        assert abs(float(fold.result()["a"][index]) - exact) <= 2 * epsilon * math.sqrt(200) * bound


def test_updates_in_different_codecs_are_folded_together(tmp_path):
    model = {"a": np.array([0.5, -1.0, 2.0], np.float32)}
    fold = Fold(layout_of(model))
    for name in ("plain", "float16", "bfloat16", "float32"):
        path = tmp_path / name
        path.write_bytes(CODECS[name].encode(model))
        fold.add(Term(MappedModel(path), CODECS[name], 2, 2))
    assert fold.result()["a"].tolist() == [0.5, -1.0, 2.0]


def test_updates_added_together_give_what_they_give_one_by_one(tmp_path):
    generator = np.random.default_rng(2)
    folds = [Fold(layout_of({"a": np.zeros(70_000, np.float32)})) for _ in range(2)]
    updates = []
    for number, name in enumerate(CODECS):
        path = tmp_path / name
        path.write_bytes(CODECS[name].encode({"a": generator.standard_normal(70_000).astype(np.float32)}))
        updates.append(Term(MappedModel(path), CODECS[name], 1.5 + number, 1.5 + number))
    folds[0].add(*updates)
    for update in updates:
        folds[1].add(update)
    assert folds[0].totals == folds[1].totals == Totals(weight=24, models=24, updates=6)
    assert (folds[0].result()["a"] == folds[1].result()["a"]).all()


def test_a_cleared_fold_begins_anew(mapped):
    fold = Fold(layout_of({"a": np.zeros(2, np.float32)}))
    fold.add(plain(mapped({"a": np.array([9, 9], np.float32)}), 7))
    fold.clear()
    assert fold.totals == Totals()
    fold.add(plain(mapped({"a": np.array([1, 2], np.float32)}), 1))
    assert fold.result()["a"].tolist() == [1, 2]


@pytest.mark.parametrize("name", CODECS)
def test_a_fold_takes_one_model_and_an_update_adds_nothing_to_it(name, tmp_path):
    model = {"a": np.ones(2_500_000, np.float32)}
    path = tmp_path / "update"
    path.write_bytes(CODECS[name].encode(model))
    layout = layout_of(model)
    tracemalloc.start()
    fold = Fold(layout)
    after_first = 0
    for _ in range(5):
        fold.add(Term(MappedModel(path), CODECS[name], 1, 1))
        after_first = after_first or tracemalloc.get_traced_memory()[0]
    now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000 + 1_500_000
    assert now - after_first < 10_000
