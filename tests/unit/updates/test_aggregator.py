"""The aggregator of one attempt: exactly once, nothing half applied, refusals that leave no trace, crashes survived."""

import errno
import hashlib
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from vennue.core.errors import (
    Conflict,
    InvalidInput,
    InvalidModel,
    InvalidUpdate,
    NotFound,
    StorageError,
    TooLarge,
    TooLate,
)
from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.tensors.codecs import CODEC_KEY, CODECS, CONTENT_KEY, Cast
from vennue.tensors.model import Array, layout_of, load, save
from vennue.updates import checks
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.fold import Fold
from vennue.updates.plan import RoundPlan
from vennue.updates.spool import Spool
from vennue.updates.strategies import strategy
from vennue.updates.sums import Receipt

ATTEMPT = AttemptId("job.1.1")
CHANGE = {CONTENT_KEY: "change"}


def model(w, b=0.0, steps=7) -> dict[str, Array]:
    return {"w": np.array(w, np.float32), "b": np.array(b, np.float32), "steps": np.array(steps, np.int64)}


BASE = model([[0, 0], [0, 0]])
UPDATE = save(model([[1, 2], [3, 4]], 5, 99))


def a(number: int) -> AssignmentId:
    return AssignmentId(f"{ATTEMPT}.{number}")


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


@pytest.fixture
def make(tmp_path, blobs):
    base = blobs.put(save(BASE))

    def aggregator(**options) -> RoundAggregator:
        return RoundAggregator(ATTEMPT, base, blobs, tmp_path / "spool", **options)

    return aggregator


@pytest.fixture
def aggregator(make):
    return make()


def send(aggregator: RoundAggregator, number, body=UPDATE, weight=1.0, chunk_bytes=10_000, **announced) -> Receipt:
    with aggregator.start_update(a(number), weight, **announced) as sink:
        for start in range(0, len(body), chunk_bytes):
            sink.write(memoryview(body)[start : start + chunk_bytes])
        return sink.finish()


def result(blobs, aggregate):
    loaded = load(blobs.path(aggregate.model))
    return loaded["w"].tolist(), float(loaded["b"]), int(loaded["steps"])


def spooled_files(tmp_path):
    return [path.name for path in (tmp_path / "spool" / ATTEMPT).iterdir()]


# -- what goes right -------------------------------------------------------------------------------------------------


def test_updates_become_their_weighted_mean(aggregator, blobs):
    send(aggregator, 1, save(model([[1, 2], [3, 4]], 5)), weight=3)
    send(aggregator, 2, save(model([[5, -2], [-1, 0]], 1)), weight=1)
    aggregate = aggregator.aggregate()
    assert result(blobs, aggregate) == ([[2, 1], [2, 3]], 4.0, 7)
    assert aggregate.weight == 4
    assert aggregate.assignments == {a(1), a(2)}
    assert aggregate.memory == {}


def test_integer_tensors_come_from_the_base(aggregator, blobs):
    send(aggregator, 1, save(model([[1, 1], [1, 1]], steps=1000)))
    assert result(blobs, aggregator.aggregate())[2] == 7


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 64, 1000])
def test_chunks_may_be_of_any_size(aggregator, blobs, chunk_bytes):
    send(aggregator, 1, chunk_bytes=chunk_bytes)
    assert result(blobs, aggregator.aggregate()) == ([[1, 2], [3, 4]], 5.0, 7)


def test_a_receipt_says_what_was_stored(make):
    aggregator = make(with_sha256=True)
    receipt = send(aggregator, 1, weight=2.5)
    assert receipt.assignment == a(1)
    assert receipt.body_bytes == len(UPDATE)
    assert receipt.weight == 2.5
    assert receipt.sha256 == hashlib.sha256(UPDATE).hexdigest()
    assert not receipt.duplicate


def test_the_digest_is_computed_where_one_is_announced(aggregator):
    assert send(aggregator, 1).sha256 is None
    announced = Digest(hashlib.sha256(UPDATE).hexdigest())
    assert send(aggregator, 2, sha256=announced).sha256 == announced


def test_updates_count_alike_when_weighting_is_uniform(make, blobs):
    aggregator = make(plan=RoundPlan(weighting="uniform"))
    send(aggregator, 1, save(model([[1, 1], [1, 1]])), weight=1000, metrics={"loss": 1})
    send(aggregator, 2, save(model([[3, 5], [7, 9]])), weight=1, metrics={"loss": 2})
    aggregate = aggregator.aggregate()
    assert result(blobs, aggregate)[0] == [[2, 3], [4, 5]]
    assert aggregate.metrics == {"loss": 1.5}


def test_changes_are_added_to_the_base(tmp_path, blobs):
    base = blobs.put(save(model([[10, 10], [10, 10]], 1)))
    aggregator = RoundAggregator(ATTEMPT, base, blobs, tmp_path / "spool")
    send(aggregator, 1, save(model([[1, 2], [3, 4]], -1), CHANGE))
    assert result(blobs, aggregator.aggregate()) == ([[11, 12], [13, 14]], 0.0, 7)


def test_metrics_are_averaged_with_the_weights_of_the_updates_that_have_them(aggregator):
    send(aggregator, 1, weight=3, metrics={"loss": 1.0, "accuracy": 0.5})
    send(aggregator, 2, weight=1, metrics={"loss": 5.0})
    assert aggregator.aggregate().metrics == {"loss": 2.0, "accuracy": 0.5}


def test_the_largest_metrics_with_the_largest_weights_have_a_mean(aggregator):
    for device in (1, 2):
        send(aggregator, device, weight=1e9, metrics={"loss": 1e100})
    assert aggregator.aggregate().metrics == {"loss": pytest.approx(1e100)}


def test_a_strategy_has_its_memory_from_round_to_round(tmp_path, blobs):
    digest, memory = blobs.put(save(BASE)), None
    weights = []
    for number in (1, 2):
        attempt = AttemptId(f"job.{number}.1")
        momentum = strategy("fedavgm", {"momentum": 0.5})
        aggregator = RoundAggregator(attempt, digest, blobs, tmp_path / "spool", plan=RoundPlan(momentum))
        with aggregator.start_update(AssignmentId(f"{attempt}.1")) as sink:
            sink.write(save(model([[1, 0], [0, 0]]), CHANGE))
            sink.finish()
        aggregate = aggregator.aggregate(memory=memory, round_number=number)
        digest, memory = aggregate.model, aggregate.memory
        weights.append(float(load(blobs.path(digest))["w"][0, 0]))
    assert weights == [1.0, 2.5]  # steps of 1, then 1.5


@pytest.mark.parametrize("codec", ["float16", "bfloat16", "float32", "int8"])
def test_updates_may_come_in_different_codecs(aggregator, blobs, codec):
    send(aggregator, 1, CODECS[codec].encode(model([[127, 64], [1, -127]], 2)))
    send(aggregator, 2, save(model([[127, 64], [1, -127]], 2)))
    assert result(blobs, aggregator.aggregate())[:2] == ([[127, 64], [1, -127]], 2.0)


def test_sparse_changes_are_aggregated(aggregator, blobs):
    send(aggregator, 1, CODECS["top-k"].encode(model([[1, 8], [2, 3]], 4), metadata=CHANGE))
    assert result(blobs, aggregator.aggregate())[:2] == ([[0, 8], [0, 0]], 4.0)


# -- exactly once ----------------------------------------------------------------------------------------------------


def test_an_upload_repeated_gets_the_same_answer_and_counts_once(make, blobs):
    aggregator = make(with_sha256=True)
    first = send(aggregator, 1, weight=2)
    again = send(aggregator, 1, save(model([[9, 9], [9, 9]])), weight=50)
    assert again.duplicate
    assert (again.sha256, again.weight) == (first.sha256, 2)
    aggregate = aggregator.aggregate()
    assert aggregate.weight == 2
    assert result(blobs, aggregate)[0] == [[1, 2], [3, 4]]


def test_a_repeat_is_known_before_its_body(make):
    aggregator = make(with_sha256=True)
    first = send(aggregator, 1)
    sink = aggregator.start_update(a(1))
    assert sink.duplicate is not None
    assert sink.duplicate.sha256 == first.sha256
    sink.write(b"what follows is not even looked at")
    assert sink.finish().duplicate
    assert aggregator.receipt(a(1)) == sink.duplicate
    assert aggregator.receipt(a(2)) is None


def test_two_uploads_for_one_assignment_at_once_count_once(aggregator):
    first, second = aggregator.start_update(a(1), 3), aggregator.start_update(a(1), 4)
    first.write(UPDATE)
    second.write(save(model([[9, 9], [9, 9]])))
    assert not second.finish().duplicate
    assert first.finish().duplicate
    assert aggregator.aggregate().weight == 4


def test_folding_twice_counts_once(aggregator):
    send(aggregator, 1)
    aggregator.fold(a(1))
    aggregator.fold(a(1))
    assert aggregator.aggregate().weight == 1


def test_only_the_counted_assignments_are_aggregated(aggregator, blobs):
    for number in (1, 2, 3):
        send(aggregator, number, save(model([[number, 0], [0, 0]])), metrics={"n": number})
        aggregator.fold(a(number))
    aggregate = aggregator.aggregate(assignments=[a(1), a(3)])
    assert result(blobs, aggregate)[0] == [[2, 0], [0, 0]]
    assert aggregate.weight == 2
    assert aggregate.metrics == {"n": 2.0}


def test_a_dropped_update_does_not_count_even_if_it_was_folded(aggregator, tmp_path):
    send(aggregator, 1, weight=1)
    send(aggregator, 2, weight=10)
    aggregator.fold(a(2))
    aggregator.drop(a(2))
    aggregator.drop(a(2))
    assert aggregator.finished.keys() == {a(1)}
    assert spooled_files(tmp_path) == ["job.1.1.1.update"]
    assert aggregator.aggregate().weight == 1


def test_a_dropped_update_may_come_again_with_other_numbers(aggregator, blobs):
    send(aggregator, 1, save(model([[9, 9], [9, 9]])))
    aggregator.fold(a(1))
    aggregator.drop(a(1))
    send(aggregator, 1, UPDATE)
    aggregator.fold(a(1))
    assert result(blobs, aggregator.aggregate())[0] == [[1, 2], [3, 4]]


def test_a_counted_assignment_without_an_update_is_not_found(aggregator):
    send(aggregator, 1)
    with pytest.raises(NotFound):
        aggregator.aggregate(assignments=[a(1), a(2)])
    with pytest.raises(NotFound):
        aggregator.fold(a(2))


def test_nothing_to_aggregate_is_a_conflict(aggregator):
    with pytest.raises(Conflict, match="no update to aggregate"):
        aggregator.aggregate()


def test_an_update_of_another_attempt_is_a_conflict(aggregator):
    with pytest.raises(Conflict, match="of another attempt"):
        aggregator.start_update(AssignmentId("job.1.2.1"))


def test_after_the_aggregate_no_update_is_taken_but_repeats_are_answered(aggregator):
    send(aggregator, 1)
    late = aggregator.start_update(a(2))
    late.write(UPDATE)
    aggregate = aggregator.aggregate()
    with pytest.raises(TooLate):
        aggregator.start_update(a(3))
    with pytest.raises(TooLate):
        late.finish()
    assert send(aggregator, 1).duplicate
    assert aggregator.aggregate() == aggregate
    assert aggregator.finished.keys() == {a(1)}


def test_closing_breaks_uploads_off_and_removes_the_spool(aggregator, tmp_path):
    send(aggregator, 1)
    sink = aggregator.start_update(a(2))
    sink.write(UPDATE[:50])
    aggregator.close()
    with pytest.raises(TooLate, match="broken off"):
        sink.write(UPDATE[50:])
    with pytest.raises(TooLate, match="broken off"):
        sink.finish()
    assert not (tmp_path / "spool" / ATTEMPT).exists()


# -- crashes ---------------------------------------------------------------------------------------------------------


def test_after_a_crash_every_acknowledged_update_is_there_and_nothing_else(make, blobs):
    aggregator = make(with_sha256=True)
    receipt = send(aggregator, 1, save(model([[1, 1], [1, 1]])), weight=3, metrics={"loss": 4})
    aggregator.fold(a(1))
    send(aggregator, 2, save(model([[5, 5], [5, 5]])), weight=1)
    aggregator.start_update(a(3)).write(UPDATE[:100])

    again = make()
    assert again.finished.keys() == {a(1), a(2)}
    recovered = again.receipt(a(1))
    assert recovered is not None
    assert (recovered.sha256, recovered.weight, recovered.body_bytes) == (receipt.sha256, 3, receipt.body_bytes)
    assert send(again, 2).duplicate
    aggregate = again.aggregate()
    assert result(blobs, aggregate)[0] == [[2, 2], [2, 2]]
    assert aggregate.metrics == {"loss": 4}


def test_a_graceful_stop_keeps_the_spool(make):
    aggregator = make()
    send(aggregator, 1)
    aggregator.close(discard=False)
    assert make().finished.keys() == {a(1)}


def test_an_aggregate_that_could_not_be_stored_is_tried_again(aggregator, blobs, monkeypatch):
    send(aggregator, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(StorageError, match="free space"):
            aggregator.aggregate()
    assert result(blobs, aggregator.aggregate())[0] == [[1, 2], [3, 4]]


# -- the stored sum --------------------------------------------------------------------------------------------------


@pytest.fixture
def summed(make):
    """An aggregator with updates 1 to 12 of weight 1 and ``w`` of n everywhere, most of them in a stored sum."""

    def fill() -> RoundAggregator:
        aggregator: RoundAggregator = make(spool_bytes=0, with_sha256=True)  # eight models at least
        for number in range(1, 13):
            send(aggregator, number, save(model([[number, 1], [1, 1]])), metrics={"n": number})
            aggregator.fold(a(number))
        return aggregator

    return fill


def test_the_sum_takes_the_place_of_the_updates_in_it(summed, blobs, tmp_path):
    aggregator = summed()
    # More than eight updates are kept at no time: the ninth made a sum of them all.
    assert sorted(spooled_files(tmp_path)) == [f"job.1.1.{n}.update" for n in (10, 11, 12)] + ["sum.1.update"]
    aggregate = aggregator.aggregate()
    assert result(blobs, aggregate)[0] == [[6.5, 1], [1, 1]]
    assert aggregate.metrics == {"n": 6.5}
    assert aggregate.weight == len(aggregate.assignments) == 12


@pytest.mark.parametrize("earlier", [False, True])
def test_an_addition_that_fails_in_the_middle_leaves_nothing_of_it_in_the_sum(
    make, summed, blobs, monkeypatch, earlier
):
    aggregator = summed() if earlier else make()
    send(aggregator, 13, save(model([[1, 1], [1, 1]], 13)))
    add = Cast.add
    tensors: list[str] = []

    def add_one(codec, update, tensor, *rest):
        if tensors:
            raise MemoryError
        tensors.append(tensor.name)
        add(codec, update, tensor, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Cast, "add", add_one)
        with pytest.raises(MemoryError):
            aggregator.fold(a(13))
    assert result(blobs, aggregator.aggregate())[1] == pytest.approx(1 if earlier else 13)


def test_a_stored_sum_that_cannot_be_gone_back_to_is_not_added_twice(summed, blobs, monkeypatch):
    aggregator = summed()
    send(aggregator, 13, save(model([[13, 1], [1, 1]])))
    add_sums = Fold.add_sums

    def no_memory(*_):
        raise MemoryError

    def add_and_fail(*of):
        add_sums(*of)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Cast, "add", no_memory)
        patched.setattr(Fold, "add_sums", add_and_fail)
        with pytest.raises(MemoryError):
            aggregator.fold(a(13))
    aggregate = aggregator.aggregate()
    assert result(blobs, aggregate)[0] == [[7, 1], [1, 1]]
    assert aggregate.weight == 13


def test_a_stored_sum_survives_a_crash_with_every_receipt(summed, make, blobs):
    before = summed()
    receipts = {number: before.receipt(a(number)) for number in range(1, 13)}
    again = make(spool_bytes=0)
    assert {number: again.receipt(a(number)) for number in range(1, 13)} == receipts
    assert send(again, 3).duplicate
    aggregate = again.aggregate()
    assert result(blobs, aggregate)[0] == [[6.5, 1], [1, 1]]
    assert aggregate.metrics == {"n": 6.5}


def test_a_sum_replaces_the_one_before_it(summed, blobs, tmp_path):
    aggregator = summed()
    for number in range(13, 25):
        send(aggregator, number, save(model([[number, 1], [1, 1]])))
        aggregator.fold(a(number))
    assert [name for name in spooled_files(tmp_path) if name.startswith("sum")] == ["sum.2.update"]
    assert result(blobs, aggregator.aggregate())[0] == [[12.5, 1], [1, 1]]


def test_updates_beside_the_sum_may_still_be_dropped_but_not_those_in_it(summed, blobs):
    aggregator = summed()
    aggregator.drop(a(11))
    with pytest.raises(Conflict, match="part of a sum already"):
        aggregator.drop(a(3))
    with pytest.raises(Conflict, match="part of a sum already"):
        aggregator.aggregate(assignments=[a(1), a(12)])
    aggregate = aggregator.aggregate(assignments=[a(number) for number in range(1, 10)])
    assert result(blobs, aggregate)[0] == [[5, 1], [1, 1]]
    assert aggregate.metrics == {"n": 5}


@pytest.mark.parametrize("removed", [0, 1, 8])
def test_a_crash_while_updates_give_way_to_their_sum_counts_none_twice(summed, make, blobs, monkeypatch, removed):
    removals: list[str] = []
    remove = Spool.remove

    def crash_after(spool: Spool, key: str) -> None:
        if len(removals) == removed:
            raise KeyboardInterrupt
        removals.append(key)
        remove(spool, key)

    monkeypatch.setattr(Spool, "remove", crash_after)
    with pytest.raises(KeyboardInterrupt):
        summed()
    monkeypatch.undo()
    again = make()
    assert again.finished.keys() == {a(number) for number in range(1, 10)}
    aggregate = again.aggregate()
    assert aggregate.weight == 9
    assert result(blobs, aggregate)[0] == [[5, 1], [1, 1]]


def test_an_upload_that_ends_after_its_earlier_one_went_into_the_sum_is_a_duplicate(make, tmp_path):
    aggregator = make(spool_bytes=0)
    slow = aggregator.start_update(a(1), 50)
    slow.write(UPDATE)
    for number in range(1, 10):
        send(aggregator, number)
        aggregator.fold(a(number))
    assert sorted(spooled_files(tmp_path)) == ["00000000.part", "sum.1.update"]
    receipt = slow.finish()
    assert (receipt.duplicate, receipt.weight) == (True, 1)
    assert spooled_files(tmp_path) == ["sum.1.update"]
    assert aggregator.aggregate().weight == 9


def test_updates_that_could_not_be_removed_do_not_count_twice(make, monkeypatch):
    aggregator = make(spool_bytes=0)
    for number in range(1, 10):
        send(aggregator, number)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path, **options: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(StorageError):
            aggregator.fold(*(a(number) for number in range(1, 10)))
    for number in range(10, 20):
        send(aggregator, number)
        aggregator.fold(a(number))
    for later in (aggregator, make()):
        assert later.aggregate().weight == 19


def test_a_sum_of_another_accumulator_is_refused(summed, make):
    summed()
    with pytest.raises(StorageError, match="not of this model and accumulator"):
        make(plan=RoundPlan(accumulator="float64"))


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(aggregator, blobs, tmp_path):
    """Check that an update is refused with a message, and that the round goes on as if it had never come."""

    def check(body, message, kind: type[InvalidInput] = InvalidUpdate, **announced):
        send(aggregator, 1)
        with pytest.raises(kind, match=message):
            send(aggregator, 2, body, **announced)
        assert spooled_files(tmp_path) == ["job.1.1.1.update"]
        send(aggregator, 3)
        aggregate = aggregator.aggregate()
        assert aggregate.assignments == {a(1), a(3)}
        assert result(blobs, aggregate) == ([[1, 2], [3, 4]], 5.0, 7)

    return check


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_single_number_that_is_not_finite_is_refused(refused, aggregator, value, index):
    w = np.ones(4, np.float32)
    w[index] = value
    body = save(model(w.reshape(2, 2)))
    refused(body, f"w: element {index} is {value}")
    assert (aggregator.refused_updates, aggregator.refused_bytes) == (1, len(body))


@pytest.mark.parametrize("value", [1.2e18, -3e38])
def test_a_number_that_could_make_the_sum_overflow_is_refused(refused, value):
    refused(save(model([[value, 0], [0, 0]])), "w: a number in it is .* too large to be averaged")


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"w": np.zeros((2, 2), np.float32)}, "b: the tensor is missing"),
        (model([[1, 2], [3, 4]]) | {"c": np.zeros(1)}, "c: the tensor is not in the round's model"),
        (model([1, 2, 3, 4]), "w: its shape is"),
        (model([[1, 2], [3, 4]]) | {"w": np.zeros((2, 2))}, "w: its dtype is F64, the round's is F32"),
        (model([[1, 2], [3, 4]]) | {"w": np.zeros((2, 2), np.float16)}, "w: its dtype is F16, the round's is F32"),
    ],
)
def test_an_update_of_another_model_is_refused(refused, update, message):
    refused(save(update), message)


def test_a_header_of_another_model_is_refused_before_the_body(aggregator):
    body = save({"w": np.zeros(1_000_000, np.float32)})
    sink = aggregator.start_update(a(1))
    with pytest.raises(InvalidUpdate, match="b: the tensor is missing"):
        sink.write(body[:1000])


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_an_update_that_is_cut_off_is_refused(refused, size):
    refused(UPDATE[:size], "cut off")


def test_an_update_with_more_behind_it_is_refused(refused):
    refused(UPDATE + b"x", "larger than one of this model can be", TooLarge)


@pytest.mark.parametrize(("garbage", "message"), [(b"{" * 100, "claims to be"), (bytes(100), "not JSON")])
def test_what_is_no_safetensors_file_is_refused(refused, garbage, message):
    refused(garbage, message)


def test_a_header_that_claims_to_be_huge_is_refused(refused):
    refused((2**40).to_bytes(8, "little") + bytes(100), "the header claims to be 1099511627776 bytes long")


def test_another_digest_than_announced_is_refused(refused):
    refused(UPDATE, "another digest", InvalidInput, sha256="0" * 64)


def test_another_length_than_announced_is_refused(refused):
    refused(UPDATE, "another size of the body than was announced", content_length=len(UPDATE) - 1)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, -math.inf, 1e10, 1e-7])
def test_a_weight_that_cannot_be_right_is_refused(refused, weight):
    refused(UPDATE, "weight: a weight must be from 1e-06 to 1e[+]09", weight=weight)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": math.nan}, "metrics.loss: a metric must be finite"),
        ({"loss": 1e101}, "metrics.loss: a metric must be finite, and from -1e[+]100 to 1e[+]100"),
        ({"loss": -math.inf}, "metrics.loss: a metric must be finite"),
        ({"x" * 129: 1.0}, "short printable text"),
        ({"a\n": 1.0}, "short printable text"),
        ({str(number): 1.0 for number in range(65)}, "too many metrics"),
    ],
)
def test_metrics_that_cannot_be_right_are_refused(refused, metrics, message):
    refused(UPDATE, message, metrics=metrics)


@pytest.mark.parametrize(
    ("codecs", "fix"),
    [
        (("plain",), "send it as plain: each tensor in the model's own type"),
        (("int8", "plain"), "use one of int8, plain, and name it in the metadata: vennue.codec"),
    ],
)
def test_a_codec_that_the_round_does_not_take_is_refused_with_those_that_it_takes(make, codecs, fix):
    aggregator = make(plan=RoundPlan(codecs=codecs))
    with pytest.raises(InvalidUpdate, match="does not take this codec") as refusal:
        send(aggregator, 1, CODECS["float16"].encode(model([[1, 2], [3, 4]])))
    assert refusal.value.fix == fix


def test_an_unknown_codec_is_refused(refused):
    refused(save(model([[1, 2], [3, 4]]), {CODEC_KEY: "zip"}), "no such codec")


def test_content_that_is_neither_model_nor_change_is_refused(refused):
    refused(save(model([[1, 2], [3, 4]]), {CONTENT_KEY: "gradient"}), "no such content")


def test_sparse_models_are_refused(refused):
    refused(CODECS["top-k"].encode(model([[1, 2], [3, 4]])), "it carries changes, not models")


def test_ten_gigabytes_are_refused_when_they_are_announced(aggregator):
    with pytest.raises(TooLarge) as refusal:
        aggregator.start_update(a(1), content_length=10 * 2**30)
    assert refusal.value.limit == aggregator.max_update_bytes < 300_000


def test_a_stream_without_end_is_refused_at_the_size_of_an_update(aggregator):
    sink = aggregator.start_update(a(1))
    sink.write(UPDATE)
    with pytest.raises(TooLarge):
        sink.write(bytes(1))


def test_an_update_that_stalls_is_aborted_and_may_be_sent_again(aggregator, tmp_path):
    stalled = aggregator.start_update(a(1))
    stalled.write(UPDATE[:100])
    stalled.abort()
    assert spooled_files(tmp_path) == []
    assert (aggregator.refused_updates, aggregator.refused_bytes) == (1, 100)
    assert not send(aggregator, 1).duplicate


def test_a_full_disk_refuses_the_update_and_keeps_the_round(aggregator, tmp_path, monkeypatch):
    send(aggregator, 1)
    sink = aggregator.start_update(a(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(StorageError, match="free space"):
            sink.write(UPDATE)
    assert spooled_files(tmp_path) == ["job.1.1.1.update"]
    send(aggregator, 2)
    assert aggregator.aggregate().weight == 2


def test_the_last_room_on_the_disk_is_for_what_updates_come_to(aggregator, monkeypatch, tmp_path):
    free = 3 * len(UPDATE)
    monkeypatch.setattr(checks, "free_bytes", lambda path: free)
    with aggregator.start_update(a(1)) as sink:
        with pytest.raises(StorageError, match="are needed to make anything of it"):
            aggregator.start_update(a(2))
        sink.write(UPDATE)
        sink.finish()
    free -= 1
    with pytest.raises(StorageError, match="free space"):
        aggregator.start_update(a(2))
    assert send(aggregator, 1).duplicate
    assert aggregator.aggregate().weight == 1


def test_a_base_that_is_missing_or_no_model_is_refused(tmp_path, blobs):
    with pytest.raises(NotFound):
        RoundAggregator(ATTEMPT, Digest("0" * 64), blobs, tmp_path / "spool")
    with pytest.raises(InvalidModel):
        RoundAggregator(ATTEMPT, blobs.put(b"no model at all"), blobs, tmp_path / "spool")


def test_a_half_precision_model_refuses_what_it_cannot_hold(tmp_path, blobs):
    half = {"w": np.zeros(2, np.float16)}
    aggregator = RoundAggregator(ATTEMPT, blobs.put(save(half)), blobs, tmp_path / "spool")
    body = CODECS["float32"].encode({"w": np.array([65504, 1], np.float32)})
    assert layout_of(half).tensors
    send(aggregator, 1, body)
    with pytest.raises(InvalidUpdate, match="w: a number in it is 65505"):
        send(aggregator, 2, CODECS["float32"].encode({"w": np.array([65505, 1], np.float32)}))


# -- threads ---------------------------------------------------------------------------------------------------------


def test_uploads_from_many_threads_count_once_each(aggregator, blobs):
    def device(thread: int) -> None:
        for number in range(20):  # each update is sent by two threads
            sent = 20 * (thread // 2) + number
            send(aggregator, sent, save(model([[thread // 2, 1], [1, 1]])), chunk_bytes=64)
            aggregator.fold(a(sent))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(device, range(8))) == [None] * 8
    aggregate = aggregator.aggregate()
    assert aggregate.weight == 80
    assert result(blobs, aggregate)[0] == [[1.5, 1], [1, 1]]


def test_what_is_acknowledged_while_the_attempt_closes_is_what_is_aggregated(make):
    for _ in range(20):
        aggregator = make()
        ready = threading.Barrier(5)

        def device(number: int, aggregator: RoundAggregator = aggregator, ready=ready) -> AssignmentId | None:
            sink = aggregator.start_update(a(number))
            sink.write(UPDATE)
            ready.wait()
            try:
                return sink.finish().assignment
            except TooLate:
                return None

        send(aggregator, 0)
        with ThreadPoolExecutor(4) as threads:
            answers = threads.map(device, range(1, 5))
            ready.wait()
            aggregate = aggregator.aggregate()
            acknowledged = {answer for answer in answers if answer is not None}
        assert aggregate.assignments == {a(0)} | acknowledged == aggregator.finished.keys()
        aggregator.close()
