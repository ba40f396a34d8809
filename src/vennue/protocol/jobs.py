"""What job owners and the server say to each other: jobs, rounds, and why a job is where it is."""

from typing import Literal

import msgspec

from vennue.core.ids import Digest, JobId
from vennue.core.job import JobSpec, Setting


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


class Setback(msgspec.Struct, frozen=True, kw_only=True):
    """Reports that were refused for one kind of reason, or the tasks that devices gave back."""

    kind: str
    """The refusal's error, as in ``invalid-update``; ``given-back`` for tasks."""
    field: str | None = None
    """What was wrong: a tensor's name, ``codec``, …"""
    count: int
    last: str
    """The reason of the last one: the refusal's, or the device's own."""
    last_at: float

    @property
    def told(self) -> str:
        """The last reason, with the field that it is about."""
        return f"{self.field}: {self.last}" if self.field else self.last


class Setbacks(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with an active job's reports, since the server started."""

    refused_reports: int
    """However often one device sends the same."""
    returned_tasks: int
    """That devices gave back after they had taken them."""
    kinds: list[Setback]
    """The last eight kinds, the latest first."""


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
    setbacks: Setbacks | None = None
    """None while nothing went wrong, and when the job has ended."""


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
    refused_reports: int = 0
    """Refused so far, while the round is open."""
    returned_tasks: int = 0
    """Given back by devices so far, while the round is open."""
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
    setbacks: Setbacks | None = None
    """In the view of one job: None while nothing went wrong, and when the job has ended."""


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/jobs``, oldest first: a page of them."""

    jobs: list[JobView]
    next: JobId | None = None
    """Ask again with this as ``after`` for the next page; None on the last."""
