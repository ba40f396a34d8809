"""What a pool asks of its shell. The shell carries effects out in order, the durable ones (`Save…`) first.

Nothing that a `Save…` effect holds may be answered to anybody before it is durable; that is the whole contract of
recovery. The records are also what the ledger stores and what `Pool.restore` takes.
"""

import msgspec

from vennue.core.assignment import Assignment
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest, JobId
from vennue.core.job import JobSpec, JobState, Setting
from vennue.core.round import AttemptState


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the ledger keeps it. Times are pool time in seconds."""

    id: JobId
    spec: JobSpec
    state: JobState
    arrival: int
    submitted_at: float
    ended_at: float | None
    committed: int
    model: Digest | None
    attained: int
    scheduling_delay_s: float
    collection_s: float
    reason: str | None


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as the ledger keeps it. Times are pool time in seconds."""

    id: AttemptId
    job: JobId
    round: int
    number: int
    state: AttemptState
    model: Digest
    config: dict[str, Setting]
    opened_at: float
    closed_at: float | None
    bound: int
    reported: int
    scheduling_delay_s: float
    result: Digest | None
    reason: str | None
    restarts: int = 0
    """How often the server was restarted during the attempt."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Base of all effects."""


class SaveJob(Effect, frozen=True):
    """Make the job's record durable."""

    record: JobRecord


class SaveAttempt(Effect, frozen=True):
    """Make the attempt's record durable."""

    record: AttemptRecord


class AttemptOpened(Effect, frozen=True):
    """The data plane prepares to aggregate reports on this model."""

    attempt: AttemptId
    model: Digest


class Commit(Effect, frozen=True):
    """Aggregate exactly these assignments' reports, make the result durable, answer `Committed` or `CommitFailed`."""

    attempt: AttemptId
    assignments: tuple[AssignmentId, ...]


class AttemptClosed(Effect, frozen=True):
    """The attempt is over: the data plane discards what it holds, whoever waits for the round is told."""

    attempt: AttemptId
    state: AttemptState


class JobEnded(Effect, frozen=True):
    """The job is over: whoever waits for it is told."""

    job: JobId
    state: JobState


class AssignmentEnded(Effect, frozen=True):
    """An assignment ended otherwise than by its report; the device is told at its next contact."""

    assignment: AssignmentId
    outcome: str


class Answered(Effect, frozen=True):
    """The answer to a check-in that had to wait: what handling it would have answered in online mode."""

    device: DeviceId
    assignment: Assignment | None


class PolicyFailed(Effect, frozen=True):
    """The policy raised; the last good plan stays in force."""

    reason: str
