"""Fairness (spec section 4): a job that is behind its fair share is served earlier, and no request waits without end.

With M jobs at once, the fair share of job *i* is to be done within T_i = M · sd_i of its arrival, where sd_i is its
completion time alone. After t_i it is at ρ_i = t_i/T_i of that, and its requests count ρ_i^ε times (`urgencies`): where
a group's requests are ordered that divides their demand, and it multiplies them in queue lengths. As ε grows, the job
with the largest ρ goes first, and it ends as JCT/T: max-min fairness. M is the same for all jobs, and a factor common
to all changes no decision, so it is left out.

ρ is measured against the whole job and not against the part that has been served: by the latter, all jobs are always
about equally behind, take devices from each other all the time, and rounds miss their deadlines (on the papers' even
workload average JCT doubles, where with ρ as it is it even falls).

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
    """ρ · M: the time since the job arrived over its completion time alone.

    Alone, each of its rounds takes its scheduling delay at the full rate of the regions it may use, and the mean
    collection time of the job's recent rounds. A job without declared rounds is taken to be half-way.
    """
    profile = view.profiles.get(request.job)
    collection_s = 0.0 if profile is None else profile.collection_s
    rounds_left = request.committed + 2 if request.rounds_left is None else request.rounds_left
    alone_s = (request.committed + rounds_left) * (isolated_delay_s(request, regions) + collection_s)
    return max(view.now - request.arrived_at, 1e-9) / alone_s


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
