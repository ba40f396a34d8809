"""Why a job is where it is: a code and numbers for machines, a sentence for people.

Every job has a reason at any time (the design's invariant 13). The numbers come from the supply of the last day and
the plan in force, so the answer is what the scheduler itself believes, not a guess beside it.
"""

import math
from collections.abc import Callable, Container
from dataclasses import dataclass

from vennue.control.setbacks import Counts
from vennue.core.ids import AttemptId, JobId, Signature
from vennue.core.job import DAY_S, Job, JobState, When
from vennue.core.pool import Pool
from vennue.core.round import Attempt, AttemptState
from vennue.core.tenant import Tenant
from vennue.protocol import Reason

MAX_BLOCKING = 10
"""Jobs named as being ahead."""
REPEATS = 3
"""So many check-ins in a row of devices that have served a round already say that there may be no others."""
MOSTLY_LOST = 0.9
"""Where so large a share of a job's devices is lost, it is not devices that its round waits for,"""
LEAST_SEEN = 9.0
"""if that was observed ten times, of which old ones count a little less."""
STALL_GRACE_S = 1800.0
"""Supply is counted in quarters of an hour, so a shorter grace would mostly flag how they fall."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An attempt's place in a region's order."""

    rank: int
    """Among the offers that still need devices."""
    ahead: int
    """Devices that the offers before it still need."""


class Explainer:
    """Explains the jobs of a pool at one moment; one instance explains many jobs at little more than the cost of one.

    Args:
        pool: whose jobs.
        now: pool time, seconds.
        window_s: for how long check-ins must have been counted before their number proves anything.
        stall_grace_s: for how long no eligible device may have checked in before a job counts as stalled.
        managed: the jobs whose rounds the platform opens.
        setbacks: what has gone wrong in a job's open round.
    """

    def __init__(
        self,
        pool: Pool,
        now: float,
        *,
        window_s: float = DAY_S,
        stall_grace_s: float = STALL_GRACE_S,
        managed: Container[JobId] = (),
        setbacks: Callable[[Job], Counts] = lambda _: Counts(),
    ) -> None:
        self._pool = pool
        self._now = now
        self._window_s = window_s
        self._stall_grace_s = stall_grace_s
        self._managed = managed
        self.setbacks = setbacks
        self._silences_s: dict[Signature, float] | None = None
        self.rates = pool.supply.observed_region_rates(pool.registry, now)
        self._orders: dict[Signature, tuple[list[JobId], dict[AttemptId, _Place]]] = {}

    def rate_per_s(self, bit: int) -> float:
        """Check-ins per second, over the last day, of devices that meet the requirement with this bit."""
        return sum(rate for signature, rate in self.rates.items() if signature >> bit & 1)

    def reason(self, job: Job) -> Reason:
        """Why the job is where it is."""
        if job.state.terminal:
            return self._ended(job)
        if job.waits_for:
            return self._follows(job)
        attempt = job.attempt
        if attempt is None:
            return self._between_rounds(job)
        if attempt.state is AttemptState.COMMITTING:
            reports = len(attempt.committing)
            are = "1 report is" if reports == 1 else f"{reports} reports are"
            return Reason(code="committing", text=f"{are} aggregated into round {attempt.round}")
        if attempt.request.needs <= 0:
            return self._refusing(job, attempt) or self._collecting(attempt)
        return self._short(job, attempt)

    def flag(self, job: Job) -> Reason | None:
        """Why the job's open round cannot get its devices as things are; None while it can, or needs none."""
        attempt = job.attempt
        if attempt is None or attempt.state is not AttemptState.OPEN or attempt.request.needs <= 0:
            return None
        rate_per_s = self.rate_per_s(job.bit)
        bound = f"{attempt.request.bound} of {attempt.request.wanted} devices"
        silence_s = self._silence_s(job.bit)
        since = max(attempt.request.waiting_since, self._now - silence_s)
        code = None
        if rate_per_s <= 0:
            seen = any(self.rates.values())
            code = "no-eligible-device" if seen else "no-supply-yet"
            text = (
                f"none of the devices that checked in over the last day meets {job.requirement.text!r}"
                if seen
                else "no device has checked in yet"
            )
        elif silence_s >= self._stall_grace_s:
            code = "stalled"
            text = (
                f"no eligible device has checked in for {_told(silence_s)}, "
                f"though {rate_per_s:.3g} per second did over the last day"
            )
        else:
            text = self._shortfall(job, rate_per_s)
            code = "infeasible" if text else None
            since = attempt.request.waiting_since
        if code is None:
            return None
        return Reason(
            code=code, text=f"{bound}: {text}", needs=attempt.request.needs, supply_per_s=rate_per_s, demand_ahead=0,
            since=since,
        )  # fmt: skip

    def _shortfall(self, job: Job, rate_per_s: float) -> str:
        """Why the round needs more devices than check in within its time, as `admission.admit` would say it."""
        spec = job.spec
        limit_s = spec.round_limit_s if spec.deadline_s is None else spec.deadline_s
        available = math.floor(rate_per_s * limit_s)
        if spec.mode == "async" or spec.goal <= available or self._pool.supply.observed_s(self._now) < self._window_s:
            return ""
        return (
            f"a round needs at least {spec.goal} within {limit_s:g} s, but only {rate_per_s:.3g} eligible ones "
            f"check in per second: {available} in that time"
        )

    def _silence_s(self, bit: int) -> float:
        """For how long no eligible device has checked in; the time of observation when none has."""
        if self._silences_s is None:
            self._silences_s = self._pool.supply.region_silences_s(self._pool.registry, self._now)
        observed_s = self._pool.supply.observed_s(self._now)
        seen = (silence_s for signature, silence_s in self._silences_s.items() if signature >> bit & 1)
        return min(seen, default=observed_s)

    def _ended(self, job: Job) -> Reason:
        rounds = "1 round" if job.committed == 1 else f"{job.committed} rounds"
        why = f": {job.reason}" if job.reason else ""
        verb = {JobState.COMPLETED: "completed", JobState.CANCELLED: "cancelled"}.get(job.state, "failed")
        return Reason(code=str(job.state), text=f"{verb} after {rounds}{why}")

    def _follows(self, job: Job) -> Reason:
        first = sorted(job.waits_for, key=lambda name: self._pool.jobs[name].arrival)
        ends = ", and ".join(self._end_of(name, job.spec.predecessors[name]) for name in first[:MAX_BLOCKING])
        others = f", and {len(first) - MAX_BLOCKING} others end" if len(first) > MAX_BLOCKING else ""
        must_complete = [name for name in first if job.spec.predecessors[name] == "completed"]
        one = must_complete[0] if len(must_complete) == 1 else "one that must complete"
        otherwise = f"; should {one} fail or be cancelled, this job is cancelled, too" if must_complete else ""
        return Reason(
            code="waiting-for-job",
            text=f"it begins when {ends}{others}{otherwise}",
            needs=0,
            supply_per_s=self.rate_per_s(job.bit),
            blocking=first[:MAX_BLOCKING],
        )

    def _end_of(self, name: JobId, when: When) -> str:
        earlier = self._pool.jobs[name]
        rounds = "" if earlier.spec.rounds is None else f" of {earlier.spec.rounds}"
        how = "completes" if when == "completed" else "ends, however it does"
        return f"{name} {how} ({earlier.committed}{rounds} rounds committed so far)"

    def _between_rounds(self, job: Job) -> Reason:
        managed = job.id in self._managed
        opens = "the platform, which runs this job," if managed else "the job's owner"
        return Reason(
            code="waiting-for-platform" if managed else "waiting-for-owner",
            text=f"round {job.committed + 1} waits for {opens} to open it",
            supply_per_s=self.rate_per_s(job.bit),
        )

    def _collecting(self, attempt: Attempt) -> Reason:
        reported, goal = len(attempt.request.reported), attempt.spec.goal
        left_s = max(0.0, attempt.deadline_at - self._now)
        return Reason(
            code="collecting",
            text=f"{reported} of {goal} reports of round {attempt.round} are in; at most {_told(left_s)} are left",
            needs=0,
        )

    def _refusing(self, job: Job, attempt: Attempt) -> Reason | None:
        """Why the round gets nowhere although devices report, if it refuses more reports than it counts."""
        here, reported = self.setbacks(job), len(attempt.request.reported)
        if here.refused <= reported:
            return None
        were = "1 report was" if here.refused == 1 else f"{here.refused} reports were"
        return Reason(
            code="refusing-reports",
            text=f"{reported} of {attempt.spec.goal} reports of round {job.committed + 1} are in, and {were} refused, "
            f"the last for {here.last_refusal}",
            needs=max(0, attempt.request.needs),
        )

    def _short(self, job: Job, attempt: Attempt) -> Reason:
        flagged = self.flag(job)
        if flagged is not None:
            return flagged
        needs = attempt.request.needs
        bound = f"{attempt.request.bound} of {attempt.request.wanted} devices"
        rate = self.rate_per_s(job.bit)
        tenant = attempt.request.tenant
        if tenant is not None and tenant.exhausted(self._now):
            return self._beyond_quota(attempt, tenant, rate)
        if attempt.request.repeats >= REPEATS:
            return Reason(
                code="needs-other-devices",
                text=f"{bound}; the last {attempt.request.repeats} eligible devices to check in have reported in this "
                "round already, so it waits for others",
                needs=needs,
                supply_per_s=rate,
                demand_ahead=0,
            )
        unplanned = self._unplanned(job, attempt)
        if unplanned is not None:
            return Reason(
                code="not-planned", text=f"{bound}; {unplanned}", needs=needs, supply_per_s=rate, demand_ahead=0
            )
        first_rate, ahead, blocking = self._queue(job, attempt)
        refusing = self._refusing(job, attempt) if ahead is None else None
        if refusing is not None:
            return refusing
        lost = self._pool.losses.of_job(job.id)
        if ahead is None and lost.seen >= LEAST_SEEN and lost.observed >= MOSTLY_LOST:
            reason = self.setbacks(job).last_return
            said = f"the last to give it back said {reason!r}, and " if reason else ""
            return Reason(
                code="losing-devices",
                text=f"{bound}; {first_rate:.3g} eligible devices check in per second, but of those that took a task "
                f"of this job {lost.observed:.0%} gave it back or were lost: {said}their logs say why",
                needs=needs,
                supply_per_s=rate,
                demand_ahead=0,
            )
        if ahead is None:
            eta_s = needs / first_rate
            return Reason(
                code="filling",
                text=f"{bound}; {first_rate:.3g} eligible devices check in per second, so about {_told(eta_s)} to go",
                needs=needs,
                supply_per_s=rate,
                demand_ahead=0,
                eta_s=eta_s,
            )
        eta_s = (ahead + needs) / rate
        come = "comes first and needs" if len(blocking) == 1 else "come first and need"
        return Reason(
            code="behind-other-jobs",
            text=f"{bound}; {', '.join(blocking)} {come} {ahead} more; about {_told(eta_s)} to go",
            needs=needs,
            supply_per_s=rate,
            demand_ahead=ahead,
            blocking=blocking,
            eta_s=eta_s,
        )

    def _unplanned(self, job: Job, attempt: Attempt) -> str | None:
        """Why the plan in force lists the attempt nowhere, if that is so although the plan is up to date."""
        pool = self._pool
        regions = (signature for signature in self.rates if signature >> job.bit & 1)
        if any(attempt.id in self._order(signature)[1] for signature in regions) or not pool.planning.history:
            return None
        failure = pool.planning.history[-1].failure
        if failure is not None:
            return f"the policy fails, and the last good plan, which stays in force, does not know the round: {failure}"
        return "the policy's plan leaves it out" if pool.now < pool.planning.stale_at else None

    def _beyond_quota(self, attempt: Attempt, tenant: Tenant, rate_per_s: float) -> Reason:
        used, quota = tenant.in_flight, tenant.quota
        others = [
            request
            for request in self._pool.table.requests()
            if request.needs > 0 and (request.tenant is None or not request.tenant.exhausted(self._now))
        ]
        parts = []
        if quota.devices is not None:
            parts.append(f"{used} of {quota.devices} devices at work")
        if quota.devices_per_day is not None:
            parts.append(f"{tenant.bound_in_a_day(self._now)} of {quota.devices_per_day} bound in a day")
        borrows = "it gets what no tenant within its quota can use" if quota.borrow else "and may not borrow"
        return Reason(
            code="over-quota",
            text=f"{attempt.request.bound} of {attempt.request.wanted} devices; "
            f"tenant {tenant.name} has {', '.join(parts)}; {borrows}",
            needs=attempt.request.needs,
            supply_per_s=rate_per_s,
            demand_ahead=sum(request.needs for request in others),
            blocking=list(dict.fromkeys(request.job for request in others))[:MAX_BLOCKING],
        )

    def _queue(self, job: Job, attempt: Attempt) -> tuple[float, int | None, list[JobId]]:
        """The supply of the regions where the attempt is first; else the least that is ahead of it, and whose."""
        first_rate = 0.0
        least: int | None = None
        blocking: list[JobId] = []
        for signature, rate in self.rates.items():
            if not signature >> job.bit & 1 or rate <= 0:
                continue
            jobs, places = self._order(signature)
            place = places.get(attempt.id)
            if place is None:
                continue
            if place.ahead == 0:
                first_rate += rate
            elif least is None or place.ahead < least:
                least = place.ahead
                blocking = jobs[: min(place.rank, MAX_BLOCKING)]
        if first_rate > 0 or least is None:
            return first_rate or self.rate_per_s(job.bit), None, []
        return 0.0, least, blocking

    def _order(self, signature: Signature) -> tuple[list[JobId], dict[AttemptId, _Place]]:
        """Of a region: the jobs in the order in which they are served, and each attempt's place."""
        order = self._orders.get(signature)
        if order is None:
            jobs: list[JobId] = []
            places: dict[AttemptId, _Place] = {}
            ahead = 0
            # Chosen uniformly at random, nobody is ahead of anybody.
            in_order = self._pool.plan().choice == "first"
            for offer in self._pool.plan().offers(signature):
                request = self._pool.table.request(offer.attempt)
                if request is None or request.needs <= 0 or offer.attempt in places:
                    continue
                places[offer.attempt] = _Place(len(jobs), ahead if in_order else 0)
                jobs.append(request.job)
                ahead += request.needs
            order = self._orders[signature] = (jobs, places)
        return order


def _told(seconds: float) -> str:
    """A length of time in the largest unit of which it has three: ``90 s``, ``25 min``, ``30 h``, ``7 days``."""
    for unit, size_s in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 3 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"
