"""A server of the demo's own: the real one, as a process of its own, on a free port and a folder of its own.

It belongs to whoever started it. It has a session of its own, so that Ctrl-C stops the demo first and the server after
its last device; and it ends when its standard input does, so that it outlives the demo in no way, not even a SIGKILL.
Run as a program, this module is that process.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import BinaryIO

from vennue.core.errors import Unavailable

START_S = 30.0
STOP_S = 10.0


@contextlib.asynccontextmanager
async def serving(folder: Path, settings: Mapping[str, object]) -> AsyncIterator[str]:
    """Start a server, give its address, and stop it.

    Args:
        folder: for its data and its log.
        settings: fields of `ServerConfig` by the names of their variables, without ``VENNUE_`` (``POLICY``).

    Raises:
        Unavailable: it does not start; the error holds the end of its log.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VENNUE_")}
    chosen = {f"VENNUE_{name}": str(value) for name, value in settings.items()}
    own = {"VENNUE_HOST": "127.0.0.1", "VENNUE_PORT": "0", "VENNUE_DATA_DIR": str(folder / "data")}
    log = folder / "server.log"
    with _written(log) as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "vennue.demo.server",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env=inherited | own | chosen | {"OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
    try:
        yield await _address(process, log)
    finally:
        await _stop(process)


def _written(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("wb")


def _ending(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:]) or "it says nothing"


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
    except TimeoutError:
        line = b""
    if not line:
        raise Unavailable(
            f"the demo's server does not start: {_ending(log)}", field="server",
            fix="see whether `vennue serve --port 0` runs",
        )  # fmt: skip
    return line.decode().strip()


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ask it to end, and see to it that it does. Not to be hurried by a second Ctrl-C."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()


def main() -> int:
    """Serve until told to stop, or until standard input ends."""
    from vennue.server.config import ServerConfig
    from vennue.server.run import run

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def ready(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    threading.Thread(target=watch, daemon=True).start()
    return run(ServerConfig.from_environment(), ready=ready)


if __name__ == "__main__":
    sys.exit(main())
