"""A device's session: the protocol of check-in, accept, decline, report and abort, once for both kinds of device.

`Servant` is a device as its sessions know it, `Session` one run of ``tasks()`` and `Assignment` one task in it. They
hold the promises that `vennue.sdk.device` makes. They wait and send through a `Wire` alone, so they run under asyncio
and without it.
"""

import base64
import functools
import hashlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from vennue import protocol
from vennue.core.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    InvalidModel,
    InvalidRequirement,
    JobEnded,
    NotFound,
    OutOfSpace,
    Overloaded,
    TooLate,
    VennueError,
)
from vennue.core.ids import JobId
from vennue.core.requirement import AttributeSchema, Requirement
from vennue.sdk import models
from vennue.sdk.download import Fetched, check_form
from vennue.sdk.models import Array, Model
from vennue.sdk.retry import Retry
from vennue.sdk.transport import Stopped
from vennue.sdk.wire import Wire
from vennue.tensors.codecs import CODECS

log = logging.getLogger("vennue.sdk")

Attributes = Mapping[str, Any]
"""Names to booleans, numbers, text or lists of text."""
Number = float | np.number[Any]
"""A number of Python's or numpy's."""

_FAREWELL = Retry(attempts=3, total_s=5.0)
"""Giving a task back is a courtesy: the lease ends it anyhow."""
_FRUITLESS = Retry(first_s=1.0, most_s=60.0)
"""Waits of a device that gives back one task after another: without them it was given hundreds in a second."""
PARTS_FROM_BYTES = 256 * 1024
"""A report of this size or more, whose connection breaks half-way, goes on in parts."""
_REMEMBERED = 256
"""Declined jobs that a session remembers."""
_OVER = (TooLate, NotFound, JobEnded, Forbidden)
"""What the server says of an assignment that has ended; or that is not the device's, since its secret has changed."""


class Servant:
    """A device as its sessions know it: what it tells, what it keeps to itself, and the model that it last fetched."""

    def __init__(self, id: str, attributes: Attributes, private: Attributes, model_form: str = "plain") -> None:
        self.id = id
        self.model_form = check_form(model_form)
        self.session: Session | None = None
        self.private = dict(private)
        self.tell(attributes)
        self._fetched: Fetched | None = None

    def tell(self, attributes: Attributes) -> None:
        """Change what the device tells.

        Raises:
            InvalidInput: JSON cannot hold it.
        """
        try:
            self.encoded = msgspec.Raw(msgspec.json.encode(dict(attributes)))
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"attributes map names to booleans, numbers, text or lists of text: {error}",
                field="attributes",
                fix='give {"ram_gb": 6, "data": ["keyboard"]}',
            ) from error
        self.attributes = dict(attributes)

    def refusal(self, private_requirement: str) -> str | None:
        """Why the device may not serve a job with this private requirement; None when it may."""
        try:
            requirement = _requirement(private_requirement)
        except InvalidRequirement as error:
            log.warning("a private requirement cannot be evaluated: %s", error)
            return "the private requirement cannot be evaluated"
        return None if requirement.matches(self.attributes | self.private) else "the private requirement is not met"

    async def download(self, wire: Wire, digest: str) -> Fetched:
        """A model; the last one is kept, since the next task often starts from it, or from one that differs little."""
        if self._fetched is None or self._fetched.digest != digest:
            self._fetched = await wire.fetch(digest, form=self.model_form, held=self._fetched)
        return self._fetched

    def begin(self, wire: Wire, stop: Any, duration_s: float | None, max_tasks: int | None) -> "Session":
        """Begin a session.

        Raises:
            Conflict: one is under way.
        """
        if self.session is not None:
            raise Conflict(
                "this device is in a session already",
                field="tasks",
                fix="end the other iteration first; one device does one task at a time",
            )
        self.session = Session(self, wire, stop, duration_s, max_tasks)
        return self.session

    async def end(self, session: "Session | None", reason: str) -> None:
        """End a session, unless that has happened."""
        if session is not None and session is self.session:
            self.session = None
            await session.end(reason)


class Assignment:
    """One task in the device's hands: what it is, and the one way in which it ends."""

    def __init__(self, session: "Session", offer: protocol.Task, fetched: Fetched, received_at: float) -> None:
        self.offer = offer
        self.blob = fetched.blob
        self.done = False
        self._session = session
        self._wire = session.wire
        self._base = models.parse(fetched.blob)
        self._as_change = offer.changes or fetched.rounded  # what rounding did to the model is not to be averaged
        self._received_at = received_at

    def arrays(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in models.arrays(self._base).items()}

    @property
    def expires_in_s(self) -> float:
        return max(0.0, self._received_at + self.offer.expires_in_s - self._wire.clock())

    async def report(
        self, update: Model, examples: Number, metrics: Mapping[str, Number] | None, codec: str | None
    ) -> bool:
        self._check_open()
        body = models.encode_update(update, self._base, codec=self._codec(codec), as_change=self._as_change)
        headers = _bearer(self.offer)
        headers[protocol.MODEL_HEADER] = self.offer.model
        headers[protocol.EXAMPLES_HEADER] = repr(number("examples", examples, positive=True))
        if metrics:
            checked = {str(name): number(f"metrics.{name}", value) for name, value in metrics.items()}
            headers[protocol.METRICS_HEADER] = json.dumps(checked)
        try:
            await self._deliver(body, headers)
        except _OVER as error:
            self.done = True
            log.warning("the report on %s was not counted: %s", self.offer.assignment, error)
            return False
        self.done = True
        self._session.succeeded()
        return True

    async def _deliver(self, body: bytes, headers: dict[str, str]) -> None:
        """Send the report, with more patience than other calls; once the session is to stop, with no more than they."""
        transport = self._wire.transport
        transport.stop = self._session.stop
        try:
            await self._send(body, headers, self._wire.retry.for_work(self.expires_in_s))
        except Stopped:
            transport.stop = None
            await self._send(body, headers, self._wire.retry)
        finally:
            transport.stop = None

    async def _send(self, body: bytes, headers: dict[str, str], retry: Retry) -> None:
        path = f"/v1/assignments/{self.offer.assignment}"
        if len(body) >= PARTS_FROM_BYTES:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            announced = {**headers, protocol.REPR_DIGEST_HEADER: f"sha-256=:{digest}:"}
            try:
                await self._wire.upload(path, body, headers=announced, retry=retry, whole=f"{path}/report")
            except OutOfSpace as error:
                log.info("the report on %s cannot come in parts: %s", self.offer.assignment, error)
            else:
                return
        await self._wire.call("PUT", f"{path}/report", protocol.ReportReceipt, body=body, headers=headers, retry=retry)

    async def decline(self, reason: str) -> None:
        self._check_open()
        self.done = True
        await self._session.decline(self.offer, reason)

    async def abort(self, reason: str, retry: Retry | None = None) -> None:
        self._check_open()
        self.done = True
        await self._session.abort(self.offer, reason, retry)

    def _codec(self, asked: str | None) -> str:
        """How the update travels: as asked, if the job takes that, or as it likes best of what this device knows."""
        known = [codec for codec in self.offer.codecs if codec in CODECS]
        if asked is None and known:
            return known[0]
        if asked not in known:
            raise InvalidInput(
                "the job takes no update in this codec" if asked else "this version knows none of the job's codecs",
                field="codec",
                value=asked,
                limit=", ".join(self.offer.codecs),
                fix="use one of these, or have the job's owner allow it, as in Job(…, codecs=(…))",
            )
        return asked

    def _check_open(self) -> None:
        if self.done:
            raise Conflict(
                f"task {self.offer.assignment} is over already",
                field="task",
                fix="report, decline or abort a task once, before asking for the next",
            )


class Session:
    """One run of ``tasks()``: what has been offered, declined and taken."""

    def __init__(self, device: Servant, wire: Wire, stop: Any, duration_s: float | None, max_tasks: int | None) -> None:
        if duration_s is not None:
            number("duration_s", duration_s)
        self.wire = wire
        self.current: Assignment | None = None
        self._device = device
        self.stop = stop
        self._ends_at = math.inf if duration_s is None else wire.clock() + duration_s
        self._tasks_left = math.inf if max_tasks is None else max_tasks
        self._declined: dict[JobId, None] = {}
        self._fruitless = 0
        """Tasks in a row that were given back."""
        self._pause_s = 0.0
        self._answer: protocol.CheckInAnswer | None = None
        """What the server said last, while nothing has come of it yet."""

    async def next(self) -> Assignment | None:
        """The next task, or None when the session ends. Gives the last one back if the caller has not ended it."""
        await self._give_back("the device went on without a report")
        self.wire.transport.stop = self.stop
        try:
            while self._goes_on():
                if self._pause_s:
                    pause_s, self._pause_s = self._pause_s, 0.0
                    await self._rest(pause_s)
                    continue
                answer = self._answer or await self._check_in()
                self._answer = None
                if answer.task is None:
                    await self._rest(answer.retry_after_s or 1.0)
                elif await self._accept(answer.task):
                    self._tasks_left -= 1
                    return self.current
        except Stopped:
            pass
        finally:
            self.wire.transport.stop = None
        return None

    async def end(self, reason: str) -> None:
        """Give back whatever is held."""
        await self._give_back(reason)
        if self._answer is not None and self._answer.task is not None:
            await self._abort_quietly(self._answer.task, reason)
            self._answer = None

    def succeeded(self) -> None:
        """A task was brought to its end."""
        self._fruitless = 0

    def forget_declined(self) -> None:
        """The device has changed: what it declined may suit it now."""
        self._declined.clear()

    def _goes_on(self) -> bool:
        stopped = self.stop is not None and self.stop.is_set()
        return not stopped and self._tasks_left > 0 and self.wire.clock() < self._ends_at

    async def _check_in(self) -> protocol.CheckInAnswer:
        request = protocol.CheckInRequest(
            device=self._device.id, attributes=self._device.encoded, declined=list(self._declined)
        )
        try:
            return await self.wire.call("POST", "/v1/check-ins", protocol.CheckInAnswer, body=request)
        except Overloaded as error:
            log.warning("%s", error)
            return protocol.CheckInAnswer(retry_after_s=error.retry_after_s)

    async def _rest(self, wait_s: float) -> None:
        """Wait as long as the server asks for, unless the session ends before."""
        if self.wire.clock() + wait_s >= self._ends_at:
            self._ends_at = -math.inf
        else:
            await self.wire.transport.sleep(wait_s)

    async def _accept(self, offer: protocol.Task) -> bool:
        """Make an offer the current task, if the device may and can."""
        try:
            if offer.private_requirement is not None:
                refusal = self._device.refusal(offer.private_requirement)
                if refusal:
                    await self.decline(offer, refusal)
                    return False
                offer = await self._confirm(offer)
            received_at = self.wire.clock()
            fetched = await self._device.download(self.wire, offer.model)
            self.current = Assignment(self, offer, fetched, received_at)
        except (NotFound, InvalidModel) as error:
            # This job's model is broken; other jobs are not.
            log.warning("job %s (%s) has no usable model: %s", offer.job, offer.name, error)
            self._remember(offer.job)
            await self._abort_quietly(offer, str(error))
            return False
        except (TooLate, JobEnded, Forbidden) as error:
            log.info("the offer %s is over: %s", offer.assignment, error)
            return False
        except BaseException as error:
            await self._abort_quietly(offer, told(error))
            raise
        return True

    async def _confirm(self, offer: protocol.Task) -> protocol.Task:
        path = f"/v1/assignments/{offer.assignment}/accept"
        try:
            return await self.wire.call("POST", path, protocol.Task, headers=_bearer(offer))
        except NotFound as error:
            raise TooLate(error.message) from error

    async def decline(self, offer: protocol.Task, reason: str) -> None:
        """Turn an offer down; the server answers as it does to a check-in."""
        log.info("declined job %s (%s): %s", offer.job, offer.name, reason)
        self._remember(offer.job)
        try:
            self._answer = await self.wire.call(
                "POST",
                f"/v1/assignments/{offer.assignment}/decline",
                protocol.CheckInAnswer,
                body=protocol.DeclineRequest(reason=reason, declined=list(self._declined)),
                headers=_bearer(offer),
            )
        except _OVER:
            log.debug("task %s was over already", offer.assignment)

    async def abort(self, offer: protocol.Task, reason: str, retry: Retry | None = None) -> None:
        """Give a task back. From the second in a row on, the session waits before it takes another."""
        self._fruitless += 1
        if self._fruitless > 1:
            self._pause_s = _FRUITLESS.wait_s(self._fruitless - 1, self.wire.rng)
            log.info("gave back %d tasks in a row, asks again in %.1f s", self._fruitless, self._pause_s)
        try:
            await self.wire.send(
                "POST",
                f"/v1/assignments/{offer.assignment}/abort",
                body=protocol.DeclineRequest(reason=reason),
                headers=_bearer(offer),
                retry=retry,
            )
        except _OVER:
            log.debug("task %s was over already", offer.assignment)

    async def _give_back(self, reason: str) -> None:
        current, self.current = self.current, None
        if current is not None and not current.done:
            current.done = True
            log.warning("task %s is given back: %s", current.offer.assignment, reason)
            await self._abort_quietly(current.offer, reason)

    async def _abort_quietly(self, offer: protocol.Task, reason: str) -> None:
        try:
            await self.abort(offer, reason, _FAREWELL)
        except VennueError as error:
            log.warning("task %s could not be given back, its lease will end it: %s", offer.assignment, error)

    def _remember(self, job: JobId) -> None:
        self._declined[job] = None
        if len(self._declined) > _REMEMBERED:
            del self._declined[next(iter(self._declined))]


def told(error: BaseException | None) -> str:
    """The reason that the server is given. Only the error's type: its text may hold what must not leave the device."""
    if error is None or isinstance(error, GeneratorExit):
        return "the device stopped"
    return f"the device stopped: {type(error).__name__}"


@functools.lru_cache(maxsize=256)
def _requirement(text: str) -> Requirement:
    return Requirement.parse(text, AttributeSchema.open())


def _bearer(offer: protocol.Task) -> dict[str, str]:
    return {"authorization": f"Bearer {offer.token}"}


def number(field: str, value: Any, *, positive: bool = False) -> float:
    """The value, if it is a finite number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.number)
        or not math.isfinite(value)
        or (positive and value <= 0)
    ):
        raise InvalidInput(
            f"must be a finite number{' above 0' if positive else ''}, got {value!r}",
            field=field,
            value=repr(value)[:80],
            fix="decline the task when there is nothing to learn from" if positive else "leave it out",
        )
    return float(value)
