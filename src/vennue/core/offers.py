"""A region's offers under the plan in force, and how a check-in chooses among them.

A region's list is taken from the plan only as far as check-ins need it, and remembers how many of its first offers are
filled. So most check-ins look at one offer, however long the plan is. Choosing changes nothing but such memories.
"""

from collections.abc import Iterator, Mapping

from vennue.core.ids import AttemptId, DeviceId, JobId, assignment_id
from vennue.core.plan import Offer, Pick, Request
from vennue.core.tenant import Tenant


class OpenRequest:
    """A request in the binding table, with the terms on which devices are bound to it."""

    __slots__ = ("accept_lease_s", "bound_so_far", "id_prefix", "lease_s", "request", "version")

    def __init__(
        self, request: Request, *, lease_s: float, accept_lease_s: float | None, restarts: int, version: int
    ) -> None:
        self.request = request
        self.id_prefix = assignment_id(request.attempt, 1, restarts)[:-1]
        """What the ids of its assignments begin with, before their number."""
        self.lease_s = lease_s
        self.accept_lease_s = accept_lease_s
        self.bound_so_far = 0
        """Assignments made, those that have ended too: the number of the last one."""
        self.version = version


class RegionOffers:
    """The offers of one region for requests that are open, in the plan's order.

    Args:
        rest: the plan's offers for the region, of which none is taken yet.
        open_requests: the binding table's, by attempt; offers for others are passed over.
        by_tenant: whether there are quotas, so that each tenant's offers are found by themselves.
        epoch: the binding table's count of the slots that came back.
    """

    __slots__ = ("_by_tenant", "_filled", "_lanes", "_offers", "_open_requests", "_rest", "epoch")

    def __init__(
        self,
        rest: Iterator[Offer],
        open_requests: Mapping[AttemptId, OpenRequest],
        *,
        by_tenant: bool,
        epoch: int,
    ) -> None:
        self._rest = rest
        self._open_requests = open_requests
        self._by_tenant = by_tenant
        self._offers: list[tuple[OpenRequest, Offer]] = []
        self._filled = 0
        """So many of the first offers need no device."""
        self._lanes: dict[Tenant | None, _Lane] = {}
        """The offers by tenant, where there are quotas; those of all tenants without one are one lane."""
        self.epoch = epoch
        """The table's, when it was last known which offers are filled."""

    def start_over(self, epoch: int) -> None:
        """A slot has come back somewhere: any offer may need a device again."""
        self.epoch = epoch
        self._filled = 0
        for lane in self._lanes.values():
            lane.filled = 0

    def first(self, response_s: float, declined: frozenset[JobId] | None) -> OpenRequest | None:
        """The first request that needs the device and may have it."""
        offers = self._offers
        index = self._filled
        passed_over = False
        while index < len(offers) or self._extend():
            open_request, offer = offers[index]
            index += 1
            request = open_request.request
            # `Request.needs`, without the call: most check-ins do nothing else.
            used = len(request.live) if request.continuous else len(request.live) + len(request.reported)
            if used >= request.wanted:
                if not passed_over:
                    self._filled = index
                continue
            tier = offer.tier
            if (tier is not None and not tier.admits(response_s)) or (declined and request.job in declined):
                passed_over = True
                continue
            return open_request
        return None

    def first_by_quota(self, now: float, response_s: float, declined: frozenset[JobId] | None) -> OpenRequest | None:
        """The first of a tenant within its quota, or else the first of one that may borrow.

        It looks at one offer of each tenant, and at those that are taken from the plan for the first time.
        """
        exhausted = {tenant for tenant in self._lanes if tenant is not None and tenant.exhausted(now)}
        best = self._first_of_lanes(exhausted, response_s, declined, within=True)
        while best is None and self._extend():
            open_request, offer = self._offers[-1]
            tenant = open_request.request.tenant
            if tenant is not None and tenant.exhausted(now):
                exhausted.add(tenant)
            elif _usable(open_request.request, offer, response_s, declined):
                best = open_request
        return best or self._first_of_lanes(exhausted, response_s, declined, within=False)

    def uniform(self, now: float, draw: float, declined: frozenset[JobId] | None) -> OpenRequest | None:
        """One of those that need the device, by a draw in [0, 1): within their quotas, or else of those that borrow."""
        within: list[OpenRequest] = []
        borrowers: list[OpenRequest] = []
        for open_request, _ in self._take_all():
            request = open_request.request
            if request.needs <= 0 or (declined and request.job in declined):
                continue
            if request.tenant is None or not request.tenant.exhausted(now):
                within.append(open_request)
            elif request.tenant.quota.borrow:
                borrowers.append(open_request)
        choice = within or borrowers
        return choice[int(draw * len(choice))] if choice else None

    def picked(
        self, pick: Pick, device: DeviceId, now: float, draw: float, declined: frozenset[JobId] | None
    ) -> OpenRequest | None:
        """The one request that the device may serve; None if that one needs no device now."""
        offers = self._take_all()
        if not offers:
            return None
        open_request, _ = offers[pick(device, draw, [one.request.job for one, _ in offers])]
        request = open_request.request
        tenant = request.tenant
        barred = tenant is not None and not tenant.quota.borrow and tenant.exhausted(now)
        if barred or request.needs <= 0 or (declined and request.job in declined):
            return None
        return open_request

    def _take_all(self) -> list[tuple[OpenRequest, Offer]]:
        while self._extend():
            pass
        return self._offers

    def _first_of_lanes(
        self,
        exhausted: set[Tenant],
        response_s: float,
        declined: frozenset[JobId] | None,
        *,
        within: bool,
    ) -> OpenRequest | None:
        """The first usable offer among the tenants within their quotas, or among those that borrow beyond them."""
        best = len(self._offers)
        for tenant, lane in self._lanes.items():
            is_within = tenant is None or tenant not in exhausted
            if is_within is not within or not (is_within or tenant is None or tenant.quota.borrow):
                continue
            passed_over = False
            for index in range(lane.filled, len(lane.places)):
                place = lane.places[index]
                if place >= best:
                    break
                open_request, offer = self._offers[place]
                if _usable(open_request.request, offer, response_s, declined):
                    best = place
                elif open_request.request.needs > 0:
                    passed_over = True
                elif not passed_over:
                    lane.filled = index + 1
        return self._offers[best][0] if best < len(self._offers) else None

    def _extend(self) -> bool:
        """Take the plan's next offer for an open request; False when there is none."""
        for offer in self._rest:
            open_request = self._open_requests.get(offer.attempt)
            if open_request is not None:
                if self._by_tenant:
                    self._lanes.setdefault(open_request.request.tenant, _Lane()).places.append(len(self._offers))
                self._offers.append((open_request, offer))
                return True
        return False


class _Lane:
    """The places of one tenant's offers among a region's, and how many of the first of them are filled."""

    __slots__ = ("filled", "places")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.filled = 0


def _usable(request: Request, offer: Offer, response_s: float, declined: frozenset[JobId] | None) -> bool:
    """Whether a device with this expected response time may take an offer, and the offer needs one."""
    if request.needs <= 0 or (declined and request.job in declined):
        return False
    return offer.tier is None or offer.tier.admits(response_s)
