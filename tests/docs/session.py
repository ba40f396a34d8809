"""Runs a document's commands and programs as its reader would: in order, in one shell, in one empty folder."""

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import REPOSITORY, Block, commands

# The shell prints a mark before each command, so that its output, or its failure, is known for what it is.
_MARK = "\x1e"


class DocumentFailed(AssertionError):
    """A command of a document failed, or its output differs from what the document shows."""


def run_document(blocks: list[Block], folder: Path, *, timeout_s: float = 900.0) -> int:
    """Write the files that the blocks give and run the rest; returns how many commands ran.

    Raises:
        DocumentFailed: with the line, the command and its output.
    """
    _write_files(blocks, folder)
    # Servers that a document leaves running end with the shell.
    script = ["set -eo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    shown: dict[int, tuple[str, str | None]] = {}
    for block in blocks:
        in_repository = "in-repository" in block.directives
        if in_repository:
            script.append(f"pushd {shlex.quote(str(REPOSITORY))} >/dev/null")
        for line, command, output in _steps(block, folder):
            shown[line] = (command, output)
            script += [f"printf '{_MARK}{line}\\n'", command]
        if in_repository:
            script.append("popd >/dev/null")
    if shown:
        _check(shown, *_run("\n".join(script), folder, timeout_s))
    return len(shown)


def _write_files(blocks: list[Block], folder: Path) -> None:
    for block in blocks:
        if "file" in block.directives:
            path = folder / block.directives["file"]
            if not path.resolve().is_relative_to(folder.resolve()):
                raise DocumentFailed(f"line {block.line}: {path.name!r} would be written outside the folder")
            if path.exists():
                raise DocumentFailed(f"line {block.line}: {path.name!r} was given before")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def _steps(block: Block, folder: Path) -> list[tuple[int, str, str | None]]:
    """What the block asks to run: the line, the command, and the output to compare with, if any."""
    if not {"no-run", "file"}.isdisjoint(block.directives):
        return []
    if block.language == "console":
        checked = "checked" in block.directives
        return [(command.line, command.text, command.output if checked else None) for command in commands(block)]
    if block.language == "python":
        program = folder / f"program-at-line-{block.line}.py"
        program.write_text(block.text)
        return [(block.line, f"python {shlex.quote(str(program))}", None)]
    return []


def _run(script: str, folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """The exit code (None when time ran out) and all output of a shell that runs the script."""
    binaries = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "120"}
    # The scratch files of pytest's own folder are not the document's business.
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = shell.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
    return code, log.read_text(errors="replace")


def _check(shown: dict[int, tuple[str, str | None]], code: int | None, log: str) -> None:
    outputs = {int(line): text for line, text in re.findall(rf"{_MARK}(\d+)\n([^{_MARK}]*)", log)}
    if code != 0:
        line = max(outputs, default=min(shown))
        ending = "did not end in time" if code is None else f"exited with {code}"
        raise DocumentFailed(f"line {line}: `{shown[line][0]}` {ending}:\n{outputs.get(line, log)}")
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for line, (command, expected) in shown.items():
        if expected is not None and not checker.check_output(f"{expected}\n", outputs[line], flags):
            raise DocumentFailed(f"line {line}: `{command}` shows\n{expected}\nbut prints\n{outputs[line]}")
