"""What the pool looks like from outside: its state as the messages of `vennue.protocol`.

Views are values: they are made at one moment and share nothing with the pool.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from vennue.control.explain import Explainer
from vennue.control.hours import RECENT_S
from vennue.control.setbacks import Counts
from vennue.core.effects import AttemptRecord
from vennue.core.ids import Signature
from vennue.core.job import Job, JobSpec
from vennue.core.plan import Plan
from vennue.core.planning import PlanRecord
from vennue.core.pool import Pool
from vennue.core.requirement import Requirement
from vennue.core.round import Attempt
from vennue.protocol import (
    JobView,
    OfferView,
    PlanChange,
    PlanEvent,
    PlanHistory,
    PlanRegionView,
    PlanView,
    PoolView,
    RegionView,
    RequirementView,
    RoundView,
    TenantView,
)
from vennue.state.ledger import CommitRecord

ANY_DEVICE = Requirement.parse("true")


def job_view(job: Job, explainer: Explainer, now: float, *, late_reports: int = 0) -> JobView:
    """A job, with its open round and the reason for its state."""
    attempt = job.attempt
    return JobView(
        id=job.id,
        spec=job.spec,
        state=job.state.value,
        committed_rounds=job.committed,
        model=job.model,
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        jct_s=None if job.ended_at is None else job.ended_at - job.submitted_at,
        scheduling_delay_s=job.scheduling_delay_s,
        collection_s=job.collection_s,
        devices_bound=job.attained + (0 if attempt is None else attempt.request.bound),
        late_reports=late_reports,
        reason=explainer.reason(job),
        open_round=None if attempt is None else open_round_view(job, attempt, now, explainer.setbacks(job)),
    )


def open_round_view(job: Job, attempt: Attempt, now: float, setbacks: Counts) -> RoundView:
    """The round in progress. An asynchronous job's is the model update that its next commit makes."""
    return RoundView(
        job=job.id,
        round=job.committed + 1,
        attempt=attempt.number,
        state=attempt.state.value,
        demand=attempt.spec.demand,
        bound=attempt.request.bound,
        reported=len(attempt.request.reported),
        model=attempt.model,
        opened_at=attempt.since,
        deadline_in_s=None if attempt.deadline_at == math.inf else max(0.0, attempt.deadline_at - now),
        scheduling_delay_s=attempt.had_devices_at - attempt.since,
        refused_reports=setbacks.refused,
        returned_tasks=setbacks.returned,
    )


def closed_round_view(attempt: AttemptRecord, spec: JobSpec) -> RoundView:
    """A round whose latest attempt did not commit."""
    return RoundView(
        job=attempt.job,
        round=attempt.round,
        attempt=attempt.number,
        state=attempt.state.value,
        demand=spec.demand,
        bound=attempt.bound,
        reported=attempt.reported,
        model=attempt.model,
        opened_at=attempt.opened_at,
        closed_at=attempt.closed_at,
        scheduling_delay_s=attempt.scheduling_delay_s,
        reason=attempt.reason,
    )


def committed_round_view(
    commit: CommitRecord, attempt: AttemptRecord, spec: JobSpec, before: CommitRecord | None = None
) -> RoundView:
    """A committed round: for an asynchronous job, one model update of its attempt, which began with the one before."""
    began_at = attempt.opened_at
    if before is not None and before.attempt == attempt.id:
        began_at = max(began_at, before.committed_at)
    bound_at = attempt.opened_at + attempt.scheduling_delay_s
    had_devices_at = max(began_at, min(bound_at, commit.committed_at))
    return RoundView(
        job=commit.job,
        round=commit.round,
        attempt=attempt.number,
        state="committed",
        demand=spec.demand,
        bound=attempt.bound,
        reported=commit.reports,
        model=attempt.model,
        opened_at=began_at,
        closed_at=commit.committed_at,
        scheduling_delay_s=had_devices_at - began_at,
        collection_s=max(0.0, commit.committed_at - had_devices_at),
        result=commit.result,
        weight=commit.weight,
        metrics=commit.metrics,
    )


def pool_view(
    pool: Pool, explainer: Explainer, *, policy: str, now: float, started_at: float, check_ins: int
) -> PoolView:
    """The pool: its regions, requirements and what is going on."""
    requests = pool.table.requests()
    return PoolView(
        policy=policy,
        uptime_s=now - started_at,
        check_ins=check_ins,
        check_ins_per_s=pool.supply.recent_rate(ANY_DEVICE, now, span_s=RECENT_S),
        live_assignments=len(pool.table.assignments()),
        jobs=job_counts(pool),
        requirements=[
            RequirementView(
                bit=bit,
                text=pool.registry.requirement(bit).text,
                supply_per_s=explainer.rate_per_s(bit),
                jobs=[job.id for job in pool.jobs.values() if job.bit == bit and not job.state.terminal],
                needs=sum(max(0, request.needs) for request in requests if request.bit == bit),
            )
            for bit in pool.registry.bits()
        ],
        regions=[
            RegionView(signature=f"{signature:x}", requirements=_requirements(pool, signature), supply_per_s=rate)
            for signature, rate in explainer.rates.items()
        ],
        tenants=[
            TenantView(
                name=tenant.name,
                devices=tenant.in_flight,
                devices_in_a_day=tenant.bound_in_a_day(now),
                needs=sum(max(0, request.needs) for request in requests if request.tenant is tenant),
                quota=tenant.quota,
            )
            for tenant in pool.tenants.values()
        ],
    )


def job_counts(pool: Pool) -> dict[str, int]:
    """How many jobs there are in each state."""
    return dict(Counter(job.state.value for job in pool.jobs.values()))


def flagged_jobs(pool: Pool, explainer: Explainer) -> dict[str, int]:
    """How many active jobs cannot get their devices as things are, by the reason's code."""
    flags = (explainer.flag(job) for job in pool.jobs.values())
    return dict(Counter(flag.code for flag in flags if flag is not None))


def plan_view(pool: Pool, explainer: Explainer, *, policy: str) -> PlanView:
    """The plan in force, over the regions with supply."""
    plan = pool.plan()
    regions = []
    for signature, rate in explainer.rates.items():
        offers = []
        for offer in plan.offers(signature):
            request = pool.table.request(offer.attempt)
            if request is not None:
                tier_s = None if offer.tier is None else (offer.tier.low_s, offer.tier.high_s)
                offers.append(OfferView(attempt=offer.attempt, job=request.job, needs=request.needs, tier_s=tier_s))
        regions.append(
            PlanRegionView(
                signature=f"{signature:x}",
                requirements=_requirements(pool, signature),
                supply_per_s=rate,
                offers=offers,
            )
        )
    return PlanView(policy=policy, plans=pool.plans, regions=regions)


def plan_history(pool: Pool, explainer: Explainer) -> PlanHistory:
    """The latest plans, why they were made, and in which regions with supply they serve another request first."""
    events: list[PlanEvent] = []
    before: PlanRecord | None = None
    for record in pool.planning.history:
        changes = None
        if before is not None and before.registry_version == record.registry_version:
            changes = list(_changes(pool, before.plan, record.plan, explainer.rates))
        events.append(
            PlanEvent(
                number=record.number,
                at=record.at,
                causes=[f"{cause.whom} {cause.what}".strip() for cause in record.causes],
                more_causes=record.more_causes,
                requests=record.requests,
                failure=record.failure,
                changes=changes if record.registry_version == pool.registry.version else None,
            )
        )
        before = record
    return PlanHistory(plans=events[::-1])


def _changes(pool: Pool, before: Plan, now: Plan, regions: Iterable[Signature]) -> Iterator[PlanChange]:
    for signature in regions:
        was, is_now = (next(plan.walk(signature), None) for plan in (before, now))
        if was != is_now:
            yield PlanChange(
                signature=f"{signature:x}",
                requirements=_requirements(pool, signature),
                before=None if was is None else was.attempt,
                now=None if is_now is None else is_now.attempt,
            )


def _requirements(pool: Pool, signature: Signature) -> list[str]:
    return [pool.registry.requirement(bit).text for bit in pool.registry.bits() if signature >> bit & 1]
