"""What operators and their tools are told: the pool, its plan and their histories, and whether the server is well."""

from typing import Literal

import msgspec

from vennue.core.ids import AttemptId, JobId
from vennue.core.job import JobSpec, Setting
from vennue.core.tenant import Quota
from vennue.protocol.devices import AttributeValue


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
