"""What the data plane still has after a crash, told to the pool: acknowledged reports count as they did before."""

import logging
from typing import Final

import msgspec

from vennue.control.dataplane import DataPlane
from vennue.control.tokens import Tokens
from vennue.core.errors import VennueError
from vennue.core.events import Recover, Report
from vennue.core.ids import AttemptId
from vennue.updates.sums import Receipt

log = logging.getLogger("vennue.control")

_UNREADABLE: Final = "what was received of %s before the restart cannot be read, so the round is tried again: %s"


class Found(msgspec.Struct, frozen=True):
    """What was found of one attempt: the event for the pool, and the receipts that count once it was applied."""

    event: Recover
    receipts: list[Receipt]


async def find_reports(data: DataPlane, tokens: Tokens, attempt: AttemptId, committed: int) -> Found:
    """The reports of an attempt that goes on, with the devices that their tokens name.

    Args:
        data: the data plane, which expects the attempt.
        tokens: the pool's.
        attempt: which.
        committed: its job's last committed round.
    """
    try:
        receipts = await data.recover(attempt, committed)
        reports = tuple(Report(one.assignment, tokens.device(one.assignment, one.token)) for one in receipts)
    except VennueError as error:
        log.error(_UNREADABLE, attempt, error)  # noqa: TRY400 - the error says it all
        return Found(Recover(attempt, failure=error.message), [])
    return Found(Recover(attempt, reports), receipts)
