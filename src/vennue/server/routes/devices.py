"""Routes for devices: check in, answer to an offer, report an update.

``POST /v1/check-ins`` stands here for its description; requests to it are answered by the application directly.
"""

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import Body
from vennue.control.parts import Parts, expected_report
from vennue.control.selector import Selector
from vennue.core.errors import Forbidden, InvalidInput, NotFound
from vennue.core.ids import AssignmentId, Digest
from vennue.protocol import (
    DIGEST_HEADER,
    EXAMPLES_HEADER,
    METRICS_HEADER,
    MODEL_HEADER,
    REPR_DIGEST_HEADER,
    CheckInAnswer,
    CheckInRequest,
    DeclineRequest,
    ReportReceipt,
    Task,
    UploadView,
)
from vennue.server.config import Limits
from vennue.server.http import Answer, Request, bearer, content_length, decode, json_answer
from vennue.server.problems import RequestError
from vennue.server.routing import BINARY, Parameter, Reply, Route
from vennue.server.uploading import PARAMETERS, PartHeaders, upload_answer
from vennue.updates.blobs import check_digest
from vennue.updates.intake import Announcement

MAX_METRICS: Final = 64

_SHOWN: Final = "the token that came with the task"

_ASSIGNMENT: Final = Parameter(
    name="id", where="path", required=True, schema={"type": "string", "minLength": 1}, text="The assignment."
)
_ANNOUNCED: Final = (
    Parameter(
        name=EXAMPLES_HEADER, where="header", schema={"type": "number", "exclusiveMinimum": 0},
        text="The number of examples that the update was trained on: its weight. 1 if left out.",
    ),
    Parameter(
        name=METRICS_HEADER, where="header", schema={"type": "string"},
        text='A JSON object of up to 64 names and finite numbers, as in `{"loss": 0.5}`.',
    ),
    Parameter(
        name=MODEL_HEADER, where="header", schema={"type": "string"},
        text="The SHA-256 of the model that was trained: the task's.",
    ),
)  # fmt: skip
_REPR_DIGEST: Final = Parameter(
    name=REPR_DIGEST_HEADER, where="header", required=True, schema={"type": "string"},
    text="The SHA-256 of the whole report (RFC 9530), as in `sha-256=:BASE64:`.",
)  # fmt: skip


class Reports(Protocol):
    """What takes a device's report: `Selector.report` says what the arguments are."""

    async def __call__(
        self,
        id: AssignmentId,
        token: str,
        weight: float,
        metrics: Mapping[str, float],
        body: Body,
        *,
        sha256: Digest | None = None,
        model: Digest | None = None,
    ) -> ReportReceipt: ...


class DeviceRoutes(ABC):
    """The routes of devices, and their handler of reports; the others differ between root and leaf.

    Args:
        reports: takes reports.
        parts: collects those that come in parts.
        limits: on what a device may send.
    """

    def __init__(self, reports: Reports, parts: Parts, limits: Limits) -> None:
        self._reports = reports
        self._parts = parts
        self._limits = limits
        self._metrics_decoder = msgspec.json.Decoder(dict[str, float])

    def routes(self) -> list[Route]:
        """The routes of these handlers."""
        return [
            Route(
                method="POST", path="/v1/check-ins", handler=self.check_in, name="checkIn", tag="device",
                text="An idle device checks in: a task, or when to come back.",
                body=CheckInRequest,
                replies=(
                    Reply(
                        status=200, text="A task, or when to come back.", body=CheckInAnswer,
                        links=tuple(
                            (name, "/task/assignment") for name in
                            ("acceptTask", "declineTask", "abortTask", "reportUpdate")
                        ),
                    ),
                ),
            ),
            Route(
                method="POST", path="/v1/assignments/{id}/accept", handler=self.accept, name="acceptTask", tag="device",
                text="The device meets the private requirement and takes the task; its lease now covers the work.",
                parameters=(_ASSIGNMENT,), secured="task", problems=(404, 409),
                replies=(Reply(status=200, text="The task, with its new lease.", body=Task),),
            ),
            Route(
                method="POST", path="/v1/assignments/{id}/decline", handler=self.decline, name="declineTask",
                tag="device", text="The device does not take the task: its next one, or when to come back.",
                parameters=(_ASSIGNMENT,), secured="task", problems=(404, 409),
                body=DeclineRequest, body_required=False,
                replies=(Reply(status=200, text="Another task, or when to come back.", body=CheckInAnswer),),
            ),
            Route(
                method="POST", path="/v1/assignments/{id}/abort", handler=self.abort, name="abortTask", tag="device",
                text="The device gives up a task that it had taken; its slot is free again.",
                parameters=(_ASSIGNMENT,), secured="task", problems=(404, 409),
                body=DeclineRequest, body_required=False,
                replies=(Reply(status=204, text="The slot is free."),),
            ),
            Route(
                method="PUT", path="/v1/assignments/{id}/report", handler=self.report, name="reportUpdate",
                tag="device",
                text="""The device's update, as a safetensors file: durable and counted when this is answered.

                Repeating it is safe: an update counts once, and every repeat gets the first one's receipt.""",
                parameters=(
                    _ASSIGNMENT,
                    *_ANNOUNCED,
                    Parameter(
                        name=DIGEST_HEADER, where="header", schema={"type": "string"},
                        text="The SHA-256 that the body must have (RFC 9530), as in `sha-256=:BASE64:`.",
                    ),
                    Parameter(
                        name=REPR_DIGEST_HEADER, where="header", schema={"type": "string"},
                        text=f"The same as `{DIGEST_HEADER}`, since a report comes whole here.",
                    ),
                ),
                secured="task", problems=(404, 409), body=BINARY,
                replies=(Reply(status=200, text="The update counts.", body=ReportReceipt),),
            ),
            Route(
                method="GET", path="/v1/assignments/{id}/upload", handler=self.upload_state, name="showReportUpload",
                tag="device", text="How far a report in parts is.", parameters=(_ASSIGNMENT, _REPR_DIGEST),
                secured="task", problems=(404, 409, 422),
                replies=(Reply(status=200, text="How many bytes have arrived.", body=UploadView),),
            ),
            Route(
                method="PATCH", path="/v1/assignments/{id}/upload", handler=self.upload, name="uploadReport",
                tag="device",
                text="""The device's update in parts, for links that break.

                What has arrived of a part whose connection breaks is kept: ask how far the upload is, and go on from
                there. With the last part, the update is reported, and counts when this is answered.""",
                parameters=(_ASSIGNMENT, _REPR_DIGEST, *PARAMETERS, *_ANNOUNCED),
                secured="task", problems=(404, 409, 507), body=BINARY, body_required=False,
                replies=(Reply(status=200, text="How many bytes have arrived.", body=UploadView),),
            ),
        ]  # fmt: skip

    @abstractmethod
    async def check_in(self, request: Request) -> Answer:
        """``POST /v1/check-ins``."""

    @abstractmethod
    async def accept(self, request: Request) -> Answer:
        """``POST /v1/assignments/{id}/accept``."""

    @abstractmethod
    async def decline(self, request: Request) -> Answer:
        """``POST /v1/assignments/{id}/decline``."""

    @abstractmethod
    async def abort(self, request: Request) -> Answer:
        """``POST /v1/assignments/{id}/abort``."""

    @abstractmethod
    def refused(self, id: AssignmentId, token: str, error: InvalidInput) -> None:
        """A report was refused before it was read, or who sent it was looked at."""

    @abstractmethod
    async def expected(self, id: AssignmentId, token: str) -> int | None:
        """How large the report may be; None if it is here already. Raises what `Selector.report` does."""

    @abstractmethod
    async def finished(self, id: AssignmentId) -> int:
        """How large the report is that is here already."""

    async def report(self, request: Request) -> Answer:
        """``PUT /v1/assignments/{id}/report``."""
        digest, whole = (_sha256(name, request.header(name)) for name in (DIGEST_HEADER, REPR_DIGEST_HEADER))
        if digest and whole and digest != whole:
            raise InvalidInput(
                f"differs from {DIGEST_HEADER}, but a report comes whole",
                field=REPR_DIGEST_HEADER,
                value=whole,
                limit=digest,
                fix="send one of the two, of the bytes of the body",
            )
        digest = digest or whole
        return json_answer(await self._take(request, request.pieces, digest, self._about(request)))

    async def upload_state(self, request: Request) -> Answer:
        """``GET /v1/assignments/{id}/upload``."""
        id, digest, limit = await self._upload_of(request)
        received = await self.finished(id) if limit is None else await self._parts.received(digest, id)
        return upload_answer(received, complete=limit is None)

    async def upload(self, request: Request) -> Answer:
        """``PATCH /v1/assignments/{id}/upload``."""
        bearer(request, _SHOWN)
        part = PartHeaders.of(request)
        about = self._about(request)  # what is wrong with it is better known before the body than after the last part
        id, digest, limit = await self._upload_of(request)
        if limit is None:
            return upload_answer(part.size_bytes or part.end, complete=True)
        with self._refusals_noted(request):
            Announcement(id, about.examples, about.metrics, part.size_bytes, digest, token="")
        room = part.room(limit)
        part_bytes = content_length(request.scope, room) or 0
        received = await self._parts.append(
            digest,
            request.chunks(room),
            offset=part.offset,
            part_bytes=part_bytes,
            size_bytes=part.size_bytes,
            owner=id,
        )
        if part.complete:
            await self._parts.deliver(digest, id, lambda body: self._take(request, body, digest, about))
        return upload_answer(received, complete=part.complete)

    def _about(self, request: Request) -> "_About":
        token = bearer(request, _SHOWN)  # who says nothing of itself is told so first
        with self._refusals_noted(request):
            return _About(
                token,
                _examples(request.header(EXAMPLES_HEADER)),
                self._metrics(request.header(METRICS_HEADER)),
                _model(request.header(MODEL_HEADER)),
            )

    @contextmanager
    def _refusals_noted(self, request: Request) -> Iterator[None]:
        """What a report's headers say of it is refused in here."""
        try:
            yield
        except InvalidInput as error:
            self.refused(AssignmentId(request.params["id"]), bearer(request, _SHOWN), error)
            raise

    async def _take(self, request: Request, body: Body, sha256: Digest | None, about: "_About") -> ReportReceipt:
        return await self._reports(
            AssignmentId(request.params["id"]),
            about.token,
            about.examples,
            about.metrics,
            body,
            sha256=sha256,
            model=about.model,
        )

    async def _upload_of(self, request: Request) -> tuple[AssignmentId, Digest, int | None]:
        id = AssignmentId(request.params["id"])
        token = bearer(request, _SHOWN)
        digest = _sha256(REPR_DIGEST_HEADER, request.header(REPR_DIGEST_HEADER))
        if digest is None:
            raise InvalidInput(
                "is missing", field=REPR_DIGEST_HEADER, fix="send the SHA-256 of the whole report: sha-256=:BASE64:"
            )
        return id, digest, await self.expected(id, token)

    def _metrics(self, text: str | None) -> dict[str, float]:
        if text is None:
            return {}
        try:
            metrics = decode(self._metrics_decoder, text.encode())
        except RequestError as error:
            raise InvalidInput(
                f"must be a JSON object of names and numbers: {error.message}", field=METRICS_HEADER, value=text[:200]
            ) from None
        if len(metrics) > MAX_METRICS:
            raise InvalidInput("too many metrics", field=METRICS_HEADER, value=len(metrics), limit=MAX_METRICS)
        return metrics


class RootDeviceRoutes(DeviceRoutes):
    """Handlers for what devices ask of a pool."""

    def __init__(self, coordinator: Coordinator, selector: Selector, parts: Parts, limits: Limits) -> None:
        super().__init__(selector.report, parts, limits)
        self._coordinator = coordinator
        self._selector = selector
        self._check_in_decoder = msgspec.json.Decoder(CheckInRequest)
        self._decline_decoder = msgspec.json.Decoder(DeclineRequest)

    async def check_in(self, request: Request) -> Answer:
        message = await request.json(self._check_in_decoder, self._limits.check_in_bytes)
        answer, pending = self._selector.check_in(message)
        if pending is not None:
            answer = await pending or answer
        return json_answer(answer)

    async def accept(self, request: Request) -> Answer:
        task, pending = self._selector.accept(AssignmentId(request.params["id"]), bearer(request, _SHOWN))
        if pending is not None:
            await pending
        return json_answer(task)

    async def decline(self, request: Request) -> Answer:
        token = bearer(request, _SHOWN)
        message = await request.json(self._decline_decoder, self._limits.check_in_bytes, optional=True)
        answer, pending = self._selector.decline(AssignmentId(request.params["id"]), token, message)
        if pending is not None:
            await pending
        return json_answer(answer)

    async def expected(self, id: AssignmentId, token: str) -> int | None:
        return await expected_report(self._coordinator, id, token)

    def refused(self, id: AssignmentId, token: str, error: InvalidInput) -> None:
        with suppress(NotFound, Forbidden):  # then it is nobody's report
            self._selector.refuse(id, token, error)

    async def finished(self, id: AssignmentId) -> int:
        receipt = await self._coordinator.data.old_receipt(id)
        assert receipt is not None, "a report that counts has a receipt"
        return receipt.body_bytes

    async def abort(self, request: Request) -> Answer:
        token = bearer(request, _SHOWN)
        message = await request.json(self._decline_decoder, self._limits.check_in_bytes, optional=True)
        self._selector.abort(AssignmentId(request.params["id"]), token, message)
        return Answer(status=204)


class _About(NamedTuple):
    """What a report's headers say of it, and whose it is."""

    token: str
    examples: float
    metrics: dict[str, float]
    model: Digest | None


def _model(header: str | None) -> Digest | None:
    try:
        return None if header is None else check_digest(header.strip())
    except InvalidInput as error:
        error.field = MODEL_HEADER
        raise


def _sha256(name: str, header: str | None) -> Digest | None:
    """The SHA-256 in a header of digests; other algorithms are passed over, as RFC 9530 asks."""
    if header is None:
        return None
    for item in header.split(","):
        algorithm, _, value = item.strip().partition("=")
        if algorithm.lower() == "sha-256":
            try:
                raw = base64.b64decode(value.strip(":"), validate=True)
            except ValueError:
                raw = b""
            if len(raw) != 32 or not (value.startswith(":") and value.endswith(":")):
                raise InvalidInput(
                    "must be the 32 bytes of a SHA-256 in base64, between colons",
                    field=name,
                    value=header[:200],
                    fix="send sha-256=:BASE64:, or leave the header out",
                )
            return Digest(raw.hex())
    return None


def _examples(text: str | None) -> float:
    if text is None:
        return 1.0
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise InvalidInput(
            f"must be a finite number above 0, got {text[:80]!r}",
            field=EXAMPLES_HEADER,
            value=text[:80],
            fix="send the number of examples that the update was trained on",
        )
    return weight
