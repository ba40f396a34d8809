"""The application that granian calls: one coroutine per request.

A check-in, the hot path, is recognised first and goes straight to the selector; every other request finds its route.
Whatever a handler raises becomes a problem document here and nowhere else, and the server goes on serving.
"""

import logging
from collections import Counter

import msgspec

from vennue.control.coordinator import Coordinator
from vennue.control.selector import Selector
from vennue.core.errors import Overloaded, StorageError, VennueError
from vennue.protocol import CheckInRequest
from vennue.server.config import Limits
from vennue.server.http import Answer, Request, Scope, StallWatch, Transport, decode, send
from vennue.server.lag import LoopLag
from vennue.server.problems import headers_of, problem
from vennue.server.routes import all_routes
from vennue.server.routing import Router
from vennue.server.telemetry import Telemetry

log = logging.getLogger("vennue.server")

CHECK_INS = "/v1/check-ins"
_JSON = [("content-type", "application/json")]


class App:
    """Answers requests. It belongs to the coordinator's event loop.

    Args:
        coordinator: started.
        selector: of that coordinator.
        limits: on what a caller may send.
        version: of the program.
    """

    def __init__(self, coordinator: Coordinator, selector: Selector, limits: Limits, version: str) -> None:
        self.watch = StallWatch(limits.idle_body_s)
        """To be run beside the application, as ``lag`` is."""
        self.lag = LoopLag()
        self.in_flight = 0
        """Requests that have not been answered yet."""
        self.responses: Counter[int] = Counter()
        """Answers by status, since the start."""
        telemetry = Telemetry(coordinator, self.responses)
        self._coordinator = coordinator
        self._selector = selector
        self._limits = limits
        self._router = Router(all_routes(coordinator, selector, limits, version, telemetry))
        self._check_in_decoder = msgspec.json.Decoder(CheckInRequest)
        self._encode = msgspec.json.Encoder().encode

    async def __rsgi__(self, scope: Scope, transport: Transport) -> None:
        """Answer a request."""
        self.in_flight += 1
        request = Request(scope, transport, {}, self.watch)
        try:
            if scope.path == CHECK_INS and scope.method == "POST":
                await self._check_in(request, transport)
            else:
                await self._route(request, transport)
        except Exception as error:  # noqa: BLE001 - answered as an internal error, and logged
            self._fail(request, transport, error)
        finally:
            self.in_flight -= 1

    async def _check_in(self, request: Request, transport: Transport) -> None:
        if self.lag.lag_s > self._limits.lag_s:
            raise self._selector.overloaded()
        message = decode(self._check_in_decoder, await request.body(self._limits.check_in_bytes))
        answer, pending = self._selector.check_in(message)
        if pending is not None:
            answer = await pending or answer
        self.responses[200] += 1
        transport.response_bytes(200, _JSON, self._encode(answer))

    async def _route(self, request: Request, transport: Transport) -> None:
        method = request.method
        # HEAD is GET without the body, wherever GET is.
        route, request.params = self._router.find("GET" if method == "HEAD" else method, request.scope.path)
        if self._coordinator.stopping and route.tag != "operator":
            raise Overloaded("the server is stopping", retry_after_s=5.0, fix="try again: it is probably restarting")
        answer = await route.handler(request)
        self.responses[answer.status] += 1
        send(request, transport, answer)

    def _fail(self, request: Request, transport: Transport, error: Exception) -> None:
        scope = request.scope
        if not isinstance(error, VennueError):
            log.error("%s %s failed", scope.method, scope.path, exc_info=error)
        elif isinstance(error, StorageError) and self._coordinator.failure is None:
            log.error("%s %s: %s: %s", scope.method, scope.path, error.value, error)
        document = problem(error)
        self.responses[document.status] += 1
        answer = Answer(status=document.status, headers=headers_of(error, document), body=msgspec.json.encode(document))
        try:
            send(request, transport, answer)
        except RuntimeError as closed:
            log.debug("%s %s: the client has gone: %s", scope.method, scope.path, closed)
