"""Losses: what share of the devices that take a task never report, and how many more to bind for it.

A round that binds exactly the devices it needs waits for replacements of those that are lost; one that binds too many
wastes the surplus. The share is measured for each job, and for each region over all jobs, so that a new job begins with
what its devices have done for others. Old observations fade, and memory is bounded by the jobs and regions there are.
"""

from collections.abc import Mapping
from typing import Final

from vennue.core.ids import JobId, Signature

MEMORY: Final = 512
"""Observations after which an old one counts for 1/e."""
MAX_REGIONS: Final = 1024
MAX_OVERCOMMIT: Final = 2.0
"""Beyond, it is not devices that are missing: the deadline or the lease does not fit the work."""

_FADE = 1 - 1 / MEMORY
_FIRST_GUESS = 0.1
"""Before anything was seen: about a tenth of devices drop out in the field (Bonawitz et al. 2019, section 9)."""
_GUESS_WEIGHT = 20.0
"""How many observations of its own outweigh what is known of a wider group."""


class Share:
    """A share that is estimated from observations, of which old ones fade."""

    __slots__ = ("_lost", "_seen")

    def __init__(self) -> None:
        self._seen = 0.0
        self._lost = 0.0

    def observe(self, *, lost: bool) -> None:
        """One more device has reported, or was lost."""
        self._seen = self._seen * _FADE + 1
        self._lost = self._lost * _FADE + lost

    @property
    def seen(self) -> float:
        """How many observations it rests on, old ones counting less."""
        return self._seen

    @property
    def observed(self) -> float:
        """The share of them that were lost."""
        return self._lost / self._seen if self._seen else 0.0

    def estimate(self, guess: float) -> float:
        """The share that was lost, where ``guess`` counts as so many observations as outweigh it."""
        return (self._lost + _GUESS_WEIGHT * guess) / (self._seen + _GUESS_WEIGHT)


class Losses:
    """What has been learned of the losses in one pool."""

    def __init__(self) -> None:
        self._all = Share()
        self._by_region: dict[Signature, Share] = {}
        self._by_job: dict[JobId, Share] = {}

    def observe(self, job: JobId, region: Signature, *, lost: bool) -> None:
        """A device of this region that had taken a task of this job has reported, or was lost."""
        self._all.observe(lost=lost)
        share = self._by_region.get(region)
        if share is None:
            if len(self._by_region) >= MAX_REGIONS:
                del self._by_region[next(iter(self._by_region))]
            share = self._by_region[region] = Share()
        share.observe(lost=lost)
        share = self._by_job.get(job)
        if share is None:
            share = self._by_job[job] = Share()
        share.observe(lost=lost)

    def expected(self, job: JobId, bit: int, rates: Mapping[Signature, float]) -> float:
        """The share of the devices bound to a job that will be lost.

        Args:
            job: whose.
            bit: of its requirement.
            rates: check-ins per second of each region: devices are expected to come from them in proportion.
        """
        overall = self._all.estimate(_FIRST_GUESS)
        weight = lost = 0.0
        for region, rate in rates.items():
            if region >> bit & 1:
                share = self._by_region.get(region)
                weight += rate
                lost += rate * (overall if share is None else share.estimate(overall))
        guess = lost / weight if weight > 0 else overall
        share = self._by_job.get(job)
        return guess if share is None else share.estimate(guess)

    def of_job(self, job: JobId) -> Share:
        """What was seen of a job's own devices."""
        return self._by_job.get(job) or Share()

    def overcommit(self, job: JobId, bit: int, rates: Mapping[Signature, float]) -> float:
        """Devices to bind per report that is needed: 1/(1 − p) for an expected loss of p, 1 to `MAX_OVERCOMMIT`."""
        lost = self.expected(job, bit, rates)
        return MAX_OVERCOMMIT if lost >= 1 - 1 / MAX_OVERCOMMIT else 1 / (1 - lost)

    def forget_job(self, job: JobId) -> None:
        """The job has ended."""
        self._by_job.pop(job, None)

    def forget_requirement(self, bit: int) -> None:
        """The bit will stand for another requirement: what is known of regions no longer tells them apart by it."""
        without = ~(1 << bit)
        regions, self._by_region = self._by_region, {}
        for region, share in regions.items():
            self._by_region.setdefault(Signature(region & without), share)

    @property
    def regions(self) -> int:
        """How many regions are remembered."""
        return len(self._by_region)

    @property
    def jobs(self) -> int:
        """How many jobs are remembered."""
        return len(self._by_job)
