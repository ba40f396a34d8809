"""Identifiers as distinct types, so that a job id is never passed for a device id.

They are plain strings at run time. An attempt's id is ``<job>.<round>.<attempt>`` and an assignment's is
``<attempt>.<n>``, or ``<attempt>.<r>-<n>`` after the server was restarted *r* times during the attempt: readable in a
log line, unique for ever (no restart knows which numbers were given before it), and safe in a URL path.
"""

from typing import NewType

JobId = NewType("JobId", str)
DeviceId = NewType("DeviceId", str)
AttemptId = NewType("AttemptId", str)
AssignmentId = NewType("AssignmentId", str)
Digest = NewType("Digest", str)
"""Lower-case hexadecimal SHA-256 of a blob."""

Signature = NewType("Signature", int)
"""A region's name: bit *b* is set when the devices in it satisfy the requirement registered under bit *b*."""


def attempt_id(job: JobId, round_number: int, attempt: int) -> AttemptId:
    """The id of the ``attempt``-th try (from 1) of a job's ``round_number``-th round (from 1)."""
    return AttemptId(f"{job}.{round_number}.{attempt}")


def assignment_id(attempt: AttemptId, number: int, restarts: int = 0) -> AssignmentId:
    """The id of the ``number``-th assignment (from 1) of an attempt since its latest restart."""
    return AssignmentId(f"{attempt}.{restarts}-{number}" if restarts else f"{attempt}.{number}")


def restarts_before(assignment: AssignmentId) -> int:
    """How often the server had been restarted during the attempt when the assignment was made.

    Raises:
        ValueError: it is no assignment's id.
    """
    *restarts, number = map(int, assignment.rpartition(".")[2].split("-"))
    if number < 1 or len(restarts) > 1 or 0 in restarts:
        raise ValueError(assignment)
    return restarts[0] if restarts else 0


def attempt_of(assignment: AssignmentId) -> AttemptId:
    """The attempt that an assignment belongs to."""
    return AttemptId(assignment.rpartition(".")[0])


def job_of(attempt: AttemptId) -> JobId:
    """The job that an attempt belongs to."""
    return JobId(attempt.rsplit(".", 2)[0])
