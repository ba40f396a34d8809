"""The witness of a simulation: what owners and devices were told, and whether it is still true.

It knows nothing of the server's inside. What it is told (a job was accepted, a round committed, a report counts) it
compares with what the ledger holds in the end, and every aggregate with the numbers that devices sent. So that it can
tell which reports an aggregate holds, every report carries a mark of its own: `report_of` an assignment is a one at
the assignment's place, and numbers that are drawn from its name. All of them are small whole numbers, so sums are
exact in float32.
"""

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vennue.core.effects import AttemptRecord
from vennue.core.errors import InvariantViolated
from vennue.core.ids import (
    AssignmentId,
    AttemptId,
    Digest,
    JobId,
    assignment_id,
    attempt_of,
    restarts_before,
)
from vennue.core.round import AttemptState
from vennue.state.ledger import CommitRecord
from vennue.tensors.model import load
from vennue.testing.ledgers import MemoryLedger
from vennue.updates.blob_directory import DirectoryBlobs

Numbers = dict[str, npt.NDArray[np.float32]]

ASSIGNMENTS: Final = 64
RESTARTS: Final = 32
"""Assignments of one attempt that can be told apart: so many after each of so many restarts."""
SIZE: Final = 4


def first_model(key: str) -> Numbers:
    """The model that a job begins with."""
    return {"marks": np.zeros(ASSIGNMENTS * RESTARTS, np.float32), "numbers": _drawn(key)}


def report_of(assignment: AssignmentId) -> tuple[Numbers, int, dict[str, float]]:
    """What the device that holds an assignment reports: the update, its examples, and a metric."""
    marks = np.zeros(ASSIGNMENTS * RESTARTS, np.float32)
    marks[_place(assignment)] = 1.0
    seed = zlib.crc32(assignment.encode())
    return {"marks": marks, "numbers": _drawn(assignment)}, 1 + seed % 16, {"loss": float(seed % 5)}


class Witness:
    """Hears what the world is told; complains of what contradicts it.

    Attributes:
        complaints: what contradicted itself already while it was told.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._accepted: dict[str, JobId] = {}
        self._sent: dict[AssignmentId, str] = {}
        self._acknowledged: dict[AssignmentId, None] = {}
        self._committed: dict[tuple[JobId, int], Digest] = {}
        self._ended: dict[JobId, str] = {}

    # -- what it is told --------------------------------------------------------------------------------------------

    def accepted(self, key: str, job: JobId) -> None:
        """An owner was told that its job is accepted, under this id."""
        self._once(self._accepted, key, job, f"the job of {key}")

    def sends(self, assignment: AssignmentId, device: str) -> None:
        """A device begins to send its report."""
        self._once(self._sent, assignment, device, f"the device of assignment {assignment}")

    def acknowledged(self, assignment: AssignmentId) -> None:
        """A device was told that its report counts."""
        self._acknowledged[assignment] = None

    def committed(self, job: JobId, round_number: int, result: Digest, model: Mapping[str, Any]) -> None:
        """An owner was told that a round committed, and got its model."""
        self._once(self._committed, (job, round_number), result, f"the result of round {round_number} of {job}")
        if not all(np.isfinite(values).all() for values in model.values()):
            self.complaints.append(f"round {round_number} of {job} has a model that is not finite")

    def ended(self, job: JobId, state: str) -> None:
        """Somebody was told that a job has ended, and how."""
        self._once(self._ended, job, state, f"the end of job {job}")

    def _once(self, known: dict[Any, Any], what: Any, value: Any, name: str) -> None:
        earlier = known.setdefault(what, value)
        if earlier != value:
            self.complaints.append(f"{name} was {earlier}, and then it was {value}")

    # -- what it finds ----------------------------------------------------------------------------------------------

    def check(self, ledger: MemoryLedger, blobs: DirectoryBlobs) -> None:
        """Compare what was told with what is kept.

        Raises:
            InvariantViolated: with all complaints.
        """
        complaints = [*self.complaints, *self._promises(ledger), *self._rounds(ledger, blobs)]
        if complaints:
            raise InvariantViolated("; ".join(complaints))

    def _promises(self, ledger: MemoryLedger) -> Iterator[str]:
        jobs = {job.id: job for job in ledger.jobs()}
        results = {(commit.job, commit.round): commit.result for commit in ledger.commits()}
        for key, name in self._accepted.items():
            if name not in jobs:
                yield f"job {name} was accepted for {key}, and is gone"
        for name, state in self._ended.items():
            if jobs[name].state != state:
                yield f"job {name} had ended as {state}, and is {jobs[name].state}"
        for (name, number), digest in self._committed.items():
            if results.get((name, number)) != digest:
                yield f"round {number} of job {name} had the result {digest}, and has {results.get((name, number))}"

    def _rounds(self, ledger: MemoryLedger, blobs: DirectoryBlobs) -> Iterator[str]:
        attempts = {attempt.id: attempt for attempt in ledger.attempts()}
        keys = {job: key for key, job in self._accepted.items()}
        for job in ledger.jobs():
            commits = [commit for commit in ledger.commits() if commit.job == job.id]
            numbers = [commit.round for commit in commits]
            if numbers != list(range(1, job.committed + 1)):
                yield f"job {job.id} has {job.committed} rounds, the ledger has the commits {numbers}"
            if commits and job.model != commits[-1].result:
                yield f"job {job.id} has the model {job.model}, its last commit has {commits[-1].result}"
            still_open = [one.id for one in attempts.values() if one.job == job.id and not one.state.closed]
            if len(still_open) > (0 if job.state.terminal else 1):
                yield f"job {job.id} is {job.state}, with the open attempts {still_open}"
            base = first_model(keys[job.id]) if job.id in keys else None
            for commit in commits:
                yield from self._aggregate(commit, attempts, blobs, base)
                base = load(blobs.path(commit.result))

    def _aggregate(
        self,
        commit: CommitRecord,
        attempts: Mapping[AttemptId, AttemptRecord],
        blobs: DirectoryBlobs,
        base: Numbers | None,
    ) -> Iterator[str]:
        """Compare an aggregate with the reports that it holds, as their marks tell."""
        name, attempt = f"round {commit.round} of job {commit.job}", attempts[commit.attempt]
        if attempt.state is not AttemptState.COMMITTED or attempt.result != commit.result:
            yield f"{name} committed by attempt {attempt.id}, which is {attempt.state} with {attempt.result}"
        if base is not None and not _equal(load(blobs.path(attempt.model)), base):
            yield f"{name} began on another model than the last commit's"
        model = load(blobs.path(commit.result))
        held = [assignment_at(commit.attempt, int(place)) for place in np.flatnonzero(model["marks"])]
        reports = [report_of(assignment) for assignment in held]
        weights = [examples for _, examples, _ in reports]
        if commit.weight != sum(weights) or commit.reports != len(held):
            yield f"{name} counts {commit.reports} reports of {commit.weight}, and holds {weights}"
            return
        expected = {
            field: np.sum([update[field] * examples for update, examples, _ in reports], axis=0)
            / np.float32(sum(weights))
            for field in model
        }
        if not _equal(model, expected):
            yield f"{name} is not the mean of the reports {held}"
        loss = sum(metrics["loss"] * examples for _, examples, metrics in reports) / sum(weights)
        if abs(commit.metrics.get("loss", -1.0) - loss) > 1e-9:
            yield f"{name} has the metrics {commit.metrics}, the reports have a loss of {loss}"
        lost = [one for one in self._acknowledged if attempt_of(one) == commit.attempt and one not in held]
        if lost:
            yield f"{name} was committed without {lost}, which were acknowledged"
        strangers = [one for one in held if one not in self._sent]
        if strangers:
            yield f"{name} holds the reports of {strangers}, which nobody sent"


def _place(assignment: AssignmentId) -> int:
    restarts, number = restarts_before(assignment), int(assignment.rpartition(".")[2].rpartition("-")[2])
    assert restarts < RESTARTS, f"assignment {assignment} has no place of its own"
    assert number < ASSIGNMENTS, f"assignment {assignment} has no place of its own"
    return restarts * ASSIGNMENTS + number


def assignment_at(attempt: AttemptId, place: int) -> AssignmentId:
    """The assignment whose report leaves a mark at this place of a model."""
    restarts, number = divmod(place, ASSIGNMENTS)
    return assignment_id(attempt, number, restarts)


def _drawn(name: str) -> npt.NDArray[np.float32]:
    digest = hashlib.blake2b(name.encode(), digest_size=SIZE).digest()
    return np.frombuffer(digest, np.int8).astype(np.float32)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
