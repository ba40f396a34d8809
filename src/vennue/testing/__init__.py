"""Tools to test what is built on Vennue: virtual time, faulty networks and ledgers, a pool in this process, a fleet.

They are part of the public surface, and Vennue's own tests use the same ones. A name is loaded when it is first used:
who wants a bad network does not wait for a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vennue.testing.ledgers import FaultyLedger, MemoryLedger
    from vennue.testing.pool import LocalPool
    from vennue.testing.transport import FaultyTransport
    from vennue.testing.virtual import Deadlock, Process, VirtualLoop, in_virtual_time, run_virtual

__all__ = [
    "Deadlock",
    "FaultyLedger",
    "FaultyTransport",
    "LocalPool",
    "MemoryLedger",
    "Process",
    "VirtualLoop",
    "in_virtual_time",
    "run_virtual",
]

_HOMES = {
    "FaultyLedger": "ledgers",
    "FaultyTransport": "transport",
    "LocalPool": "pool",
    "MemoryLedger": "ledgers",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'virtual')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
