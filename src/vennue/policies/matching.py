"""Matching (spec section 3, the paper's Algorithm 2): a request may be better off waiting for devices that are alike.

A round ends with its slowest devices. Restricted to one tier of device capability, a request waits V times longer for
its devices, but their reports come in within the tier's p95 instead of everybody's. `Matcher` says when that pays. The
tier is drawn, not the fastest: a job that only ever saw fast devices would learn from their owners alone.
"""

import math
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from vennue.core.ids import Signature
from vennue.core.plan import Offer, Plan, PoolView, Request, Tier
from vennue.policies.allocation import Regions
from vennue.policies.base import Policy, PolicyParameters, arrival_order

MIN_DEVICES_PER_TIER = 8
"""Fewer check-ins than this say nothing about where a quantile lies."""

Tiers = Annotated[int, Meta(ge=1, le=16)]
"""V: tiers of equal size that the devices are split into; 1 turns matching off."""


def gate_opens(tiers: int, gain: float, collection_ratio: float) -> bool:
    """Whether one of V tiers is worth the wait: V + g·c < c + 1, that is (1 − g)·c > V − 1.

    Args:
        tiers: V.
        gain: g, the tier's p95 response time over everybody's.
        collection_ratio: c, the job's collection time over its scheduling delay.
    """
    return (1 - gain) * collection_ratio > tiers - 1


def tier_bounds_s(capabilities: Sequence[tuple[float, Signature]], bit: int, tiers: int) -> list[float] | None:
    """The expected response times that split the devices which meet a requirement into tiers of equal size.

    Args:
        capabilities: as in `PoolView.capabilities`.
        bit: the requirement's.
        tiers: V.

    Returns:
        V − 1 bounds, strictly ascending; None when too few devices are known, or too many are alike.
    """
    expected_s = [seconds for seconds, signature in capabilities if signature >> bit & 1]
    if len(expected_s) < MIN_DEVICES_PER_TIER * tiers:
        return None
    bounds_s = [expected_s[len(expected_s) * tier // tiers] for tier in range(1, tiers)]
    edges = [expected_s[0], *bounds_s]
    return bounds_s if all(low < high for low, high in zip(edges, bounds_s, strict=False)) else None


class Matcher:
    """Says which tier, if any, the request at the head of a group is restricted to.

    Args:
        tiers: V.
    """

    def __init__(self, tiers: int) -> None:
        self._tiers = tiers
        self._capabilities: tuple[tuple[float, Signature], ...] = ()
        self._bounds_s: dict[int, list[float] | None] = {}

    def choose(self, head: Request, view: PoolView, rate_per_s: float) -> Tier | None:
        """The head's tier, or None when it is better off with all devices.

        The draw is the request's own (its lottery), so that it keeps its tier from plan to plan. With a deadline, the
        tier must also leave time: V · needs / rate + the tier's p95 must end before it.

        Args:
            head: the request.
            view: with the job's profile and the devices' capabilities.
            rate_per_s: check-ins per second of the regions that the request is served from.
        """
        tiers = self._tiers
        profile = view.profiles.get(head.job)
        if tiers == 1 or profile is None or head.continuous or rate_per_s <= 0:
            return None
        ratio = profile.collection_ratio
        if ratio is None or not gate_opens(tiers, 0.0, ratio):
            return None  # no gain would do, so the quantiles need not be known
        bounds_s = self._bounds(view, head.bit)
        p95s_s = None if bounds_s is None else profile.p95_s(bounds_s)
        if bounds_s is None or p95s_s is None:
            return None
        of_tier_s, overall_s = p95s_s
        drawn = min(int(head.lottery * tiers), tiers - 1)
        if overall_s <= 0 or not gate_opens(tiers, of_tier_s[drawn] / overall_s, ratio):
            return None
        if head.deadline_at is not None:
            ends_at = view.now + tiers * head.needs / rate_per_s + of_tier_s[drawn]
            if ends_at >= head.deadline_at:
                return None
        edges_s = [-math.inf, *bounds_s, math.inf]
        return Tier(edges_s[drawn], edges_s[drawn + 1])

    def _bounds(self, view: PoolView, bit: int) -> list[float] | None:
        capabilities = tuple(view.capabilities)
        if capabilities != self._capabilities:
            self._capabilities = capabilities
            self._bounds_s.clear()
        if bit not in self._bounds_s:
            self._bounds_s[bit] = tier_bounds_s(capabilities, bit, self._tiers)
        return self._bounds_s[bit]


class FifoMatchParameters(PolicyParameters, frozen=True):
    """How `fifo-match` splits devices."""

    tiers: Tiers = 3
    """V; 1 turns matching off."""


class FifoMatch(Policy):
    """By job arrival, the first request of each requirement restricted to a tier when that pays (spec section 5)."""

    name = "fifo-match"
    Parameters = FifoMatchParameters
    parameters: FifoMatchParameters

    def __init__(self, /, **parameters: object) -> None:
        super().__init__(**parameters)
        self._matcher = Matcher(self.parameters.tiers)
        self.learns = self.parameters.tiers > 1

    def plan(self, view: PoolView) -> Plan:
        regions = Regions(view.rates)
        queues: list[tuple[int, tuple[Offer, ...]]] = []
        seen: set[int] = set()
        for request in sorted(view.requests, key=arrival_order):
            tier = None
            if request.bit not in seen:
                seen.add(request.bit)
                _, rate_per_s = regions.cover(request.bit)
                tier = self._matcher.choose(request, view, rate_per_s)
            queues.append((request.bit, (request.offer if tier is None else Offer(request.attempt, tier),)))
        return Plan(queues)
