"""Strategies by name: the built-in ones, those registered in this process or found in a file, and installed ones.

Another distribution installs one by an entry point in the group ``vennue.strategies``: the strategy's name, and its
class.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Final

from vennue.core.errors import InvalidInput, VennueError, described, did_you_mean
from vennue.core.job import Setting
from vennue.extensions import Extensions
from vennue.updates.strategies.adaptive import FedAdagrad, FedAdam, FedYogi
from vennue.updates.strategies.base import Strategy, is_number
from vennue.updates.strategies.clipping import NormClipping
from vennue.updates.strategies.fedavg import FedAvg, FedProx
from vennue.updates.strategies.fedavgm import FedAvgM
from vennue.updates.strategies.fedbuff import FedBuff
from vennue.updates.strategies.krum import Krum, MultiKrum
from vennue.updates.strategies.qfedavg import QFedAvg
from vennue.updates.strategies.robust import Median, TrimmedMean

STRATEGIES: Final[Extensions[Strategy]] = Extensions(
    Strategy,
    (
        FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi, FedBuff, QFedAvg, NormClipping, Median, TrimmedMean,
        Krum, MultiKrum,
    ),
    kind="strategy",
    group="vennue.strategies",
    files_field="strategy_files",
    derive_from="vennue.updates.strategies.Strategy",
)  # fmt: skip
available = STRATEGIES.available
register = STRATEGIES.register
load_strategies = STRATEGIES.load


def strategy(name: str, options: Mapping[str, Setting] | None = None) -> Strategy:
    """The strategy of that name, with options.

    Raises:
        InvalidInput: no such strategy or option, an option out of range, the distribution that installed it does not
            import, or one of somebody's own fails at once.
    """
    kind: Callable[..., Strategy] = STRATEGIES.find(name)
    known = list(inspect.signature(kind).parameters)
    for option in options or {}:
        if option not in known:
            raise InvalidInput(
                f"{name} has no such option",
                field=f"strategy_options.{option}",
                limit=known,
                fix=did_you_mean(option, known, "its options are " + ", ".join(known) if known else "it has none"),
            )
    try:
        made = kind(**(options or {}))
        remembered = made.slots()
        made.device_config()
        wrong = {slot: first for slot, first in remembered.items() if not is_number(first)}
    except VennueError:
        raise
    except Exception as error:  # somebody's own may raise anything
        raise InvalidInput(
            f"the strategy {name} fails: {described(error, kind.__module__)}",
            field="strategy",
            value=name,
            fix="repair it, or choose another",
        ) from error
    if wrong:
        raise InvalidInput(
            f"the strategy {name} remembers what is no finite number at first",
            field="strategy",
            value=str(wrong)[:200],
            fix="have slots() give each slot's first value",
        )
    return made
