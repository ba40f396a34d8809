"""When to plan, what the policy is shown, and what became of it.

Plans are made when a check-in needs one and something has happened since the last, so however many events come between
two check-ins, they cost one plan (and at most one per ``interval_s``). A policy that raises changes nothing: the last
good plan stays in force. The latest plans are kept, with what caused them, for explanations.
"""

import math
from collections import deque
from typing import Final

import msgspec

from vennue.core.binding import BindingTable
from vennue.core.effects import PolicyFailed
from vennue.core.errors import described
from vennue.core.plan import Plan, Planner, PoolView
from vennue.core.profile import Learned
from vennue.core.region import RequirementRegistry
from vennue.core.requirement import Profile
from vennue.core.supply import Supply

KEPT_PLANS: Final = 64
KEPT_CAUSES: Final = 8
"""Of the causes of one plan; the others are counted."""


class Cause(msgspec.Struct, frozen=True):
    """Why a plan went out of date: what happened, and to which job, attempt or assignment."""

    what: str
    whom: str = ""


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was made."""

    number: int
    """From 1."""
    at: float
    causes: tuple[Cause, ...]
    """The first `KEPT_CAUSES`; none when the plan before had merely run out."""
    more_causes: int
    requests: int
    """Open requests that needed devices."""
    plan: Plan
    registry_version: int
    """Signatures mean the same in plans with the same version."""
    failure: str | None = None
    """Why the policy failed, if it did: the plan is then still the one before."""


class Planning:
    """Makes the plans of one pool.

    Args:
        planner: the policy.
        table: where plans are put in force.
        supply: what the policy is shown of the supply.
        registry: of the requirements in use.
        interval_s: least time between two plans.
        lag_s: how long a plan may stay in force that lacks only the news that requests need devices no more.
    """

    __slots__ = (
        "_causes", "_interval_s", "_lag_s", "_more_causes", "_planned_at", "_planner", "_registry", "_supply", "_table",
        "history", "learned", "learns", "made", "stale_at",
    )  # fmt: skip

    def __init__(
        self,
        planner: Planner,
        *,
        table: BindingTable,
        supply: Supply,
        registry: RequirementRegistry,
        interval_s: float,
        lag_s: float,
    ) -> None:
        self.stale_at = math.inf
        """From this pool time on, the plan in force is out of date."""
        self.made = 0
        """Plans made so far."""
        self.history: deque[PlanRecord] = deque(maxlen=KEPT_PLANS)
        """The latest plans, oldest first."""
        self.learned: Learned[Profile] = Learned()
        """What reports and check-ins have taught, while the policy learns from them."""
        self._table = table
        self._supply = supply
        self._registry = registry
        self._interval_s = interval_s
        self._lag_s = lag_s
        self._planned_at = -math.inf
        self._causes: list[Cause] = []
        self._more_causes = 0
        self._planner = planner
        self.learns = _learns(planner)

    def set_planner(self, planner: Planner) -> None:
        """Change the policy."""
        self._planner = planner
        self.learns = _learns(planner)
        self.soon("the policy was changed")

    def soon(self, what: str, whom: str = "") -> None:
        """Something has happened that the plan in force does not know of."""
        self.stale_at = -math.inf
        self._note(what, whom)

    def later(self, what: str, whom: str) -> None:
        """Something has happened without which the plan in force still serves every request, if not as well."""
        self.stale_at = min(self.stale_at, self._planned_at + self._lag_s)
        self._note(what, whom)

    def _note(self, what: str, whom: str) -> None:
        if len(self._causes) < KEPT_CAUSES:
            self._causes.append(Cause(what, whom))
        else:
            self._more_causes += 1

    def replan(self, now: float) -> PolicyFailed | None:
        """Put a new plan in force, unless the last one is too recent. What to tell when the policy failed."""
        if now - self._planned_at < self._interval_s:
            return None
        everyone = self._table.requests()
        requests = [request for request in everyone if request.needs > 0]
        rates = self._supply.region_rates(self._registry, now)
        view = PoolView(now, requests, rates, self._supply.rates_version, everyone=everyone)
        if self.learns:
            registry = self._registry
            capabilities = self.learned.capabilities.by_capability(registry.signature, registry.version)
            view = msgspec.structs.replace(view, capabilities=capabilities, profiles=self.learned.profiles)
        self.stale_at = math.inf
        failure = None
        try:
            plan = self._planner.plan(view)
            if plan.until > now:
                self.stale_at = plan.until
        except Exception as error:  # noqa: BLE001 - a third party's policy may raise anything; no job may suffer
            failure = described(error, type(self._planner).__module__)
            plan = self._table.plan
        self._table.publish(plan)
        self.made += 1
        self._planned_at = now
        self.history.append(
            PlanRecord(
                number=self.made,
                at=now,
                causes=tuple(self._causes),
                more_causes=self._more_causes,
                requests=len(requests),
                plan=plan,
                registry_version=self._registry.version,
                failure=failure,
            )
        )
        self._causes.clear()
        self._more_causes = 0
        return None if failure is None else PolicyFailed(failure)


def _learns(planner: Planner) -> bool:
    return bool(getattr(planner, "learns", False))
