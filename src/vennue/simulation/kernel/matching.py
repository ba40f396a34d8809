"""Tier matching in compiled code: `vennue.policies.matching`."""

import math

from vennue.policies.matching import gate_opens
from vennue.simulation.kernel.learning import collection_ratio, split, weigh
from vennue.simulation.kernel.requests import needs
from vennue.simulation.kernel.state import Plans, State, compiled

_gate_opens = compiled(gate_opens)


@compiled
def match(s: State, p: Plans, now: float) -> None:
    """Restrict the requests at the head of their groups to tiers, where that pays."""
    c = s.clock[0]
    c.tiered = 0
    for group in range(len(p.groups)):
        p.groups[group].size = 0
    for place in range(len(p.order)):
        job = p.order[place]
        j = s.jobs[job]
        g = p.groups[j.requirement]
        j.low_s = -math.inf
        j.high_s = math.inf
        if c.claims <= place < c.needy:
            g.size += 1
            if g.size == 1:
                _restrict(s, p, job, g.held_per_s if c.grouped != 0 else g.supply_per_s, now)


@compiled
def _restrict(s: State, p: Plans, job: int, rate_per_s: float, now: float) -> None:
    """`Matcher.choose`: restrict the job's request to a tier when that pays."""
    c = s.clock[0]
    j = s.jobs[job]
    if c.tiers == 1 or j.asynchronous != 0 or rate_per_s <= 0:
        return
    ratio = collection_ratio(s, job)
    if ratio < 0 or not _gate_opens(c.tiers, 0.0, ratio):
        return
    if not split(s, p, j.requirement) or not weigh(s, job):
        return
    drawn = min(int(j.lottery * c.tiers), c.tiers - 1)
    of_tier_s = s.lessons.p95s_s[job, drawn]
    overall_s = s.lessons.p95s_s[job, c.tiers]
    if overall_s <= 0 or not _gate_opens(c.tiers, of_tier_s / overall_s, ratio):
        return
    if j.dated != 0:
        ends_at = now + c.tiers * needs(s, job) / rate_per_s + of_tier_s
        if ends_at >= j.deadline_at:
            return
    if drawn > 0:
        j.low_s = s.lessons.bounds_s[j.requirement, drawn - 1]
    if drawn < c.tiers - 1:
        j.high_s = s.lessons.bounds_s[j.requirement, drawn]
    c.tiered = 1
