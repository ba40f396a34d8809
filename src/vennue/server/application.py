"""The application that granian calls, whatever its role: one coroutine per request.

Every request finds its route. Whatever a handler raises becomes a problem document here and nowhere else, and the
server goes on serving.
"""

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter

import msgspec

from vennue.core.errors import Overloaded, StorageError, StrategyFailed, VennueError
from vennue.protocol import Problem
from vennue.server.config import Limits
from vennue.server.http import Answer, Request, Scope, StallWatch, Transport, send
from vennue.server.lag import LoopLag
from vennue.server.problems import headers_of, problem
from vennue.server.routing import Route, Router

log = logging.getLogger("vennue.server")


class Application(ABC):
    """Answers requests. It belongs to one event loop. A subclass gives it its ``routes``.

    Args:
        limits: on what a caller may send.
    """

    def __init__(self, limits: Limits) -> None:
        self.watch = StallWatch(limits.idle_body_s, limits.least_bytes_per_s)
        """To be run beside the application, as ``lag`` is."""
        self.lag = LoopLag()
        self.in_flight = 0
        """Requests that have not been answered yet."""
        self.responses: Counter[int] = Counter()
        """Answers by status, since the start."""
        self.rng = random.Random()
        """Of when callers that are turned away come back."""
        self._router = Router([])

    def serve(self, routes: list[Route]) -> None:
        """Answer these from now on."""
        self._router = Router(routes)

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether the end is near, so that only operators are answered."""

    async def __rsgi__(self, scope: Scope, transport: Transport) -> None:
        """Answer a request."""
        self.in_flight += 1
        request = Request(scope, transport, {}, self.watch)
        try:
            await self._answer(request, transport)
        except Exception as error:  # noqa: BLE001 - answered as an internal error, and logged
            self._fail(request, transport, error)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: Request, transport: Transport) -> None:
        method = request.method
        # HEAD is GET without the body, wherever GET is.
        route, request.params = self._router.find("GET" if method == "HEAD" else method, request.scope.path)
        if self.stopping and route.tag != "operator":
            raise Overloaded("the server is stopping", retry_after_s=5.0, fix="try again: it is probably restarting")
        if request.scope.query_string and route.path.startswith("/v1/"):
            request.check_query([parameter.name for parameter in route.parameters if parameter.where == "query"])
        answer = await route.handler(request)
        self.responses[answer.status] += 1
        send(request, transport, answer)

    def _fail(self, request: Request, transport: Transport, error: Exception) -> None:
        scope = request.scope
        if not isinstance(error, VennueError):
            log.error("%s %s failed", scope.method, scope.path, exc_info=error)
        elif isinstance(error, StrategyFailed):
            log.error("%s %s: %s", scope.method, scope.path, error)
        elif isinstance(error, StorageError) and self._reports(error):
            log.error("%s %s: %s: %s", scope.method, scope.path, error.value, error)
        document = spread(problem(error), self.rng)
        self.responses[document.status] += 1
        answer = Answer(status=document.status, headers=headers_of(error, document), body=msgspec.json.encode(document))
        try:
            send(request, transport, answer)
        except RuntimeError as closed:
            log.debug("%s %s: the client has gone: %s", scope.method, scope.path, closed)

    def _reports(self, error: StorageError) -> bool:
        """Whether a failure of the storage is news, and belongs in the log."""
        return True


def spread(document: Problem, rng: random.Random) -> Problem:
    """The same, but callers that are turned away together try again each at a time of its own."""
    if document.retry_after_s is None:
        return document
    return msgspec.structs.replace(document, retry_after_s=document.retry_after_s * rng.uniform(0.5, 1.5))
