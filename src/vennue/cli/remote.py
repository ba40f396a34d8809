"""What the commands that ask a server have in common: the options that say which, and the calls.

A person or a script waits for the answer, so a server that cannot be reached is given up after a few seconds, where a
device would try for minutes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import Parameter

from vennue.core.errors import NotFound, Unavailable
from vennue.core.ids import Digest
from vennue.protocol import JobList, JobView
from vennue.sdk.download import Buffer
from vennue.sdk.retry import Retry
from vennue.sdk.transport import BlockingTransport, Timing, blocking
from vennue.sdk.wire import Wire

DEFAULT_SERVER = "http://127.0.0.1:8765"
"""Where ``vennue serve`` listens when it is told nothing else."""

_PAGE = 500
_LISTED = "`vennue jobs` lists them"

T = TypeVar("T")


@Parameter(name="*")
@dataclass(frozen=True)
class Remote:
    """Which server to ask, and how to show its answer."""

    server: Annotated[str, Parameter(env_var="VENNUE_SERVER")] = DEFAULT_SERVER
    """Address of the server."""
    json: bool = False
    """Print one JSON document instead."""


REMOTE = Remote()
"""The default of every command's last argument."""


class Operator:
    """Calls to a server, one at a time. Raises the errors of `vennue.core.errors`; `Unavailable` after some seconds."""

    def __init__(self, server: str) -> None:
        timing = Timing()
        self._transport = BlockingTransport(server, None, timing)
        self._wire = Wire(self._transport, Retry(attempts=3, first_s=0.2, most_s=0.5, total_s=3.0), timing)

    def get(self, path: str, answer: type[T]) -> T:
        """``GET`` a message."""
        return blocking(self._wire.call("GET", path, answer))

    def post(self, path: str, answer: type[T], body: msgspec.Struct, **headers: str) -> T:
        """``POST`` a message; ``idempotency_key="…"`` becomes that header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return blocking(self._wire.call("POST", path, answer, body=body, headers=named))

    def jobs(self) -> list[JobView]:
        """All jobs, oldest first, page by page."""
        listed: list[JobView] = []
        query: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = self.get(f"/v1/jobs?{urlencode(query)}", JobList)
            listed += page.jobs
            if page.next is None:
                return listed
            query["after"] = page.next

    def store(self, data: bytes) -> Digest:
        """Upload a blob, unless the server has it; its digest."""
        return blocking(self._wire.store(data))

    def fetch(self, digest: str) -> Buffer:
        """A blob, verified; a large one as a mapped file."""
        return blocking(self._wire.fetch(digest)).blob

    def close(self) -> None:
        """Give the connection back."""
        blocking(self._transport.close())


@contextmanager
def operator(remote: Remote) -> Iterator[Operator]:
    """Calls to the server that the options name."""
    client = Operator(remote.server)
    try:
        yield client
    except Unavailable as error:
        error.message = f"{remote.server}: {error.message}"
        error.fix = "start one with `vennue serve`, or name another with --server or VENNUE_SERVER"
        raise
    except NotFound as error:
        if error.field == "job" and error.fix is None:
            error.fix = _LISTED
        raise
    finally:
        client.close()


def path_of(job: str) -> str:
    """The path of a job.

    Raises:
        NotFound: no job can have what the user typed as its id.
    """
    if not job or "/" in job:  # which would be another path
        raise NotFound(f"there is no job {job!r}", field="job", value=job, fix=_LISTED)
    return f"/v1/jobs/{quote(job, safe='')}"
