"""Aggregators as a tree: sums out of one and into another; and asynchronous ones, aggregate after aggregate."""

import errno
import math
from pathlib import Path

import numpy as np
import pytest

from vennue.core.errors import Conflict, InvalidUpdate, NotFound, StorageError, TooLate
from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.codecs import CONTENT_KEY
from vennue.tensors.model import Array, load, save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.fold import Totals
from vennue.updates.plan import RoundPlan
from vennue.updates.spool import Spool
from vennue.updates.strategies import FedBuff, Median, NormClipping
from vennue.updates.sums import MetricSums, Partial, Receipt

ATTEMPT = AttemptId("job.1.1")
CHANGE = {CONTENT_KEY: "change"}
SIZE = 70_000  # more than a block


def a(number: int) -> AssignmentId:
    return AssignmentId(f"{ATTEMPT}.{number}")


def model(values) -> dict[str, Array]:
    return {"w": np.broadcast_to(np.asarray(values, np.float32), SIZE), "steps": np.array([7], np.int64)}


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


@pytest.fixture
def make(tmp_path, blobs):
    base = blobs.put(save(model(1.0)))

    def aggregator(name="root", **options) -> RoundAggregator:
        return RoundAggregator(ATTEMPT, base, blobs, tmp_path / name, **options)

    return aggregator


def send(aggregator, number, values, weight=1.0, metadata=None, **metrics):
    with aggregator.start_update(a(number), weight, metrics=metrics, token=f"t{number}") as sink:
        sink.write(save(model(values), metadata))
        return sink.finish()


def summed(aggregator, id, *numbers) -> tuple[Partial, bytes]:
    data = bytearray()
    partial = aggregator.partial(id, [a(number) for number in numbers], data.extend)
    return partial, bytes(data)


def take(aggregator, partial: Partial, data: bytes) -> None:
    with aggregator.start_partial(partial) as sink:
        for start in range(0, len(data), 100_000):
            sink.write(data[start : start + 100_000])
        assert sink.finish()
    aggregator.take(partial.id)


def numbers(blobs, aggregate) -> Array:
    return load(blobs.path(aggregate.model))["w"]


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# -- out and in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulator", ["float32", "float64"])
def test_a_round_summed_in_two_leaves_is_the_round_summed_in_one(make, blobs, accumulator):
    generator = np.random.default_rng(8)
    updates = {number: generator.standard_normal(SIZE).astype(np.float32) for number in range(1, 8)}
    plan = RoundPlan(accumulator=accumulator)
    alone, root = make("alone", plan=plan), make(plan=plan)
    leaves = [make(f"leaf{n}", plan=plan) for n in range(2)]
    for number, values in updates.items():
        about = {"weight": float(number), "loss": number / 10}
        send(alone, number, values, **about)
        send(root if number == 7 else leaves[number % 2], number, values, **about)
    for number, leaf in enumerate(leaves):
        take(root, *summed(leaf, f"p{number}", *(n for n in range(1, 7) if n % 2 == number)))
    here, there = alone.aggregate(), root.aggregate()
    assert np.abs(numbers(blobs, there) - numbers(blobs, here)).max() <= 1e-6
    exact = math.fsum(n * float(updates[n][5]) for n in updates) / 28
    assert numbers(blobs, there)[5] == pytest.approx(exact, abs=1e-6)
    assert (there.assignments, there.weight) == (here.assignments, here.weight)
    assert there.metrics == pytest.approx(here.metrics)


def test_a_sum_says_what_is_in_it(make):
    leaf = make("leaf")
    send(leaf, 1, 2.0, weight=3.0, loss=0.5)
    send(leaf, 2, 1.0, metadata=CHANGE, loss=1.5)
    partial, data = summed(leaf, "p", 1, 2)
    assert partial.totals == Totals(weight=4.0, models=3.0, updates=2)
    assert partial.metrics == MetricSums({"loss": 3.0}, {"loss": 4.0})
    assert {receipt.token for receipt in partial.receipts.values()} == {"t1", "t2"}
    assert (load(data)["w"] == 3 * 2 + 1).all()
    assert list(load(data)) == ["w"]


def test_models_and_changes_meet_across_leaves(make, blobs):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 4.0)  # a change of 3 to the base, 1
    send(leaf, 2, 5.0, metadata=CHANGE)
    send(root, 3, 1.0, metadata=CHANGE)
    take(root, *summed(leaf, "p", 1, 2))
    assert (numbers(blobs, root.aggregate()) == 1 + (3 + 5 + 1) / 3).all()


def test_a_strategy_s_shares_are_decided_where_the_update_is(make, blobs):
    plan = RoundPlan(NormClipping(norm=math.sqrt(SIZE)))
    leaf, root = make("leaf", plan=plan), make(plan=plan)
    send(leaf, 1, 10.0)  # a change of 9, clipped to 1
    send(root, 2, 1.5)
    take(root, *summed(leaf, "p", 1))
    assert numbers(blobs, root.aggregate())[0] == pytest.approx(1 + (1 + 0.5) / 2)


def test_a_sum_is_of_exactly_the_updates_named(make):
    leaf = make("leaf")
    for number in (1, 2, 3):
        send(leaf, number, float(number))
    assert (load(summed(leaf, "p", 1, 3)[1])["w"] == 4).all()
    assert (load(summed(leaf, "q", 2)[1])["w"] == 2).all()


def test_released_updates_leave_the_disk_and_may_come_again(make, tmp_path):
    leaf = make("leaf")
    send(leaf, 1, 1.0)
    send(leaf, 2, 2.0)
    summed(leaf, "p", 1)
    leaf.release([a(1)])
    assert files(tmp_path / "leaf") == ["job.1.1.2.update"]
    assert leaf.receipt(a(1)) is None
    assert not send(leaf, 1, 5.0).duplicate


def test_a_sum_waits_until_it_is_taken_and_then_stands_for_its_assignments(make, blobs):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    partial, data = summed(leaf, "p", 1)
    with root.start_partial(partial) as sink:
        sink.write(data)
        assert sink.finish()
    assert root.receipt(a(1)) is None
    assert [waiting.id for waiting in root.waiting] == ["p"]
    root.take("p")
    root.take("p")
    receipt = root.receipt(a(1))
    assert receipt is not None
    assert (receipt.duplicate, receipt.token) == (True, "t1")
    assert root.start_update(a(1)).finish().duplicate
    assert (numbers(blobs, root.aggregate()) == 3.0).all()


def test_a_taken_sum_replaces_an_update_that_was_never_counted(make, blobs, tmp_path):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    send(root, 1, 9.0)
    take(root, *summed(leaf, "p", 1))
    assert files(tmp_path / "root") == ["partial.p.taken"]
    assert (numbers(blobs, root.aggregate()) == 3.0).all()


def test_a_sum_that_was_not_taken_can_be_dropped(make, tmp_path):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    partial, data = summed(leaf, "p", 1)
    with root.start_partial(partial) as sink:
        sink.write(data)
        sink.finish()
    root.drop_partial("p")
    root.drop_partial("p")
    assert files(tmp_path / "root") == []
    with pytest.raises(NotFound):
        root.take("p")


def test_an_update_in_a_sum_cannot_be_taken_out_again(make):
    leaf, root = make("leaf"), make()
    for number in (1, 2):
        send(leaf, number, 3.0)
    take(root, *summed(leaf, "p", 1, 2))
    with pytest.raises(Conflict):
        root.drop(a(1))
    with pytest.raises(Conflict):
        root.aggregate(assignments=[a(1)])


def test_a_leaf_of_leaves_passes_sums_on(make, blobs):
    lower, upper, root = make("lower"), make("upper"), make()
    send(lower, 1, 3.0, loss=1.0)
    send(lower, 2, 5.0, loss=2.0)
    send(upper, 3, 7.0, loss=6.0)
    take(upper, *summed(lower, "p", 1, 2))
    take(root, *summed(upper, "q", 1, 2, 3))
    aggregate = root.aggregate()
    assert (numbers(blobs, aggregate) == 5.0).all()
    assert (aggregate.weight, aggregate.metrics) == (3.0, {"loss": 3.0})


# -- crashes ---------------------------------------------------------------------------------------------------------


def test_taken_sums_and_waiting_ones_are_there_after_a_crash(make, blobs):
    leaf, root = make("leaf"), make()
    for number in (1, 2, 3):
        send(leaf, number, float(number))
    take(root, *summed(leaf, "p", 1, 2))
    partial, data = summed(leaf, "q", 3)
    with root.start_partial(partial) as sink:
        sink.write(data)
        sink.finish()
    again = make()
    assert [waiting.id for waiting in again.waiting] == ["q"]
    assert again.finished.keys() == {a(1), a(2)}
    again.take("p")
    again.drop_partial("q")
    assert (numbers(blobs, again.aggregate()) == 1.5).all()


def test_a_sum_that_cannot_be_marked_as_taken_does_not_count_until_it_can(make, blobs, monkeypatch):
    """The mark is a rename, which needs no space; but a file system may have turned read-only."""
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    partial, data = summed(leaf, "p", 1)
    with root.start_partial(partial) as sink:
        sink.write(data)
        sink.finish()

    def read_only(*_):
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", read_only)
        with pytest.raises(StorageError, match="as taken"):
            root.take("p")
    assert root.receipt(a(1)) is None
    assert [waiting.id for waiting in make().waiting] == ["p"]
    root.take("p")
    assert make().finished.keys() == {a(1)}


def test_a_crash_between_the_mark_of_a_sum_and_the_removal_of_what_it_replaces_counts_the_sum(make, blobs, monkeypatch):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    send(leaf, 2, 5.0)
    send(root, 1, 9.0)
    partial, data = summed(leaf, "p", 1, 2)
    with root.start_partial(partial) as sink:
        sink.write(data)
        sink.finish()

    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "remove", crash)
        with pytest.raises(Crash):
            root.take("p")
    again = make()
    assert again.finished.keys() == {a(1), a(2)}
    assert (numbers(blobs, again.aggregate()) == 4.0).all()


def test_a_sum_takes_no_report_out_of_another_sum(make):
    leaf, other, root = make("leaf"), make("other"), make()
    for at, numbers_of in ((leaf, (1, 2)), (other, (2, 3))):
        for number in numbers_of:
            send(at, number, 3.0)
    take(root, *summed(leaf, "p", 1, 2))
    with pytest.raises(Conflict, match="part of another sum"):
        take(root, *summed(other, "q", 2, 3))
    assert root.finished.keys() == {a(1), a(2)}


def test_sums_give_way_to_the_stored_sum_and_survive_with_it(make, blobs, tmp_path):
    root = make(spool_bytes=0)  # eight models at least
    for number in range(1, 13):
        leaf = make(f"leaf{number}")
        send(leaf, number, float(number))
        take(root, *summed(leaf, f"p{number}", number))
        root.fold(a(number))
    assert sum(name.startswith("partial") for name in files(tmp_path / "root")) < 12
    for later in (root, make(spool_bytes=0)):
        for waiting in later.waiting:
            later.take(waiting.id)
        aggregate = later.aggregate()
        assert (aggregate.weight, numbers(blobs, aggregate)[0]) == (12.0, 6.5)


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_sum_of_another_model_is_refused(make):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    partial, _ = summed(leaf, "p", 1)
    with (
        pytest.raises(InvalidUpdate, match="not a sum of updates of the round's model"),
        root.start_partial(partial) as sink,
    ):
        sink.write(save({"w": np.zeros(3, np.float32)}, {"vennue.sums": "1"}))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e37])
def test_numbers_that_no_updates_could_sum_up_to_are_refused(make, value):
    leaf, root = make("leaf"), make()
    send(leaf, 1, 3.0)
    partial, data = summed(leaf, "p", 1)
    broken = bytearray(data)
    broken[-4:] = np.array([value], np.float32).tobytes()
    sink = root.start_partial(partial)
    sink.write(broken)
    with pytest.raises(InvalidUpdate, match="w: "):
        sink.finish()
    assert (root.refused_updates, root.refused_bytes) == (1, len(data))


def test_a_closed_attempt_and_one_that_needs_each_update_take_no_sums(make):
    leaf = make("leaf")
    send(leaf, 1, 3.0)
    partial, _ = summed(leaf, "p", 1)
    closed = make()
    closed.close()
    with pytest.raises(TooLate):
        closed.start_partial(partial)
    with pytest.raises(Conflict, match="by itself"):
        make("robust", plan=RoundPlan(Median())).start_partial(partial)


RECEIPT = Receipt(a(1), 10, 1.0, None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": "a/b"}, "id"),
        ({"id": ""}, "id"),
        ({"receipts": {}}, "reports"),
        ({"totals": Totals(1.0, 1.0, 2)}, "reports"),
        ({"totals": Totals(0.0, 0.0, 1)}, "weight"),
        ({"totals": Totals(math.nan, 1.0, 1)}, "weight"),
        ({"totals": Totals(1.0, 1e12, 1)}, "weight"),
        ({"metrics": MetricSums({"x": 1.0}, {})}, "metrics"),
        ({"metrics": MetricSums({"x": math.inf}, {"x": 1.0})}, "metrics.x"),
        ({"metrics": MetricSums({"x": 1.0}, {"x": 0.0})}, "metrics.x"),
        ({"metrics": MetricSums({"x": 1e110}, {"x": 1.0})}, "metrics.x"),
        ({"metrics": MetricSums({"x": 1.0}, {"x": 1e10})}, "metrics.x"),
        ({"receipts": {a(1): Receipt(a(1), 10, -1.0, None)}}, "reports"),
        ({"receipts": {a(1): Receipt(a(1), 10, 1e308, None)}}, "reports"),
        ({"receipts": {a(1): Receipt(a(1), -10, 1.0, None)}}, "reports"),
    ],
)
def test_what_is_said_of_a_sum_must_make_sense(fields, field):
    sound = {"id": "p", "totals": Totals(1.0, 1.0, 1), "metrics": MetricSums(), "receipts": {a(1): RECEIPT}}
    with pytest.raises(InvalidUpdate) as refusal:
        Partial(**{**sound, **fields})
    assert refusal.value.field == field


def test_a_metric_that_has_overflowed_has_no_mean():
    metrics = MetricSums()
    metrics.add({"x": 1e308, "y": 2.0}, 1e9)
    assert metrics.means() == {"y": 2.0}


def test_metrics_beyond_a_thousand_names_are_left_out_and_the_others_counted():
    metrics = MetricSums()
    for device in range(50):
        metrics.add({"loss": 1.0, **{f"m{device}-{n}": 1.0 for n in range(63)}}, 1.0)
    assert len(metrics.means()) == 1024
    assert metrics.weights["loss"] == 50


def test_a_sum_of_another_accumulator_is_refused_as_the_stored_one(make):
    aggregator = make(spool_bytes=0)
    for number in range(1, 11):
        send(aggregator, number, 1.0)
        aggregator.fold(a(number))
    with pytest.raises(StorageError, match="not of this model and accumulator"):
        make(plan=RoundPlan(accumulator="float64"))


# -- asynchronous ----------------------------------------------------------------------------------------------------


def test_an_asynchronous_aggregator_goes_on_from_the_new_model_without_the_updates_in_it(make, blobs, tmp_path):
    plan = RoundPlan(FedBuff(), weighting="uniform", asynchronous=True)
    aggregator = make(plan=plan)
    for number in (1, 2, 3):
        send(aggregator, number, float(number), metadata=CHANGE, loss=float(number))
    first = aggregator.aggregate(assignments=[a(1), a(2)])
    assert (numbers(blobs, first)[0], first.metrics) == (2.5, {"loss": 1.5})
    assert len(files(tmp_path / "root")) == 3  # until the commit is on record, a crash needs them
    aggregator.go_on(first.model, first.assignments)
    assert files(tmp_path / "root") == ["job.1.1.3.update"]
    send(aggregator, 4, 8.0, metadata=CHANGE)
    aggregator.fold(a(3), a(4), staleness={a(3): 3, a(4): 0})
    second = aggregator.aggregate(assignments=[a(3), a(4)], round_number=2)
    aggregator.go_on(second.model, second.assignments)
    assert numbers(blobs, second)[0] == 2.5 + (3 * 0.5 + 8) / 2  # s(3) = 1/√4
    assert files(tmp_path / "root") == []


def test_what_was_folded_for_the_next_aggregate_is_not_in_this_one(make, blobs):
    aggregator = make(plan=RoundPlan(asynchronous=True))
    for number in (1, 2):
        send(aggregator, number, float(number), metadata=CHANGE)
        aggregator.fold(a(number))
    first = aggregator.aggregate(assignments=[a(1)])
    assert numbers(blobs, first)[0] == 2.0
    aggregator.go_on(first.model, first.assignments)
    assert numbers(blobs, aggregator.aggregate(assignments=[a(2)]))[0] == 4.0


def test_an_asynchronous_aggregator_takes_no_models_and_says_what_to_send(make):
    with pytest.raises(InvalidUpdate, match="asynchronous") as refusal:
        send(make(plan=RoundPlan(asynchronous=True)), 1, 1.0)
    assert refusal.value.fix is not None
    assert "vennue.content = change" in refusal.value.fix
