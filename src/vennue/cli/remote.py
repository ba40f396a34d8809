"""What the commands that ask a server have in common: the options that say which, and the calls.

A person or a script waits for the answer, so a server that cannot be reached is given up after a few seconds, where a
device would try for minutes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec
from cyclopts import Parameter

import vennue
from vennue.core.errors import Forbidden, NotFound, Unavailable, VennueError
from vennue.core.ids import Digest
from vennue.protocol import Health, JobList, JobView
from vennue.sdk.download import Buffer
from vennue.sdk.retry import Retry
from vennue.sdk.transport import DEFAULT_SERVER, SERVER_VARIABLE, BlockingTransport, Timing, blocking
from vennue.sdk.wire import Wire

_PAGE = 500
_LISTED = "`vennue jobs` lists them"
_ANOTHER = f"name another server with --server or {SERVER_VARIABLE}"

T = TypeVar("T")


@Parameter(name="*")
@dataclass(frozen=True)
class Remote:
    """Which server to ask, and how to show its answer."""

    server: Annotated[str, Parameter(env_var=SERVER_VARIABLE)] = DEFAULT_SERVER
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

    def readiness(self, patience_s: float) -> Health:
        """What the server says of itself at this moment; asks once.

        Raises:
            httpx.TransportError: nobody answers, or not in time.
            msgspec.MsgspecError: somebody else does.
        """
        request = self._transport.build("GET", "/readyz", {}, None)
        request.extensions["timeout"] = httpx.Timeout(patience_s).as_dict()
        response = blocking(self._transport.send(request))
        return msgspec.json.decode(response.content, type=Health)

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
        if isinstance(error.__cause__, httpx.TransportError):
            error.message = f"{remote.server}: {error.message}"
            error.fix = f"start one with `vennue serve`, or {_ANOTHER}"
        elif isinstance(error.__cause__, msgspec.MsgspecError | UnicodeDecodeError):
            raise _stranger(client, remote.server) from error
        else:
            error.message, error.field = f"{remote.server}: {error.message}", "server"
            error.fix = "try again, and see the server's log if it goes on"
        raise
    except NotFound as error:
        if error.field in {None, "path"}:
            raise _stranger(client, remote.server) from error
        if error.field == "job" and error.fix is None:
            error.fix = _LISTED
        raise
    except Forbidden as error:
        if error.field is None:
            error.message, error.field = f"{remote.server}: {error.message}", "server"
            error.fix = f"what is at this address, or a proxy before it, wants to know who asks: {_ANOTHER}"
        raise
    finally:
        client.close()


def _stranger(client: Operator, server: str) -> Unavailable:
    """The error of a server that does not speak as this version of Vennue does, with the version if it has another."""
    try:
        there = client.get("/healthz", Health).version
    except VennueError:
        there = None
    if there in {None, vennue.__version__}:
        return Unavailable(f"{server}: this is no Vennue server, or none of this version", field="server", fix=_ANOTHER)
    return Unavailable(
        f"{server}: the server is Vennue {there}, and this program is {vennue.__version__}",
        field="server",
        fix=f"install the server's version here, or {_ANOTHER}",
    )


def path_of(job: str) -> str:
    """The path of a job.

    Raises:
        NotFound: no job can have what the user typed as its id.
    """
    if not job or "/" in job:  # which would be another path
        raise NotFound(f"there is no job {job!r}", field="job", value=job, fix=_LISTED)
    return f"/v1/jobs/{quote(job, safe='')}"
