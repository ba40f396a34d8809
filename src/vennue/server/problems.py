"""Errors as RFC 9457 problem documents: every `VennueError` becomes one, with its field, value, limit and fix.

Whatever else is raised is a defect of the server: the caller learns that, the log learns the rest.
"""

import math
from typing import Any, Final

from vennue.core import errors
from vennue.core.errors import InvalidInput, VennueError
from vennue.protocol import Problem

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1.0
"""After how long a caller may try again whom the storage failed."""

_STATUSES: Final[dict[type[VennueError], int]] = {
    errors.TooLarge: 413,
    errors.InvalidInput: 422,
    errors.NotFound: 404,
    errors.Forbidden: 403,
    errors.Conflict: 409,
    errors.JobEnded: 409,
    errors.Overloaded: 503,
    errors.OutOfSpace: 507,
    errors.StorageError: 503,
    errors.Unavailable: 503,
}


class RequestError(InvalidInput):
    """A request that is wrong as HTTP, before anybody looks at what it asks for.

    Args:
        status: the HTTP status that says so.
        headers: further headers of the answer.
    """

    def __init__(self, message: str, *, status: int, headers: tuple[tuple[str, str], ...] = (), **context: Any) -> None:
        super().__init__(message, **context)
        self.status = status
        self.headers = headers


def status_of(error: VennueError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), 500)


def problem(error: Exception) -> Problem:
    """The problem document of an error. Says nothing of the server's inside when the error is not a deliberate one."""
    if not isinstance(error, VennueError):
        return Problem(
            type="urn:vennue:error:internal",
            title="Internal error",
            status=500,
            detail="the server failed; its log has the details",
        )
    status = status_of(error)
    # Which file or database failed is the operator's business: the log has it.
    value = None if isinstance(error, errors.StorageError) and isinstance(error.value, str) else error.value
    retry_after_s = getattr(error, "retry_after_s", RETRY_AFTER_S if status == 503 else None)
    return Problem(
        type=f"urn:vennue:error:{error.code}",
        title=error.code.replace("-", " ").capitalize(),
        status=status,
        detail=_text(error.message),
        field=None if error.field is None else _text(error.field),
        value=_printable(value),
        limit=_printable(error.limit),
        fix=None if error.fix is None else _text(error.fix),
        story=[_text(line) for line in getattr(error, "story", ())],
        retry_after_s=retry_after_s,
    )


def headers_of(error: Exception, document: Problem) -> list[tuple[str, str]]:
    """The headers that go with an error's problem document."""
    headers = [("content-type", MEDIA_TYPE)]
    if document.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(document.retry_after_s)))))
    if isinstance(error, RequestError):
        headers += error.headers
    return headers


def _printable(value: object) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _text(str(value))


def _text(text: str) -> str:
    """The text as JSON can carry it: a stranger's words are quoted in errors, and may hold lone surrogates."""
    return text.encode(errors="backslashreplace").decode()
