"""What commands have in common: where their answers and their failures go, in which form, with which exit code.

Answers go to stdout: a table for people, or with ``--json`` one JSON document and nothing else. Failures, progress and
notes go to stderr, a failure as the field, the reason and the fix, never as a traceback (``VENNUE_DEBUG=1`` shows it).
With ``--json`` a failure is also a document on stdout, ``{"error": …}``, so that a script parses one stream.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Iterable
from enum import IntEnum
from typing import IO, Any, cast

import msgspec
from cyclopts import CycloptsError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vennue.core.errors import InvalidInput, NotFound, Unavailable, VennueError


class ExitCode(IntEnum):
    """How a command ended, for scripts."""

    OK = 0
    FAILED = 1
    """What was asked for did not happen: a job failed, the state does not allow it, a port or a disk is in the way."""
    INVALID = 2
    """The command line, a file or a value can never be right."""
    UNREACHABLE = 3
    """No server answered."""
    NOT_FOUND = 4
    """There is no such job."""
    INTERRUPTED = 130
    """Ctrl-C, as a shell reports it."""


def lines(*texts: str) -> str:
    """Lines of a help text, which is Markdown: they stay lines."""
    return "  \n".join(texts)


def debugging() -> bool:
    """Whether the user wants to see what goes on inside."""
    return bool(os.environ.get("VENNUE_DEBUG"))


def output() -> Console:
    """Where answers go."""
    return _console(stderr=False)


def notes() -> Console:
    """Where progress, notes and failures go."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120  # a file or a pipe has no width, and a table cut at 80 loses what was asked for
    if not console.is_terminal:
        console.file = cast("IO[str]", _Trimmed(console.file))
    return console


class _Trimmed:
    """A text stream without spaces at the ends of lines: a table fills its last column, and `diff` sees it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_TRAILING.sub("\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_TRAILING = re.compile(" +\n")


def print_json(document: Any) -> None:
    """Print one JSON document: a msgspec struct, or plain data that may hold some.

    Structs are written with all their fields, those too that the wire leaves out where they have their defaults, so
    that a script finds every field every time.
    """
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(_whole(document)), indent=2).decode() + "\n")
    sys.stdout.flush()


def table(*columns: str, numbers: Iterable[str] = (), title: str | None = None) -> Table:
    """A table in the one style of this command line; the columns of ``numbers`` stand to the right."""
    made = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left", padding=(0, 2, 0, 0))
    right = set(numbers)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left")
    return made


def duration(seconds: float | None) -> str:
    """Seconds for people: ``0.42 s``, ``38 s``, ``12 min 5 s``, ``3 h 20 min``, ``4 d 7 h``."""
    if seconds is None:
        return "–"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.5:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    for unit, size, below, smaller in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {below}"
    return f"{whole} s"


def rate(per_s: float | None) -> str:
    """A rate for people, in three digits: ``12.3/s``, or per minute or hour where that reads better."""
    if per_s is None:
        return "–"
    for unit, factor in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        if per_s * factor >= 0.01 or unit == "h":
            return f"{per_s * factor:.3g}/{unit}"
    raise AssertionError("the hour is always wide enough")


def plural(count: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of a failure, by its class."""
    if isinstance(error, InvalidInput):
        return ExitCode.INVALID
    if isinstance(error, Unavailable):
        return ExitCode.UNREACHABLE
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    return ExitCode.FAILED


def show_error(error: Exception, *, as_json: bool) -> ExitCode:
    """Say what went wrong and what to do, and return the exit code."""
    console = notes()
    if debugging():
        console.print("".join(traceback.format_exception(error)), markup=False)
    while isinstance(error, ExceptionGroup):  # tasks that ran side by side; the first to fail ended the others
        error = error.exceptions[0]
    code = exit_code(error)
    if isinstance(error, VennueError):
        field = f"[bold]{escape(error.field)}[/]: " if error.field else ""
        console.print(f"[bold red]error:[/] {field}{escape(error.message)}", soft_wrap=True)
        if isinstance(error.value, str | int | float) and str(error.value) not in error.message:
            console.print(f"  [bold]got:[/] {escape(str(error.value))}", soft_wrap=True)
        for line in getattr(error, "story", ()):
            console.print(f"       {escape(line)}", soft_wrap=True)
        if error.fix:
            console.print(f"  [bold]fix:[/] {escape(error.fix)}", soft_wrap=True)
        problem = {
            "code": error.code,
            "message": error.message,
            "field": error.field,
            "value": _plain(error.value),
            "limit": _plain(error.limit),
            "fix": error.fix,
        }
    else:
        said = f"{type(error).__name__}: {error}"
        console.print(f"[bold red]error:[/] {escape(said)}", soft_wrap=True)
        console.print("  [bold]fix:[/] this is a defect in Vennue: VENNUE_DEBUG=1 shows where, for a report")
        problem = {"code": "defect", "message": said}
    if as_json:
        print_json({"error": problem | {"exit_code": int(code)}})
    return code


def show_usage_error(error: CycloptsError, *, as_json: bool) -> ExitCode:
    """Say what is wrong with a command line, and return the exit code."""
    chain = " ".join(("vennue", *(error.command_chain or ())))
    console = notes()
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    console.print(f"  [bold]fix:[/] see `{escape(chain)} --help`", soft_wrap=True)
    if as_json:
        print_json({"error": {"code": "usage", "message": str(error), "exit_code": int(ExitCode.INVALID)}})
    return ExitCode.INVALID


def show_interrupt() -> None:
    """Say that Ctrl-C was heard."""
    notes().print("interrupted")


def discard_output() -> None:
    """Let the interpreter end in peace when nobody reads stdout any more (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _whole(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value


def _plain(value: object) -> object:
    """A value as JSON can hold it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
