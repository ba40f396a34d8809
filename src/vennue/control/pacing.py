"""Pace steering: when a device that found no task should check in again.

A pool with millions of idle devices lives or dies by this number. Devices are called back soon when a request that
they may serve is short of them, later when their jobs are between rounds, and rarely when no job wants their kind.
Every answer is spread by a uniform factor, so that devices which were answered at the same moment (after a restart,
say) do not return at the same moment (Bonawitz et al. 2019, section 2.3, "pace steering").
"""

import msgspec

from vennue.core.errors import InvalidInput


class Pacing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of ``retry_after_s``, in seconds. Compress them along with time in a simulated pool."""

    short_s: float = 5.0
    """A request that the device may serve still needs devices."""
    busy_s: float = 60.0
    """Jobs that the device may serve are active, but need nobody at this moment."""
    idle_s: float = 600.0
    """No active job may use the device."""
    spread: float = 0.5
    """Each answer is its base times a uniform factor in [1 - spread, 1 + spread]."""

    def __post_init__(self) -> None:
        if not 0 < self.short_s <= self.busy_s <= self.idle_s < float("inf"):
            raise InvalidInput(
                "must be 0 < short_s <= busy_s <= idle_s",
                field="pacing",
                value=f"{self.short_s}, {self.busy_s}, {self.idle_s}",
                fix="give them in this order",
            )
        if not 0 <= self.spread < 1:
            raise InvalidInput("must be at least 0 and below 1", field="pacing.spread", value=self.spread)

    def retry_after_s(self, *, active: bool, short: bool, draw: float) -> float:
        """Seconds until the device should check in again; above 0.

        Args:
            active: whether an active job may use the device.
            short: whether an open request that may use it still needs devices.
            draw: a uniform number in [0, 1).
        """
        base_s = self.short_s if short else self.busy_s if active else self.idle_s
        return base_s * (1.0 - self.spread + 2.0 * self.spread * draw)
