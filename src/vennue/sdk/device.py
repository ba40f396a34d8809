"""Devices: check in, train what is offered, report. ``Device`` blocks, ``AsyncDevice`` awaits; they behave alike.

    with vennue.Device("http://127.0.0.1:8765", attributes={"ram_gb": 6}) as device:
        for task in device.tasks():
            update, examples = train(task.model, **task.config)
            task.report(update, examples=examples)

One run of ``tasks()`` is a *session*. It keeps three promises. Private attributes never leave the device: only "accept"
or "decline" does. Nothing that a job does ends the session: a round that closes too soon, a model that is not there
and a requirement that does not parse are logged, and the next task comes. A task that is not reported is given back
at once, whatever ended it (an exception, a ``break``, the end of the session), so that its slot is free for another
device; only a device that vanishes makes the round wait for its lease.
"""

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Generator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from vennue.core.ids import AssignmentId, JobId
from vennue.sdk import models
from vennue.sdk.models import Array, Model
from vennue.sdk.retry import Retry
from vennue.sdk.session import Assignment, Attributes, Number, Servant, told
from vennue.sdk.transport import Timing, blocking
from vennue.sdk.wire import async_wire, blocking_wire


class _TaskBase:
    """What both kinds of task tell."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._model: dict[str, Array] | None = None

    @property
    def id(self) -> AssignmentId:
        """The assignment that the report will be counted for."""
        return self._assignment.offer.assignment

    @property
    def job(self) -> JobId:
        """The job's id."""
        return self._assignment.offer.job

    @property
    def name(self) -> str:
        """The job's name, as its owner gave it: a device tells by it how to train."""
        return self._assignment.offer.name

    @property
    def round(self) -> int:
        """The round's number, from 1."""
        return self._assignment.offer.round

    @property
    def config(self) -> dict[str, Any]:
        """The owner's settings for this round: booleans, numbers and text by name."""
        return dict(self._assignment.offer.config)

    @property
    def codecs(self) -> tuple[str, ...]:
        """How the job lets an update travel, the preferred way first."""
        return self._assignment.offer.codecs

    @property
    def model(self) -> dict[str, Array]:
        """The round's model, as numpy arrays that are the caller's to change; a bfloat16 tensor comes as float32."""
        if self._model is None:
            self._model = self._assignment.arrays()
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """The round's model as a PyTorch state dict of its own, on the CPU."""
        return models.state_dict(self._assignment.blob)

    @property
    def expires_in_s(self) -> float:
        """Seconds until the server presumes the device lost; a report after that is too late."""
        return self._assignment.expires_in_s

    @property
    def done(self) -> bool:
        """Whether the task was reported, declined or aborted."""
        return self._assignment.done

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: round {self.round} of {self.name!r}>"


class Task(_TaskBase):
    """A model to train."""

    def report(
        self,
        update: Model,
        *,
        examples: Number,
        metrics: Mapping[str, Number] | None = None,
        codec: str | None = None,
    ) -> bool:
        """Send the trained model; True when it counts.

        False, with a warning in the log, when it came too late: the round had closed, the lease had run out or the
        job had ended. There is nothing to do about that but to take the next task.

        Args:
            update: the trained model, of the names and shapes of ``task.model``; a PyTorch state dict serves.
            examples: how many examples it was trained on: its weight in the aggregate, above 0.
            metrics: what the owner may want to know (loss, accuracy), averaged over devices with the same weights.
            codec: how it travels, one of ``task.codecs``; by default the first of them. ``"int8"`` is a quarter the
                size, ``"top-k"`` a fiftieth; both send by how much the model has changed.

        Raises:
            InvalidUpdate: names, shapes or types differ from the model's, or a number is not finite. The task is
                still the device's: correct the update and report again, or abort.
            InvalidInput: ``examples`` or a metric is not a finite number, or the job does not take the codec.
            Conflict: the task is over already.
            Unavailable: the server cannot be reached.
        """
        return blocking(self._assignment.report(update, examples, metrics, codec))

    def decline(self, reason: str = "") -> None:
        """Give the task back and take no other of this job in this session."""
        blocking(self._assignment.decline(reason))

    def abort(self, reason: str = "") -> None:
        """Give the task back: this attempt at it failed."""
        blocking(self._assignment.abort(reason))


class AsyncTask(_TaskBase):
    """A model to train. The methods are those of `Task`, to be awaited."""

    async def report(
        self,
        update: Model,
        *,
        examples: Number,
        metrics: Mapping[str, Number] | None = None,
        codec: str | None = None,
    ) -> bool:
        """See `Task.report`."""
        return await self._assignment.report(update, examples, metrics, codec)

    async def decline(self, reason: str = "") -> None:
        """See `Task.decline`."""
        await self._assignment.decline(reason)

    async def abort(self, reason: str = "") -> None:
        """See `Task.abort`."""
        await self._assignment.abort(reason)


class _DeviceBase:
    """What both kinds of device tell of themselves."""

    def __init__(
        self, device_id: str | None, attributes: Attributes | None, private: Attributes | None, model_form: str
    ) -> None:
        name = uuid.uuid4().hex if device_id is None else device_id
        self._servant = Servant(name, attributes or {}, private or {}, model_form)

    @property
    def id(self) -> str:
        """The device's name."""
        return self._servant.id

    @property
    def attributes(self) -> Attributes:
        """What the device tells the server about itself. Assign a new mapping to change it; the next check-in tells."""
        return dict(self._servant.attributes)

    @attributes.setter
    def attributes(self, attributes: Attributes) -> None:
        self._servant.tell(attributes)
        self._reconsider()

    @property
    def private(self) -> Attributes:
        """What private requirements are evaluated over, besides ``attributes``. Never sent. Assign to change it."""
        return dict(self._servant.private)

    @private.setter
    def private(self, private: Attributes) -> None:
        self._servant.private = dict(private)
        self._reconsider()

    def __repr__(self) -> str:
        session, doing = self._servant.session, "in no session"
        if session is not None:
            task = session.current
            doing = "in a session" if task is None or task.done else f"at work on {task.offer.assignment}"
        return f"<{type(self).__name__} {self.id!r}: {doing}>"

    def _reconsider(self) -> None:
        if self._servant.session is not None:
            self._servant.session.forget_declined()


class Device(_DeviceBase):
    """A device of the pool.

    Args:
        server: its address, as in ``"http://127.0.0.1:8765"``. By default that of the environment variable
            ``VENNUE_SERVER``, or where ``vennue serve`` listens on this machine when it is told nothing else.
        device_id: the device's own stable name, 1 to 128 printable characters; by default a random one.
        attributes: what the server may know, for jobs' requirements.
        private: what only the device knows, for jobs' private requirements.
        model_form: how models come, for devices on slow or metered links. ``"plain"``: as they are. ``"compressed"``
            and ``"delta"`` (the difference to the model of the last task, if that is near) are exact. ``"float16"``,
            ``"bfloat16"`` and ``"int8"`` are rounded to a half or a quarter of the size; the device then reports by how
            much training changed what it was given. Where a form does not exist or is no shorter, models come plain.
        retry: how persistent it is when the server cannot be reached.
        transport: an httpx transport to use instead of the network's; it stays the caller's to close.
        timing: where time and chance come from.

    Raises:
        InvalidInput: the address or the attributes make no sense.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        device_id: str | None = None,
        attributes: Attributes | None = None,
        private: Attributes | None = None,
        model_form: str = "plain",
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
        timing: Timing | None = None,
    ) -> None:
        super().__init__(device_id, attributes, private, model_form)
        self._wire = blocking_wire(server, retry, transport, timing)

    def tasks(
        self,
        *,
        duration_s: float | None = None,
        max_tasks: int | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Task, None, None]:
        """Check in again and again, and yield the tasks that the device may do; end each before taking the next.

        A task that the caller leaves without a report is given back. That includes an exception in the loop's body,
        which goes on to the caller as it is.

        Args:
            duration_s: how long the session lasts; no task is taken after that, and it ends earlier when the server
                has nothing to offer before.
            max_tasks: how many tasks to take at most.
            stop: set it, from any thread, to end the session; a wait ends at once, a training when it reports.

        Raises:
            InvalidInput: the server refuses the device's name or attributes.
            Unavailable: the server cannot be reached for longer than ``retry`` allows.
            Conflict: the device is in a session already.
        """
        session = self._servant.begin(self._wire, stop, duration_s, max_tasks)
        reason = "the device stopped"
        try:
            while (assignment := blocking(session.next())) is not None:
                yield Task(assignment)
        except BaseException as error:
            reason = told(error)
            raise
        finally:
            blocking(self._servant.end(session, reason))

    def close(self) -> None:
        """End the session, giving a held task back, and close the connections. From the thread that uses the device."""
        self._close("the device stopped")

    def _close(self, reason: str) -> None:
        blocking(self._servant.end(self._servant.session, reason))
        blocking(self._wire.transport.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(told(error))


class AsyncDevice(_DeviceBase):
    """A device of the pool, for asyncio. Arguments and behaviour are those of `Device`."""

    def __init__(
        self,
        server: str | None = None,
        *,
        device_id: str | None = None,
        attributes: Attributes | None = None,
        private: Attributes | None = None,
        model_form: str = "plain",
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        timing: Timing | None = None,
    ) -> None:
        super().__init__(device_id, attributes, private, model_form)
        self._wire = async_wire(server, retry, transport, timing)

    async def tasks(
        self,
        *,
        duration_s: float | None = None,
        max_tasks: int | None = None,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[AsyncTask, None]:
        """See `Device.tasks`. Python closes an abandoned asynchronous generator late, so use ``async with``."""
        session = self._servant.begin(self._wire, stop, duration_s, max_tasks)
        reason = "the device stopped"
        try:
            while (assignment := await session.next()) is not None:
                yield AsyncTask(assignment)
        except BaseException as error:
            reason = told(error)
            raise
        finally:
            await self._servant.end(session, reason)

    async def close(self) -> None:
        """End the session, giving a held task back, and close the connections."""
        await self._close("the device stopped")

    async def _close(self, reason: str) -> None:
        await self._servant.end(self._servant.session, reason)
        await self._wire.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(told(error))
