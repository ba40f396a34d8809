"""How rounds become models: strategies by name, and the base class for one's own.

A distribution adds its strategies under the entry point group ``vennue.strategies``: a name, and the class.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final

from vennue.core.errors import InvalidInput
from vennue.updates.strategies.adaptive import FedAdagrad, FedAdam, FedYogi
from vennue.updates.strategies.base import Block, Content, Strategy
from vennue.updates.strategies.fedavg import FedAvg
from vennue.updates.strategies.fedavgm import FedAvgM

__all__ = [
    "STRATEGIES",
    "Block",
    "Content",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedYogi",
    "Strategy",
    "strategy",
]

STRATEGIES: Final[Mapping[str, type[Strategy]]] = {
    kind.name: kind for kind in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)
}
"""The strategies that come with Vennue, by name."""


def strategy(name: str, options: Mapping[str, bool | float | str] | None = None) -> Strategy:
    """The strategy of that name, with options.

    Raises:
        InvalidInput: no such strategy or option, or an option out of range.
    """
    kind: Callable[..., Strategy] = STRATEGIES.get(name) or _installed(name)
    known = list(inspect.signature(kind).parameters)
    for option in options or {}:
        if option not in known:
            raise InvalidInput(
                f"{name} has no such option",
                field=f"strategy.{option}",
                limit=", ".join(known),
                fix=_nearest(option, known),
            )
    return kind(**(options or {}))


def _installed(name: str) -> type[Strategy]:
    found = {entry.name: entry for entry in entry_points(group="vennue.strategies")}
    if name not in found:
        known = [*STRATEGIES, *found]
        raise InvalidInput(
            "no such strategy", field="strategy", value=name[:80], limit=", ".join(known), fix=_nearest(name, known)
        )
    kind = found[name].load()
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InvalidInput(
            "what is installed under this name is no strategy", field="strategy", value=name, fix="subclass Strategy"
        )
    return kind


def _nearest(name: str, known: list[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else None
