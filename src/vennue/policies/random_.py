"""The two random policies: chance at every check-in, and chance once per request.

`random` is what devices that pick a job for themselves amount to. `random-order` is the baseline of the papers' tables
(spec section 5): at least it finishes one request before it starts the next.
"""

from collections.abc import Iterable
from typing import ClassVar

from vennue.core.plan import Choice, PoolView, Request
from vennue.policies.base import Policy, arrival_order


class Random(Policy):
    """Each check-in goes to an eligible open request chosen uniformly."""

    name = "random"
    choice: ClassVar[Choice] = "uniform"

    def order(self, view: PoolView) -> Iterable[Request]:
        return sorted(view.requests, key=arrival_order)


class RandomOrder(Policy):
    """Requests already being filled go first; each draws its priority when it opens."""

    name = "random-order"

    def order(self, view: PoolView) -> Iterable[Request]:
        return sorted(view.requests, key=lambda r: (r.bound == 0, r.lottery, *arrival_order(r)))
