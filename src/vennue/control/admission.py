"""Admission: refusing, with the numbers, what this pool can never run.

A job that cannot run would hold its place and tell nobody. It is refused only on evidence: the pool must have been
observed for a whole window, and even all the eligible check-ins of a round's deadline must be too few. A device counts
once per check-in here, so the bound is generous: what is refused could not have run.
"""

import math

from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.job import JobSpec, share
from vennue.core.pool import Pool


def admit(pool: Pool, spec: JobSpec, now: float, *, window_s: float) -> None:
    """Let a job in.

    Args:
        pool: where it is to run.
        spec: what it asks for.
        now: pool time, seconds.
        window_s: for how long check-ins must have been counted; at most the supply's own window.

    Raises:
        Infeasible: even the whole eligible supply would not do.
        InvalidInput: the spec makes no sense in itself.
    """
    requirement, _ = spec.check(pool.schema)
    if spec.mode == "async":
        raise InvalidInput(
            "this server aggregates whole rounds; asynchronous jobs run in simulations only",
            field="mode",
            value=spec.mode,
            limit="sync",
            fix='leave "mode" out',
        )
    if spec.deadline_s is None or pool.supply.observed_s(now) < window_s:
        return
    least = share(spec.min_fraction, spec.demand)
    rate_per_s = pool.supply.rate(requirement, now)
    available = math.floor(rate_per_s * spec.deadline_s)
    if least > available:
        raise Infeasible(
            f"a round needs at least {least} devices within {spec.deadline_s:g} s, "
            f"but only {rate_per_s:.3g} eligible ones check in per second: {available} in that time",
            field="demand",
            value=spec.demand,
            limit=math.floor(available / spec.min_fraction),
            fix="ask for fewer devices, allow more time, or ask less of each device",
        )
