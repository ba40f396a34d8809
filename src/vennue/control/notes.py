"""Notes that a server leaves in the ledger for the next one, beside jobs and rounds."""

from collections.abc import Mapping
from typing import Final

import msgspec

from vennue.core.pool import Pool

_USAGE: Final = "usage"


def note_usage(pool: Pool, notes: dict[str, str]) -> None:
    """Note what tenants have used of their day."""
    usage = {name: tenant.usage(pool.now) for name, tenant in pool.tenants.items()}
    notes[_USAGE] = msgspec.json.encode(usage).decode()


def recall_usage(pool: Pool, notes: Mapping[str, str]) -> None:
    """Have tenants go on with the day that was noted, unless they have a quota no more."""
    noted = msgspec.json.decode(notes.get(_USAGE, "{}"), type=dict[str, list[tuple[float, int]]])
    for name, usage in noted.items():
        tenant = pool.tenant(name)
        if tenant is not None:
            for at, devices in usage:
                tenant.count(at, devices)
