"""The wire: every JSON message between devices, jobs, operators and the server, as typed structs.

Server, SDK and command line share these definitions, so they cannot disagree; the OpenAPI description is made from
them. Times are Unix seconds, durations seconds; unknown fields in requests are refused, so that a typing error is
never silently ignored; unknown fields in answers are skipped, so that an old client understands a newer server.
"""

from typing import Literal

import msgspec

from vennue.core.ids import AssignmentId, AttemptId, Digest, JobId
from vennue.core.job import PLAIN, JobSpec, Setting
from vennue.core.tenant import Quota

AttributeValue = Setting | list[str]

# -- headers ---------------------------------------------------------------------------------------------------------

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""``POST /v1/jobs``: 1 to 200 printable ASCII characters. The same key and body make one job, however often sent."""
EXAMPLES_HEADER = "Vennue-Examples"
"""``PUT …/report``: the number of examples the update was trained on, above 0 and finite: its weight. 1 if left out."""
DIGEST_HEADER = "Content-Digest"
"""``PUT …/report``: the body's SHA-256 (RFC 9530), as in ``sha-256=:BASE64:``. Checked if it is there."""
MODEL_HEADER = "Vennue-Model"
"""``PUT …/report``: the SHA-256 of the model that was trained. If it is there, it must be the task's."""
METRICS_HEADER = "Vennue-Metrics"
"""``PUT …/report``: a JSON object of names and finite numbers (ASCII), averaged with the same weights."""
REPR_DIGEST_HEADER = "Repr-Digest"
"""``PATCH …/upload``: the SHA-256 of the whole report (RFC 9530), as in ``sha-256=:BASE64:``."""
OFFSET_HEADER = "Upload-Offset"
"""``…/upload``: how many bytes are there, which is where the next part begins."""
COMPLETE_HEADER = "Upload-Complete"
"""``…/upload``: ``?1`` with the last part, ``?0`` with the others."""
LENGTH_HEADER = "Upload-Length"
"""``PATCH …/upload``: the size of the whole, where it is known: what is too large is then refused at once."""
VARIANT_HEADER = "Vennue-Variant"
"""``GET /v1/blobs/…``: that the answer is not the blob, but ``delta``, or the blob in one of the roundings."""
DELTA_TYPE = "application/vnd.vennue.delta"
"""The media type of a delta: see `vennue.tensors.delta`."""

# -- devices ---------------------------------------------------------------------------------------------------------


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


# -- leaves ----------------------------------------------------------------------------------------------------------


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


# -- jobs ------------------------------------------------------------------------------------------------------------


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a managed job is good enough: one of the metrics that devices report, averaged, and where it must be."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None


class Managed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the platform needs to run a job's rounds itself: its owner need not be there."""

    model: str
    """The blob that the first round starts from."""
    config: dict[str, Setting] = {}
    """Settings for the devices, the same in every round."""
    target: Target | None = None
    """The job completes when an evaluation finds it reached. Otherwise after its declared rounds."""
    evaluate_every: int = 1
    """Every so many rounds is an evaluation: its devices find ``evaluate: true`` in their settings, evaluate the model
    that they were given before they train it, and report the result among their metrics."""


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``POST /v1/jobs``, with an optional ``Idempotency-Key`` header."""

    spec: JobSpec
    managed: Managed | None = None
    """With it, the platform runs the job's rounds; without, its owner does."""


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/jobs/{id}/cancel``; the body may be left out."""

    reason: str = "cancelled by its owner"
    """What the job's view will say."""


class RoundRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/jobs/{id}/rounds``: run the next round on this model."""

    round: int
    model: str
    config: dict[str, Setting] = {}


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job is where it is, for a machine (``code`` and numbers) and for a person (``text``)."""

    code: str
    text: str
    needs: int | None = None
    """Devices still to be bound in the open round."""
    supply_per_s: float | None = None
    """Eligible check-ins per second over the last day."""
    demand_ahead: int | None = None
    """Devices that requests ahead of this one still need from the regions it may use."""
    blocking: list[JobId] = []
    """The jobs ahead, first to be served first; or those that must end before this one begins."""
    eta_s: float | None = None
    """Estimated seconds until the round has its devices."""
    since: float | None = None
    """Since when no eligible device has checked in, or the round has been waiting in vain."""


class SharedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """A region that a job may use, and whom it shares it with."""

    signature: str
    requirements: list[str]
    supply_per_s: float
    position: int | None
    """The job's place among those that the region's devices go to, from 1; None when the plan gives it none."""
    ahead: int
    """Devices that those before it still need."""
    jobs: list[JobId]
    """The jobs that its devices are offered to, first to last; the first ten, and this one."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the owner could ask for instead, and what would come of it."""

    field: str
    """Of the job's spec."""
    value: Setting
    text: str
    supply_per_s: float
    """Eligible check-ins per second it would have, over the last day."""
    eta_s: float | None
    """Seconds in which a round would have its devices."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/jobs/{id}/explain``: why a job is where it is, when it may end, and what would change that."""

    job: JobId
    state: str
    reason: Reason
    supply_per_s: float
    """Eligible check-ins per second over the last day."""
    supply_now_per_s: float
    """… over the last quarter of an hour."""
    supply_by_hour_per_s: list[float | None]
    """… in each of the last 24 hours, oldest first; null where the pool was not observed."""
    regions: list[SharedRegion] = []
    """The regions that it may use, the largest first."""
    shares_with: list[JobId] = []
    """Jobs that may use some of the same devices and have an open round that needs some."""
    round_eta_s: float | None = None
    """Estimated seconds until its open round commits; null where there is nothing to estimate it from."""
    job_eta_s: float | None = None
    """… until it has run its declared rounds."""
    changes: list[Change] = []


class RoundView(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/jobs/{id}/rounds/{r}``: the round's latest attempt."""

    job: JobId
    round: int
    attempt: int
    state: Literal["waiting", "open", "committing", "committed", "aborted", "cancelled"]
    demand: int
    bound: int
    reported: int
    model: Digest
    opened_at: float
    deadline_in_s: float | None = None
    closed_at: float | None = None
    scheduling_delay_s: float = 0.0
    collection_s: float | None = None
    result: Digest | None = None
    """The aggregate's blob, once committed."""
    weight: float | None = None
    """Total weight of the aggregate (examples)."""
    metrics: dict[str, float] = {}
    """The devices' metrics, averaged with the same weights, once committed."""
    reason: str | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/jobs/{id}``."""

    id: JobId
    spec: JobSpec
    state: Literal["active", "completed", "cancelled", "failed"]
    committed_rounds: int
    model: Digest | None
    submitted_at: float
    ended_at: float | None
    jct_s: float | None
    """Job completion time: from submission to the end of the last round."""
    scheduling_delay_s: float
    """The wait for devices, summed over committed rounds: from a round's opening to its last device bound. An
    asynchronous job waits until its slots are first all filled, which is counted once, and again only if its attempt
    is tried again or the server was restarted."""
    collection_s: float
    """The rest of the committed rounds' time (an asynchronous job's model updates'). With ``scheduling_delay_s`` it is
    never more than the job has run."""
    devices_bound: int
    reason: Reason
    late_reports: int = 0
    """Reports that came when their lease or their round was over, since the server started: work that was wasted."""
    open_round: RoundView | None = None
    managed: Managed | None = None
    """In the view of one job: how the platform runs it, if it does."""


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/jobs``, oldest first: a page of them."""

    jobs: list[JobView]
    next: JobId | None = None
    """Ask again with this as ``after`` for the next page; None on the last."""


# -- blobs -----------------------------------------------------------------------------------------------------------


class BlobReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """``PUT /v1/blobs/{sha256}``."""

    sha256: Digest
    size_bytes: int


class UploadView(msgspec.Struct, frozen=True, kw_only=True):
    """``…/upload``: how far an upload in parts is."""

    received_bytes: int
    complete: bool
    """Whether all of it is here, and in use."""


# -- operators -------------------------------------------------------------------------------------------------------


class RegionView(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the Venn diagram."""

    signature: str
    """Hexadecimal; bit *b* stands for the requirement with that bit."""
    requirements: list[str]
    supply_per_s: float


class RequirementView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered requirement, its supply and the demand on it."""

    bit: int
    text: str
    supply_per_s: float
    jobs: list[JobId]
    needs: int
    """Devices that its open requests still need."""


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant with a quota, and what it uses."""

    name: str
    devices: int
    """At work now."""
    devices_in_a_day: int
    """Bound in the last 24 h, those that declined apart."""
    needs: int
    """Devices that its open requests still need."""
    quota: Quota


class StorageView(msgspec.Struct, frozen=True, kw_only=True):
    """The disk that models take, and what was removed because no job needs it."""

    used_bytes: int
    """By models and uploads of them."""
    quota_bytes: int | None
    variant_bytes: int
    """By other forms of models, which are a cache."""
    needed_models: int | None = None
    """How many models jobs needed when that was last looked at; null before."""
    collected_s_ago: float | None = None
    """How long ago that was."""
    freed_bytes: int = 0
    """Since the server started."""


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/pool``."""

    policy: str
    uptime_s: float
    check_ins: int
    """Since the server started."""
    check_ins_per_s: float
    """Over the last quarter of an hour (or since the start, if that is shorter)."""
    live_assignments: int
    jobs: dict[str, int]
    """Number of jobs by state."""
    requirements: list[RequirementView]
    regions: list[RegionView]
    tenants: list[TenantView] = []
    storage: StorageView | None = None


class OfferView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place in a region's order."""

    attempt: AttemptId
    job: JobId
    needs: int
    tier_s: tuple[float, float] | None = None


class PlanRegionView(msgspec.Struct, frozen=True, kw_only=True):
    """A region and its offers, best first."""

    signature: str
    requirements: list[str]
    supply_per_s: float
    offers: list[OfferView]


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/plan``."""

    policy: str
    plans: int
    """Plans made since the server started."""
    regions: list[PlanRegionView]


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """A region in which a plan serves another request first than the plan before it did."""

    signature: str
    requirements: list[str]
    before: AttemptId | None
    now: AttemptId | None


class PlanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was made."""

    number: int
    at: float
    causes: list[str]
    """What had happened since the plan before; the first few, when it was much. Empty: that plan had run out."""
    more_causes: int
    requests: int
    """Open requests that needed devices."""
    failure: str | None
    """Why the policy failed, if it did: the plan before then stayed in force."""
    changes: list[PlanChange] | None
    """None when requirements came or went in between, so that regions are not the same."""


class PlanHistory(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/plan/history``, newest first."""

    plans: list[PlanEvent]


class PolicyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``PUT /v1/policy``: change the policy, for good; no job is lost."""

    policy: str
    parameters: dict[str, Setting] = {}


class KindSupply(msgspec.Struct, frozen=True, kw_only=True):
    """How often devices of one kind check in."""

    attributes: dict[str, AttributeValue]
    by_hour_per_s: list[float | None]
    """Check-ins per second in each of the last 24 hours, oldest first; null where the pool was not observed."""


class JobLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has not ended, and what is left of it."""

    id: str
    name: str
    spec: JobSpec
    rounds_left: int | None
    """Declared rounds not yet committed; null for an open-ended job."""
    collection_s: float | None
    """How long its rounds took to collect on average, once they had their devices; null before the first, and
    for asynchronous jobs, whose model updates say nothing of how long one device takes."""


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/pool/snapshot``: what a simulation needs to go on from the pool as it is. It names no device."""

    taken_at: float
    policy: str
    parameters: dict[str, Setting]
    supply: list[KindSupply]
    jobs: list[JobLoad]
    """In the order of their arrival."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /healthz`` and ``/readyz``."""

    status: Literal["ok", "starting", "stopping", "failing"]
    version: str
    reason: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem document (``application/problem+json``): what went wrong, where, and what to do."""

    type: str
    """``urn:vennue:error:<code>``; the code is that of the class in `vennue.core.errors`."""
    title: str
    status: int
    detail: str
    field: str | None = None
    value: bool | int | float | str | None = None
    limit: bool | int | float | str | None = None
    fix: str | None = None
    story: list[str] = []
    retry_after_s: float | None = None
