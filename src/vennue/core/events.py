"""What can happen to a pool. Each event is a value; `Pool.handle` applies it at a given time.

Events are msgspec structs with a tag, so that a recorded history can be stored, sent and replayed as it is.
"""

import msgspec

from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest, JobId
from vennue.core.job import JobSpec, Setting
from vennue.core.requirement import Profile


class Event(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of all events."""


class SubmitJob(Event, frozen=True, tag=True):
    """An owner submits a job. Answers the `Job`."""

    job: JobId
    spec: JobSpec


class OpenRound(Event, frozen=True, tag=True):
    """The owner opens the next round on a model. Answers the `Attempt`; repeating it changes nothing."""

    job: JobId
    round: int
    model: Digest
    config: dict[str, Setting] = {}
    """The owner's settings for the devices (learning rate, local epochs)."""


class CompleteJob(Event, frozen=True, tag=True):
    """The owner is done. Repeating it changes nothing."""

    job: JobId


class CancelJob(Event, frozen=True, tag=True):
    """Somebody ends the job now, in whatever state it is. Cancelling a job that has ended changes nothing."""

    job: JobId
    reason: str = "cancelled by its owner"


class Contact(Event, frozen=True, tag=True):
    """The job's owner was heard of, which ends its silence. For a job that has ended it changes nothing."""

    job: JobId


class CheckIn(Event, frozen=True, tag=True):
    """A device is idle and online. Answers an `Assignment` (perhaps the one it holds already) or None."""

    device: DeviceId
    profile: Profile
    draw: float = 0.0
    """A uniform number in [0, 1), for plans that choose at random."""
    response_s: float = 0.0
    """The device's expected response time, for offers restricted to a tier."""
    declined: frozenset[JobId] | None = None
    """Jobs that this device declined in this session."""


class Accept(Event, frozen=True, tag=True):
    """A device takes the task that it was offered. Answers the `Assignment`."""

    assignment: AssignmentId
    device: DeviceId


class Decline(Event, frozen=True, tag=True):
    """A device does not take the task; its slot is free again. Answers its next `Assignment` or None."""

    assignment: AssignmentId
    device: DeviceId
    reason: str = ""
    draw: float = 0.0
    response_s: float = 0.0
    declined: frozenset[JobId] | None = None


class Abort(Event, frozen=True, tag=True):
    """A device gives up a task that it had taken; its slot is free again."""

    assignment: AssignmentId
    device: DeviceId
    reason: str = ""


class Report(Event, frozen=True, tag=True):
    """A device's update, complete, validated and durable in the data plane. Counted at most once.

    It may be for an assignment from before a crash, which the pool does not know any more. The shell knows by its
    token that it was the device's, and that no model update of before the crash holds the report already.
    """

    assignment: AssignmentId
    device: DeviceId


class Recover(Event, frozen=True, tag=True):
    """After a crash: what the data plane still has of an attempt that goes on.

    The reports are counted, as they were before. Where they cannot be read, the round is tried again.
    """

    attempt: AttemptId
    reports: tuple[Report, ...] = ()
    failure: str | None = None
    """Why the reports cannot be read."""


class ReportTogether(Event, frozen=True, tag=True):
    """Updates of one attempt that arrived as one sum, durable in the data plane: all are counted, or none.

    Answers how many were counted. Raises for the first that cannot be, and for an attempt that needs each by itself.
    """

    reports: tuple[Report, ...]


class Committed(Event, frozen=True, tag=True):
    """The aggregate of an attempt is durable: the answer to `effects.Commit`."""

    attempt: AttemptId
    result: Digest


class CommitFailed(Event, frozen=True, tag=True):
    """The aggregate could not be made: the answer to `effects.Commit`."""

    attempt: AttemptId
    reason: str


class Tick(Event, frozen=True, tag=True):
    """Time has passed: fire the timers that are due."""
