"""Admission: refusing, with the numbers, what this pool can never run.

A job that cannot run would hold its place and tell nobody. It is refused only on evidence: the pool must have been
observed for a whole window, and even all the eligible check-ins of a round's time must be too few. A device counts once
per check-in here, so the bound is generous: what is refused could not have run. Devices may yet come, though, so a job
that would rather wait is let in; `Explainer` flags it for as long as the same numbers say that it cannot run.
"""

import functools
import math
import operator

import msgspec

from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.job import JobSpec
from vennue.core.pool import Pool
from vennue.core.requirement import Requirement
from vennue.updates.plan import RoundPlan
from vennue.updates.strategies import Robust

_FIX = 'or submit it with if_infeasible: "wait"'
_MODES = {
    "fedbuff": (
        "async",
        "discounts reports by how old the model is that they started from, and in a synchronous round none is old",
        'set mode: "async" with a buffer_size, or take fedavg, which is the same in synchronous rounds',
    ),
    "q-fedavg": (
        "sync",
        "weighs reports by their devices' losses of one model, and in an asynchronous job devices start from several",
        'set mode: "sync", or take fedbuff',
    ),
}
"""Strategies that make sense in one mode only: which, why, and what to do about it in the other one."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for, beside what there is."""

    least: int
    """Reports that a round needs."""
    limit_s: float
    """How long it has for them."""
    supply_per_s: float
    """Eligible check-ins per second over the last day."""
    available: int
    """Eligible check-ins in that time."""
    queued: int
    """Devices that open rounds still need from the regions that the job may use, too."""


def outlook(pool: Pool, spec: JobSpec, requirement: Requirement, now: float) -> Outlook:
    """The job's outlook in the pool as it is."""
    limit_s = spec.round_limit_s if spec.deadline_s is None else spec.deadline_s
    bit = pool.registry.bit(requirement)
    if bit is None:
        eligible, rate_per_s = pool.supply.eligible(requirement, now)
        regions = {pool.registry.signature(profile) for profile in eligible}
    else:  # it is known which regions meet it, so that the thousandth job of its kind costs next to nothing
        rates = pool.supply.observed_region_rates(pool.registry, now)
        regions = {signature for signature in rates if signature >> bit & 1}
        rate_per_s = sum(rates[signature] for signature in regions)
    shared = functools.reduce(operator.or_, regions, 0)
    return Outlook(
        least=spec.goal,
        limit_s=limit_s,
        supply_per_s=rate_per_s,
        available=math.floor(rate_per_s * limit_s),
        queued=sum(max(0, request.needs) for request in pool.table.requests() if shared >> request.bit & 1),
    )


def admit(pool: Pool, spec: JobSpec, now: float, *, window_s: float, requirement: Requirement | None = None) -> Outlook:
    """Let a job in.

    Args:
        pool: where it is to run.
        spec: what it asks for.
        now: pool time, seconds.
        window_s: for how long check-ins must have been counted; at most the supply's own window.
        requirement: the job's, if the spec was checked already.

    Raises:
        Infeasible: even the whole eligible supply, or the tenant's quota, would not do.
        InvalidInput: the spec makes no sense in itself, or its strategy not in its mode.
    """
    if requirement is None:
        requirement, _ = spec.check(pool.schema)
    spec.check_idle_fields()
    _check_accumulator(spec, RoundPlan.of(spec))
    _check_mode(spec)
    seen = outlook(pool, spec, requirement, now)
    if spec.if_infeasible == "refuse":
        _check_quota(pool, spec)
        if seen.least > seen.available and pool.supply.observed_s(now) >= window_s:
            raise Infeasible(
                f"a round needs at least {seen.least} devices within {seen.limit_s:g} s, but only "
                f"{seen.supply_per_s:.3g} eligible ones check in per second: {seen.available} in that time, "
                f"and other jobs wait for {seen.queued}",
                field="demand",
                value=spec.demand,
                limit=math.floor(seen.available * spec.demand / seen.least),
                fix=f"ask for fewer devices, allow more time, ask less of each device, {_FIX}",
            )
    return seen


def _check_mode(spec: JobSpec) -> None:
    mode, why, fix = _MODES.get(spec.strategy, (spec.mode, "", ""))
    if mode != spec.mode:
        raise InvalidInput(f"{spec.strategy} {why}", field="strategy", value=spec.strategy, fix=fix)


def _check_accumulator(spec: JobSpec, plan: RoundPlan) -> None:
    if isinstance(plan.strategy, Robust) and spec.accumulator != "float32":
        raise InvalidInput(
            f"{spec.strategy} compares reports, and sums none",
            field="accumulator",
            value=spec.accumulator,
            fix="leave it out: a model in float64 is computed in float64",
        )


def _check_quota(pool: Pool, spec: JobSpec) -> None:
    tenant = pool.tenant(spec.tenant)
    if tenant is None or tenant.quota.borrow:
        return
    for limit, kind in ((tenant.quota.devices, "at once"), (tenant.quota.devices_per_day, "a day")):
        if limit is not None and spec.goal > limit:
            raise Infeasible(
                f"a round needs at least {spec.goal} devices, but tenant {tenant.name} may use {limit} {kind}, "
                f"and has {tenant.in_flight} at work",
                field="demand",
                value=spec.demand,
                limit=limit,
                fix=f"ask for fewer devices, have the quota raised, {_FIX}: it is then served as the quota allows",
            )
