"""How an attempt's updates are taken and become the next model: what a job's spec says of it, checked and made.

Root and leaves make their aggregators from equal plans.
"""

from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from vennue.core.errors import InvalidInput, did_you_mean
from vennue.core.job import JobSpec, share
from vennue.tensors.codecs import CODECS
from vennue.updates.fold import Accumulator
from vennue.updates.strategies import FedAvg, Robust, Strategy, strategy

Weighting: TypeAlias = Literal["examples", "uniform"]

_MEAN: Final = FedAvg()


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A plan.

    Args:
        strategy: how updates become the next model.
        weighting: whether an update counts by its examples, or like any other.
        accumulator: the dtype of the sum.
        codecs: the names of the codecs to accept.
        asynchronous: whether updates may start from different models, so that only changes can be taken, and one
            aggregate follows the other.
    """

    strategy: Strategy = _MEAN
    weighting: Weighting = "examples"
    accumulator: Accumulator = "float32"
    codecs: tuple[str, ...] = tuple(CODECS)
    asynchronous: bool = False

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """The plan of a job's rounds.

        Raises:
            InvalidInput: there is no such strategy, option or codec, or the strategy cannot work with so few or so many
                updates as a round may have.
        """
        for name in spec.codecs:
            if name not in CODECS:
                raise InvalidInput(
                    f"there is no codec {name[:80]!r}",
                    field="codecs",
                    value=name[:80],
                    limit=", ".join(CODECS),
                    fix=did_you_mean(name, CODECS, "choose one of these"),
                )
        made = strategy(spec.strategy, spec.strategy_options)
        fewest, most = fewest_reports(spec), spec.goal if spec.mode == "async" else spec.wanted
        if fewest < made.least_updates:
            raise InvalidInput(
                f"{made.name} needs {made.least_updates} reports, but a round may end with {fewest}",
                field="demand",
                value=fewest,
                limit=made.least_updates,
                fix="ask for more devices, set min_reports, or change strategy_options",
            )
        if made.most_updates is not None and most > made.most_updates:
            raise InvalidInput(
                f"{made.name} takes at most {made.most_updates} reports, but a round may have {most}",
                field="demand",
                value=most,
                limit=made.most_updates,
                fix="ask for fewer devices, or choose another strategy",
            )
        return cls(made, spec.weighting, spec.accumulator, spec.codecs, spec.mode == "async")

    @property
    def keeps_updates(self) -> bool:
        """Whether each update is needed by itself until the round ends, so that no sum may take its place."""
        return self.asynchronous or isinstance(self.strategy, Robust)


def fewest_reports(spec: JobSpec) -> int:
    """The fewest reports with which a round of a job may commit (see `vennue.core.round.Attempt`)."""
    if spec.deadline_s is None or spec.mode == "async" or spec.min_reports is not None:
        return spec.goal
    return share(spec.min_fraction, share(spec.min_fraction, spec.demand))
