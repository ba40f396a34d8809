"""The door: who finds every connection taken is told to come back, where the kernel would let them wait in silence.

Granian takes no connection above its limit, so those that come then stay in the kernel's queue, up to a minute if the
others are idle. When nobody was let in from there for a second, they are taken in here, answered with a 503 that says
when to come back, and let go.
"""

import asyncio
import contextlib
import logging
import os
import random
import select
import socket
from collections import Counter
from typing import Final

import msgspec

from vennue.core.errors import Overloaded
from vennue.server.application import spread
from vennue.server.problems import headers_of, problem

log = logging.getLogger("vennue.server")

_LOOK_S: Final = 0.25
_LOOKS: Final = 4
"""So many looks in a row must find somebody waiting, for one may find who has just come."""
_AT_ONCE: Final = 64
"""Connections that are being turned away: each needs an open file, of which few are left."""
_ANSWER_S: Final = 1.0
"""How long one may take to hear its answer."""
_RETRY_S: Final = 10.0


class Door:
    """Turns away who waits at a full server.

    Args:
        listener: where they wait, as granian does for them.
        connections: how many the server takes.
        responses: answers by status, to be counted in.
    """

    def __init__(self, listener: socket.socket, connections: int, responses: Counter[int]) -> None:
        self._listener = listener
        self._connections = connections
        self._responses = responses
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._rng = random.Random()
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Watch, until cancelled."""
        found = 0
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                found = found + 1 if self._poll.poll(0) and self._is_full() else 0
                if found == _LOOKS:
                    log.warning("all %d connections are taken: more are turned away", self._connections)
                if found >= _LOOKS:
                    self._turn_away()
        finally:
            for task in self._leaving:
                task.cancel()

    def _is_full(self) -> bool:
        # As many files are open, at least: the queue alone may be long in a rush, too.
        try:
            return len(os.listdir("/dev/fd")) >= self._connections  # noqa: PTH208 - names are all that is needed
        except OSError:  # no file is left for that, or this system does not tell
            return True

    def _turn_away(self) -> None:
        with contextlib.suppress(OSError):  # nobody waits any more, or no file is left
            while len(self._leaving) < _AT_ONCE:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                task = asyncio.get_running_loop().create_task(self._answer(connection), name="turned away")
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def _answer(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._responses[503] += 1
        with connection, contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await loop.sock_sendall(connection, self._refusal())
                connection.shutdown(socket.SHUT_WR)
                # What it sends is read: closed before, the connection would be reset, and the answer perhaps lost.
                while await loop.sock_recv(connection, 65_536):
                    pass

    def _refusal(self) -> bytes:
        error = Overloaded(
            f"all {self._connections} connections are taken", retry_after_s=_RETRY_S, fix="try again later"
        )
        document = spread(problem(error), self._rng)
        body = msgspec.json.encode(document)
        headers = [*headers_of(error, document), ("content-length", str(len(body))), ("connection", "close")]
        lines = ["HTTP/1.1 503 Service Unavailable", *(f"{name}: {value}" for name, value in headers), "", ""]
        return "\r\n".join(lines).encode() + body
