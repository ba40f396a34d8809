"""The contract of ``Strategy``, kept by every strategy that comes with Vennue, and by one of a user's own.

Each runs rounds through the real aggregator and blob store, and is compared with whole-model arithmetic in float64.
"""

import math
from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest

from vennue.core.errors import Conflict, InvalidInput, InvalidModel, InvalidUpdate
from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.codecs import BLOCK_ELEMENTS, CONTENT_KEY, PLAIN
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import Array, MappedModel, assemble, load, narrowed, save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.commit import commit_model
from vennue.updates.fold import Fold, Term
from vennue.updates.plan import RoundPlan
from vennue.updates.strategies import (
    Block,
    FedAvg,
    Robust,
    Share,
    Strategy,
    Update,
    available,
    register,
    registry,
    strategy,
)

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
SIZE = ELEMENTS + 1
ATTEMPT = AttemptId("job.1.1")


def drawn_round(devices):
    """A round's devices: by how much each changes every number, its weight, and its loss before."""
    changes = (GENERATOR.standard_normal((devices, SIZE)) * 0.1).astype(np.float32)
    weights, losses = GENERATOR.integers(1, 9, devices).astype(float), GENERATOR.uniform(0.2, 3, devices)
    return list(zip(changes, weights.tolist(), losses.tolist(), strict=True))


ROUNDS = [drawn_round(7) for _ in range(3)]


class Halfway(Strategy):
    name = "halfway"

    def step(self, block: Block, memory: Mapping[str, Array]) -> Array:
        return block.base + 0.5 * block.change


class Middle(Robust):
    name = "middle"

    def combine(self, changes: Array) -> Array:
        middle: Array = (changes.min(axis=0) + changes.max(axis=0)) / 2
        return middle


ALL = [*(kind() for kind in registry.STRATEGIES.built_in.values()), Halfway(), Middle()]
BY_NAME = pytest.mark.parametrize("tested", ALL, ids=lambda tested: tested.name)


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


@pytest.fixture
def run_round(tmp_path, blobs):
    """One round, through the real aggregator: the next model's digest, and what the strategy remembers."""

    def run(tested, base, devices, *, content="model", memory=None, round_number=1, accumulator="float64"):
        model = load(blobs.path(base))
        aggregator = RoundAggregator(
            ATTEMPT, base, blobs, tmp_path / "spool", plan=RoundPlan(tested, accumulator=accumulator)
        )
        try:
            for number, (change, weight, loss) in enumerate(devices):
                update = dict(model)
                position = 0
                for name in FLOATING:
                    delta = change[position : position + model[name].size].reshape(model[name].shape)
                    position += delta.size
                    update[name] = (delta if content == "change" else model[name] + delta).astype(model[name].dtype)
                metrics = {"loss": loss}
                with aggregator.start_update(AssignmentId(f"{ATTEMPT}.{number}"), weight, metrics=metrics) as sink:
                    sink.write(save(update, {CONTENT_KEY: content}))
                    sink.finish()
            made = aggregator.aggregate(memory=memory, round_number=round_number)
        finally:
            aggregator.close()
        return made.model, made.memory

    return run


def krum(changes, kept):
    """The mean of the ``kept`` updates of the lowest scores, one device being wrong."""
    distances = ((changes[:, None, :] - changes[None, :, :]) ** 2).sum(axis=2)
    nearest = len(changes) - 1 - 2
    scores = [np.sort(np.delete(row, at))[:nearest].sum() for at, row in enumerate(distances)]
    return changes[np.argsort(scores)[:kept]].mean(axis=0)


def q_fedavg(changes, weights, losses):
    """At q = 1 and L = 10, with the paper's signs."""
    gradients = 10 * -changes
    h = (gradients**2).sum(axis=1) + 10 * losses
    return -(weights * losses) @ gradients / (weights * h).sum()


def without_memory(name, changes, weights, losses):
    """By how much a strategy that remembers nothing changes the model."""
    mean = weights @ changes / weights.sum()
    clipped = weights * np.minimum(1, 1 / np.linalg.norm(changes, axis=1))
    return {
        "fedavg": mean,
        "fedprox": mean,
        "fedbuff": mean,
        "halfway": 0.5 * mean,
        "middle": (changes.min(axis=0) + changes.max(axis=0)) / 2,
        "median": np.median(changes, axis=0),
        "trimmed-mean": changes.mean(axis=0),  # a tenth of seven is none
        "krum": krum(changes, 1),
        "multi-krum": krum(changes, len(changes) - 1),
        "norm-clipping": clipped @ changes / weights.sum(),
        "q-fedavg": q_fedavg(changes, weights, losses),
    }.get(name)


def reference(tested, x, devices, memory):
    """One round of the published rule on a flat float64 array; ``memory`` is changed in place."""
    changes = np.array([change for change, _, _ in devices], np.float64)[:, : len(x)]
    weights, losses = (np.array([device[at] for device in devices]) for at in (1, 2))
    change = without_memory(tested.name, changes, weights, losses)
    if change is not None:
        return x + change
    delta = weights @ changes / weights.sum()
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


def scalars(w, b):
    """The smallest model that these rounds can run on."""
    return {"w": np.array([w], np.float32), "b": np.array(b, np.float32)}


def flat(model):
    return np.concatenate([model[name].reshape(-1).astype(np.float64) for name in FLOATING])


@BY_NAME
@pytest.mark.parametrize("content", ["model", "change"])
def test_rounds_follow_the_published_rule(tested, content, blobs, run_round):
    digest, memory = blobs.put(save(BASE)), None
    expected = flat(BASE)
    expected_memory: dict[str, Array] = {}
    for number, devices in enumerate(ROUNDS, 1):
        digest, memory = run_round(tested, digest, devices, content=content, memory=memory, round_number=number)
        expected = reference(tested, expected, devices, expected_memory)
        # The model is stored in float32: each round loses up to 6e-8 of it, of about 5, and of the devices' models.
        assert np.abs(flat(load(blobs.path(digest))) - expected).max() < number * 2e-5


@BY_NAME
def test_a_model_keeps_its_header_and_its_integers(tested, blobs, run_round):
    base = blobs.put(save(BASE, {"owner": "tests"}))
    digest, _ = run_round(tested, base, ROUNDS[0])
    before, after = MappedModel(blobs.path(base)), MappedModel(blobs.path(digest))
    assert after.layout == before.layout
    assert load(blobs.path(digest))["steps"].tolist() == [3, 4]


@BY_NAME
def test_a_round_that_changes_nothing_leaves_the_model_as_it_is(tested, blobs, run_round):
    base = blobs.put(save(BASE))
    digest, _ = run_round(tested, base, [(np.zeros(SIZE, np.float32), 2.0, 1.0)] * 5)
    assert digest == base


@BY_NAME
def test_a_round_repeated_gives_the_same_digests(tested, blobs, run_round):
    base = blobs.put(save(BASE))
    first = run_round(tested, base, ROUNDS[0])
    assert run_round(tested, base, ROUNDS[0]) == first


@BY_NAME
@pytest.mark.parametrize("accumulator", ["float32", "float64"])
def test_memory_is_a_model_blob_of_its_own_per_slot(tested, accumulator, blobs, run_round):
    base = blobs.put(save(BASE))
    _, memory = run_round(tested, base, ROUNDS[0], accumulator=accumulator)
    assert memory.keys() == tested.slots().keys()
    for digest in memory.values():
        slot = load(blobs.path(digest))
        assert {name: (array.shape, array.dtype) for name, array in slot.items()} == {
            name: (BASE[name].shape, np.dtype(accumulator)) for name in [*FLOATING, "none"]
        }


WITH_MEMORY = pytest.mark.parametrize("tested", [t for t in ALL if t.slots()], ids=lambda tested: tested.name)


@WITH_MEMORY
def test_another_strategys_or_models_memory_is_refused(tested, blobs, run_round):
    base = blobs.put(save(BASE))
    _, memory = run_round(tested, base, ROUNDS[0], accumulator="float32")
    with pytest.raises(InvalidInput, match=r"not what .* remembers"):
        run_round(tested, base, ROUNDS[0], memory=memory, accumulator="float64")
    with pytest.raises(InvalidInput, match="which is missing"):
        run_round(tested, base, ROUNDS[0], memory={})
    with pytest.raises(InvalidInput, match=r"not what .* remembers"):
        run_round(tested, base, ROUNDS[0], memory=dict.fromkeys(memory, base))


@pytest.mark.parametrize("where", ["model", "memory"])
def test_a_result_that_is_not_finite_is_refused_and_stores_nothing(where, blobs, run_round):
    class Diverging(Strategy):
        name = "diverging"

        def slots(self):
            return {"x": 0.0}

        def step(self, block, memory):
            values = block.mean.copy()
            (values if where == "model" else memory["x"])[-1] = np.inf
            return values

    base = blobs.put(save(BASE))
    run_round(strategy("fedavg"), base, ROUNDS[0])
    before = set(blobs.list())
    with pytest.raises(InvalidModel, match="not finite"):
        run_round(Diverging(), base, ROUNDS[0])
    assert set(blobs.list()) == before


def test_the_mean_of_fedavg_is_stored_exactly(blobs):
    base = blobs.put(save(scalars(100.0, 0.0)))
    fold = Fold(MappedModel(blobs.path(base)).layout)
    for _ in range(2):
        update = MappedModel(blobs.path(blobs.put(save(scalars(0.1, 0.1)))))
        fold.add(Term(update, PLAIN, 1, 1))
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
        fold.add(Term(MappedModel(update), PLAIN, weight, weight))
    digest, _ = commit_model(fold, strategy("fedavg"), MappedModel(base), blobs)
    # The mean is 1 + 0.75·2^-7: exact in F16, nearest to 1 + 2^-7 in BF16.
    stored = load(blobs.path(digest))["w"].astype(np.float64)
    assert stored.tolist() == [1 + (0.75 if dtype == "F16" else 1) * 2.0**-7, -3.0]


def test_fedavgm_tends_to_the_step_that_its_momentum_amplifies(blobs, run_round):
    """With a constant change Δ, the velocity is Δ·(1 − β^t)/(1 − β)."""
    digest, memory = blobs.put(save(scalars(0.0, 0.0))), None
    tested = strategy("fedavgm", {"momentum": 0.5})
    positions = []
    for _ in range(3):
        digest, memory = run_round(tested, digest, [(np.ones(2, np.float32), 1.0, 0.0)], memory=memory)
        positions.append(float(load(blobs.path(digest))["w"][0]))
    assert positions == [1.0, 2.5, 4.25]  # steps of 1, 1.5, 1.75


@pytest.mark.parametrize(
    ("name", "second_moment"),
    # v before is τ² = 0.25, the change 1. FedYogi: 0.25 − 0.5·1·sign(0.25 − 1).
    [("fedadagrad", 1.25), ("fedadam", 0.5 * 0.25 + 0.5), ("fedyogi", 0.75)],
)
def test_one_adaptive_step_by_hand(name, second_moment, blobs, run_round):
    options = {"learning_rate": 2.0, "tau": 0.5, "beta_1": 0.75}
    tested = strategy(name, options if name == "fedadagrad" else {**options, "beta_2": 0.5})
    base = blobs.put(save(scalars(0.0, 0.0)))
    digest, memory = run_round(tested, base, [(np.ones(2, np.float32), 1.0, 0.0)])
    assert load(blobs.path(memory["m"]))["w"][0] == 0.25
    assert load(blobs.path(memory["v"]))["w"][0] == second_moment
    step = 2.0 * 0.25 / (second_moment**0.5 + 0.5)
    assert load(blobs.path(digest))["w"][0] == np.float32(step)


def moments(name, rounds):
    """The values of m and √v after so many rounds with a change of 2 each, at β1 = β2 = 0.5 and τ = 1."""
    v = {
        "fedadagrad": 1 + 4 * rounds,
        "fedadam": 4 - 3 * 0.5**rounds,
        # Yogi's v moves by half of Δ² = 4 towards Δ², whatever the distance: 1, 3, and then to and fro, 5, 3, …
        "fedyogi": [3, 5, 3][rounds - 1],
    }[name]
    return 2 * (1 - 0.5**rounds), v**0.5


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_steps_under_a_constant_change_have_a_closed_form(name, blobs, run_round):
    """With a constant change Δ: m = Δ·(1 − β1^t); Adagrad's v = τ² + t·Δ²; Adam's v = Δ² + (τ² − Δ²)·β2^t."""
    options = {"learning_rate": 1.0, "tau": 1.0, "beta_1": 0.5}
    tested = strategy(name, options if name == "fedadagrad" else {**options, "beta_2": 0.5})
    digest, memory = blobs.put(save(scalars(0.0, 0.0))), None
    position = 0.0
    for number in (1, 2, 3):
        digest, memory = run_round(
            tested, digest, [(np.full(2, 2, np.float32), 1.0, 0.0)], memory=memory, content="change"
        )
        m, root = moments(name, number)
        position += m / (root + 1)
        assert load(blobs.path(digest))["w"][0] == pytest.approx(position, rel=1e-6)


def test_a_stale_update_counts_less_and_does_not_stretch_the_others():
    """s(τ) = 1/√(1 + τ): an update three models old counts half, and the sum of the weights stays what it was."""
    fresh, stale = (Update(2.0, {}, staleness, lambda: 1.0) for staleness in (0, 3))
    assert [strategy("fedbuff").share(update) for update in (fresh, stale)] == [Share(2.0, 2.0), Share(1.0, 2.0)]
    assert strategy("fedbuff", {"staleness_exponent": 0.0}).share(stale) == Share(2.0, 2.0)


def test_q_fedavg_goes_with_the_device_that_does_worst_as_q_grows(blobs, run_round):
    """For q → ∞ its direction is that of the device of the highest loss alone, as of minimising the largest loss."""
    devices = (1.0, 1, 0.5), (1.0, 1, 0.5), (-1.0, 1, 2.0)
    steps = [
        stepped(run_round, blobs, strategy("q-fedavg", {"q": q, "learning_rate": 1.0}), *devices) for q in (0.0, 8.0)
    ]
    assert steps[0] == pytest.approx(1 / 3, rel=1e-6)
    # Of the worst device alone: −F^q / (q·F^(q−1) + F^q) = −1 / (q/F + 1) = −1/5.
    assert steps[1] == pytest.approx(-1 / 5, rel=1e-3)


class WrongStep(Strategy):
    name = "wrong"

    def step(self, block, memory):
        return block.mean[:-1]


class WrongCombination(Robust):
    name = "wrong"

    def combine(self, changes):
        return changes[:, 0]


@pytest.mark.parametrize("wrong", [WrongStep(), WrongCombination()])
def test_a_strategy_that_returns_another_shape_is_refused(wrong, blobs, run_round):
    with pytest.raises(InvalidModel, match="wrong returned another shape"):
        run_round(wrong, blobs.put(save(BASE)), ROUNDS[0])


@pytest.mark.parametrize("made", [lambda mean: mean + 1j, lambda mean: mean.astype(str)])
def test_a_strategy_that_returns_what_are_no_real_numbers_is_refused(made, blobs, run_round):
    class Wrong(Strategy):
        name = "wrong"

        def step(self, block, memory):
            return made(block.mean)

    with pytest.raises(InvalidModel, match="wrong returned what are no real numbers"):
        run_round(Wrong(), blobs.put(save(BASE)), ROUNDS[0])


def fails(*_: object) -> None:
    raise ValueError("my own fault")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"__init__": fails}, "fails: ValueError in test_strategies.py, line [0-9]+: my own fault"),
        ({"slots": fails}, "fails: ValueError in test_strategies.py, line [0-9]+: my own fault"),
        ({"device_config": fails}, "fails: ValueError in test_strategies.py, line [0-9]+: my own fault"),
        ({"slots": lambda _: {"m": math.nan}}, "no finite number"),
        ({"slots": lambda _: {"m": "0"}}, "no finite number"),
        ({"slots": lambda _: ["m"]}, "fails: AttributeError"),
    ],
)
def test_a_strategy_that_fails_before_any_round_is_refused_with_its_job(wrong, message, monkeypatch):
    monkeypatch.setitem(registry.STRATEGIES.registered, "wrong", type("Wrong", (FedAvg,), {"name": "wrong", **wrong}))
    with pytest.raises(InvalidInput, match=message) as refusal:
        strategy("wrong")
    assert refusal.value.field == "strategy"


@pytest.mark.parametrize("share", [Share(-1.0, 1.0), Share(1.0, 0.0), Share(np.nan, 1.0), Share(1e10, 1.0)])
def test_a_share_that_makes_no_sense_is_refused(share, blobs, run_round):
    class Wrong(Strategy):
        name = "wrong"

        def share(self, update):
            return share

        def step(self, block, memory):
            return block.mean

    with pytest.raises(InvalidModel, match="a share that makes no sense"):
        run_round(Wrong(), blobs.put(save(BASE)), ROUNDS[0])


def stepped(run_round, blobs, tested, *devices, content="change"):
    """Where a round from w = 0 leads, when devices change w by so much, with a weight and a loss."""
    full = [(np.array([change, 0], np.float32), weight, loss) for change, weight, loss in devices]
    digest, _ = run_round(tested, blobs.put(save(scalars(0.0, 0.0))), full, content=content)
    return float(load(blobs.path(digest))["w"][0])


def test_the_median_ignores_fewer_than_half_of_the_devices(blobs, run_round):
    honest, wrong = [(1.0, 1, 1), (2.0, 1, 1), (3.0, 1, 1)], [(1e15, 1e9, 1), (-1e15, 1e9, 1)]
    assert stepped(run_round, blobs, strategy("median"), *honest, *wrong) == 2.0
    assert stepped(run_round, blobs, strategy("median"), *honest, (2.5, 1, 1)) == 2.25


def test_the_trimmed_mean_leaves_out_the_extremes(blobs, run_round):
    devices = [(float(number), 1, 1) for number in (5, 3, 9, 1, 7, 2, 1e9, 4, -1e9, 6)]
    # A fifth of ten at each end: 1, -10^9, 9 and 10^9; the rest is 2 to 7.
    assert stepped(run_round, blobs, strategy("trimmed-mean", {"trim": 0.2}), *devices) == 4.5


@pytest.mark.parametrize(("trim", "least"), [(0, 1), (0.1, 10), (0.2, 5), (0.3, 4), (0.49, 3), (5e-324, 10**15)])
def test_a_trimmed_mean_needs_as_many_updates_as_leave_one_out_at_each_end(trim, least):
    assert strategy("trimmed-mean", {"trim": trim}).least_updates == least


def test_krum_takes_the_update_with_the_nearest_company(blobs, run_round):
    # n − f − 2 = 2 nearest of five: scores 0: 1 + 6.25; 1: 1 + 2.25; 2.5: 2.25 + 2.25; 4: 2.25 + 9; 1000: huge.
    devices = [(4.0, 1, 1), (1000.0, 1, 1), (0.0, 1, 1), (2.5, 1, 1), (1.0, 1, 1)]
    assert stepped(run_round, blobs, strategy("krum", {"wrong": 1}), *devices) == 1.0
    assert stepped(run_round, blobs, strategy("multi-krum", {"wrong": 1, "keep": 2}), *devices) == 1.75


def test_krum_with_too_few_updates_is_a_conflict(blobs, run_round):
    with pytest.raises(Conflict, match="krum with 1 wrong devices needs 5 updates"):
        stepped(run_round, blobs, strategy("krum"), *[(1.0, 1, 1)] * 4)


@pytest.mark.parametrize("content", ["change", "model"])
def test_a_long_change_is_clipped_to_the_norm(content, blobs, run_round):
    tested = strategy("norm-clipping", {"norm": 2.0})
    assert stepped(run_round, blobs, tested, (1e6, 1, 1), (1.0, 3, 1), content=content) == (2 + 3 * 1) / 4


def test_q_fedavg_by_hand(blobs, run_round):
    # L = 1: Δ = F·Δw; h = ‖Δw‖² + F. (4·1 − 1·1) / ((1 + 4) + (1 + 1)), with the paper's signs.
    tested = strategy("q-fedavg", {"q": 1.0, "learning_rate": 1.0})
    assert stepped(run_round, blobs, tested, (1.0, 1, 4.0), (-1.0, 1, 1.0)) == pytest.approx(3 / 7, rel=1e-6)


def test_q_fedavg_without_fairness_is_the_mean(blobs, run_round):
    tested = strategy("q-fedavg", {"q": 0.0})
    assert stepped(run_round, blobs, tested, (1.0, 1, 4.0), (-2.0, 3, 0.0)) == pytest.approx(-5 / 4, rel=1e-6)


@pytest.mark.parametrize("metrics", [{}, {"loss": -1.0}, {"loss": 1e200}])
def test_q_fedavg_refuses_an_update_without_a_usable_loss(metrics):
    with pytest.raises(InvalidUpdate, match=r"metrics\.loss"):
        strategy("q-fedavg", {"q": 2.0}).check(1.0, metrics)


def test_fedprox_tells_the_devices_mu():
    assert strategy("fedprox", {"mu": 0.5}).device_config() == {"proximal_mu": 0.5}


def test_a_registered_strategy_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(registry.STRATEGIES, "registered", {})
    assert isinstance(strategy(register(Halfway).name), Halfway)
    assert "halfway" in available()
    with pytest.raises(Conflict, match=r"fedavg.* already"):
        register(type("Mine", (Halfway,), {"name": "fedavg"}))
    with pytest.raises(InvalidInput, match="not a strategy class"):
        register(cast(type[Strategy], dict))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavgg", {}, "there is no strategy 'fedavgg' .did you mean 'fedavg'"),
        ("nothing", {}, "there is no strategy"),
        ("fedadam", {"learningrate": 1}, "fedadam has no such option .did you mean 'learning_rate'"),
        ("fedavg", {"learning_rate": 0}, "learning_rate: it must be a finite number above 0"),
        ("fedavg", {"learning_rate": float("inf")}, "learning_rate: it must be"),
        ("fedavg", {"learning_rate": "1"}, "learning_rate: it must be"),
        ("fedavg", {"learning_rate": True}, "learning_rate: it must be"),
        ("fedavgm", {"momentum": 1}, "momentum: it must be from 0 to below 1"),
        ("fedadam", {"beta_1": -0.1}, "beta_1: it must be"),
        ("fedyogi", {"beta_2": float("nan")}, "beta_2: it must be"),
        ("fedadagrad", {"tau": 0}, "tau: it must be"),
        ("fedadagrad", {"beta_2": 0.5}, "fedadagrad has no such option"),
        ("fedprox", {"mu": -1}, "mu: it must be a finite number from 0"),
        ("fedbuff", {"staleness_exponent": -1}, "staleness_exponent: it must be"),
        ("q-fedavg", {"q": float("inf")}, "q: it must be"),
        ("norm-clipping", {"norm": 0}, "norm: it must be"),
        ("median", {"trim": 0.1}, "median has no such option"),
        ("trimmed-mean", {"trim": 0.5}, "trim: it must be from 0 to below 0.5"),
        ("krum", {"wrong": 1.5}, "wrong: it must be a whole number of at least 0"),
        ("multi-krum", {"keep": 0}, "keep: it must be a whole number of at least 1"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_with_the_fix(name, options, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        strategy(name, options)
    assert refusal.value.fix
