"""A PostgreSQL server of the tests' own, on a socket in a directory of its own: no port, no other user's database."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import PROGRAM_PATH

_TUNING = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "50"}


class Postgres:
    """A running server.

    Args:
        socket: the directory of its socket.
        user: who owns its databases.
    """

    def __init__(self, socket: Path, user: str) -> None:
        self._socket = socket
        self._user = user

    def url(self, database: str) -> str:
        """The address of a database, for SQLAlchemy."""
        return f"postgresql+asyncpg://{self._user}@/{database}?host={self._socket}"

    def create(self, database: str) -> None:
        """A new, empty database."""
        _run("createdb", "-h", str(self._socket), "-U", self._user, database)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server, for as long as the context lasts."""
    # It refuses to run as root. A socket's path may have some hundred characters, fewer than tests' directories take.
    account = pwd.getpwnam("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        root = Path(name)
        if os.geteuid() == 0:
            os.chown(root, account.pw_uid, account.pw_gid)
        data = root / "data"
        _run(
            "initdb", "-D", str(data), "-U", account.pw_name, "--auth=trust", "--encoding=UTF8", "--locale=C",
            "--no-sync", account=account,
        )  # fmt: skip
        settings = [f"-c{key}={value}" for key, value in _TUNING.items()]
        server = subprocess.Popen(
            [_program("postgres"), "-D", str(data), "-k", name, "-c", "listen_addresses=", *settings],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **_as(account),
        )  # fmt: skip
        try:
            _run("pg_isready", "-h", name, "-U", account.pw_name, "-d", "postgres", until_s=30.0)
            yield Postgres(root, account.pw_name)
        finally:
            server.terminate()
            server.wait(30)


def _program(name: str) -> str:
    path = shutil.which(name, path=PROGRAM_PATH)
    assert path is not None, f"{name} is not installed"
    return path


def _as(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None or os.geteuid() != 0:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid}


def _run(name: str, *arguments: str, account: pwd.struct_passwd | None = None, until_s: float = 0.0) -> None:
    """Run one of its programs to the end; where ``until_s`` is given, again and again until it succeeds."""
    deadline = time.monotonic() + until_s
    while True:
        done = subprocess.run(
            [_program(name), *arguments], capture_output=True, text=True, check=False, cwd="/", **_as(account)
        )
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.05)
