"""Venn: devices go first to the jobs that few devices can serve, unless a longer queue elsewhere gains more by them.

`venn-sched` is the scheduling of the paper alone (spec section 2): within a group, smallest remaining demand first;
among groups, the allocation of `vennue.policies.allocation`; and in each region the owner's requests, then, so that no
eligible device idles, those of the other groups that it covers, scarcest group first.
"""

from vennue.core.plan import Plan, PoolView
from vennue.policies.allocation import Irs
from vennue.policies.base import Policy, PolicyParameters
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

    def __init__(self, **parameters: object) -> None:
        super().__init__(**parameters)
        self._irs = Irs(remaining_demand(self.parameters.demand_scope))

    def plan(self, view: PoolView) -> Plan:
        allocation = self._irs.allocate(view.requests, view.rates)
        return Plan([(group.queue.bit, group.queue.offers) for group in allocation.groups], allocation.owners)
