"""Response profiles: what a job's reports and rounds have taught about how long its devices take.

Tier matching (spec section 3) weighs a longer wait for devices against a shorter collection of their reports. For that
it needs the share of a round that is collection, and how much sooner the reports of one band of device capability are
in than everybody's; both are learned here, per job, from a bounded number of recent observations. `CapabilitySample`
holds what the pool's devices are capable of, so that bands hold equal numbers of the devices that check in, whichever
of them a job happened to be given lately. Pure and deterministic; a snapshot is plain data.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from vennue.core.ids import JobId, Signature
from vennue.core.requirement import Profile

MAX_REPORTS = 1024
"""Reports remembered per job: 8 kB, and a 95 % quantile of each of four tiers to within a few per cent."""
REFRESH_REPORTS = 256
"""Quantiles are recomputed after this many reports, and until then whenever their number has doubled."""
MIN_REPORTS_PER_TIER = 20
"""With fewer, a 95 % quantile is merely the slowest report."""
MAX_ROUNDS = 16
"""Rounds remembered per job."""
MAX_CHECK_INS = 2048
REFRESH_CHECK_INS = 1024
"""The sample is sorted anew after this many check-ins, and until then whenever their number has doubled."""

K = TypeVar("K", bound=Hashable)


class ProfileSnapshot(msgspec.Struct, frozen=True):
    """A `ResponseProfile` as plain data: its reports and rounds, oldest first."""

    expected_s: list[float]
    took_s: list[float]
    rounds: list[tuple[float, float]]


class ResponseProfile:
    """One job's recent reports (how long the device was expected to take, how long it took) and rounds."""

    __slots__ = ("_expected_s", "_known", "_p95s_s", "_rounds", "_seen", "_took_s")

    def __init__(self) -> None:
        self._expected_s = array("f")
        self._took_s = array("f")
        self._seen = 0
        self._known: tuple[array[float], array[float]] = array("f"), array("f")
        self._p95s_s: dict[tuple[float, ...], tuple[list[float], float] | None] = {}
        self._rounds: deque[tuple[float, float]] = deque(maxlen=MAX_ROUNDS)

    def observe_report(self, expected_s: float, took_s: float) -> None:
        """A device whose expected response time was ``expected_s`` has reported ``took_s`` after it was bound."""
        if len(self._took_s) < MAX_REPORTS:
            self._expected_s.append(expected_s)
            self._took_s.append(took_s)
        else:
            at = self._seen % MAX_REPORTS
            self._expected_s[at] = expected_s
            self._took_s[at] = took_s
        self._seen += 1
        if is_milestone(self._seen, REFRESH_REPORTS):
            self._refresh()

    def observe_round(self, scheduling_delay_s: float, collection_s: float) -> None:
        """A round has committed."""
        self._rounds.append((scheduling_delay_s, collection_s))

    @property
    def collection_ratio(self) -> float | None:
        """*c* of spec section 3: collection time over scheduling delay, over the recent rounds; None before any.

        Infinite when devices were there at once.
        """
        if not self._rounds:
            return None
        delay_s = sum(delay for delay, _ in self._rounds)
        collection_s = sum(collection for _, collection in self._rounds)
        return collection_s / delay_s if delay_s > 0 else float("inf") if collection_s > 0 else 0.0

    @property
    def collection_s(self) -> float:
        """Mean collection time of the recent rounds; 0 before any."""
        return sum(collection for _, collection in self._rounds) / len(self._rounds) if self._rounds else 0.0

    def p95_s(self, bounds_s: Sequence[float]) -> tuple[list[float], float] | None:
        """The 95 % quantile of the response times within each tier, and over all tiers alike.

        Every tier counts the same in the overall quantile, as tiers hold equal numbers of devices; the job may have
        been restricted to one of them lately. New reports count from the next refresh on.

        Args:
            bounds_s: the expected response times that separate the tiers, ascending.

        Returns:
            None while a tier has fewer than `MIN_REPORTS_PER_TIER` reports.
        """
        key = tuple(bounds_s)
        if key not in self._p95s_s:
            self._p95s_s[key] = self._quantiles_s(key)
        return self._p95s_s[key]

    def snapshot(self) -> ProfileSnapshot:
        """All that was learned."""
        oldest = self._seen % MAX_REPORTS if len(self._took_s) == MAX_REPORTS else 0
        order = [*range(oldest, len(self._took_s)), *range(oldest)]
        return ProfileSnapshot(
            [self._expected_s[i] for i in order], [self._took_s[i] for i in order], list(self._rounds)
        )

    @classmethod
    def restore(cls, snapshot: ProfileSnapshot) -> "ResponseProfile":
        """The profile that a snapshot describes."""
        profile = cls()
        for expected_s, took_s in zip(snapshot.expected_s, snapshot.took_s, strict=True):
            profile.observe_report(expected_s, took_s)
        for delay_s, collection_s in snapshot.rounds:
            profile.observe_round(delay_s, collection_s)
        profile._refresh()
        return profile

    def _refresh(self) -> None:
        self._known = self._expected_s[:], self._took_s[:]
        self._p95s_s.clear()

    def _quantiles_s(self, bounds_s: Sequence[float]) -> tuple[list[float], float] | None:
        tiers: list[list[float]] = [[] for _ in range(len(bounds_s) + 1)]
        for expected_s, took_s in zip(*self._known, strict=True):
            tiers[bisect_right(bounds_s, expected_s)].append(took_s)
        if any(len(tier) < MIN_REPORTS_PER_TIER for tier in tiers):
            return None
        weighted = [(took_s, 1 / len(tier)) for tier in tiers for took_s in tier]
        return [_p95_s([(took_s, 1.0) for took_s in tier]) for tier in tiers], _p95_s(weighted)


class CapabilitySample(Generic[K]):
    """The expected response times of the latest check-ins, each with what names the device's region.

    ``K`` is the attribute profile, from which a region's signature follows even after requirements came and went.
    """

    __slots__ = ("_expected_s", "_keys", "_listed", "_listed_at", "_milestones", "_seen")

    def __init__(self) -> None:
        self._keys: list[K] = []
        self._expected_s = array("d")
        self._seen = 0
        self._milestones = 0
        self._listed: tuple[tuple[float, Signature], ...] = ()
        self._listed_at: tuple[int, Hashable] = (0, None)

    def observe(self, key: K, expected_s: float) -> None:
        """A device of this attribute profile checked in, expected to take ``expected_s`` seconds."""
        if len(self._keys) < MAX_CHECK_INS:
            self._keys.append(key)
            self._expected_s.append(expected_s)
        else:
            at = self._seen % MAX_CHECK_INS
            self._keys[at] = key
            self._expected_s[at] = expected_s
        self._seen += 1
        if is_milestone(self._seen, REFRESH_CHECK_INS):
            self._milestones += 1

    def by_capability(
        self, signature: Callable[[K], Signature], version: Hashable = None
    ) -> tuple[tuple[float, Signature], ...]:
        """The sample as `PoolView.capabilities` wants it: fastest first.

        Args:
            signature: the region of an attribute profile, under the requirements registered now.
            version: changes whenever ``signature`` does.
        """
        at = (self._milestones, version)
        if at != self._listed_at:
            pairs = zip(self._expected_s, self._keys, strict=True)
            self._listed = tuple(sorted((expected_s, signature(key)) for expected_s, key in pairs))
            self._listed_at = at
        return self._listed


class Learned(Generic[K]):
    """All that a pool learns for matching and fairness: what its devices are capable of, and how its jobs' rounds go.

    Jobs that have ended are forgotten, so the memory follows the jobs that run.
    """

    __slots__ = ("capabilities", "profiles")

    def __init__(self) -> None:
        self.capabilities: CapabilitySample[K] = CapabilitySample()
        self.profiles: dict[JobId, ResponseProfile] = {}

    def observe_report(self, job: JobId, expected_s: float, took_s: float) -> None:
        """A device whose expected response time was ``expected_s`` has reported ``took_s`` after it was bound."""
        self._profile(job).observe_report(expected_s, took_s)

    def observe_round(self, job: JobId, scheduling_delay_s: float, collection_s: float) -> None:
        """A round of the job has committed."""
        self._profile(job).observe_round(scheduling_delay_s, collection_s)

    def forget(self, job: JobId) -> None:
        """The job has ended."""
        self.profiles.pop(job, None)

    def _profile(self, job: JobId) -> ResponseProfile:
        profile = self.profiles.get(job)
        if profile is None:
            profile = self.profiles[job] = ResponseProfile()
        return profile


def expected_response_s(profile: Profile) -> float:
    """How long a device is expected to take for a task, from what it tells about itself; 0 when it tells nothing.

    Matching compares devices, so the scale does not matter: this is the time of ten inferences (``latency_ms``).
    """
    latency_ms = profile.attributes.get("latency_ms", 0.0)
    return latency_ms / 100.0 if isinstance(latency_ms, int | float) else 0.0


def is_milestone(seen: int, interval: int) -> bool:
    """Whether what is derived is brought up to date after this many observations: each doubling, then regularly."""
    return seen % interval == 0 or (seen < interval and seen & (seen - 1) == 0)


def _p95_s(weighted: Iterable[tuple[float, float]]) -> float:
    """The smallest value at or below which lie 95 % of the weight."""
    ordered = sorted(weighted)
    limit = 0.95 * sum(weight for _, weight in ordered)
    below = 0.0
    for value, weight in ordered:
        below += weight
        if below >= limit - 1e-9:
            return value
    return ordered[-1][0]
