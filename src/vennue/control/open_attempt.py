"""What the data plane holds of an attempt that takes reports, and what it makes of them in the end."""

import asyncio

import msgspec

from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.plan import RoundPlan
from vennue.updates.sums import Partial, Receipt


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A durable aggregate."""

    result: Digest
    memory: dict[str, Digest]
    """What the strategy remembers for the next round: a blob for each of its slots."""
    reports: int
    weight: float
    metrics: dict[str, float]


class OpenAttempt:
    """An attempt that takes reports. It belongs to the data plane, in its event loop."""

    def __init__(self, attempt: AttemptId, model: Digest, plan: RoundPlan) -> None:
        self.attempt = attempt
        self.model = model
        self.plan = plan
        self.opening = asyncio.Lock()
        self.aggregator: RoundAggregator | None = None
        self.counted: dict[AssignmentId, Receipt] = {}
        self.to_fold: dict[AssignmentId, int] = {}
        """With the staleness of each."""
        self.folding: asyncio.Task[None] | None = None
        self.untaken: dict[AssignmentId, Partial] = {}
        """What counts as part of a sum, of which that is not durable yet."""
        self.taking: dict[str, asyncio.Task[None]] = {}
        """Partial sums by id that are being put, durably, in the place of their assignments."""
        self.aggregating = asyncio.Lock()
        self.going_on = asyncio.Lock()
        self.made: Outcome | None = None
        """An asynchronous attempt's aggregate that may have become a commit,"""
        self.in_it: tuple[AssignmentId, ...] = ()
        """and the reports in it."""
