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
    is_milestone,
)
from vennue.policies.matching import MIN_DEVICES_PER_TIER
from vennue.simulation.kernel.state import Plans, State, compiled

COMPENSATED = sys.version_info >= (3, 12)
"""Whether Python's `sum` carries the rounding error of floats along (Neumaier 1974), as it does since 3.12."""

_is_milestone = compiled(is_milestone)


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
    row = s.lessons.sample[c.sampled % MAX_CHECK_INS]
    row.expected_s = expected_s
    row.kind = kind
    c.sampled += 1
    if _is_milestone(c.sampled, REFRESH_CHECK_INS):
        c.milestones += 1


@compiled
def observe_report(s: State, job: int, expected_s: float, took_s: float) -> None:
    """`ResponseProfile.observe_report`."""
    j = s.jobs[job]
    row = s.lessons.reports[job, j.seen % MAX_REPORTS]
    row.expected_s = expected_s
    row.took_s = took_s
    j.seen += 1
    if _is_milestone(j.seen, REFRESH_REPORTS):
        j.known = min(j.seen, MAX_REPORTS)
        j.ordered = 0
        j.weighed_at = 0
        for index in range(j.known):
            s.lessons.known[job, index].expected_s = s.lessons.reports[job, index].expected_s
            s.lessons.known[job, index].took_s = s.lessons.reports[job, index].took_s


@compiled
def observe_round(s: State, job: int, scheduling_delay_s: float, collection_s: float) -> None:
    """`ResponseProfile.observe_round`."""
    j = s.jobs[job]
    row = s.lessons.rounds[job, j.lessons % MAX_ROUNDS]
    row.scheduling_delay_s = scheduling_delay_s
    row.collection_s = collection_s
    j.lessons += 1


# -- what follows ----------------------------------------------------------------------------------------------------


@compiled
def collection_ratio(s: State, job: int) -> float:
    """`ResponseProfile.collection_ratio`, or −1 before any round."""
    lessons = s.jobs[job].lessons
    if lessons == 0:
        return -1.0
    delay_s = 0.0
    error_s = 0.0
    for index in range(max(0, lessons - MAX_ROUNDS), lessons):
        term_s = s.lessons.rounds[job, index % MAX_ROUNDS].scheduling_delay_s
        error_s += rounding_error(delay_s, term_s)
        delay_s += term_s
    delay_s += error_s
    collected_s = _sum_of_collection_s(s, job)
    if delay_s > 0:
        return collected_s / delay_s
    return math.inf if collected_s > 0 else 0.0


@compiled
def collection_s(s: State, job: int) -> float:
    """`ResponseProfile.collection_s`."""
    lessons = s.jobs[job].lessons
    return _sum_of_collection_s(s, job) / min(lessons, MAX_ROUNDS) if lessons > 0 else 0.0


@compiled
def _sum_of_collection_s(s: State, job: int) -> float:
    lessons = s.jobs[job].lessons
    total_s = 0.0
    error_s = 0.0
    for index in range(max(0, lessons - MAX_ROUNDS), lessons):
        term_s = s.lessons.rounds[job, index % MAX_ROUNDS].collection_s
        error_s += rounding_error(total_s, term_s)
        total_s += term_s
    return total_s + error_s


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
    _sort(s.lessons.sample["bits"], s, c.listed, 32, 64)
    for place in range(c.listed):
        row = s.lessons.sample[s.lessons.items[place].order]
        s.lessons.listed[place].expected_s = row.expected_s
        s.lessons.listed[place].kind = row.kind


@compiled
def split(s: State, p: Plans, group: int) -> bool:
    """`tier_bounds_s` for a group's requirement, in ``bounds_s``; whether the devices can be split into tiers."""
    c = s.clock[0]
    g = p.groups[group]
    if g.listing == c.listing:
        return g.splits != 0
    g.listing = c.listing
    g.splits = 0
    devices = 0
    for place in range(c.listed):
        devices += p.meets[s.lessons.listed[place].kind, group]
    if devices < MIN_DEVICES_PER_TIER * c.tiers:
        return False
    passed = 0
    tier = 0
    edge_s = -1.0
    for place in range(c.listed):
        row = s.lessons.listed[place]
        if p.meets[row.kind, group] == 0:
            continue
        if passed == devices * tier // c.tiers:
            if row.expected_s <= edge_s:
                return False
            edge_s = row.expected_s
            if tier > 0:
                s.lessons.bounds_s[group, tier - 1] = edge_s
            tier += 1
        passed += 1
    g.splits = 1
    return True


@compiled
def weigh(s: State, job: int) -> bool:
    """`ResponseProfile.p95_s` for the tiers of the job's requirement, in ``p95s_s``, the overall one last.

    Returns:
        Whether every tier has enough reports.
    """
    c = s.clock[0]
    j = s.jobs[job]
    if j.weighed_at == c.listing:
        return j.weighs != 0
    j.weighed_at = c.listing
    j.weighs = 0
    if j.ordered == 0:
        j.ordered = 1
        _order_reports(s, job)
    bounds_s = s.lessons.bounds_s[j.requirement]
    tiers = s.lessons.tiers
    for tier in range(c.tiers):
        tiers[tier].reports = 0
    for index in range(j.known):
        tier = 0
        while tier < c.tiers - 1 and bounds_s[tier] <= s.lessons.known[job, index].expected_s:
            tier += 1
        s.lessons.items[index].tier = tier
        tiers[tier].reports += 1
    for tier in range(c.tiers):
        if tiers[tier].reports < MIN_REPORTS_PER_TIER:
            return False
    j.weighs = 1
    _weigh_tiers(s, job)
    _weigh_all(s, job)
    return True


@compiled
def _weigh_tiers(s: State, job: int) -> None:
    """Within a tier, where every report weighs 1, `_p95_s` is the report at a place."""
    for tier in range(s.clock[0].tiers):
        s.lessons.tiers[tier].below = math.ceil(0.95 * s.lessons.tiers[tier].reports - 1e-9)
    for index in range(s.jobs[job].known):
        tier = s.lessons.items[index].tier
        s.lessons.tiers[tier].below -= 1
        if s.lessons.tiers[tier].below == 0:
            s.lessons.p95s_s[job, tier] = s.lessons.known[job, index].took_s


@compiled
def _weigh_all(s: State, job: int) -> None:
    """`_p95_s` of all reports, where each tier weighs 1. Of equal times, the lighter report comes first."""
    items = s.lessons.items
    known = s.lessons.known[job]
    count = s.jobs[job].known
    for index in range(count):
        weight = 1 / s.lessons.tiers[items[index].tier].reports
        place = index
        while place > 0 and known[place - 1].took_s == known[index].took_s and items[place - 1].weight > weight:
            items[place].weight = items[place - 1].weight
            place -= 1
        items[place].weight = weight
    total = 0.0
    error = 0.0
    for index in range(count):
        error += rounding_error(total, items[index].weight)
        total += items[index].weight
    limit = 0.95 * (total + error)
    below = 0.0
    p95_s = known[count - 1].took_s
    for index in range(count):
        below += items[index].weight
        if below >= limit - 1e-9:
            p95_s = known[index].took_s
            break
    s.lessons.p95s_s[job, s.clock[0].tiers] = p95_s


# -- order -----------------------------------------------------------------------------------------------------------


@compiled
def _order_reports(s: State, job: int) -> None:
    """Bring a job's known reports into the order of the time that they took."""
    items = s.lessons.items
    known = s.lessons.known[job]
    count = s.jobs[job].known
    _sort(known["took_bits"], s, count, 0, 32)
    for place in range(count):
        row = known[items[place].order]
        items[place].expected_s = row.expected_s
        items[place].took_s = row.took_s
    for place in range(count):
        known[place].expected_s = items[place].expected_s
        known[place].took_s = items[place].took_s


@compiled
def _sort(keys: Any, s: State, count: int, first_bit: int, last_bit: int) -> None:
    """Sort the first ``count`` keys, in ``order``: by digits of 8 bits from ``first_bit`` on, the rest by insertion."""
    items = s.lessons.items
    digits = s.lessons.digits
    for place in range(count):
        items[place].order = place
    for bit in range(first_bit, last_bit, 8):
        for digit in range(len(digits)):
            digits[digit].begin = 0
        for place in range(count):
            digits[_digit(keys[place], bit)].begin += 1
        if count == 0 or digits[_digit(keys[0], bit)].begin == count:
            continue
        begin = 0
        for digit in range(len(digits)):
            size = digits[digit].begin
            digits[digit].begin = begin
            begin += size
        for place in range(count):
            digit = digits[_digit(keys[items[place].order], bit)]
            items[digit.begin].spare = items[place].order
            digit.begin += 1
        for place in range(count):
            items[place].order = items[place].spare
    for place in range(1, count):
        moved = items[place].order
        while place > 0 and keys[items[place - 1].order] > keys[moved]:
            items[place].order = items[place - 1].order
            place -= 1  # noqa: PLW2901 - the place moves with the key
        items[place].order = moved


@compiled
def _digit(key: Any, bit: int) -> int:
    return int((np.uint64(key) >> np.uint64(bit)) & np.uint64(255))
