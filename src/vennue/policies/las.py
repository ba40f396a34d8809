"""Least attained service: whoever has had the fewest devices goes first, so that newcomers are tried at once.

It needs no declared rounds. A job's weight divides its service, so that at equal rank a job of weight 2 has had twice
the devices of a job of weight 1.
"""

from collections.abc import Iterable

from vennue.core.plan import PoolView, Request
from vennue.policies.base import Policy, arrival_order


class Las(Policy):
    """By devices bound to the job so far, fewest first (spec section 5)."""

    name = "las"

    def order(self, view: PoolView) -> Iterable[Request]:
        return sorted(view.requests, key=lambda r: (r.service / r.weight, *arrival_order(r)))
