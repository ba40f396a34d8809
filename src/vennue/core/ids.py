"""Identifiers as distinct types, so that a job id is never passed for a device id.

They are plain strings at run time. An attempt's id is ``<job>.<round>.<attempt>`` and an assignment's is
``<attempt>.<n>``: readable in a log line, unique for ever (a restart opens a new attempt, so no number repeats),
and safe in a URL path.
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


def assignment_id(attempt: AttemptId, number: int) -> AssignmentId:
    """The id of the ``number``-th assignment (from 1) of an attempt."""
    return AssignmentId(f"{attempt}.{number}")


def attempt_of(assignment: AssignmentId) -> AttemptId:
    """The attempt that an assignment belongs to."""
    return AttemptId(assignment.rpartition(".")[0])


def job_of(attempt: AttemptId) -> JobId:
    """The job that an attempt belongs to."""
    return JobId(attempt.rsplit(".", 2)[0])
