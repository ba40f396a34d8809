"""The wire: every JSON message between devices, jobs, operators and the server, as typed structs.

Server, SDK and command line share these definitions, so they cannot disagree; the OpenAPI description is made from
them. Times are Unix seconds, durations seconds; unknown fields in requests are refused, so that a typing error is
never silently ignored; unknown fields in answers are skipped, so that an old client understands a newer server.

Users import all of them from here; each file has what one kind of caller speaks.
"""

from vennue.protocol.blobs import BlobReceipt, UploadView
from vennue.protocol.devices import AttributeValue, CheckInAnswer, CheckInRequest, DeclineRequest, ReportReceipt, Task
from vennue.protocol.headers import (
    COMPLETE_HEADER,
    DELTA_TYPE,
    DIGEST_HEADER,
    EXAMPLES_HEADER,
    IDEMPOTENCY_HEADER,
    LENGTH_HEADER,
    METRICS_HEADER,
    MODEL_HEADER,
    OFFSET_HEADER,
    REPR_DIGEST_HEADER,
    VARIANT_HEADER,
)
from vennue.protocol.jobs import (
    CancelRequest,
    Change,
    Explanation,
    JobList,
    JobView,
    Managed,
    Reason,
    RoundRequest,
    RoundView,
    SharedRegion,
    SubmitRequest,
    Target,
)
from vennue.protocol.leaves import AttemptView, PartialManifest, PartialReceipt, PartialReport
from vennue.protocol.operators import (
    Health,
    JobLoad,
    KindSupply,
    OfferView,
    PlanChange,
    PlanEvent,
    PlanHistory,
    PlanRegionView,
    PlanView,
    PolicyRequest,
    PoolSnapshot,
    PoolView,
    RegionView,
    RequirementView,
    StorageView,
    TenantView,
)
from vennue.protocol.problems import Problem

__all__ = [
    "COMPLETE_HEADER",
    "DELTA_TYPE",
    "DIGEST_HEADER",
    "EXAMPLES_HEADER",
    "IDEMPOTENCY_HEADER",
    "LENGTH_HEADER",
    "METRICS_HEADER",
    "MODEL_HEADER",
    "OFFSET_HEADER",
    "REPR_DIGEST_HEADER",
    "VARIANT_HEADER",
    "AttemptView",
    "AttributeValue",
    "BlobReceipt",
    "CancelRequest",
    "Change",
    "CheckInAnswer",
    "CheckInRequest",
    "DeclineRequest",
    "Explanation",
    "Health",
    "JobList",
    "JobLoad",
    "JobView",
    "KindSupply",
    "Managed",
    "OfferView",
    "PartialManifest",
    "PartialReceipt",
    "PartialReport",
    "PlanChange",
    "PlanEvent",
    "PlanHistory",
    "PlanRegionView",
    "PlanView",
    "PolicyRequest",
    "PoolSnapshot",
    "PoolView",
    "Problem",
    "Reason",
    "RegionView",
    "ReportReceipt",
    "RequirementView",
    "RoundRequest",
    "RoundView",
    "SharedRegion",
    "StorageView",
    "SubmitRequest",
    "Target",
    "Task",
    "TenantView",
    "UploadView",
]
