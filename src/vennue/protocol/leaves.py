"""What leaves and their root say to each other: open attempts, and partial sums with what is in them."""

import msgspec

from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.core.job import JobSpec


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/attempts/{id}``: what a leaf must know to take the reports of an open attempt."""

    attempt: AttemptId
    model: Digest
    """What its devices train: ``GET /v1/blobs/{model}``."""
    spec: JobSpec
    sums: bool
    """Whether partial sums are taken; otherwise each report is passed on as it is."""
    closes_in_s: float
    """Seconds until the attempt ends, whatever has been reported."""
    token_key: str
    """Hexadecimal: the key of the attempt's task tokens (`vennue.control.tokens`)."""


class PartialReport(msgspec.Struct, frozen=True, array_like=True):
    """A report in a partial sum."""

    assignment: AssignmentId
    token: str
    """The device's, which proves that it is its own."""
    body_bytes: int
    weight: float
    sha256: Digest | None = None
    """Of its body, if the device announced one."""


class PartialManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``PUT /v1/attempts/{id}/partials/{partial}``: what is in a partial sum.

    The body is the length of this message in JSON (eight bytes, little-endian), this message, and the sums: a
    safetensors file of the model's floating tensors in F32 or F64.
    """

    reports: list[PartialReport]
    weight: float
    """Σ of the weights in the round's mean: the sums are divided by it."""
    models: float
    """Σ of the coefficients of those updates that are whole models: so many times is the base in the sums."""
    metrics: dict[str, tuple[float, float]] = {}
    """Σ weight · value and Σ weight of each metric."""


class PartialReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a partial sum was counted, whole.

    If not, nothing of it was: leave out what is named here, and send it again under another id.
    """

    counted: bool
    counted_before: list[AssignmentId] = []
    """Reports that count already; their devices may be told so."""
    refused: dict[AssignmentId, str] = {}
    """Reports that are too late or not the device's, and why."""
