"""Notes that a server leaves in the ledger for the next one, beside jobs and rounds."""

from collections.abc import Mapping
from typing import Final

import msgspec

from vennue.core.job import Setting
from vennue.core.pool import Pool

_USAGE: Final = "usage"
_POLICY: Final = "policy"


class PolicyChoice(msgspec.Struct, frozen=True):
    """A policy's name and its parameters."""

    policy: str
    parameters: dict[str, Setting] = {}


class _PolicyNote(msgspec.Struct, frozen=True):
    chosen: PolicyChoice
    configured: PolicyChoice


def note_policy(chosen: PolicyChoice, configured: PolicyChoice, notes: dict[str, str]) -> None:
    """Note a policy that an operator chose, in the place of the configured one."""
    notes[_POLICY] = msgspec.json.encode(_PolicyNote(chosen, configured)).decode()


def recall_policy(configured: PolicyChoice, notes: Mapping[str, str]) -> PolicyChoice:
    """The policy that an operator chose last, unless the configuration was changed since then: it is the newer will."""
    text = notes.get(_POLICY)
    noted = None if text is None else msgspec.json.decode(text, type=_PolicyNote)
    return configured if noted is None or noted.configured != configured else noted.chosen


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
