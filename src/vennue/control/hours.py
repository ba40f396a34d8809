"""The supply of the last day by the hour: how many devices of each kind checked in, and when.

Rates over a whole day decide who is scarce; whether a job fits a night is decided by the hours. They are read off a
snapshot of the supply, so they cost a few milliseconds, and nothing while nobody asks.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vennue.core.supply import Supply

HOURS: Final = 24
HOUR_S: Final = 3600.0
RECENT_S: Final = 900.0
"""The span of what counts as now."""


class Hours(NamedTuple):
    """Check-ins by the hour, the last hour being the one that ends now."""

    attributes: list[dict[str, Any]]
    """Of each profile."""
    counts: npt.NDArray[np.float64]
    """Check-ins by hour (oldest first) and profile."""
    observed_s: npt.NDArray[np.float64]
    """For how long the pool was observed in each hour."""
    recent: npt.NDArray[np.float64]
    """Check-ins by profile in the last `RECENT_S`, as `Supply.recent_rate` takes them."""


def hours_of(supply: Supply, now: float) -> Hours:
    """The last 24 hours of a supply. An hour is as fine as the supply's buckets."""
    snapshot = supply.snapshot(now)
    bucket_s = float(snapshot["bucket_s"])
    attributes = list(snapshot["profiles"])
    by_bucket = np.frombuffer(snapshot["counts"], "<f8").reshape(snapshot["buckets"], len(attributes))
    ages = np.arange(len(by_bucket) - 1, -1, -1)  # in buckets: the open one is the last
    ends_s = np.maximum(ages * bucket_s - (bucket_s - snapshot["bucket_age_s"]), 0.0)  # seconds ago
    begins_s = np.minimum(ages * bucket_s + snapshot["bucket_age_s"], snapshot["observed_s"])
    hour = HOURS - 1 - np.minimum(ages * bucket_s // HOUR_S, HOURS - 1).astype(int)
    counts = np.zeros((HOURS, len(attributes)))
    np.add.at(counts, hour, by_bucket)
    observed_s = np.zeros(HOURS)
    np.add.at(observed_s, hour, np.maximum(begins_s - ends_s, 0.0))
    recent = by_bucket[-min(math.ceil(RECENT_S / bucket_s) + 1, len(by_bucket)) :].sum(axis=0)
    return Hours(attributes, counts, observed_s, recent)
