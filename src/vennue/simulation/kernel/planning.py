"""Plans in compiled code: what the policies that ship would plan.

A run makes hundreds of thousands of plans, so these policies are repeated here, to the last bit: `rank` sorts as
`vennue.policies.srsf` and its like do, `allocate` is `vennue.policies.allocation` with sets of regions as words of 64
bits. The property test of the engines compares them with the policies themselves. All others plan in Python.
"""

import math

import numpy as np

from vennue.simulation.kernel.fairness import claim, measure_urgency
from vennue.simulation.kernel.learning import list_capabilities, rounding_error
from vennue.simulation.kernel.requests import is_needy, needs
from vennue.simulation.kernel.state import Array, Plans, State, compiled

IN_PYTHON, BY_ARRIVAL, BY_LOTTERY, BY_ROUND, BY_JOB, BY_SERVICE = range(6)
"""``CLOCK.ranking``: how requests are ranked."""


@compiled
def make_plan(s: State, p: Plans, now: float) -> None:
    """`Pool._replan`: put a plan for the requests of this moment in force."""
    c = s.clock[0]
    c.stale_at = math.inf
    if c.tiers > 1:
        list_capabilities(s)
    c.needy = _rank(s, p, now)
    if c.grouped != 0:
        _group(s, p)
        _allocate(s, p)
        _reallocate(s, p)
    for job in range(len(s.jobs)):
        s.jobs[job].planned = s.jobs[job].serial
    c.renewed = 0
    c.planned_at = now
    c.plans += 1
    c.plan += 1
    c.epoch += 1


@compiled
def list_offers(s: State, p: Plans, kind: int) -> None:
    """`Plan.walk`: the offers to a kind of devices, those of the group that owns its region first."""
    c = s.clock[0]
    row = s.kinds[kind]
    length = 0
    if c.grouped == 0:
        for place in range(c.needy):
            job = p.order[place]
            if p.meets[kind, s.jobs[job].requirement] != 0:
                p.offers[kind, length] = job
                length += 1
    else:
        for place in range(c.claims):
            job = p.order[place]
            if p.meets[kind, s.jobs[job].requirement] != 0:
                p.offers[kind, length] = job
                length += 1
        owner = p.owners[p.region_of_kind[kind]] if p.region_of_kind[kind] >= 0 else -1
        if owner >= 0:
            length = _list_queue(p, kind, p.scarce[owner], length)
        for index in range(c.groups):
            if index != owner and p.meets[kind, p.scarce[index]] != 0:
                length = _list_queue(p, kind, p.scarce[index], length)
    if c.tiered != 0:
        for place in range(length):
            p.tiers[kind, place, 0] = s.jobs[p.offers[kind, place]].low_s
            p.tiers[kind, place, 1] = s.jobs[p.offers[kind, place]].high_s
    row.plan = c.plan
    row.length = length
    row.cursor = 0
    row.epoch = c.epoch


@compiled
def _list_queue(p: Plans, kind: int, group: int, length: int) -> int:
    for place in range(p.groups[group].begin, p.groups[group].end):
        p.offers[kind, length] = p.queue[place]
        length += 1
    return length


# -- ranks -----------------------------------------------------------------------------------------------------------


@compiled
def draw_lotteries(s: State) -> bool:
    """Look up the lotteries of open attempts that have none yet; whether all were foreseen."""
    complete = True
    for job in range(len(s.jobs)):
        j = s.jobs[job]
        if j.open == 0 or j.drawn == j.serial:
            continue
        ahead = j.round - j.foreseen
        if j.number == 1 and j.foreseen > 0 and 0 <= ahead < s.lessons.lotteries.shape[1]:
            j.lottery = s.lessons.lotteries[job, ahead]
            j.drawn = j.serial
        else:
            complete = False
    return complete


@compiled
def _rank(s: State, p: Plans, now: float) -> int:
    """Sort ``order`` so that the requests to plan for are in front, in their rank; returns how many they are.

    These are the open ones that need devices, or all open ones where the policy sees everyone.
    """
    c = s.clock[0]
    ranking = c.ranking
    needy = 0
    if c.grouped != 0:
        measure_urgency(s, p, now)
    for job in range(len(s.jobs)):
        j = s.jobs[job]
        j.band = 2
        j.key = 0.0
        if not is_needy(s, job) and (c.everyone == 0 or j.open == 0):
            continue
        needy += 1
        j.band = 0
        if ranking == BY_LOTTERY:
            j.band = 0 if j.live + j.reported > 0 else 1
            j.key = j.lottery
        elif ranking == BY_ROUND:
            j.key = needs(s, job) / j.urgency
        elif ranking == BY_JOB:
            j.key = (j.rounds - j.committed) * j.demand / j.urgency
        elif ranking == BY_SERVICE:
            j.key = (j.service + j.live + j.reported) / j.weight
    if c.grouped != 0:
        claim(s, p, now)
    # The last plan's order is nearly this one's: insertion sort takes a step per job.
    for place in range(1, len(p.order)):
        job = p.order[place]
        while place > 0 and _precedes(s, job, p.order[place - 1]):
            p.order[place] = p.order[place - 1]
            place -= 1  # noqa: PLW2901 - the place moves with the job
        p.order[place] = job
    return needy


@compiled
def _precedes(s: State, job: int, other: int) -> bool:
    one = s.jobs[job]
    two = s.jobs[other]
    if one.band != two.band:
        return one.band < two.band
    if one.key != two.key:
        return one.key < two.key
    return job < other


# -- Venn's allocation -----------------------------------------------------------------------------------------------


@compiled
def _group(s: State, p: Plans) -> None:
    """`Irs._update_queues`: ranked requests by requirement, and the groups from the scarcest on."""
    c = s.clock[0]
    for group in range(len(p.groups)):
        p.groups[group].size = 0
        p.groups[group].first = len(s.jobs)
    for place in range(c.claims, c.needy):
        job = p.order[place]
        g = p.groups[s.jobs[job].requirement]
        g.size += 1
        g.first = min(g.first, job)
    begin = 0
    c.groups = 0
    for group in range(len(p.groups)):
        g = p.groups[group]
        g.begin = begin
        g.end = begin
        begin += g.size
        g.demand = 0.0
        g.length = 0.0
        if g.size > 0:
            p.scarce[c.groups] = group
            c.groups += 1
    for place in range(c.claims, c.needy):
        job = p.order[place]
        j = s.jobs[job]
        g = p.groups[j.requirement]
        g.demand += (j.rounds - j.committed) * j.demand if c.ranking == BY_JOB else needs(s, job)
        g.length += j.urgency
        p.queue[g.end] = job
        p.demands_to[g.end] = g.demand
        p.lengths_to[g.end] = g.length
        g.end += 1
    for place in range(1, c.groups):
        group = p.scarce[place]
        while place > 0 and _is_scarcer(p, group, p.scarce[place - 1]):
            p.scarce[place] = p.scarce[place - 1]
            place -= 1  # noqa: PLW2901 - the place moves with the group
        p.scarce[place] = group


@compiled
def _is_scarcer(p: Plans, group: int, other: int) -> bool:
    one = p.groups[group]
    two = p.groups[other]
    return one.supply_per_s < two.supply_per_s or (one.supply_per_s == two.supply_per_s and one.first < two.first)


@compiled
def _allocate(s: State, p: Plans) -> None:
    """`Irs._allocate_scarcest_first`."""
    c = s.clock[0]
    p.owners[:] = -1
    p.smaller[:] = np.uint64(0)
    for index in range(c.groups):
        group = p.scarce[index]
        for word in range(len(p.smaller)):
            p.held[group, word] = p.cover[group, word] & ~p.smaller[word]
            p.smaller[word] |= p.held[group, word]
        p.groups[group].held_per_s = _own(p, p.held[group], index)
        p.groups[group].members = 1
        p.members[group, 0] = group


@compiled
def _reallocate(s: State, p: Plans) -> None:
    """`vennue.policies.allocation._reallocate`. ``smaller`` is the union of what all groups hold."""
    c = s.clock[0]
    for place in range(c.groups):
        p.descending[place] = place
        while place > 0 and _supply(p, p.descending[place]) > _supply(p, p.descending[place - 1]):
            swapped = p.descending[place - 1]
            p.descending[place - 1] = p.descending[place]
            p.descending[place] = swapped
            place -= 1  # noqa: PLW2901 - the place moves with the group
    words = len(p.smaller)
    for place in range(c.groups):
        index = p.descending[place]
        group = p.scarce[index]
        g = p.groups[group]
        holds = _is_any(p.held[group])
        for word in range(words):
            p.smaller[word] &= ~p.held[group, word]
            p.wanted[word] = p.smaller[word] & p.cover[group, word] if holds else np.uint64(0)
        for later in range(place + 1, c.groups):
            if not _is_any(p.wanted):
                break
            other = p.scarce[p.descending[later]]
            for word in range(words):
                p.shared[word] = p.wanted[word] & p.held[other, word]
            if not _is_any(p.shared) or p.groups[other].supply_per_s >= g.supply_per_s:
                continue
            if not _gains_more(p, group, other):
                break
            for word in range(words):
                p.wanted[word] ^= p.shared[word]
                p.smaller[word] ^= p.shared[word]
                p.held[group, word] |= p.shared[word]
                p.held[other, word] ^= p.shared[word]
            moved_per_s = _own(p, p.shared, index)
            g.held_per_s += moved_per_s
            p.groups[other].held_per_s = p.groups[other].held_per_s - moved_per_s if _is_any(p.held[other]) else 0.0
            p.members[group, g.members] = other
            g.members += 1


@compiled
def _supply(p: Plans, index: int) -> float:
    return p.groups[p.scarce[index]].supply_per_s


@compiled
def _gains_more(p: Plans, group: int, other: int) -> bool:
    """`Group.gains_more_than`."""
    g = p.groups[group]
    o = p.groups[other]
    affected = 0.0
    devices = o.demand * g.held_per_s / o.held_per_s
    for member in range(g.members):
        q = p.groups[p.members[group, member]]
        served = q.begin + np.searchsorted(p.demands_to[q.begin : q.end], devices, side="right")
        affected += p.lengths_to[served - 1] if served > q.begin else 0.0
        devices -= q.demand
        if devices < 0:
            break
    return affected / g.held_per_s > o.length / o.held_per_s


@compiled
def _own(p: Plans, regions: Array, owner: int) -> float:
    """Make a group the owner of a set of regions; returns their rate, added up as Python's `sum` does."""
    total = 0.0
    error = 0.0
    for region in range(len(p.owners)):
        if (regions[region >> 6] >> np.uint64(region & 63)) & np.uint64(1):
            p.owners[region] = owner
            rate = p.rates_per_s[region]
            error += rounding_error(total, rate)
            total += rate
    return total + error


@compiled
def _is_any(regions: Array) -> bool:
    found = np.uint64(0)
    for word in range(len(regions)):
        found |= regions[word]
    return found != 0
