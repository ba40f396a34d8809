"""The base of every policy: what one is asked, what it may look at, and how its parameters are checked.

A policy turns a `PoolView` into a `Plan` and depends on nothing else: the same view gives the same plan, whatever was
planned before (caches must not show). A policy of your own is a name and an order::

    class LongestWait(Policy):
        name = "longest-wait"

        def order(self, view: PoolView) -> Iterable[Request]:
            return sorted(view.requests, key=lambda request: request.waiting_since)

Override `plan` instead to order each region by itself. `vennue.policies.registry` finds policies by name.
"""

from abc import ABC
from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeVar, get_args, get_type_hints

import msgspec

from vennue.core.errors import InvalidInput, did_you_mean
from vennue.core.ids import AttemptId
from vennue.core.plan import Choice, Plan, PoolView, Request

P = TypeVar("P", bound="PolicyParameters")


class PolicyParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy's parameters: each with a type and a default. This one is of the policies that have none."""


class Policy(ABC):
    """Decides which request a device goes to.

    Args:
        **parameters: the fields of the class's ``Parameters``, by name; strings are converted to the field's type.

    Raises:
        InvalidInput: there is no such parameter (the error names the nearest one), or its value makes no sense.
    """

    name: ClassVar[str]
    """What users call it, as in ``--policy NAME``."""
    Parameters: ClassVar[type[PolicyParameters]] = PolicyParameters
    choice: ClassVar[Choice] = "first"
    """How a check-in picks among the requests that its region's order lists."""
    work_conserving: ClassVar[bool] = True
    """Whether a device is bound whenever a request that its region's order lists needs one, tiers aside."""
    sees_everyone: ClassVar[bool] = False
    """Whether the policy uses the view's ``everyone``, which the compiled simulator has for shipped policies only."""

    learns = False
    """Whether the policy uses the view's ``capabilities`` and ``profiles``, so that the pool gathers them."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not getattr(cls, "name", ""):
            raise TypeError(f"policy class {cls.__name__} must have a name")
        if cls.order is Policy.order and cls.plan is Policy.plan:
            raise TypeError(f"policy class {cls.__name__} must override order or plan")

    def __init__(self, /, **parameters: object) -> None:
        self.parameters: PolicyParameters = parse_parameters(self.name, type(self).Parameters, parameters)

    def order(self, view: PoolView) -> Iterable[Request]:
        """The open requests, those to serve first in front; each region then leaves out those it does not cover."""
        raise NotImplementedError

    def plan(self, view: PoolView) -> Plan:
        """The plan for this view. Must not change the view, and must depend on nothing else."""
        return Plan.ordered(self.order(view), choice=self.choice)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in msgspec.structs.asdict(self.parameters).items())
        return f"{self.name}({shown})"


def arrival_order(request: Request) -> tuple[int, AttemptId]:
    """The sort key of every tie: the job's arrival, then the attempt's id."""
    return request.arrival, request.attempt


def parse_parameters(policy: str, kind: type[P], given: Mapping[str, object]) -> P:
    """The parameters of a policy from names and values, checked.

    Raises:
        InvalidInput: a name that is not there, with the nearest one that is, or a value that makes no sense.
    """
    known = kind.__struct_fields__
    for key, value in given.items():
        if key not in known:
            raise InvalidInput(
                f"policy {policy!r} has no parameter {key!r}",
                field=key,
                value=value,
                limit=known,
                fix=did_you_mean(key, known, "it has " + ", ".join(known) if known else "it has no parameters"),
            )
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        choices = get_args(get_type_hints(kind).get(field)) if problem.startswith("Invalid enum value") else ()
        raise InvalidInput(
            f"policy {policy!r} cannot take this value: {problem}",
            field=field or None,
            value=given.get(field),
            limit=choices or None,
            fix="choose one of " + ", ".join(map(repr, choices)) if choices else None,
        ) from error
