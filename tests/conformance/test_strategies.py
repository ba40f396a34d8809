"""The contract of ``Strategy``, kept by every strategy that comes with Vennue, and by one of a user's own.

Each runs rounds through the real fold, commit and blob store, and is compared with whole-model arithmetic in float64.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from vennue.core.errors import InvalidInput, InvalidModel
from vennue.tensors.codecs import BLOCK_ELEMENTS, PLAIN
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import Array, MappedModel, assemble, load, narrowed, save
from vennue.updates.blobs import DirectoryBlobs
from vennue.updates.commit import commit_model
from vennue.updates.fold import Fold
from vennue.updates.strategies import STRATEGIES, Block, Strategy, strategy

# More than one block, and a tensor that is carried.
ELEMENTS = BLOCK_ELEMENTS + 100
GENERATOR = np.random.default_rng(3)
BASE: dict[str, Array] = {
    "w": GENERATOR.standard_normal(ELEMENTS).astype(np.float32).reshape(-1, 4),
    "b": np.array(0.5, np.float32),
    "none": np.empty((0,), np.float32),
    "steps": np.array([3, 4], np.int64),
}
FLOATING = ["w", "b"]
ROUNDS = [
    [(GENERATOR.standard_normal(ELEMENTS).astype(np.float32) * 0.1, float(weight)) for weight in (3, 1, 8)]
    for _ in range(4)
]


class Halfway(Strategy):
    name = "halfway"

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + 0.5 * block.change


ALL = [*(kind() for kind in STRATEGIES.values()), Halfway()]
BY_NAME = pytest.mark.parametrize("tested", ALL, ids=lambda tested: tested.name)


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


def run_round(tested, blobs, base, changes, *, content="model", memory=None, round_number=1, accumulator="float64"):
    """One round in which each device changes every number of the base by its ``changes`` (array, weight)."""
    mapped = MappedModel(blobs.path(base))
    model = load(blobs.path(base))
    fold = Fold(mapped.layout, accumulator)
    for change, weight in changes:
        update = dict(model)
        for name in FLOATING:
            delta = change[: model[name].size].reshape(model[name].shape)
            update[name] = (delta if content == "change" else model[name] + delta).astype(np.float32)
        path = blobs.path(blobs.put(save(update)))
        fold.add((MappedModel(path), PLAIN, weight))
    return commit_model(fold, tested, mapped, blobs, content=content, memory=memory, round_number=round_number)


def mean_change(changes, size):
    return sum(change[:size].astype(np.float64) * weight for change, weight in changes) / sum(w for _, w in changes)


def reference(tested, x, changes, memory):
    """One round of the published rule on a flat float64 array; ``memory`` is changed in place."""
    delta = mean_change(changes, len(x))
    if tested.name in {"fedavg", "halfway"}:
        return x + (1.0 if tested.name == "fedavg" else 0.5) * delta
    if tested.name == "fedavgm":
        memory["v"] = 0.9 * memory.get("v", 0) + delta
        return x + memory["v"]
    beta_1 = 0.0 if tested.name == "fedadagrad" else 0.9
    memory["m"] = beta_1 * memory.get("m", 0) + (1 - beta_1) * delta
    v = memory.get("v", np.full(len(x), 1e-6))
    memory["v"] = {
        "fedadagrad": v + delta**2,
        "fedadam": 0.99 * v + 0.01 * delta**2,
        "fedyogi": v - 0.01 * delta**2 * np.sign(v - delta**2),
    }[tested.name]
    return x + 0.1 * memory["m"] / (np.sqrt(memory["v"]) + 1e-3)


@BY_NAME
@pytest.mark.parametrize("content", ["model", "change"])
def test_rounds_follow_the_published_rule(tested, content, blobs):
    digest, memory = blobs.put(save(BASE)), None
    expected = {name: BASE[name].reshape(-1).astype(np.float64) for name in FLOATING}
    expected_memory: dict[str, dict[str, Array]] = {name: {} for name in FLOATING}
    for number, changes in enumerate(ROUNDS, 1):
        digest, memory = run_round(tested, blobs, digest, changes, content=content, memory=memory, round_number=number)
        model = load(blobs.path(digest))
        for name in FLOATING:
            expected[name] = reference(tested, expected[name], changes, expected_memory[name])
            # The model is stored in float32: each round loses up to 6e-8 of it, of about 5, and of the devices' models.
            assert np.abs(model[name].reshape(-1) - expected[name]).max() < number * 2e-5


@BY_NAME
def test_a_model_keeps_its_header_and_its_integers(tested, blobs):
    base = blobs.put(save(BASE, {"owner": "tests"}))
    digest, _ = run_round(tested, blobs, base, ROUNDS[0])
    before, after = MappedModel(blobs.path(base)), MappedModel(blobs.path(digest))
    assert after.layout == before.layout
    assert load(blobs.path(digest))["steps"].tolist() == [3, 4]


@BY_NAME
def test_a_round_that_changes_nothing_leaves_the_model_as_it_is(tested, blobs):
    base = blobs.put(save(BASE))
    digest, _ = run_round(tested, blobs, base, [(np.zeros(ELEMENTS, np.float32), 2.0)])
    assert digest == base


@BY_NAME
def test_a_round_repeated_gives_the_same_digests(tested, blobs):
    base = blobs.put(save(BASE))
    first = run_round(tested, blobs, base, ROUNDS[0])
    assert run_round(tested, blobs, base, ROUNDS[0]) == first


@BY_NAME
@pytest.mark.parametrize("accumulator", ["float32", "float64"])
def test_memory_is_a_model_blob_of_its_own_per_slot(tested, accumulator, blobs):
    base = blobs.put(save(BASE))
    _, memory = run_round(tested, blobs, base, ROUNDS[0], accumulator=accumulator)
    assert memory.keys() == tested.slots().keys()
    for digest in memory.values():
        slot = load(blobs.path(digest))
        assert {name: (array.shape, array.dtype) for name, array in slot.items()} == {
            name: (BASE[name].shape, np.dtype(accumulator)) for name in [*FLOATING, "none"]
        }


WITH_MEMORY = pytest.mark.parametrize("tested", [t for t in ALL if t.slots()], ids=lambda tested: tested.name)


@WITH_MEMORY
def test_another_strategys_or_models_memory_is_refused(tested, blobs):
    base = blobs.put(save(BASE))
    _, memory = run_round(tested, blobs, base, ROUNDS[0], accumulator="float32")
    with pytest.raises(InvalidInput, match=r"not what .* remembers"):
        run_round(tested, blobs, base, ROUNDS[0], memory=memory, accumulator="float64")
    with pytest.raises(InvalidInput, match="which is missing"):
        run_round(tested, blobs, base, ROUNDS[0], memory={})
    with pytest.raises(InvalidInput, match=r"not what .* remembers"):
        run_round(tested, blobs, base, ROUNDS[0], memory=dict.fromkeys(memory, base))


@pytest.mark.parametrize("where", ["model", "memory"])
def test_a_result_that_is_not_finite_is_refused_and_stores_nothing(where, blobs):
    class Diverging(Strategy):
        name = "diverging"

        def slots(self):
            return {"x": 0.0}

        def step(self, block, memory):
            values = block.mean.copy()
            (values if where == "model" else memory["x"])[-1] = np.inf
            return values

    base = blobs.put(save(BASE))
    changes = [(np.ones(ELEMENTS, np.float32), 1.0)]
    run_round(strategy("fedavg"), blobs, base, changes)
    before = set(blobs.list())
    with pytest.raises(InvalidModel, match="not finite"):
        run_round(Diverging(), blobs, base, changes)
    assert set(blobs.list()) == before


def test_the_mean_of_fedavg_is_stored_exactly(blobs):
    base = blobs.put(save({"w": np.array([100.0], np.float32), "b": np.array([0.0], np.float32)}))
    fold = Fold(MappedModel(blobs.path(base)).layout)
    for value in (0.1, 0.1):
        update = save({"w": np.array([value], np.float32), "b": np.array([value], np.float32)})
        fold.add((MappedModel(blobs.path(blobs.put(update))), PLAIN, 1))
    digest, _ = commit_model(fold, strategy("fedavg"), MappedModel(blobs.path(base)), blobs)
    assert load(blobs.path(digest))["w"][0] == np.float32(0.1)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_models_are_rounded_once(dtype, blobs):
    layout = ModelLayout.of([("w", dtype, (2,))])
    values = [np.array([1.0, -3.0]), np.array([1.0 + 2.0**-7, -3.0])]
    base, *updates = (
        blobs.path(blobs.put(assemble(layout, {"w": narrowed(v.astype(np.float32), dtype)})))
        for v in [values[0], *values]
    )
    fold = Fold(layout)
    for update, weight in zip(updates, (1, 3), strict=True):
        fold.add((MappedModel(update), PLAIN, weight))
    digest, _ = commit_model(fold, strategy("fedavg"), MappedModel(base), blobs)
    # The mean is 1 + 0.75·2^-7: exact in F16, nearest to 1 + 2^-7 in BF16.
    stored = load(blobs.path(digest))["w"].astype(np.float64)
    assert stored.tolist() == [1 + (0.75 if dtype == "F16" else 1) * 2.0**-7, -3.0]


def test_fedavgm_tends_to_the_step_that_its_momentum_amplifies(blobs):
    """With a constant change Δ, the velocity is Δ·(1 − β^t)/(1 − β)."""
    digest, memory = blobs.put(save({"w": np.zeros(1, np.float32), "b": np.zeros((), np.float32)})), None
    tested = strategy("fedavgm", {"momentum": 0.5})
    positions = []
    for _ in range(3):
        digest, memory = run_round(
            tested, blobs, digest, [(np.ones(1, np.float32), 1.0)], content="change", memory=memory
        )
        positions.append(float(load(blobs.path(digest))["w"][0]))
    assert positions == [1.0, 2.5, 4.25]  # steps of 1, 1.5, 1.75


@pytest.mark.parametrize(
    ("name", "second_moment"),
    # v before is τ² = 0.25, the change 1. FedYogi: 0.25 − 0.5·1·sign(0.25 − 1).
    [("fedadagrad", 1.25), ("fedadam", 0.5 * 0.25 + 0.5), ("fedyogi", 0.75)],
)
def test_one_adaptive_step_by_hand(name, second_moment, blobs):
    options = {"learning_rate": 2.0, "tau": 0.5, "beta_1": 0.75}
    tested = strategy(name, options if name == "fedadagrad" else {**options, "beta_2": 0.5})
    base = blobs.put(save({"w": np.zeros(1, np.float32), "b": np.zeros((), np.float32)}))
    digest, memory = run_round(tested, blobs, base, [(np.ones(1, np.float32), 1.0)], content="change")
    assert load(blobs.path(memory["m"]))["w"][0] == 0.25
    assert load(blobs.path(memory["v"]))["w"][0] == second_moment
    step = 2.0 * 0.25 / (second_moment**0.5 + 0.5)
    assert load(blobs.path(digest))["w"][0] == np.float32(step)


def test_a_strategy_that_returns_another_shape_is_refused(blobs):
    class Wrong(Strategy):
        name = "wrong"

        def step(self, block, memory):
            return block.mean[:-1]

    with pytest.raises(InvalidModel, match="wrong returned another shape"):
        run_round(Wrong(), blobs, blobs.put(save(BASE)), ROUNDS[0])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavgg", {}, "no such strategy .did you mean fedavg"),
        ("nothing", {}, "no such strategy"),
        ("fedadam", {"learningrate": 1}, "fedadam has no such option .did you mean learning_rate"),
        ("fedavg", {"learning_rate": 0}, "learning_rate: it must be a finite number above 0"),
        ("fedavg", {"learning_rate": float("inf")}, "learning_rate: it must be"),
        ("fedavg", {"learning_rate": "1"}, "learning_rate: it must be"),
        ("fedavg", {"learning_rate": True}, "learning_rate: it must be"),
        ("fedavgm", {"momentum": 1}, "momentum: it must be from 0 to below 1"),
        ("fedadam", {"beta_1": -0.1}, "beta_1: it must be"),
        ("fedyogi", {"beta_2": float("nan")}, "beta_2: it must be"),
        ("fedadagrad", {"tau": 0}, "tau: it must be"),
        ("fedadagrad", {"beta_2": 0.5}, "fedadagrad has no such option"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_with_the_fix(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        strategy(name, options)
