"""Every error that Vennue raises on purpose, as one tree.

Each carries what its reader needs to act: which ``field`` was wrong, the ``value`` seen, the ``limit`` it broke and
the ``fix``. The server turns them into RFC 9457 problem documents and the SDK turns those back into the same classes,
so a caller handles one tree on either side of the wire. ``code`` is the stable, machine-readable name.
"""

import difflib
import traceback
from collections.abc import Iterable
from typing import Any, ClassVar


class VennueError(Exception):
    """Base of all deliberate errors.

    Args:
        message: what went wrong, in one sentence.
        field: the input that is at fault, as a dotted path (``"rounds"``, ``"requirement"``).
        value: the offending value, short enough to print.
        limit: the bound that it broke.
        fix: what to do about it.
    """

    code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, field: str | None = None, value: Any = None, limit: Any = None, fix: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        self.limit = limit
        self.fix = fix

    def __str__(self) -> str:
        at = f"{self.field}: " if self.field else ""
        fix = f" ({self.fix})" if self.fix else ""
        return f"{at}{self.message}{fix}"


class InvalidInput(VennueError):
    """The caller sent something that can never be right. Nothing was changed."""

    code = "invalid-input"


class InvalidRequirement(InvalidInput):
    """A requirement that does not parse, does not type-check or is not boolean."""

    code = "invalid-requirement"


class UnknownAttribute(InvalidRequirement):
    """A requirement that names an attribute the pool does not know."""

    code = "unknown-attribute"


class InvalidModel(InvalidInput):
    """A blob that is not a well-formed safetensors model of finite numbers."""

    code = "invalid-model"


class InvalidUpdate(InvalidInput):
    """A report whose tensors do not match the round's model, or hold values that are not finite."""

    code = "invalid-update"


class Infeasible(InvalidInput):
    """A job that can never run on this pool, with the numbers that say so."""

    code = "infeasible"


class TooLarge(InvalidInput):
    """A body above the size limit."""

    code = "too-large"


class NotFound(VennueError):
    """No such job, round, assignment or blob."""

    code = "not-found"


class Forbidden(VennueError):
    """The caller does not own what it acts upon."""

    code = "forbidden"


class Conflict(VennueError):
    """The request contradicts the present state. Nothing was changed."""

    code = "conflict"


class TooLate(Conflict):
    """The assignment, attempt or job was closed before this arrived."""

    code = "too-late"


class IllegalTransition(Conflict):
    """An event that the state machine does not allow, with the story that led there.

    ``story`` lists the latest events of the entity, oldest first.
    """

    code = "illegal-transition"

    def __init__(self, message: str, *, story: tuple[str, ...] = (), **context: Any) -> None:
        super().__init__(message, **context)
        self.story = story

    def __str__(self) -> str:
        lines = "".join(f"\n  {line}" for line in self.story)
        return super().__str__() + (f"\nthe story so far:{lines}" if lines else "")


class InvariantViolated(VennueError):
    """An invariant of the core does not hold: a defect in Vennue, never in the caller."""

    code = "invariant-violated"


class Overloaded(VennueError):
    """The server sheds load; come back after ``retry_after_s`` seconds."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after_s = retry_after_s


class StorageError(VennueError):
    """Durable state cannot be read or written: read-only or full disk, or a newer schema version."""

    code = "storage"


class FileDamaged(StorageError):
    """A file that the server keeps was cut off by somebody else; waiting does not help."""

    code = "file-damaged"


class OutOfSpace(StorageError):
    """Storing this would take more than the pool may use of the disk."""

    code = "out-of-space"


class StrategyFailed(VennueError):
    """A strategy of somebody's own raised what it should not have; the message says where."""

    code = "strategy-failed"


class Unavailable(VennueError):
    """The server cannot be reached, or still fails after the retries."""

    code = "unavailable"


class JobEnded(VennueError):
    """The job was cancelled or has failed, so no further round will run."""

    code = "job-ended"


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The fix for an unknown name: a question with the known name most like it, or ``otherwise`` where none is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else otherwise


def described(error: Exception, module: str) -> str:
    """An error of code that is not Vennue's, in one line: its kind, the file and line that it came from, its text.

    Args:
        error: as it was caught.
        module: whose code it is. Its line is told, though what it called may have raised the error.
    """
    if isinstance(error, SyntaxError):
        file, line, text = error.filename, error.lineno, error.msg
    else:
        steps = list(traceback.walk_tb(error.__traceback__))
        frame, line = next((step for step in reversed(steps) if step[0].f_globals.get("__name__") == module), steps[-1])
        file, text = frame.f_code.co_filename, str(error)
    name = (file or module).replace("\\", "/").rpartition("/")[2]
    return f"{type(error).__name__} in {name}, line {line}" + (f": {text}" if text else "")
