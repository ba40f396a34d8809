"""Supply: how many devices of each kind check in per second, over the last day.

Counts are kept per profile, not per region, so the supply of a requirement that nobody has asked for before is known
at once. They are kept in time buckets, and those older than the window are dropped. Memory is bounded whatever
devices send: when there are too many profiles, the lightest are thinned to a uniform sample of their check-ins, and
the heaviest stay exact. Thinning keeps the expected count of each profile and the sum of all, so every rate is
unbiased. Time is passed in; a step backwards or a jump does no harm.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput
from vennue.core.ids import Signature
from vennue.core.region import RequirementRegistry
from vennue.core.requirement import AttributeSchema, Profile, Requirement

RATE_FLOOR_PER_S = 1 / 86_400
"""What planners take for a supply that has not been seen: one check-in per day."""

_LEAST_SPAN_S = 1.0
"""A rate is never taken over less than this: one check-in in a millisecond is not a thousand per second."""
_STEADY_SPAN_S = 60.0
"""Nor one that is planned with over less than this: plans would follow each of the first check-ins."""
_KEPT = 0.75
"""The share of profiles that is left after thinning: it then costs little per new profile."""
_FRESH = 1.1
"""Region rates are good until the time that they are taken over has grown by this factor."""


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

_ANY = AttributeSchema.open()


class Supply:
    """Check-ins per profile in the buckets of a sliding window.

    A rate is a count over the time in which it was made: the window, or the time since this object was first used
    while that is shorter, but a second at least. `observed_region_rates` are such, too. Those that plans are made with,
    `region_rates`, are in the first minute (or bucket, if that is shorter) taken over the whole minute, so the earliest
    are too low rather than wild; the ratios between them are right from the start.

    Counts are exact up to ``max_profiles`` different profiles in the window. Beyond, a profile with at least
    ``1 / (0.75 · max_profiles)`` of the window's check-ins whenever profiles are thinned stays exact, and the lighter
    ones stand for each other.

    Args:
        bucket_s: how fine time is kept.
        window_s: how long check-ins count, rounded up to whole buckets.
        max_profiles: how many profiles are kept. Memory is 8 bytes for each of them in each bucket: 3 MB by default.
        rng: draws the sample of light profiles.

    Raises:
        InvalidInput: a bucket that does not fit the window, or too few profiles.
    """

    def __init__(
        self,
        bucket_s: float = 900.0,
        window_s: float = 86_400.0,
        max_profiles: int = 4096,
        rng: random.Random | None = None,
    ) -> None:
        if not 0 < bucket_s <= window_s < math.inf:
            raise InvalidInput(
                f"buckets of {bucket_s} s do not fit a window of {window_s} s", field="bucket_s", value=bucket_s,
                limit=window_s, fix="use buckets above 0 s and at most as long as the window",
            )  # fmt: skip
        if max_profiles < 4:
            raise InvalidInput(
                f"{max_profiles} profiles are too few to sample from", field="max_profiles", value=max_profiles,
                limit=4, fix="4096 is a good number",
            )  # fmt: skip
        self.bucket_s = bucket_s
        self.max_profiles = max_profiles
        self.rates_version = 0
        """Grows when `region_rates` has something new to say."""
        self._buckets = math.ceil(window_s / bucket_s)
        self._rng = random.Random(0) if rng is None else rng
        self._rows: dict[Profile, int] = {}
        self._history = np.zeros((self._buckets, max_profiles))  # check-ins by bucket and row; the buckets are a ring
        self._open = 0  # the bucket that is being counted
        self._news = [0.0] * max_profiles  # its check-ins that are not in the history yet: a list counts faster
        self._since = self._begin = math.inf  # when counting, and the open bucket, began
        self._end = -math.inf
        self._known: tuple[RequirementRegistry, int, float, dict[Signature, float]] | None = None
        self._steadied = 1.0  # of its rates: how much too low they are

    def observe(self, profile: Profile, now: float, count: float = 1) -> None:
        """Count a check-in, or several at once."""
        if not self._begin <= now < self._end:
            self._turn(now)
        try:
            row = self._rows[profile]
        except KeyError:
            row = self._admit(profile)
        self._news[row] += count

    def rate(self, requirement: Requirement, now: float) -> float:
        """Check-ins per second, over the window, of devices that meet the requirement.

        Evaluates it once for each combination of the values that it uses: about 4 µs, and 0.5 µs for each profile.
        """
        return self._count(requirement, now, self._buckets) / self._span_s(now, self._buckets)

    def eligible(self, requirement: Requirement, now: float) -> tuple[list[Profile], float]:
        """The profiles seen in the window that meet the requirement, and their `rate`, for the price of the rate."""
        counts = {profile: n for profile, n in self.profiles(now).items() if requirement.matches(profile)}
        return list(counts), sum(counts.values()) / self._span_s(now, self._buckets)

    def recent_rate(self, requirement: Requirement, now: float, span_s: float = 900.0) -> float:
        """`rate`, but over the last ``span_s`` seconds, rounded up to whole buckets besides the open one."""
        buckets = min(math.ceil(span_s / self.bucket_s) + 1, self._buckets)
        return self._count(requirement, now, buckets) / self._span_s(now, buckets)

    def region_rates(self, registry: RequirementRegistry, now: float) -> dict[Signature, float]:
        """Check-ins per second of each region that has been seen, over the window, to plan with: steady from the start.

        The answer is kept until the bucket or the registry changes, or the time that it is taken over has grown by a
        tenth, so planning rarely pays for it. Then it costs a look-up per profile, 1.5 ms for 4096 of them, and an
        evaluation of each new requirement per profile, as `rate` does. Do not change the answer.
        """
        if not self._begin <= now < self._end:
            self._turn(now)
        if self._known is not None:
            for_registry, version, until, rates = self._known
            if for_registry is registry and version == registry.version and now < until:
                return rates
        totals, observed_s = self._totals(now, self._buckets), self._span_s(now, self._buckets)
        span_s = max(observed_s, min(_STEADY_SPAN_S, self.bucket_s))
        self._steadied = span_s / observed_s
        rates = {}
        for profile, count in zip(self._rows, totals, strict=True):
            if count > 0:
                signature = registry.signature(profile)
                rates[signature] = rates.get(signature, 0.0) + count / span_s
        self.rates_version += 1
        self._known = registry, registry.version, self._since + (now - self._since) * _FRESH, rates
        return rates

    def observed_region_rates(self, registry: RequirementRegistry, now: float) -> dict[Signature, float]:
        """`region_rates`, but as they are, also in the first minute. They add up to that of the pool.

        As old as the answer that is kept: what is shown of regions is what is planned with, and so up to a tenth behind
        `rate`. Do not change the answer.
        """
        rates = self.region_rates(registry, now)
        if self._steadied == 1.0:
            return rates
        return {signature: rate * self._steadied for signature, rate in rates.items()}

    def region_silences_s(self, registry: RequirementRegistry, now: float) -> dict[Signature, float]:
        """For how long, at least, no device of each region that was seen in the window has checked in.

        As fine as the buckets: 0 for a region seen in the open one. Costs what `region_rates` does anew.
        """
        self._totals(now, 1)
        by_age = self._history[(self._open - np.arange(self._buckets)) % self._buckets, : len(self._rows)] > 0
        ages = np.where(by_age.any(axis=0), by_age.argmax(axis=0), -1).tolist()
        silences_s: dict[Signature, float] = {}
        for profile, age in zip(self._rows, ages, strict=True):
            if age >= 0:
                silence_s = now - self._begin + (age - 1) * self.bucket_s if age else 0.0
                signature = registry.signature(profile)
                silences_s[signature] = min(silence_s, silences_s.get(signature, math.inf))
        return silences_s

    def profiles(self, now: float) -> dict[Profile, float]:
        """Check-ins of each profile in the window: the estimate that all rates are sums of."""
        return {
            profile: count for profile, count in zip(self._rows, self._totals(now, self._buckets), strict=True) if count
        }

    @property
    def turns_at(self) -> float:
        """When the open bucket ends. Until then, check-ins may as well be counted together."""
        return self._end

    @property
    def rates_until(self) -> float:
        """Until when `region_rates` gives its last answer again, as long as the registry stays as it is."""
        return -math.inf if self._known is None else min(self._end, self._known[2])

    def observed_s(self, now: float) -> float:
        """How long check-ins have been counted, even if that is longer than the window."""
        if not self._begin <= now < self._end:
            self._turn(now)
        return max(now - self._since, 0.0)

    def snapshot(self, now: float) -> dict[str, Any]:
        """All counts as plain data (numbers, strings, lists, bytes), for `restore`."""
        observed_s = self.observed_s(now)
        self._fold()
        by_age = np.roll(self._history[:, : len(self._rows)], -1 - self._open, axis=0)
        return {
            "bucket_s": self.bucket_s,
            "buckets": self._buckets,
            "observed_s": observed_s,
            "bucket_age_s": max(now - self._begin, 0.0),
            "profiles": [dict(profile.attributes) for profile in self._rows],
            "counts": by_age.astype("<f8").tobytes(),
        }

    def restore(self, snapshot: Mapping[str, Any], now: float) -> None:
        """Go on from a snapshot as if no time had passed since. It replaces what was counted so far.

        Raises:
            InvalidInput: it is no snapshot, or one with other buckets or more profiles. Nothing was changed.
        """
        try:
            if snapshot["bucket_s"] != self.bucket_s or snapshot["buckets"] != self._buckets:
                raise ValueError("it has other buckets")
            rows = {_ANY.check(attributes): row for row, attributes in enumerate(snapshot["profiles"])}
            counts = np.frombuffer(snapshot["counts"], "<f8").reshape(self._buckets, len(rows))
            observed_s, age_s = float(snapshot["observed_s"]), float(snapshot["bucket_age_s"])
            if len(rows) > self.max_profiles:
                raise ValueError("it has too many profiles")
            if not ((counts >= 0) & (counts < math.inf)).all() or not 0 <= age_s <= min(observed_s, self.bucket_s):
                raise ValueError("its numbers make no sense")
        except (AttributeError, InvalidInput, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"the supply cannot go on from this snapshot: {error}", field="snapshot", fix="start without it"
            ) from error
        self._rows = rows
        self._history[:] = 0.0
        self._history[:, : len(rows)] = counts
        self._news = [0.0] * self.max_profiles
        self._open = self._buckets - 1
        self._begin = now - age_s
        self._end = self._begin + self.bucket_s
        self._since = now - observed_s
        self._known = None

    def _turn(self, now: float) -> None:
        """Make the bucket that ``now`` falls in the open one. A step backwards stretches the open bucket instead."""
        if not math.isfinite(now):
            return
        if self._begin == math.inf:
            self._since = self._begin = now
        elif now < self._begin:
            self._since -= self._begin - now
            self._begin = now
        else:
            self._fold()
            steps = math.floor((now - self._begin) / self.bucket_s)
            for step in range(1, min(steps, self._buckets) + 1):
                self._history[(self._open + step) % self._buckets] = 0.0
            self._open = (self._open + steps) % self._buckets
            self._begin += steps * self.bucket_s
            self._known = None
        self._end = self._begin + self.bucket_s

    def _fold(self) -> None:
        used = len(self._rows)
        self._history[self._open, :used] += self._news[:used]
        self._news = [0.0] * self.max_profiles

    def _totals(self, now: float, buckets: int) -> list[float]:
        """Check-ins by row in the latest buckets, the open one included."""
        if not self._begin <= now < self._end:
            self._turn(now)
        self._fold()
        latest = slice(None) if buckets == self._buckets else (self._open - np.arange(buckets)) % self._buckets
        totals: list[float] = self._history[latest, : len(self._rows)].sum(axis=0).tolist()
        return totals

    def _count(self, requirement: Requirement, now: float, buckets: int) -> float:
        totals = self._totals(now, buckets)
        return sum(n for profile, n in zip(self._rows, totals, strict=True) if n and requirement.matches(profile))

    def _span_s(self, now: float, buckets: int) -> float:
        """The time that the latest buckets have covered so far."""
        span_s = min(now - self._since, now - self._begin + (buckets - 1) * self.bucket_s)
        return max(span_s, min(_LEAST_SPAN_S, self.bucket_s))

    def _admit(self, profile: Profile) -> int:
        if len(self._rows) == self.max_profiles:
            self._thin()
        row = len(self._rows)
        self._rows[profile] = row
        return row

    def _thin(self) -> None:
        """Make room: drop profiles that are not in the window, then sample from the lightest.

        With the threshold τ at which Σ min(1, count/τ) is the number of places, profiles from τ up keep their counts.
        Each lighter one stays with probability count/τ, and then counts as τ. So every count keeps its expectation, as
        in unbiased space-saving (Ting, "Data Sketches for Disaggregated Subset Sum and Frequent Item Estimation",
        SIGMOD 2018). The draw is systematic: exactly as many stay as there are places, so the sum of all counts
        stays as it was.
        """
        self._fold()
        totals = self._history[:, : len(self._rows)].sum(axis=0)
        places = int(_KEPT * self.max_profiles)
        stay = totals > 0
        if np.count_nonzero(stay) > places:
            light, threshold, draws = _light(totals, places)
            positions = np.cumsum(totals[light]) / threshold
            positions[-1] = draws  # which it is but for rounding
            kept = light[np.diff(np.floor(positions + self._rng.random()), prepend=0.0) > 0]
            stay[light] = False
            stay[kept] = True
            self._history[:, kept] *= threshold / totals[kept]
        rows = np.flatnonzero(stay)
        self._history[:, : len(rows)] = self._history[:, rows]
        self._history[:, len(rows) :] = 0.0
        profiles = list(self._rows)
        self._rows = {profiles[row]: place for place, row in enumerate(rows.tolist())}


def _light(totals: FloatArray, places: int) -> tuple[IntArray, float, int]:
    """Which rows are too light to keep their counts, the threshold τ, and the places that are left for them."""
    descending = np.argsort(-totals, kind="stable")
    descending = descending[: np.count_nonzero(totals)]
    ordered = totals[descending]
    left = places - np.arange(places)
    thresholds = ordered[::-1].cumsum()[::-1][:places] / left
    exact = int(np.argmax(ordered[:places] <= thresholds))
    return np.sort(descending[exact:]), float(thresholds[exact]), int(left[exact])
