"""The aggregator against exact arithmetic: uploads repeated, reordered, cut off, dropped, and crashes at any point.

Whatever happens, the aggregate is the weighted mean of precisely the updates that were acknowledged and counted.
"""

import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from vennue.core.errors import Conflict, InvalidUpdate
from vennue.core.ids import AssignmentId, AttemptId
from vennue.tensors.codecs import CODECS
from vennue.tensors.model import load, save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.intake import UpdateSink
from vennue.updates.plan import RoundPlan

ATTEMPT = AttemptId("job.1.1")
ASSIGNMENTS = st.integers(1, 5).map(lambda number: AssignmentId(f"{ATTEMPT}.{number}"))
# Eighths up to 128 are exact in every dtype, and so is what int8 makes of their largest number.
VALUES = st.integers(-1024, 1024).map(lambda eighths: eighths / 8)
WEIGHTS = st.integers(1, 100)


class AggregatorMachine(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        self.blobs = DirectoryBlobs(Path(self.folder.name) / "blobs", durable=False)
        self.base = self.blobs.put(save({"w": np.zeros(3, np.float32)}))
        self.arriving: list[tuple[AssignmentId, UpdateSink, bytes, float, int]] = []
        self.acknowledged: dict[AssignmentId, tuple[float, int]] = {}
        self.start()

    def start(self):
        self.aggregator = RoundAggregator(
            ATTEMPT, self.base, self.blobs, Path(self.folder.name) / "spool", plan=RoundPlan(accumulator="float64")
        )
        self.aggregator._spool_bytes = 100  # a sum takes the place of every two updates or so

    @property
    def summed(self):
        stored = self.aggregator._sum.stored
        return set() if stored is None else set(stored.receipts)

    def teardown(self):
        self.aggregator.close()
        self.folder.cleanup()

    @rule(assignment=ASSIGNMENTS, value=VALUES, weight=WEIGHTS, codec=st.sampled_from(["plain", "float16", "int8"]))
    def begin(self, assignment, value, weight, codec):
        body = CODECS[codec].encode({"w": np.array([value, -value, 0], np.float32)})
        if codec == "int8":  # a scale is rounded to float32, so the number is decoded to what it became
            value = float(127 * np.float64(np.float32(abs(value)) / np.float32(127))) * (1 if value > 0 else -1)
        sink = self.aggregator.start_update(assignment, weight)
        self.arriving.append((assignment, sink, body, value, weight))

    @precondition(lambda self: self.arriving)
    @rule(at=st.integers(0, 4), size=st.integers(0, 400))
    def write(self, at, size):
        at %= len(self.arriving)
        assignment, sink, body, value, weight = self.arriving[at]
        sink.write(body[:size])
        self.arriving[at] = (assignment, sink, body[size:], value, weight)

    @precondition(lambda self: self.arriving)
    @rule(at=st.integers(0, 4), whole=st.booleans())
    def finish(self, at, whole):
        assignment, sink, rest, value, weight = self.arriving.pop(at % len(self.arriving))
        if whole:
            sink.write(rest)
            rest = b""
        try:
            receipt = sink.finish()
        except InvalidUpdate:
            assert rest
            return
        assert not rest or receipt.duplicate
        assert receipt.duplicate == (assignment in self.acknowledged)
        self.acknowledged.setdefault(assignment, (value, weight))
        assert receipt.weight == self.acknowledged[assignment][1]

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def fold(self, data):
        self.aggregator.fold(data.draw(st.sampled_from(sorted(self.acknowledged))))

    @rule(assignment=ASSIGNMENTS)
    def drop(self, assignment):
        # A round decides once, when the update is acknowledged: an upload on its way is then over.
        if assignment in self.summed:
            with pytest.raises(Conflict):
                self.aggregator.drop(assignment)
        elif not any(arriving[0] == assignment for arriving in self.arriving):
            self.aggregator.drop(assignment)
            self.acknowledged.pop(assignment, None)

    @rule()
    def crash(self):
        self.arriving.clear()
        self.start()
        assert self.aggregator.finished.keys() == self.acknowledged.keys()

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def aggregate(self, data):
        counted = data.draw(st.sets(st.sampled_from(sorted(self.acknowledged)), min_size=1)) | self.summed
        aggregate = self.aggregator.aggregate(assignments=counted)
        terms = [(Fraction(value), weight) for value, weight in (self.acknowledged[name] for name in counted)]
        total = sum(weight for _, weight in terms)
        exact = float(sum(value * weight for value, weight in terms) / total)
        assert aggregate.weight == total
        assert aggregate.assignments == counted
        found = load(self.blobs.path(aggregate.model))["w"].astype(np.float64)
        assert np.abs(found - [exact, -exact, 0]).max() <= 1e-7 * max(abs(value) for value, _ in terms)
        for _, sink, *_ in self.arriving:
            sink.abort()
        self.crash()


TestAggregator = AggregatorMachine.TestCase
TestAggregator.settings = settings(stateful_step_count=30)
