"""A real server in a process of its own, for end-to-end tests: started, asked, stopped, killed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from vennue.tensors.model import load, save

STOP_S = 100.0
"""For failures alone: a test does not measure how long a server takes to end."""

FAST = {
    "VENNUE_PACING_SHORT_S": "0.02",
    "VENNUE_PACING_BUSY_S": "0.05",
    "VENNUE_PACING_IDLE_S": "0.1",
    "VENNUE_LIMITS_LAG_S": "60",
}
"""Devices come back at once, so that tests do not wait; none is turned away because other tests are busy."""


COMMAND = [sys.executable, "-m", "vennue.server"]


def environment(data_dir: Path, *, port: int = 0, **settings: str) -> dict[str, str]:
    """The environment of a server: this process's, but for the settings of Vennue's own."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("VENNUE_")}
    own = {"data_dir": str(data_dir), "port": str(port), **settings}
    return others | FAST | {f"VENNUE_{name.upper()}": value for name, value in own.items()}


class ServerProcess:
    """A server on a free port of the loopback, configured by ``VENNUE_*`` variables."""

    def __init__(self, data_dir: Path, *, port: int = 0, validate: bool = True, **settings: str) -> None:
        self._logged = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes to it as long as it lives
        self.process = subprocess.Popen(
            COMMAND,
            env=environment(data_dir, port=port, validate=str(int(validate)), **settings),
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        """Empty when the server did not start; its exit code and log say why."""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        """All that it has logged."""
        if not self._log.closed:
            fd = self._log.fileno()
            self._logged = os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")
        return self._logged

    def client(self, **options: Any) -> httpx.Client:
        """An HTTP client for it."""
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def connect(self) -> socket.socket:
        """A raw connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(STOP_S)
        self._logged = self.log
        self._log.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and wait; its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self.process.kill()
        self.wait()

    def __enter__(self) -> Self:
        if not self.url:
            raise AssertionError(f"the server ended with {self.wait()} at once:\n{self._logged}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()


def model(value: float = 0.0, size: int = 4) -> bytes:
    """A model whose numbers are all ``value``."""
    return save({"w": np.full(size, value, np.float32)})


def numbers(data: bytes) -> list[float]:
    """The numbers of such a model."""
    weights: list[float] = load(data)["w"].tolist()
    return weights


def raw_request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as bytes, for what a client library would not send."""
    lines = [f"{method} {path} HTTP/1.1", "host: test", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the bytes of the answer on a raw connection, up to its announced length or the end."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65_536)
        if not chunk:
            break
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    while len(body) < length:
        chunk = connection.recv(65_536)
        if not chunk:
            break
        body += chunk
    return int(head.split(b" ")[1]) if head else 0, body
