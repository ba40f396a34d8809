"""What must be so before an update or a leaf's sum is received: whose it is, what it weighs, and room for its outcome.

What can be seen of the body itself is checked as it comes in: see ``intake``.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from vennue._files import free_bytes
from vennue.core.errors import Conflict, InvalidUpdate, StorageError, TooLarge
from vennue.core.ids import AssignmentId, AttemptId, attempt_of
from vennue.tensors.layout import ModelLayout
from vennue.updates.plan import RoundPlan
from vennue.updates.running import weight_of
from vennue.updates.strategies import Strategy
from vennue.updates.sums import Partial

RESERVED_MODELS: Final = 3
"""Room for so many models stays: the update that begins, and the sum of all, which may be in float64."""
WEIGHT_TOLERANCE: Final = 1e-6
"""How far the weight of a sum may be from that of its reports, relatively: they were added in another order."""


def check_own(assignments: Iterable[AssignmentId], attempt: AttemptId) -> None:
    """Refuse assignments of another attempt (`Conflict`)."""
    for assignment in assignments:
        if attempt_of(assignment) != attempt:
            raise Conflict("the assignment is of another attempt", field="assignment", value=assignment, limit=attempt)


def check_length(content_length: int | None, max_bytes: int) -> None:
    """Refuse an update that says itself that it is too long (`TooLarge`)."""
    if content_length is not None and content_length > max_bytes:
        raise TooLarge(
            "the update is larger than one of this model can be", field="body", value=content_length, limit=max_bytes
        )


def check_weight(partial: Partial, plan: RoundPlan) -> None:
    """Where the strategy leaves updates their own weights, a sum has that of those in it; else `InvalidUpdate`."""
    if type(plan.strategy).share is not Strategy.share:
        return
    weight = weight_of(partial.receipts.values(), plan.weighting)
    totals = partial.totals
    is_right = math.isclose(totals.weight, weight, rel_tol=WEIGHT_TOLERANCE)
    if not is_right or totals.models > weight * (1 + WEIGHT_TOLERANCE):
        raise InvalidUpdate(
            "it does not weigh what its reports do together",
            field="weight",
            value=totals.weight,
            limit=weight,
            fix="sum up by the round's own weighting, with the same version of this program",
        )


def check_same_reports(known: Partial, other: Partial) -> None:
    """Refuse a sum that has another one's id (`Conflict`)."""
    if known.receipts.keys() != other.receipts.keys():
        raise Conflict(
            "a sum of other reports has this id", field="partial", value=known.id, fix="give each sum an id of its own"
        )


def check_room(directory: Path, model: ModelLayout, plan: RoundPlan, under_way: int) -> None:
    """Leave the last room on the disk for what the updates come to, or they would lie there to no end.

    Args:
        directory: of the updates.
        model: the round's.
        plan: the round's.
        under_way: how many updates are being received.

    Raises:
        StorageError: there is less.
    """
    needed = model.total_bytes * (RESERVED_MODELS + len(plan.strategy.slots()) + under_way)
    free = free_bytes(directory)
    if free < needed:
        raise StorageError(
            f"cannot spool an update: {free} bytes are free, and {needed} are needed to make anything of it",
            field="path",
            value=str(directory),
            limit=needed,
            fix="free space on this file system",
        )
