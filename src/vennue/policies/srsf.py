"""Smallest remaining service first: what is nearly done goes first, over all groups alike.

Optimal when every device can serve every job (Lemma 1 of the Venn paper), and blind to scarcity when not. A job's
weight divides what remains of it, as in Smith's rule, which minimises the weighted average of completion times.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import ClassVar, Literal

from vennue.core.plan import PoolView, Request
from vennue.policies.base import Policy, arrival_order

DemandScope = Literal["round", "job"]
"""What remains: devices of the open round, or of the whole job."""


def remaining_demand(scope: DemandScope) -> Callable[[Request], int]:
    """What measures a request: the devices it still needs, or its job's remaining rounds × demand, this one included.

    A job that did not declare its rounds counts by its open round in either scope.
    """
    return attrgetter("needs") if scope == "round" else _job_demand


class Srsf(Policy):
    """By remaining demand of the open request, smallest first (spec section 5)."""

    name = "srsf"
    scope: ClassVar[DemandScope] = "round"

    def order(self, view: PoolView) -> Iterable[Request]:
        demand = remaining_demand(self.scope)
        return sorted(view.requests, key=lambda r: (demand(r) / r.weight, *arrival_order(r)))


class SrsfJob(Srsf):
    """By remaining demand of the job, smallest first (spec section 5)."""

    name = "srsf-job"
    scope: ClassVar[DemandScope] = "job"


def _job_demand(request: Request) -> int:
    return request.needs if request.rounds_left is None else request.rounds_left * request.demand
