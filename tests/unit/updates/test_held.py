"""Small updates are folded from memory: no file is opened for them, and what is folded is what was spooled last."""

import numpy as np
import pytest

from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.model import MappedModel, load, save
from vennue.updates import running
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.plan import RoundPlan
from vennue.updates.running import Held
from vennue.updates.strategies import strategy

ATTEMPT = AttemptId("job.1.1")


def body(value: float) -> bytes:
    return save({"w": np.full(4, value, np.float32)})


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


@pytest.fixture
def make(tmp_path, blobs):
    base = blobs.put(body(0.0))
    return lambda **options: RoundAggregator(ATTEMPT, base, blobs, tmp_path / "spool", **options)


@pytest.fixture
def opened(monkeypatch):
    """The files that were opened to be folded."""
    names = []

    def opening(path, **about):
        names.append(path.name)
        return MappedModel(path, **about)

    monkeypatch.setattr(running, "MappedModel", opening)
    return names


def send(aggregator, number, value):
    assignment = AssignmentId(f"{ATTEMPT}.{number}")
    with aggregator.start_update(assignment) as sink:
        sink.write(body(value))
        sink.finish()
    return assignment


def mean(blobs, aggregate):
    return load(blobs.path(aggregate.model))["w"].tolist()


def test_a_small_update_is_folded_without_opening_its_file(make, blobs, opened):
    aggregator = make()
    aggregator.fold(send(aggregator, 1, 2.0), send(aggregator, 2, 4.0))
    assert mean(blobs, aggregator.aggregate()) == [3.0] * 4
    assert opened == []


def test_what_there_is_no_room_to_hold_is_folded_from_its_file(make, blobs, opened):
    aggregator = make()
    aggregator._sum.held = Held(len(body(0.0)))
    aggregator.fold(send(aggregator, 1, 2.0), send(aggregator, 2, 4.0))
    assert mean(blobs, aggregator.aggregate()) == [3.0] * 4
    assert opened == [f"{ATTEMPT}.2.update"]


def test_what_was_folded_makes_room_for_others(make, opened):
    aggregator = make()
    aggregator._sum.held = Held(len(body(0.0)))
    for number in range(3):
        aggregator.fold(send(aggregator, number, 1.0))
    assert opened == []


def test_an_update_that_was_dropped_and_came_anew_counts_as_it_came_last(make, blobs, opened):
    aggregator = make()
    aggregator.drop(send(aggregator, 1, 2.0))
    aggregator.fold(send(aggregator, 1, 6.0))
    assert mean(blobs, aggregator.aggregate()) == [6.0] * 4
    assert opened == []


def test_of_two_uploads_of_one_update_the_one_that_is_spooled_is_folded(make, blobs):
    aggregator = make()
    first, second = (aggregator.start_update(AssignmentId(f"{ATTEMPT}.1")) for _ in range(2))
    for sink, value in ((first, 2.0), (second, 6.0)):
        sink.write(body(value))
    second.finish()
    aggregator.fold(first.finish().assignment)
    assert mean(blobs, aggregator.aggregate()) == [6.0] * 4


def test_a_sum_that_begins_anew_reads_from_files_what_it_held_before(make, blobs, opened):
    aggregator = make()
    one, two = send(aggregator, 1, 2.0), send(aggregator, 2, 4.0)
    aggregator.fold(one, two)
    aggregator.drop(two)
    assert mean(blobs, aggregator.aggregate()) == [2.0] * 4
    assert opened == [f"{one}.update"]


def test_updates_that_wait_for_the_end_are_not_held(make):
    aggregator = make(plan=RoundPlan(strategy=strategy("median")))
    assignment = send(aggregator, 1, 2.0)
    assert aggregator._sum.held.take(assignment) is None
