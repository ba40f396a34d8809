"""Tenants and their quotas: how many devices the jobs of one team may use, at once and in a day.

A quota is a promise and, if its tenant may not borrow, a limit. A tenant within its quota is served before any tenant
beyond its own, whatever the plan's order; what nobody within a quota can use goes to those beyond theirs, so no device
idles, and comes back as soon as it is wanted, since devices are bound for one task at a time. What a tenant uses is
the assignments themselves, not a number beside them.
"""

from collections import deque

import msgspec

from vennue.core.assignment import Assignment
from vennue.core.errors import InvalidInput
from vennue.core.ids import AssignmentId
from vennue.core.job import DAY_S

OTHERS = "*"
"""In a table of quotas: what every tenant has that is not named."""

SLOT_S = 900.0
"""How fine the day is kept: a device stops counting 24 h after it was bound, or up to this much later."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may use of the pool.

    Raises:
        InvalidInput: a quota that is below 0, or none at all.
    """

    devices: int | None = None
    """Devices at work at once; None for any number."""
    devices_per_day: int | None = None
    """Devices bound in any 24 h, those that declined apart; None for any number."""
    borrow: bool = True
    """Whether the tenant may use more when nobody within a quota can use the device."""

    def __post_init__(self) -> None:
        for field in ("devices", "devices_per_day"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise InvalidInput(
                    f"must be at least 0, got {value}", field=f"quotas.{field}", value=value, limit=0,
                    fix="leave it out for any number of devices",
                )  # fmt: skip
        if self.devices is None and self.devices_per_day is None:
            raise InvalidInput(
                "a quota limits something", field="quotas", fix="give devices, devices_per_day, or leave it out"
            )


class Tenant:
    """A tenant with a quota, and what its jobs use. Owned by the pool and updated by the binding table."""

    __slots__ = ("_bound", "_slots", "live", "name", "quota")

    def __init__(self, name: str, quota: Quota) -> None:
        self.name = name
        self.quota = quota
        self.live: dict[AssignmentId, Assignment] = {}
        """The live assignments of its jobs, by id."""
        self._slots: deque[list[int]] = deque()  # [slot of the day, devices bound in it], oldest first
        self._bound = 0

    @property
    def in_flight(self) -> int:
        """Devices at work for its jobs."""
        return len(self.live)

    def bound_in_a_day(self, now: float) -> int:
        """Devices bound to its jobs in the last 24 h, those that declined apart."""
        past = int((now - DAY_S) // SLOT_S)
        while self._slots and self._slots[0][0] < past:
            self._bound -= self._slots.popleft()[1]
        return self._bound

    def count(self, at: float, devices: int) -> None:
        """Devices were bound at this time; or, below 0, those bound then do not count after all."""
        slot = int(at // SLOT_S)
        for known in reversed(self._slots):
            if known[0] == slot:
                known[1] += devices
                self._bound += devices
            if known[0] <= slot:
                break
        if devices > 0 and (not self._slots or self._slots[-1][0] < slot):
            self._slots.append([slot, devices])
            self._bound += devices

    def usage(self, now: float) -> list[tuple[float, int]]:
        """The devices of the last 24 h as plain data: when, and how many. `count` takes each back, in this order."""
        self.bound_in_a_day(now)
        return [(slot * SLOT_S, devices) for slot, devices in self._slots]

    def exhausted(self, now: float) -> bool:
        """Whether one more device would be beyond the quota."""
        quota = self.quota
        if quota.devices is not None and len(self.live) >= quota.devices:
            return True
        return quota.devices_per_day is not None and self.bound_in_a_day(now) >= quota.devices_per_day

    def __repr__(self) -> str:
        return f"Tenant({self.name!r}, {self.quota}, in_flight={self.in_flight})"
