"""Servers for the HTTP benchmarks: any module that prints its URL, in a process of its own, on a core of its own.

``python -m benchmarks.http_server`` is the yardstick, served exactly as Vennue is. It sends back what it was sent, or
the file that ``ECHO_FILE`` names; or it takes bodies in, and drops them (``TAKE_IN=drop``) or writes each to a new file
(``TAKE_IN=DIRECTORY``).
"""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vennue.server.config import Limits
from vennue.server.memory import keep_freed_memory
from vennue.server.run import _Granian, _listen, _loop_factory, _url

FILE = os.environ.get("ECHO_FILE", "")
FILE_BYTES = str(Path(FILE).stat().st_size) if FILE else ""
TAKE_IN = os.environ.get("TAKE_IN", "")
NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """The processor time that it has taken, in seconds: neighbours who want the same core do not change it."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(module: str, **environment: str) -> Iterator[Served]:
    """A server in a process on the first core."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=on_core(0),  # noqa: PLW1509 - before any thread of ours has started
    )
    try:
        assert process.stdout is not None
        yield Served(process.stdout.readline().strip(), process.pid)
    finally:
        process.terminate()
        process.wait(30)


def on_core(index: int) -> Callable[[], None] | None:
    """What binds a new process to one of this process's cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = sorted(os.sched_getaffinity(0))[index]
    return lambda: os.sched_setaffinity(0, {core})


async def echo(_: Any, transport: Any) -> None:
    """Answer a request with its own body, or with the file that the environment names."""
    if FILE:
        transport.response_file(200, [("content-length", FILE_BYTES)], FILE)
        return
    transport.response_bytes(200, [("content-type", "application/json")], await transport())


async def take_in(_: Any, transport: Any) -> None:
    """Answer a request when its body is there, dropped or in a file."""
    target = os.devnull if TAKE_IN == "drop" else f"{TAKE_IN}/{next(NUMBERS)}"
    file = os.open(target, os.O_WRONLY | os.O_CREAT)
    async for chunk in transport:
        os.write(file, chunk)
    os.close(file)
    transport.response_bytes(200, [], b"taken")


async def main() -> None:
    """Serve."""
    listener = _listen("127.0.0.1", 0)
    print(_url(listener), flush=True)
    await _Granian(take_in if TAKE_IN else echo, listener, Limits()).serve()


if __name__ == "__main__":
    keep_freed_memory()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())
