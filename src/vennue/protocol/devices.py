"""What devices and the server say to each other: check-ins, tasks, declined ones and reports."""

import msgspec

from vennue.core.ids import AssignmentId, Digest, JobId
from vennue.core.job import PLAIN, Setting

AttributeValue = Setting | list[str]


class CheckInRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """``POST /v1/check-ins``: a device is idle and online."""

    device: str
    """The device's own stable name: 1 to 128 printable characters."""
    attributes: msgspec.Raw = msgspec.Raw(b"{}")
    """A JSON object of public attributes, as in ``{"ram_gb": 6, "android": 12, "data": ["keyboard"]}``."""
    declined: list[str] = []
    """Jobs that this device declined in this session."""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a device is to do, and the lease under which it does it."""

    assignment: AssignmentId
    token: str
    """Secret that proves the assignment is the caller's: sent as ``Authorization: Bearer``."""
    job: JobId
    name: str
    """The job's name."""
    round: int
    model: Digest
    """The blob to download: ``GET /v1/blobs/{model}``."""
    expires_in_s: float
    """The lease: seconds until the device is presumed lost."""
    private_requirement: str | None = None
    """When present, the device evaluates it and answers with accept or decline first."""
    config: dict[str, Setting] = {}
    """The owner's settings for this round (learning rate, local epochs)."""
    codecs: tuple[str, ...] = PLAIN
    """How the update may travel, the preferred way first: see `vennue.tensors.codecs`."""
    changes: bool = False
    """Whether the update must be the change of the model, not the model."""


class CheckInAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task, or when to come back. Exactly one of the two is present."""

    task: Task | None = None
    retry_after_s: float | None = None


class DeclineRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/assignments/{id}/decline`` (answered like a check-in) and ``/abort``."""

    reason: str = ""
    declined: list[str] = []
    """Jobs that this device declined in this session, this one included."""


class ReportReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """``PUT /v1/assignments/{id}/report``: the update is durable and counted, now or before."""

    assignment: AssignmentId
    sha256: Digest | None = None
    """Of the body as received, if the device announced one."""
    duplicate: bool = False
