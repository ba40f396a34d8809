"""Venn: devices go first to the jobs that few devices can serve, unless a longer queue elsewhere gains more by them.

`venn-sched` is the paper's scheduling alone (spec section 2): within a group, smallest remaining demand first; among
groups, the allocation of `vennue.policies.allocation`; in each region the owner's requests and then, so that no
eligible device idles, those of the other groups that cover it, scarcest group first. `venn` adds matching (section 3)
and fairness (section 4).
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from vennue.core.plan import Offer, Plan, PoolView
from vennue.policies.allocation import Group, Irs
from vennue.policies.base import Policy, PolicyParameters
from vennue.policies.fairness import first_claims, urgencies
from vennue.policies.matching import Matcher, Tiers
from vennue.policies.srsf import DemandScope, remaining_demand


class VennSchedParameters(PolicyParameters, frozen=True):
    """How `venn-sched` measures what remains."""

    demand_scope: DemandScope = "round"
    """Remaining demand of the open round, or of the whole job where its rounds are declared."""


class VennSched(Policy):
    """The paper's scheduling without its matching."""

    name = "venn-sched"
    Parameters = VennSchedParameters
    parameters: VennSchedParameters

    def __init__(self, /, **parameters: object) -> None:
        super().__init__(**parameters)
        self._irs = Irs(remaining_demand(self.parameters.demand_scope))

    def plan(self, view: PoolView) -> Plan:
        allocation = self._irs.allocate(view.requests, view.rates)
        return Plan([(group.queue.bit, group.queue.offers) for group in allocation.groups], allocation.owners)


class VennParameters(VennSchedParameters, frozen=True):
    """How `venn` weighs average completion time, collection time and fairness."""

    tiers: Tiers = 3
    """V of the matching; 1 turns it off."""
    epsilon: Annotated[float, Meta(ge=0, le=64)] = 0.0
    """ε: how strongly jobs behind their fair share are preferred; 0 not at all."""
    starvation_limit: Annotated[float, Meta(gt=0)] | None = None
    """A request that waits this many times its isolated scheduling delay comes first in all its regions."""


class Venn(Policy):
    """The paper's scheduling and matching, and its fairness when ``epsilon`` > 0."""

    name = "venn"
    Parameters = VennParameters
    parameters: VennParameters

    def __init__(self, /, **parameters: object) -> None:
        super().__init__(**parameters)
        self._irs = Irs(remaining_demand(self.parameters.demand_scope))
        self._matcher = Matcher(self.parameters.tiers)
        self.learns = self.parameters.tiers > 1 or self.parameters.epsilon > 0

    def plan(self, view: PoolView) -> Plan:
        parameters = self.parameters
        regions = self._irs.regions(view.rates)
        claims, until = first_claims(view.requests, view.now, regions, parameters.starvation_limit)
        claimed = {request.attempt for request in claims}
        allocation = self._irs.allocate(
            [request for request in view.requests if request.attempt not in claimed],
            view.rates,
            urgencies(view, regions, parameters.epsilon),
        )
        queues: list[tuple[int, Sequence[Offer]]] = [(request.bit, (request.offer,)) for request in claims]
        queues += [(group.queue.bit, self._matched(group, view)) for group in allocation.groups]
        owners = {region: index + len(claims) for region, index in allocation.owners.items()}
        return Plan(queues, owners, urgent=len(claims), until=until)

    def _matched(self, group: Group, view: PoolView) -> Sequence[Offer]:
        """The group's offers, the first restricted to a tier of the regions that the group holds when that pays."""
        head = group.queue.requests[0]
        tier = self._matcher.choose(head, view, group.held_per_s)
        offers = group.queue.offers
        return offers if tier is None else (Offer(head.attempt, tier), *offers[1:])
