"""What the kernel learns for matching and fairness: `vennue.core.profile`, repeated in compiled code to the last bit.

Per job, the latest reports and rounds; of the pool, the latest check-ins. What follows from them (tiers' bounds, and
95 % quantiles within tiers) is worked out when a plan asks for it, from what was known at the last milestone.
"""

import math
import sys
from typing import Any

import numpy as np

from vennue.core.profile import (
    MAX_CHECK_INS,
    MAX_REPORTS,
    MAX_ROUNDS,
    MIN_REPORTS_PER_TIER,
    REFRESH_CHECK_INS,
    REFRESH_REPORTS,
)
from vennue.policies.matching import MIN_DEVICES_PER_TIER
from vennue.simulation.kernel.state import Array, Plans, State, compiled

COMPENSATED = sys.version_info >= (3, 12)
"""Whether Python's `sum` carries the rounding error of floats along (Neumaier 1974), as it does since 3.12."""


@compiled
def rounding_error(total: float, term: float) -> float:
    """What Python's `sum` adds to its result in the end for this step."""
    if not COMPENSATED:
        return 0.0
    added = total + term
    return (total - added) + term if abs(total) >= abs(term) else (term - added) + total


# -- what happens ----------------------------------------------------------------------------------------------------


@compiled
def observe_check_in(s: State, kind: int, expected_s: float) -> None:
    """`CapabilitySample.observe`."""
    c = s.clock[0]
    at = c.sampled % MAX_CHECK_INS
    s.lessons.sample_s[at] = expected_s
    s.lessons.sample_kind[at] = kind
    c.sampled += 1
    if _is_milestone(c.sampled, REFRESH_CHECK_INS):
        c.milestones += 1


@compiled
def observe_report(s: State, job: int, expected_s: float, took_s: float) -> None:
    """`ResponseProfile.observe_report`."""
    j = s.jobs[job]
    at = j.seen % MAX_REPORTS
    s.lessons.expected_s[job, at] = expected_s
    s.lessons.took_s[job, at] = took_s
    j.seen += 1
    if _is_milestone(j.seen, REFRESH_REPORTS):
        j.known = min(j.seen, MAX_REPORTS)
        for index in range(j.known):
            s.lessons.known_expected_s[job, index] = s.lessons.expected_s[job, index]
            s.lessons.known_took_s[job, index] = s.lessons.took_s[job, index]
        j.ordered = 0
        j.weighed_at = 0


@compiled
def observe_round(s: State, job: int, scheduling_delay_s: float, collection_s: float) -> None:
    """`ResponseProfile.observe_round`."""
    at = s.jobs[job].lessons % MAX_ROUNDS
    s.lessons.rounds_s[job, at, 0] = scheduling_delay_s
    s.lessons.rounds_s[job, at, 1] = collection_s
    s.jobs[job].lessons += 1


@compiled
def _is_milestone(seen: int, interval: int) -> bool:
    return seen % interval == 0 or (seen < interval and seen & (seen - 1) == 0)


# -- what follows ----------------------------------------------------------------------------------------------------


@compiled
def collection_ratio(s: State, job: int) -> float:
    """`ResponseProfile.collection_ratio`, or −1 before any round."""
    if s.jobs[job].lessons == 0:
        return -1.0
    delay_s = _sum_of_rounds(s, job, 0)
    collection_s = _sum_of_rounds(s, job, 1)
    if delay_s > 0:
        return collection_s / delay_s
    return math.inf if collection_s > 0 else 0.0


@compiled
def collection_s(s: State, job: int) -> float:
    """`ResponseProfile.collection_s`."""
    count = min(s.jobs[job].lessons, MAX_ROUNDS)
    return _sum_of_rounds(s, job, 1) / count if count > 0 else 0.0


@compiled
def _sum_of_rounds(s: State, job: int, which: int) -> float:
    lessons = s.jobs[job].lessons
    total = 0.0
    error = 0.0
    for index in range(max(0, lessons - MAX_ROUNDS), lessons):
        term = s.lessons.rounds_s[job, index % MAX_ROUNDS, which]
        error += rounding_error(total, term)
        total += term
    return total + error


@compiled
def list_capabilities(s: State) -> None:
    """`CapabilitySample.by_capability`: a new listing, if there was a milestone or the requirements have changed."""
    c = s.clock[0]
    if c.listing > 0 and c.listed_milestones == c.milestones and c.listed_registry == c.registry:
        return
    c.listing += 1
    c.listed_milestones = c.milestones
    c.listed_registry = c.registry
    c.listed = min(c.sampled, MAX_CHECK_INS)
    _sort(s, s.lessons.sample_bits, c.listed, 32, 64)
    for place in range(c.listed):
        s.lessons.listed_s[place] = s.lessons.sample_s[s.lessons.order[place]]
        s.lessons.listed_kind[place] = s.lessons.sample_kind[s.lessons.order[place]]


@compiled
def split(s: State, p: Plans, group: int) -> bool:
    """`tier_bounds_s` for a group's requirement, in ``bounds_s``; whether the devices can be split into tiers."""
    c = s.clock[0]
    g = p.groups[group]
    if g.listing != c.listing:
        g.listing = c.listing
        g.splits = _split(s, p, group)
    return g.splits != 0


@compiled
def _split(s: State, p: Plans, group: int) -> bool:
    c = s.clock[0]
    lessons = s.lessons
    devices = 0
    for place in range(c.listed):
        devices += p.meets[lessons.listed_kind[place], group]
    if devices < MIN_DEVICES_PER_TIER * c.tiers:
        return False
    passed = 0
    tier = 1
    edge_s = 0.0
    for place in range(c.listed):
        if p.meets[lessons.listed_kind[place], group] == 0:
            continue
        expected_s = lessons.listed_s[place]
        if passed == 0:
            edge_s = expected_s
        elif passed == devices * tier // c.tiers:
            if expected_s <= edge_s:
                return False
            edge_s = expected_s
            lessons.bounds_s[group, tier - 1] = expected_s
            tier += 1
        passed += 1
    return True


@compiled
def weigh(s: State, job: int) -> bool:
    """`ResponseProfile.p95_s` for the tiers of the job's requirement, in ``p95s_s``, the overall one last.

    Returns:
        Whether every tier has enough reports.
    """
    j = s.jobs[job]
    if j.weighed_at != s.clock[0].listing:
        j.weighed_at = s.clock[0].listing
        j.weighs = _weigh(s, job)
    return j.weighs != 0


@compiled
def _weigh(s: State, job: int) -> bool:
    c = s.clock[0]
    j = s.jobs[job]
    lessons = s.lessons
    if j.ordered == 0:
        j.ordered = 1
        _order_reports(s, job)
    bounds_s = lessons.bounds_s[j.requirement]
    counts = lessons.counts
    counts[: c.tiers] = 0
    for index in range(j.known):
        tier = 0
        while tier < c.tiers - 1 and bounds_s[tier] <= lessons.known_expected_s[job, index]:
            tier += 1
        lessons.tier[index] = tier
        counts[tier] += 1
    for tier in range(c.tiers):
        if counts[tier] < MIN_REPORTS_PER_TIER:
            return False
    took_s = lessons.known_took_s[job]
    _weigh_tiers(s, took_s, j.known, lessons.p95s_s[job])
    lessons.p95s_s[job, c.tiers] = _weigh_all(s, took_s, j.known)
    return True


@compiled
def _weigh_tiers(s: State, took_s: Array, known: int, p95s_s: Array) -> None:
    """Within a tier, whose reports weigh 1 each, `_p95_s` is the report at a place."""
    counts = s.lessons.counts
    left = s.lessons.left
    for tier in range(s.clock[0].tiers):
        left[tier] = math.ceil(0.95 * counts[tier] - 1e-9)
    for index in range(known):
        tier = s.lessons.tier[index]
        left[tier] -= 1
        if left[tier] == 0:
            p95s_s[tier] = took_s[index]


@compiled
def _weigh_all(s: State, took_s: Array, known: int) -> float:
    """`_p95_s` of all reports, where each tier weighs 1. Of equal times, the lighter report comes first."""
    weights = s.lessons.weights
    for index in range(known):
        weight = 1 / s.lessons.counts[s.lessons.tier[index]]
        place = index
        while place > 0 and took_s[place - 1] == took_s[index] and weights[place - 1] > weight:
            weights[place] = weights[place - 1]
            place -= 1
        weights[place] = weight
    total = 0.0
    error = 0.0
    for index in range(known):
        error += rounding_error(total, weights[index])
        total += weights[index]
    limit = 0.95 * (total + error)
    below = 0.0
    for index in range(known):
        below += weights[index]
        if below >= limit - 1e-9:
            return took_s[index]
    return took_s[known - 1]


# -- order -----------------------------------------------------------------------------------------------------------


@compiled
def _order_reports(s: State, job: int) -> None:
    """Bring a job's known reports into the order of the time that they took."""
    lessons = s.lessons
    known = s.jobs[job].known
    _sort(s, lessons.known_bits[job], known, 0, 32)
    for place in range(known):
        lessons.weights[place] = lessons.known_expected_s[job, lessons.order[place]]
    for place in range(known):
        lessons.known_expected_s[job, place] = lessons.weights[place]
        lessons.weights[place] = lessons.known_took_s[job, lessons.order[place]]
    for place in range(known):
        lessons.known_took_s[job, place] = lessons.weights[place]


@compiled
def _sort(s: State, keys: Any, count: int, first_bit: int, last_bit: int) -> None:
    """Sort the first ``count`` keys, in ``order``: by digits of 8 bits from ``first_bit`` on, the rest by insertion.

    Keys are the bits of floats that are not negative, which are in the order of the floats.
    """
    order = s.lessons.order
    spare = s.lessons.spare
    begins = s.lessons.begins
    for place in range(count):
        order[place] = place
    for bit in range(first_bit, last_bit, 8):
        begins[:] = 0
        for place in range(count):
            begins[_digit(keys[place], bit)] += 1
        if count > 0 and begins[_digit(keys[0], bit)] == count:
            continue
        begin = 0
        for digit in range(len(begins)):
            size = begins[digit]
            begins[digit] = begin
            begin += size
        for place in range(count):
            digit = _digit(keys[order[place]], bit)
            spare[begins[digit]] = order[place]
            begins[digit] += 1
        for place in range(count):
            order[place] = spare[place]
    for place in range(1, count):
        moved = order[place]
        while place > 0 and keys[order[place - 1]] > keys[moved]:
            order[place] = order[place - 1]
            place -= 1  # noqa: PLW2901 - the place moves with the key
        order[place] = moved


@compiled
def _digit(key: Any, bit: int) -> int:
    return int((np.uint64(key) >> np.uint64(bit)) & np.uint64(255))
