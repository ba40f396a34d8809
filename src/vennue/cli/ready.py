"""``vennue ready``: wait until a server can do its work, for scripts that start one."""

import time
from typing import Final

import httpx
import msgspec

from vennue.cli import terminal
from vennue.cli.remote import REMOTE, Operator, Remote, operator
from vennue.cli.terminal import ExitCode
from vennue.core.errors import InvalidInput, Unavailable

_PAUSE_S: Final = 0.2
_ANSWER_S: Final = 6.0
"""How long an answer may take, if there is time: a leaf asks its root, for up to five seconds."""
_LEAST_ANSWER_S: Final = 1.0


def ready(*, within: float = 30.0, remote: Remote = REMOTE) -> ExitCode:
    """Wait until a server, root or leaf, is ready.

    Args:
        within: Seconds after which to give up; 0 asks once.
    """
    if not 0 <= within < float("inf"):
        raise InvalidInput(
            f"must be a number of seconds from 0, got {within}", field="within", value=within, fix="give a bound"
        )
    give_up_at = time.monotonic() + within
    with operator(remote) as server:
        lack = _lack(server, within)
        while lack and (left_s := give_up_at - time.monotonic()) > 0:
            time.sleep(_PAUSE_S)
            lack = _lack(server, left_s)
    if lack:
        raise Unavailable(
            f"{remote.server} is not ready after {within:g} s: {lack}",
            field="server",
            value=remote.server,
            fix="if it did not start, what `vennue serve` printed says why",
        )
    if remote.json:
        terminal.print_json({"server": remote.server, "ready": True})
    else:
        terminal.output().print(f"{remote.server} is ready", markup=False, soft_wrap=True)
    return ExitCode.OK


def _lack(server: Operator, left_s: float) -> str | None:
    """Why the server cannot do its work at this moment; None if it can."""
    try:
        health = server.readiness(max(_LEAST_ANSWER_S, min(_ANSWER_S, left_s)))
    except httpx.RequestError as error:
        return str(error) or type(error).__name__
    except msgspec.MsgspecError:
        return "what answers is no Vennue server"
    return None if health.status == "ok" else health.reason or health.status
