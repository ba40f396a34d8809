"""Fairness (spec section 4): a job that is behind its fair share is served earlier, and no request waits without end.

With M jobs at once, job *i*'s fair share is to be done within T_i = M · sd_i, where sd_i is its completion time alone.
Half-way through, what it has been served would have taken it M · (the part of sd_i served), and it has taken t_i since
it arrived: it is behind by the factor ρ_i, the one over the other. Its requests count ρ_i^ε times (`urgencies`). At
completion ρ_i is JCT/T_i, so as ε grows the job whose JCT/T_i is going to be the largest goes first: max-min fairness.
M is the same for all jobs, and a factor common to all changes no decision, so it is left out.

`first_claims` is the guard besides that knob: a request that has waited too many times its isolated scheduling delay
comes first in all its regions.
"""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from vennue.core.ids import AttemptId
from vennue.core.plan import PoolView, Request
from vennue.policies.allocation import Regions

MIN_URGENCY = 1e-200
"""What the urgency of a job far ahead of all others is rounded up to, so that nothing divides by zero."""


def urgencies(view: PoolView, regions: Regions, epsilon: float) -> Callable[[Request], float]:
    """How many times each open request counts: its job's weight × (ρ / the largest ρ)^ε; the weight alone at ε = 0."""
    behind = {} if epsilon == 0 else {request.attempt: lag(request, view, regions) for request in view.requests}
    most = max(behind.values(), default=0.0)
    if most == 0:
        return attrgetter("weight")
    counts = {
        request.attempt: request.weight * max((behind[request.attempt] / most) ** epsilon, MIN_URGENCY)
        for request in view.requests
    }
    return lambda request: counts[request.attempt]


def lag(request: Request, view: PoolView, regions: Regions) -> float:
    """ρ/M: the time since the job arrived over what its rounds so far, this one included, would have taken it alone.

    A round alone takes its scheduling delay at the full rate of the regions it may use, and the mean collection time of
    the job's recent rounds.
    """
    profile = view.profiles.get(request.job)
    collection_s = 0.0 if profile is None else profile.collection_s
    alone_s = (request.committed + 1) * (isolated_delay_s(request, regions) + collection_s)
    return max(view.now - request.submitted_at, 1e-9) / alone_s


def isolated_delay_s(request: Request, regions: Regions) -> float:
    """How long the request would wait for its devices if it had its regions for itself; infinite without a region."""
    _, supply_per_s = regions.cover(request.bit)
    return request.wanted / supply_per_s if supply_per_s > 0 else math.inf


def first_claims(
    requests: Sequence[Request], now: float, regions: Regions, limit: float | None
) -> tuple[list[Request], float]:
    """The requests that have waited ``limit`` × their isolated scheduling delay, those that did so first in front.

    Also when (in pool time) the next of the others will have. A request without supply never does: first claim on
    nothing would not help it. Without a limit nobody does.
    """
    if limit is None:
        return [], math.inf
    due_at: dict[AttemptId, float] = {
        request.attempt: request.waiting_since + limit * isolated_delay_s(request, regions) for request in requests
    }
    claims = sorted(
        (request for request in requests if due_at[request.attempt] <= now),
        key=lambda request: (due_at[request.attempt], request.arrival, request.attempt),
    )
    return claims, min((at for at in due_at.values() if at > now), default=math.inf)
