"""Policies by name: the built-in ones, those registered in this process or found in a file, and installed ones.

Another distribution installs one by an entry point in the group ``vennue.policies``: the policy's name, and its class.
It is imported when it is first asked for, and one that does not import harms no other. Names are taken once: neither
a registration nor an entry point replaces a built-in policy.
"""

import hashlib
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from typing import TypeVar

from vennue.core.errors import Conflict, InvalidInput
from vennue.policies.base import Policy, nearest
from vennue.policies.fifo import Fifo
from vennue.policies.las import Las
from vennue.policies.matching import FifoMatch
from vennue.policies.partition import ClientRandom, StaticPartition
from vennue.policies.random_ import Random, RandomOrder
from vennue.policies.srsf import Srsf, SrsfJob
from vennue.policies.venn import Venn, VennSched

ENTRY_POINT_GROUP = "vennue.policies"

P = TypeVar("P", bound=type[Policy])

_BUILT_IN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Random,
        RandomOrder,
        Fifo,
        Srsf,
        SrsfJob,
        Las,
        VennSched,
        FifoMatch,
        Venn,
        StaticPartition,
        ClientRandom,
    )
}
_registered: dict[str, type[Policy]] = {}


def get_policy(name: str, /, **parameters: object) -> Policy:
    """A new instance of the policy with this name.

    Args:
        name: one of `available`.
        **parameters: the policy's parameters; those left out have their defaults.

    Raises:
        InvalidInput: no policy has this name (the error suggests the nearest), it has no such parameter, a value
            makes no sense, or the distribution that installed it does not import.
    """
    policy = _BUILT_IN.get(name) or _registered.get(name) or _installed(name)
    if policy is None:
        names = available()
        raise InvalidInput(
            f"there is no policy {name!r}",
            field="policy",
            value=name,
            limit=names,
            fix=nearest(name, names) or "choose one of " + ", ".join(names),
        )
    return policy(**parameters)


def available() -> list[str]:
    """The names of all policies, the built-in ones first."""
    others = {*_registered, *(entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP))}
    return [*_BUILT_IN, *sorted(others - _BUILT_IN.keys())]


def register(policy: P) -> P:
    """Make a policy class known by its name in this process; a decorator. Registering a newer version replaces it.

    Raises:
        InvalidInput: it is not a policy class.
        Conflict: another policy has this name.
    """
    _check_class(policy, repr(policy))
    known = _BUILT_IN.get(policy.name) or _registered.get(policy.name)
    if known is not None and (known.__module__, known.__qualname__) != (policy.__module__, policy.__qualname__):
        raise Conflict(
            f"policy {policy.name!r} is {known.__module__}.{known.__qualname__} already",
            field="name",
            value=policy.name,
            fix="give yours another name",
        )
    _registered[policy.name] = policy
    return policy


def load_policies(path: str) -> list[str]:
    """Register the policy classes that a Python file defines; their names. A file loaded anew replaces its policies.

    Raises:
        InvalidInput: the file is not there, does not import (the error says why), or defines no policy.
        Conflict: another policy has one of the names.
    """
    name = "vennue_policies_" + hashlib.sha256(path.encode()).hexdigest()[:16]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(
            f"{path} is no Python file", field="policy_files", value=path, fix="give a file that ends in .py"
        )
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a file of somebody's own may raise anything
        raise InvalidInput(
            f"the policy file {path} does not import: {error!r}",
            field="policy_files",
            value=path,
            fix="run it with Python to see where",
        ) from error
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Policy)]
    found = [register(value) for value in classes if value.__module__ == name]
    if not found:
        raise InvalidInput(
            f"{path} defines no policy",
            field="policy_files",
            value=path,
            fix="derive one from vennue.policies.Policy",
        )
    return [policy.name for policy in found]


def _installed(name: str) -> type[Policy] | None:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        where = f"policy {name!r}, installed as {entry_point.value},"
        try:
            policy = entry_point.load()
        except Exception as error:  # a third party's module may raise anything when it is imported
            raise InvalidInput(
                f"{where} does not import: {error!r}",
                field="policy",
                value=name,
                fix="repair or remove the distribution that installs it",
            ) from error
        return _check_class(policy, where)
    return None


def _check_class(policy: object, where: str) -> type[Policy]:
    if isinstance(policy, type) and issubclass(policy, Policy):
        return policy
    raise InvalidInput(f"{where} is not a policy class", field="policy", fix="derive it from vennue.policies.Policy")
