"""First in, first out: jobs in the order of their arrival, whatever they need."""

from collections.abc import Iterable

from vennue.core.plan import PoolView, Request
from vennue.policies.base import Policy, arrival_order


class Fifo(Policy):
    """By job arrival (spec section 5)."""

    name = "fifo"

    def order(self, view: PoolView) -> Iterable[Request]:
        return sorted(view.requests, key=arrival_order)
