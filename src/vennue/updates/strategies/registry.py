"""Strategies by name: the built-in ones, those registered in this process, and those that other distributions install.

Another distribution installs one by an entry point in the group ``vennue.strategies``: the strategy's name, and its
class. Names are taken once: neither a registration nor an entry point replaces a built-in strategy.
"""

import difflib
import hashlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from typing import Final, TypeVar

from vennue.core.errors import Conflict, InvalidInput
from vennue.core.job import Setting
from vennue.updates.strategies.adaptive import FedAdagrad, FedAdam, FedYogi
from vennue.updates.strategies.base import Strategy
from vennue.updates.strategies.clipping import NormClipping
from vennue.updates.strategies.fedavg import FedAvg, FedProx
from vennue.updates.strategies.fedavgm import FedAvgM
from vennue.updates.strategies.fedbuff import FedBuff
from vennue.updates.strategies.krum import Krum, MultiKrum
from vennue.updates.strategies.qfedavg import QFedAvg
from vennue.updates.strategies.robust import Median, TrimmedMean

ENTRY_POINT_GROUP: Final = "vennue.strategies"

S = TypeVar("S", bound=type[Strategy])

STRATEGIES: Final[Mapping[str, type[Strategy]]] = {
    kind.name: kind
    for kind in (
        FedAvg,
        FedAvgM,
        FedProx,
        FedAdagrad,
        FedAdam,
        FedYogi,
        FedBuff,
        QFedAvg,
        NormClipping,
        Median,
        TrimmedMean,
        Krum,
        MultiKrum,
    )
}
"""The strategies that come with Vennue, by name."""
_registered: dict[str, type[Strategy]] = {}


def strategy(name: str, options: Mapping[str, Setting] | None = None) -> Strategy:
    """The strategy of that name, with options.

    Raises:
        InvalidInput: no such strategy or option, an option out of range, or the distribution that installed it does
            not import.
    """
    kind: Callable[..., Strategy] | None = STRATEGIES.get(name) or _registered.get(name) or _installed(name)
    if kind is None:
        known = available()
        raise InvalidInput(
            "no such strategy", field="strategy", value=name[:80], limit=", ".join(known), fix=_nearest(name, known)
        )
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


def available() -> list[str]:
    """The names of all strategies, the built-in ones first."""
    others = {*_registered, *(entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP))}
    return [*STRATEGIES, *sorted(others - STRATEGIES.keys())]


def register(kind: S) -> S:
    """Make a strategy class known by its name in this process; a decorator. Registering a newer version replaces it.

    Raises:
        InvalidInput: it is not a strategy class.
        Conflict: another strategy has this name.
    """
    _check_class(kind, repr(kind))
    known = STRATEGIES.get(kind.name) or _registered.get(kind.name)
    if known is not None and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise Conflict(
            f"strategy {kind.name!r} is {known.__module__}.{known.__qualname__} already",
            field="name",
            value=kind.name,
            fix="give yours another name",
        )
    _registered[kind.name] = kind
    return kind


def load_strategies(path: str) -> list[str]:
    """Register the strategy classes that a Python file defines; their names. A file loaded anew replaces its own.

    Raises:
        InvalidInput: the file is not there, does not import (the error says why), or defines no strategy.
        Conflict: another strategy has one of the names.
    """
    name = "vennue_strategies_" + hashlib.sha256(path.encode()).hexdigest()[:16]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(
            f"{path} is no Python file", field="strategy_files", value=path, fix="give a file that ends in .py"
        )
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a file of somebody's own may raise anything
        raise InvalidInput(
            f"the strategy file {path} does not import: {error!r}",
            field="strategy_files",
            value=path,
            fix="run it with Python to see where",
        ) from error
    own = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Strategy)]
    found = [register(kind) for kind in own if kind.__module__ == name and not inspect.isabstract(kind)]
    if not found:
        raise InvalidInput(
            f"{path} defines no strategy",
            field="strategy_files",
            value=path,
            fix="derive one from vennue.updates.strategies.Strategy",
        )
    return [kind.name for kind in found]


def _installed(name: str) -> type[Strategy] | None:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        where = f"strategy {name!r}, installed as {entry_point.value},"
        try:
            kind = entry_point.load()
        except Exception as error:  # a third party's module may raise anything when it is imported
            raise InvalidInput(
                f"{where} does not import: {error!r}",
                field="strategy",
                value=name,
                fix="repair or remove the distribution that installs it",
            ) from error
        return _check_class(kind, where)
    return None


def _check_class(kind: object, where: str) -> type[Strategy]:
    if isinstance(kind, type) and issubclass(kind, Strategy):
        return kind
    raise InvalidInput(
        f"{where} is not a strategy class", field="strategy", fix="derive it from vennue.updates.strategies.Strategy"
    )


def _nearest(name: str, known: list[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else None
