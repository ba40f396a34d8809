"""The root's application: a check-in, the hot path, is recognised first and goes straight to the selector."""

from typing import Final

import msgspec

from vennue.control.coordinator import Coordinator
from vennue.control.keeper import Keeper
from vennue.control.selector import Selector
from vennue.core.errors import StorageError
from vennue.protocol import CheckInRequest
from vennue.server.application import Application
from vennue.server.config import Limits
from vennue.server.http import Request, Transport, decode
from vennue.server.routes import all_routes
from vennue.server.telemetry import Telemetry
from vennue.state.space import NO_BOUND, Space

CHECK_INS: Final = "/v1/check-ins"
_JSON: Final = [("content-type", "application/json")]


class App(Application):
    """Answers requests. It belongs to the coordinator's event loop.

    Args:
        coordinator: started.
        selector: of that coordinator.
        limits: on what a caller may send.
        version: of the program.
        keeper: what removes models that no job needs, if anything does.
        leaf_key: what leaves must show; without one there are none.
        space: the room on the disks, by default as if there were enough.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        selector: Selector,
        limits: Limits,
        version: str,
        *,
        keeper: Keeper | None = None,
        leaf_key: str = "",
        space: Space = NO_BOUND,
    ) -> None:
        super().__init__(limits)
        self._coordinator = coordinator
        self._selector = selector
        self._limits = limits
        telemetry = Telemetry(coordinator, self.responses, keeper, space)
        self.serve(
            all_routes(coordinator, selector, limits, version, telemetry, keeper=keeper, leaf_key=leaf_key, space=space)
        )
        self._check_in_decoder = msgspec.json.Decoder(CheckInRequest)
        self._encode = msgspec.json.Encoder().encode

    @property
    def stopping(self) -> bool:
        return self._coordinator.stopping

    async def _answer(self, request: Request, transport: Transport) -> None:
        scope = request.scope
        if scope.path != CHECK_INS or scope.method != "POST":
            await super()._answer(request, transport)
            return
        if self.lag.lag_s > self._limits.lag_s:
            raise self._selector.overloaded()
        message = decode(self._check_in_decoder, await request.body(self._limits.check_in_bytes))
        answer, pending = self._selector.check_in(message)
        if pending is not None:
            answer = await pending or answer
        self.responses[200] += 1
        transport.response_bytes(200, _JSON, self._encode(answer))

    def _reports(self, error: StorageError) -> bool:
        return self._coordinator.failure is None  # a ledger that has failed was reported when it did
