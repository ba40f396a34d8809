"""Fairness in compiled code: `vennue.policies.fairness`."""

import math

from vennue.policies.fairness import MIN_URGENCY
from vennue.simulation.kernel.learning import collection_s
from vennue.simulation.kernel.requests import is_needy
from vennue.simulation.kernel.state import Plans, State, compiled


@compiled
def measure_urgency(s: State, p: Plans, now: float) -> None:
    """`urgencies`, of all requests that need devices."""
    c = s.clock[0]
    if c.epsilon == 0:
        return  # as it was at first: the weight
    most = 0.0
    for job in range(len(s.jobs)):
        if is_needy(s, job):
            s.jobs[job].behind = _lag(s, p, job, now)
            most = max(most, s.jobs[job].behind)
    for job in range(len(s.jobs)):
        j = s.jobs[job]
        j.urgency = j.weight
        if most > 0 and is_needy(s, job):
            j.urgency = j.weight * max((j.behind / most) ** c.epsilon, MIN_URGENCY)


@compiled
def claim(s: State, p: Plans, now: float) -> None:
    """`first_claims`: put them in front, by when they were due. The plan goes out of date when the next is due."""
    c = s.clock[0]
    c.claims = 0
    for job in range(len(s.jobs)):
        j = s.jobs[job]
        if not is_needy(s, job):
            continue
        due_at = j.waiting_since + c.starvation_limit * _isolated_delay_s(s, p, job)
        if due_at <= now:
            c.claims += 1
            j.key = due_at
        else:
            j.band = 1
            c.stale_at = min(c.stale_at, due_at)


@compiled
def _lag(s: State, p: Plans, job: int, now: float) -> float:
    """`lag`."""
    j = s.jobs[job]
    alone_s = j.rounds * (_isolated_delay_s(s, p, job) + collection_s(s, job))
    return max(now - j.arrival_s, 1e-9) / alone_s


@compiled
def _isolated_delay_s(s: State, p: Plans, job: int) -> float:
    """`isolated_delay_s`."""
    j = s.jobs[job]
    supply_per_s = p.groups[j.requirement].supply_per_s
    return j.wanted / supply_per_s if supply_per_s > 0 else math.inf
