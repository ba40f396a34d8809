"""Why a job is where it is: a code and numbers for machines, a sentence for people.

Every job has a reason at any time (the design's invariant 13). The numbers come from the supply of the last day and
the plan in force, so the answer is what the scheduler itself believes, not a guess beside it.
"""

from dataclasses import dataclass

from vennue.core.ids import AttemptId, JobId, Signature
from vennue.core.job import Job, JobState
from vennue.core.pool import Pool
from vennue.core.round import Attempt, AttemptState
from vennue.protocol import Reason

MAX_BLOCKING = 10
"""Jobs named as being ahead."""


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
    """

    def __init__(self, pool: Pool, now: float) -> None:
        self._pool = pool
        self._now = now
        self.rates = pool.supply.region_rates(pool.registry, now)
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
            return Reason(
                code="waiting-for-owner",
                text=f"round {job.committed + 1} waits for the job's owner to open it",
                supply_per_s=self.rate_per_s(job.bit),
            )
        if attempt.state is AttemptState.COMMITTING:
            return Reason(
                code="committing", text=f"{len(attempt.committing)} reports of round {attempt.round} are aggregated"
            )
        if attempt.request.needs <= 0:
            return self._collecting(attempt)
        return self._short(job, attempt)

    def _ended(self, job: Job) -> Reason:
        rounds = "1 round" if job.committed == 1 else f"{job.committed} rounds"
        why = f": {job.reason}" if job.reason else ""
        verb = {JobState.COMPLETED: "completed", JobState.CANCELLED: "cancelled"}.get(job.state, "failed")
        return Reason(code=str(job.state), text=f"{verb} after {rounds}{why}")

    def _follows(self, job: Job) -> Reason:
        first = sorted(job.waits_for, key=lambda name: self._pool.jobs[name].arrival)
        named = ", ".join(first[:MAX_BLOCKING]) + (", …" if len(first) > MAX_BLOCKING else "")
        return Reason(
            code="waiting-for-job",
            text=f"it begins when {named} {'has' if len(first) == 1 else 'have'} ended",
            needs=0,
            supply_per_s=self.rate_per_s(job.bit),
            blocking=first[:MAX_BLOCKING],
        )

    def _collecting(self, attempt: Attempt) -> Reason:
        reported, goal = len(attempt.request.reported), attempt.spec.goal
        left_s = max(0.0, attempt.deadline_at - self._now)
        return Reason(
            code="collecting",
            text=f"{reported} of {goal} reports of round {attempt.round} are in; at most {left_s:.0f} s are left",
            needs=0,
        )

    def _short(self, job: Job, attempt: Attempt) -> Reason:
        needs = attempt.request.needs
        bound = f"{attempt.request.bound} of {attempt.request.wanted} devices"
        rate = self.rate_per_s(job.bit)
        if rate <= 0:
            seen = any(self.rates.values())
            return Reason(
                code="no-eligible-device" if seen else "no-supply-yet",
                text=f"{bound}: none of the devices that checked in over the last day meets {job.requirement.text!r}"
                if seen
                else f"{bound}: no device has checked in yet",
                needs=needs,
                supply_per_s=0.0,
                demand_ahead=0,
            )
        first_rate, ahead, blocking = self._queue(job, attempt)
        if ahead is None:
            eta_s = needs / first_rate
            return Reason(
                code="filling",
                text=f"{bound}; {first_rate:.3g} eligible devices check in per second, so about {eta_s:.0f} s to go",
                needs=needs,
                supply_per_s=rate,
                demand_ahead=0,
                eta_s=eta_s,
            )
        eta_s = (ahead + needs) / rate
        return Reason(
            code="behind-other-jobs",
            text=f"{bound}; {', '.join(blocking)} come first and need {ahead} more; about {eta_s:.0f} s to go",
            needs=needs,
            supply_per_s=rate,
            demand_ahead=ahead,
            blocking=blocking,
            eta_s=eta_s,
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
