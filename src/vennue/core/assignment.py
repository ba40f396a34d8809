"""Assignments: devices given to attempts, and the ways in which that ends."""

from enum import StrEnum
from typing import TYPE_CHECKING

from vennue.core.ids import AssignmentId, AttemptId, DeviceId, JobId, Signature

if TYPE_CHECKING:
    from vennue.core.plan import Request


class Outcome(StrEnum):
    """How an assignment ends."""

    REPORTED = "reported"
    DECLINED = "declined"
    ABORTED = "aborted"
    LOST = "lost"
    """Its lease ran out, or its report came too late to be of use."""
    DISPLACED = "displaced"
    """Its place went back to a device that had one before a crash."""
    CLOSED = "closed"
    """Its attempt was over first."""


class Assignment:
    """A device given to an attempt: one lease, with an expiry.

    ``accepted`` is False while a private requirement awaits the device's answer; until then the lease is the short
    one that covers an answer, not a training task.
    """

    __slots__ = ("accepted", "bound_at", "device", "expires_at", "id", "request", "response_s", "signature", "version")

    def __init__(
        self,
        id: AssignmentId,
        device: DeviceId,
        request: "Request",
        signature: Signature,
        bound_at: float,
        expires_at: float,
        *,
        accepted: bool,
        version: int,
    ) -> None:
        self.id = id
        self.device = device
        self.request = request
        self.signature = signature
        self.bound_at = bound_at
        self.expires_at = expires_at
        self.accepted = accepted
        self.version = version
        """The job's model version that the device was given (asynchronous jobs measure staleness against it)."""
        self.response_s = 0.0
        """The response time that was expected of the device, seconds, where the policy learns from it."""

    @property
    def attempt(self) -> AttemptId:
        """The attempt that it serves."""
        return self.request.attempt

    @property
    def job(self) -> JobId:
        """The job that it serves."""
        return self.request.job

    def __repr__(self) -> str:
        return f"Assignment({self.id}, device={self.device}, expires_at={self.expires_at:.3f})"
