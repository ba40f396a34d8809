"""Answers that are errors: what they say, and whether asking again may help.

The other half of `vennue.server.problems`: a problem document becomes the error that it was made from.
"""

import functools
from typing import Any

import httpx
import msgspec

from vennue import protocol
from vennue.core import errors
from vennue.core.errors import InvalidInput, Unavailable, VennueError

_TYPE = "urn:vennue:error:"
_TRY_AGAIN = frozenset({408, 425, 429, 502, 503, 504})
_DEFECT_ATTEMPTS = 3
"""Tries of a call that the server answers with 500: that is a defect, and seldom passes."""


class TryAgain(Exception):
    """An answer that may be another one next time."""

    def __init__(self, error: VennueError, after_s: float = 0.0, attempts: int = 1_000_000) -> None:
        super().__init__(error.message)
        self.error = error
        self.after_s = after_s
        self.attempts = attempts


def given_up(error: VennueError) -> VennueError:
    """What is told of a failure that did not pass: whatever its cause, it is the server's, and not the caller's."""
    if isinstance(error, Unavailable | errors.Overloaded):
        return error
    unavailable = Unavailable(f"the server still fails: {error.message}", field="server", fix=error.fix)
    unavailable.__cause__ = error
    return unavailable


def check(response: httpx.Response) -> None:
    """Raise the error that an answer stands for, if it stands for one."""
    if response.is_success:
        return
    error = error_of(response)
    status = response.status_code
    if status in _TRY_AGAIN:
        raise TryAgain(error, _retry_after_s(response, error))
    if status == httpx.codes.INTERNAL_SERVER_ERROR:
        raise TryAgain(error, attempts=_DEFECT_ATTEMPTS)
    raise error


def error_of(response: httpx.Response) -> VennueError:
    """The error that a problem document describes; by the status alone where the answer is something else."""
    status = response.status_code
    request = response.request
    problem = _problem(response)
    if problem is None:
        said = response.text.strip()[:200] if response.headers.get("content-type", "").startswith("text/plain") else ""
        problem = protocol.Problem(
            type="",
            title="",
            status=status,
            detail=f"the server answered {status} {response.reason_phrase} {said}".strip(),
        )
    kind = _by_code().get(problem.type.rpartition(":")[2]) or _by_status(status)
    context: dict[str, Any] = {
        "field": problem.field,
        "value": problem.value,
        "limit": problem.limit,
        "fix": problem.fix,
    }
    if kind is errors.IllegalTransition:
        context["story"] = tuple(problem.story)
    elif kind is errors.Overloaded:
        context["retry_after_s"] = problem.retry_after_s or 0.0
    error = kind(problem.detail or problem.title, **context)
    error.add_note(f"in answer to {request.method} {request.url}")
    return error


def is_problem(response: httpx.Response) -> bool:
    """Whether an answer is one of Vennue's own, and not of what stands in front of it."""
    problem = _problem(response)
    return problem is not None and problem.type.startswith(_TYPE)


def _problem(response: httpx.Response) -> protocol.Problem | None:
    try:
        return msgspec.json.decode(response.content, type=protocol.Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _retry_after_s(response: httpx.Response, error: VennueError) -> float:
    """How long the server asks to be left alone: a problem document says it more finely than the header."""
    if isinstance(error, errors.Overloaded) and error.retry_after_s > 0:
        return error.retry_after_s
    header = response.headers.get("retry-after", "")
    return float(header) if header.isascii() and header.isdigit() else 0.0


@functools.cache
def _by_code() -> dict[str, type[VennueError]]:
    tree = vars(errors).values()
    return {kind.code: kind for kind in tree if isinstance(kind, type) and issubclass(kind, VennueError)}


def _by_status(status: int) -> type[VennueError]:
    if status >= 500 or status < 400:
        return Unavailable
    known: dict[int, type[VennueError]] = {
        401: errors.Forbidden,
        403: errors.Forbidden,
        404: errors.NotFound,
        408: Unavailable,
        409: errors.Conflict,
        413: errors.TooLarge,
        429: errors.Overloaded,
    }
    return known.get(status, InvalidInput)
