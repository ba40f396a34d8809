"""Routes for job owners: submit a job, open its rounds, wait for them, end it."""

from typing import Any, Final

import msgspec

from vennue.control.coordinator import Coordinator
from vennue.core.errors import InvalidInput
from vennue.core.ids import JobId
from vennue.protocol import (
    IDEMPOTENCY_HEADER,
    CancelRequest,
    Explanation,
    JobList,
    JobView,
    RoundRequest,
    RoundView,
    SubmitRequest,
)
from vennue.server.config import Limits
from vennue.server.http import Answer, Request, json_answer
from vennue.server.routing import Parameter, Reply, Route
from vennue.updates.blobs import check_digest

MAX_ROUND: Final = 2**31
PAGE: Final = 100
MAX_PAGE: Final = 500
"""Jobs on one page: it costs the event loop some tens of milliseconds."""

_JOB: Final = Parameter(
    name="id", where="path", required=True, schema={"type": "string", "minLength": 1}, text="The job."
)
_ROUND: Final = Parameter(
    name="round", where="path", required=True, schema={"type": "integer", "minimum": 1, "maximum": MAX_ROUND},
    text="The round, from 1.",
)  # fmt: skip
_VIEW: Final = Reply(status=200, text="The job.", body=JobView)


class JobRoutes:
    """Handlers for what job owners ask."""

    def __init__(self, coordinator: Coordinator, limits: Limits) -> None:
        self._coordinator = coordinator
        self._limits = limits
        self._submit_decoder = msgspec.json.Decoder(SubmitRequest)
        self._round_decoder = msgspec.json.Decoder(RoundRequest)
        self._cancel_decoder = msgspec.json.Decoder(CancelRequest)

    def routes(self) -> list[Route]:
        """The routes of these handlers."""
        common: dict[str, Any] = {"tag": "job", "parameters": (_JOB,)}
        return [
            Route(
                method="POST", path="/v1/jobs", handler=self.submit, name="submitJob", tag="job",
                text="Submit a job.", body=SubmitRequest, problems=(409,),
                parameters=(
                    Parameter(
                        name=IDEMPOTENCY_HEADER, where="header",
                        schema={"type": "string", "pattern": "^[ -~]{1,200}$", "minLength": 1, "maxLength": 200},
                        text="The same key and body make one job, however often they are sent.",
                    ),
                ),
                replies=(
                    Reply(
                        status=201, text="The new job.", body=JobView,
                        links=tuple(
                            (name, "/id") for name in
                            ("showJob", "explainJob", "openRound", "showRound", "completeJob", "cancelJob")
                        ),
                    ),
                    Reply(status=200, text="The job that this key made before.", body=JobView),
                ),
            ),
            Route(
                method="GET", path="/v1/jobs", handler=self.list, name="listJobs", tag="job",
                text="""The jobs, oldest first.

                A page of them: as long as it has a `next`, there are more, which come with that as `after`.""",
                parameters=(
                    Parameter(
                        name="limit", where="query",
                        schema={"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE},
                        text="How many at most.",
                    ),
                    Parameter(
                        name="after", where="query", schema={"type": "string", "minLength": 1},
                        text="The job after which the page begins.",
                    ),
                ),
                replies=(Reply(status=200, text="The jobs.", body=JobList),), problems=(422,),
            ),
            Route(
                method="GET", path="/v1/jobs/{id}", handler=self.show, name="showJob",
                text="A job, its open round, and why it is where it is.", replies=(_VIEW,), problems=(404,), **common,
            ),
            Route(
                method="GET", path="/v1/jobs/{id}/explain", handler=self.explain, name="explainJob",
                text="Why the job is where it is, when it may end, and what would change that.", problems=(404,),
                replies=(Reply(status=200, text="The explanation.", body=Explanation),), **common,
            ),
            Route(
                method="POST", path="/v1/jobs/{id}/cancel", handler=self.cancel, name="cancelJob",
                text="End the job now. Cancelling a job that has ended changes nothing.",
                body=CancelRequest, body_required=False, replies=(_VIEW,), problems=(404,), **common,
            ),
            Route(
                method="POST", path="/v1/jobs/{id}/complete", handler=self.complete, name="completeJob",
                text="The owner is done. Repeating it changes nothing.", replies=(_VIEW,), problems=(404, 409),
                **common,
            ),
            Route(
                method="POST", path="/v1/jobs/{id}/rounds", handler=self.open_round, name="openRound",
                text="Run the next round on this model. Repeating it changes nothing.",
                body=RoundRequest, problems=(404, 409),
                replies=(Reply(status=200, text="The round.", body=RoundView),), **common,
            ),
            Route(
                method="GET", path="/v1/jobs/{id}/rounds/{round}", handler=self.round, name="showRound", tag="job",
                text="""The round's latest attempt.

                With `wait`, the answer comes when the round is over, or after so many seconds.""",
                parameters=(
                    _JOB,
                    _ROUND,
                    Parameter(
                        name="wait", where="query",
                        schema={"type": "number", "minimum": 0, "maximum": MAX_ROUND, "default": 0},
                        text="Seconds to wait for the round's end; a server may answer sooner.",
                    ),
                ),
                problems=(404, 422), replies=(Reply(status=200, text="The round.", body=RoundView),),
            ),
        ]  # fmt: skip

    async def submit(self, request: Request) -> Answer:
        """``POST /v1/jobs``."""
        message = await request.json(self._submit_decoder, self._limits.json_bytes)
        view, is_new = await self._coordinator.submit(message.spec, request.header(IDEMPOTENCY_HEADER), message.managed)
        return json_answer(view, status=201 if is_new else 200, headers=(("location", f"/v1/jobs/{view.id}"),))

    async def list(self, request: Request) -> Answer:
        """``GET /v1/jobs``."""
        limit = request.whole_number("limit", PAGE, least=1, most=MAX_PAGE)
        after = request.query("after")
        return json_answer(await self._coordinator.jobs(limit, None if after is None else JobId(after)))

    async def show(self, request: Request) -> Answer:
        """``GET /v1/jobs/{id}``."""
        return json_answer(await self._coordinator.job(JobId(request.params["id"])))

    async def explain(self, request: Request) -> Answer:
        """``GET /v1/jobs/{id}/explain``."""
        return json_answer(await self._coordinator.explain(JobId(request.params["id"])))

    async def cancel(self, request: Request) -> Answer:
        """``POST /v1/jobs/{id}/cancel``."""
        message = await request.json(self._cancel_decoder, self._limits.json_bytes, optional=True)
        return json_answer(await self._coordinator.cancel(JobId(request.params["id"]), message.reason[:1000]))

    async def complete(self, request: Request) -> Answer:
        """``POST /v1/jobs/{id}/complete``."""
        return json_answer(await self._coordinator.complete(JobId(request.params["id"])))

    async def open_round(self, request: Request) -> Answer:
        """``POST /v1/jobs/{id}/rounds``."""
        message = await request.json(self._round_decoder, self._limits.json_bytes)
        _check_round(message.round, str(message.round))
        view = await self._coordinator.open_round(
            JobId(request.params["id"]), message.round, check_digest(message.model), message.config
        )
        return json_answer(view)

    async def round(self, request: Request) -> Answer:
        """``GET /v1/jobs/{id}/rounds/{round}``."""
        text = request.params["round"]
        number = int(text) if text.isdecimal() and len(text) <= 10 else 0
        _check_round(number, text)
        wait_s = request.number("wait", 0.0, least=0.0, most=MAX_ROUND)
        waiting = self._coordinator.round(JobId(request.params["id"]), number, min(wait_s, self._limits.wait_s))
        return json_answer(await (request.while_connected(waiting) if wait_s else waiting))


def _check_round(number: int, text: str) -> None:
    """Refuse what is no round's number; beyond these, a ledger could not even look it up."""
    if not 1 <= number <= MAX_ROUND:
        raise InvalidInput(
            f"must be a round's number, from 1, got {text[:80]!r}", field="round", value=text[:80], limit=MAX_ROUND
        )
