"""How late the server's event loop runs: the one measure of load that holds on every machine.

Everything that a check-in needs happens in this loop, so when the loop comes late by more than a bound, requests have
queued up for as long, and taking more on would make all of them slower. Then check-ins are turned away unread.
"""

import asyncio
from typing import Final

_TICK_S: Final = 0.05
_FADES: Final = 0.8
"""What is left of an earlier lateness at each tick, so that one quick turn of the loop does not end the overload."""


class LoopLag:
    """Watches the event loop that `run` runs in."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        """By how much the loop has come late, lately."""

    def note(self, late_s: float) -> None:
        """A tick came so late."""
        self.lag_s = max(late_s, self.lag_s * _FADES)

    async def run(self) -> None:
        """Watch, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.note(max(0.0, loop.time() - due))
