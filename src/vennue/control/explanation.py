"""The whole answer to "why": a job's supply, its place in every region, its likely end, and what would change that.

The reason comes from `Explainer`. Everything else here is arithmetic on the same numbers: the supply of the last day by
profile, and the plan in force. Estimates say what follows if things stay as they are, not what will be.
"""

import heapq
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from vennue.control.explain import MAX_BLOCKING, REPEATS, Explainer
from vennue.control.hours import RECENT_S, Hours, hours_of
from vennue.control.views import ANY_DEVICE
from vennue.core.errors import InvalidInput
from vennue.core.ids import JobId, Signature
from vennue.core.job import Job, JobSpec
from vennue.core.pool import Pool
from vennue.core.requirement import AttributeSchema, Requirement
from vennue.core.round import AttemptState
from vennue.protocol import Change, Explanation, Setbacks, SharedRegion

MAX_REGIONS: Final = 32
MAX_CHANGES: Final = 6
WORTH: Final = 1.1
"""A change of the requirement is told of if it gives at least so much more supply."""
LEAST_SAVING: Final = 0.1
"""A change that only makes a round have its devices sooner is told of if it saves so much of the time,"""
LEAST_SAVING_S: Final = 5.0
"""and no less than this."""
_STEPS: Final = 8
"""How many of the next values that devices have a bound is moved to, in search of one that is worth telling."""

_BOUND: Final = re.compile(r"device\.(\w+) (>=|>|<=|<) (-?\d+(?:\.\d+)?)(?![\w.])")
_MEMBER: Final = re.compile(r'"[^"\\]*" in device\.\w+')


def explanation(
    pool: Pool, explainer: Explainer, job: Job, now: float, *, setbacks: Setbacks | None = None
) -> Callable[[], Explanation]:
    """Explain a job as it is at this moment.

    What it takes of the pool is taken now. The rest is worked out by the function that is returned, without the pool
    and so in any thread: in a pool of thousands of kinds of devices it takes as long as thousands of check-ins.
    """
    hours = hours_of(pool.supply, now)
    any_per_s = pool.supply.rate(ANY_DEVICE, now)
    any_now_per_s = pool.supply.recent_rate(ANY_DEVICE, now, span_s=RECENT_S)
    round_eta_s, job_eta_s = _etas(pool, explainer, job, now)
    regions = [] if job.state.terminal else _regions(pool, explainer, job)
    told = Explanation(
        job=job.id,
        state=job.state.value,
        reason=explainer.reason(job),
        supply_per_s=0.0,
        supply_now_per_s=0.0,
        supply_by_hour_per_s=[],
        regions=regions,
        shares_with=list(dict.fromkeys(name for region in regions for name in region.jobs if name != job.id)),
        round_eta_s=round_eta_s,
        job_eta_s=job_eta_s,
        changes=[],
        setbacks=setbacks,
    )
    request = None if job.attempt is None else job.attempt.request
    lacks_others = request.bound if request is not None and request.repeats >= REPEATS else None
    requirement, spec, ended, schema = job.requirement, job.spec, job.state.terminal, pool.schema

    def rest() -> Explanation:
        seen = _Seen(requirement, hours)
        per_count = any_per_s / max(sum(seen.counts), 1.0)
        rate_per_s = per_count * seen.total
        changes: list[Change] = []
        if not ended:
            changes += _other_requirements(seen, requirement, schema, spec, per_count, rate_per_s, _ahead(regions))
        if not ended and rate_per_s > 0:
            changes += _other_terms(spec, lacks_others, rate_per_s, _ahead(regions))
        return msgspec.structs.replace(
            told,
            supply_per_s=rate_per_s,
            supply_now_per_s=any_now_per_s * seen.recent / max(float(hours.recent.sum()), 1.0),
            supply_by_hour_per_s=_by_hour(seen, hours),
            changes=changes[:MAX_CHANGES],
        )

    return rest


class _Seen:
    """What was seen of devices, told apart by no more than the attributes that a requirement uses."""

    def __init__(self, requirement: Requirement, hours: Hours) -> None:
        names = sorted(requirement.attributes)
        numbers: dict[tuple[Any, ...], int] = {}
        group = [numbers.setdefault(tuple(map(attributes.get, names)), len(numbers)) for attributes in hours.attributes]
        self.kinds = [
            {name: value for name, value in zip(names, values, strict=True) if value is not None} for values in numbers
        ]
        self.by_hour = np.zeros((len(hours.counts), len(numbers)))
        np.add.at(self.by_hour.T, group, hours.counts.T)
        self.counts: list[float] = self.by_hour.sum(axis=0).tolist()
        self.eligible = [requirement.matches(kind) for kind in self.kinds]
        self.total = sum(n for n, meets in zip(self.counts, self.eligible, strict=True) if meets)
        """Check-ins over the day of devices that meet the requirement."""
        meets_now = np.array(self.eligible, dtype=bool)[group] if group else np.zeros(0, dtype=bool)
        self.recent = float(hours.recent[meets_now].sum())
        """The latest of them: see `Hours`."""
        self._others = [row for row, meets in enumerate(self.eligible) if not meets]

    def more(self, looser: Requirement) -> float:
        """Check-ins over the day of devices that do not meet it, but a looser one that uses the same attributes."""
        return sum(self.counts[row] for row in self._others if looser.matches(self.kinds[row]))

    def values(self, name: str) -> set[float]:
        """The numbers that devices have for an attribute."""
        found = (kind.get(name) for kind in self.kinds)
        return {value for value in found if isinstance(value, int | float) and not isinstance(value, bool)}


def _by_hour(seen: _Seen, hours: Hours) -> list[float | None]:
    counts = seen.by_hour[:, np.array(seen.eligible, dtype=bool)].sum(axis=1)
    return [
        None if observed_s <= 0 else count / observed_s
        for count, observed_s in zip(counts.tolist(), hours.observed_s.tolist(), strict=True)
    ]


def _regions(pool: Pool, explainer: Explainer, job: Job) -> list[SharedRegion]:
    """The largest regions that the job may use, the largest first."""
    usable = [(rate, signature) for signature, rate in explainer.rates.items() if signature >> job.bit & 1 and rate > 0]
    return [_region(pool, job, signature, rate) for rate, signature in heapq.nlargest(MAX_REGIONS, usable)]


def _region(pool: Pool, job: Job, signature: Signature, rate_per_s: float) -> SharedRegion:
    plan = pool.plan()
    needs: dict[JobId, int] = {}
    for offer in plan.offers(signature):
        request = pool.table.request(offer.attempt)
        if request is not None and request.needs > 0:
            needs.setdefault(request.job, request.needs)
    order = list(needs)
    position = order.index(job.id) + 1 if job.id in needs else None
    # Chosen uniformly at random, nobody is ahead of anybody.
    before = order[: position - 1] if position is not None and plan.choice == "first" else []
    shown = order[:MAX_BLOCKING]
    if position is not None and position > MAX_BLOCKING:
        shown.append(job.id)
    return SharedRegion(
        signature=f"{signature:x}",
        requirements=[pool.registry.requirement(bit).text for bit in pool.registry.bits() if signature >> bit & 1],
        supply_per_s=rate_per_s,
        position=position,
        ahead=sum(needs[name] for name in before),
        jobs=shown,
    )


def _ahead(regions: list[SharedRegion]) -> int:
    """The least that is ahead of the job in a region that lists it."""
    return min((region.ahead for region in regions if region.position is not None), default=0)


def _etas(pool: Pool, explainer: Explainer, job: Job, now: float) -> tuple[float | None, float | None]:
    """Seconds until the open round commits, and until the job has run its declared rounds."""
    attempt = job.attempt
    collection_s = _collection_s(pool, job)
    if attempt is None or collection_s is None or attempt.state is AttemptState.WAITING or job.waits_for:
        return None, None
    if attempt.state is AttemptState.COMMITTING:
        round_s = 0.0
    elif attempt.request.needs > 0 and not (attempt.request.continuous and attempt.was_filled):
        fill_s = explainer.reason(job).eta_s
        if fill_s is None:
            return None, None
        round_s = fill_s + collection_s
    else:
        round_s = max(0.0, attempt.had_devices_at + collection_s - now)
    if attempt.deadline_at < math.inf:
        round_s = min(round_s, max(0.0, attempt.deadline_at - now))
    left = job.rounds_left
    if left is None:
        return round_s, None
    if job.committed:
        usual_s = (job.scheduling_delay_s + job.collection_s) / job.committed
    else:
        usual_s = max(0.0, now - attempt.opened_at) + round_s
    return round_s, round_s + (left - 1) * usual_s


def _collection_s(pool: Pool, job: Job) -> float | None:
    """How long reports take once a round has its devices: in the job's own rounds, else in all that there were."""
    if job.committed:
        return job.collection_s / job.committed
    others = [other for other in pool.jobs.values() if other.spec.mode == "sync"]
    rounds = sum(other.committed for other in others)
    return sum(other.collection_s for other in others) / rounds if rounds else None


def _other_requirements(
    seen: _Seen,
    requirement: Requirement,
    schema: AttributeSchema,
    spec: JobSpec,
    per_count: float,
    rate_per_s: float,
    ahead: int,
) -> list[Change]:
    """Requirements that would get the job's rounds their devices sooner, most effective first."""
    found = []
    wanted = ahead + spec.wanted
    for text, what, count in _looser(requirement, seen, schema):
        rate = per_count * count
        eta_s = wanted / rate
        if rate_per_s > 0 and not _matters(eta_s, wanted / rate_per_s):
            continue
        much = f"{rate / rate_per_s:.2g}×" if rate_per_s > 0 else f"{rate:.3g} per second instead of none"
        said = f"{what} the supply would be {much}"
        found.append(Change(field="requirement", value=text, text=said, supply_per_s=rate, eta_s=eta_s))
    return sorted(found, key=lambda change: -change.supply_per_s)


def _other_terms(spec: JobSpec, lacks_others: int | None, rate_per_s: float, ahead: int) -> Iterator[Change]:
    """A smaller demand and a later deadline, where a round would otherwise not have its devices in time.

    ``lacks_others`` is how many devices the round has, if all that come have served it already.
    """
    if spec.mode == "async":
        return
    if lacks_others is not None:  # more time brings no other devices
        if lacks_others:
            said = f"at demand {lacks_others} the round would have its devices now"
            yield Change(field="demand", value=lacks_others, text=said, supply_per_s=rate_per_s, eta_s=0.0)
        return
    fill_s = (ahead + spec.wanted) / rate_per_s
    if spec.deadline_s is None:
        demand = spec.demand // 2
        eta_s = (ahead + demand) / rate_per_s
        if demand and _matters(eta_s, fill_s):
            said = f"at demand {demand} the round would have its devices in {eta_s:.0f} s instead of {fill_s:.0f} s"
            yield Change(field="demand", value=demand, text=said, supply_per_s=rate_per_s, eta_s=eta_s)
        return
    if fill_s <= spec.deadline_s:
        return
    wanted = math.floor(rate_per_s * spec.deadline_s) - ahead
    demand = math.floor(wanted * spec.demand / spec.wanted)
    if demand >= 1:
        said = f"at demand {demand} the round would have its devices within its deadline of {spec.deadline_s:g} s"
        eta_s = (ahead + demand) / rate_per_s
        yield Change(field="demand", value=demand, text=said, supply_per_s=rate_per_s, eta_s=eta_s)
    deadline_s = float(math.ceil(fill_s))
    said = f"with a deadline of {deadline_s:g} s instead of {spec.deadline_s:g} s the round would have its devices"
    yield Change(field="deadline_s", value=deadline_s, text=said, supply_per_s=rate_per_s, eta_s=fill_s)


def _matters(eta_s: float, instead_of_s: float) -> bool:
    """Whether anybody would change a job for it."""
    return instead_of_s - eta_s >= max(LEAST_SAVING_S, LEAST_SAVING * instead_of_s)


def _looser(requirement: Requirement, seen: _Seen, schema: AttributeSchema) -> Iterator[tuple[str, str, float]]:
    """Requirements that ask a little less of devices and get more of them: text, difference, check-ins over the day."""
    text = requirement.text

    def worth(changed: str) -> float:
        try:
            count = seen.total + seen.more(Requirement.parse(changed, schema))
        except InvalidInput:  # the text was put together by a pattern, which need not understand every requirement
            return 0.0
        return count if count > WORTH * seen.total else 0.0

    for bound in _BOUND.finditer(text):
        name, relation, number = bound.groups()
        limit = float(number)
        down = relation.startswith(">")
        beyond = sorted(value for value in seen.values(name) if (value < limit if down else value > limit))
        for value in (beyond[::-1] if down else beyond)[:_STEPS]:
            relaxed = f"device.{name} {'>=' if down else '<='} {value:.15g}"
            changed = text[: bound.start()] + relaxed + text[bound.end() :]
            if count := worth(changed):
                yield changed, f"with {relaxed.removeprefix('device.')} instead of {relation} {number}", count
                break
    for member in _MEMBER.finditer(text):
        changed = text[: member.start()] + "true" + text[member.end() :]
        if count := worth(changed):
            yield changed, f"without {member.group()}", count
