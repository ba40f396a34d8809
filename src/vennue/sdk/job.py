"""Jobs as their owners drive them: ``Job`` blocks, ``AsyncJob`` awaits; they behave alike.

    with vennue.Job("http://127.0.0.1:8765", name="keyboard", demand=10, rounds=5) as job:
        for round in job.rounds():
            model = round.run(model)

The server keeps the job: it binds devices, tries an aborted attempt again, and survives restarts. So the owner's
program only waits, and may itself stop and come back, by the job's id (``Job.attach``) or by submitting under the same
``key``: it then goes on with the next round from the last committed model.
"""

import difflib
import logging
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

import httpx
import msgspec

from vennue import protocol
from vennue.core.errors import Conflict, InvalidInput, JobEnded, NotFound, Overloaded, Unavailable, VennueError
from vennue.core.ids import Digest, JobId
from vennue.core.job import After, JobSpec, Setting
from vennue.sdk import models
from vennue.sdk.models import Model
from vennue.sdk.retry import Retry
from vennue.sdk.transport import AsyncioTransport, BlockingTransport, Timing, Wire, blocking

log = logging.getLogger("vennue.sdk")

POLL_S = 30
"""How long the server may hold a question about a round."""
PAUSE_S = 1.0
"""Between two questions, when the server answers the first one at once."""
_HOPELESS = {"no-eligible-device", "no-supply-yet", "stalled", "infeasible"}
"""Reasons for which a round waits that somebody must do something about."""
_FAREWELL = Retry(attempts=4, total_s=10.0)


class SpecFields(TypedDict, total=False):
    """The fields of `vennue.core.job.JobSpec`, which documents them."""

    name: str
    demand: int
    rounds: int | None
    requirement: str
    private_requirement: str | None
    mode: Literal["sync", "async"]
    deadline_s: float | None
    min_fraction: float
    min_reports: int | None
    overcommit: float | Literal["auto"]
    buffer_size: int | None
    max_staleness: int | None
    lease_s: float | None
    round_limit_s: float
    max_attempts: int | None
    weight: float
    tenant: str
    if_infeasible: Literal["refuse", "wait"]
    after: tuple[JobId | After, ...]
    time_limit_s: float | None
    silence_limit_s: float
    strategy: str
    strategy_options: dict[str, Setting]
    weighting: Literal["examples", "uniform"]
    accumulator: Literal["float32", "float64"]
    codecs: tuple[str, ...]


class _Driver:
    """The dialogue about one job, for both kinds."""

    def __init__(self, wire: Wire, spec: JobSpec | None, key: str, job: JobId | None) -> None:
        self.wire = wire
        self._spec = spec
        self._key = key
        self._id = job
        self._view: protocol.JobView | None = None
        self._committed = 0
        self._resumes = False
        """Whether the next round is the first that this program runs of a job that others have begun."""

    @property
    def view(self) -> protocol.JobView:
        """The job as last seen."""
        if self._view is None:
            raise Conflict(
                "the job is not registered yet", field="job", fix="enter the job's `with` block, or call register()"
            )
        return self._view

    @property
    def _path(self) -> str:
        return f"/v1/jobs/{self._id}"

    async def register(self) -> protocol.JobView:
        """Submit the job, or find it; once."""
        if self._view is not None:
            return self._view
        if self._spec is None:
            view = await self.status()
        else:
            view = await self.wire.call(
                "POST",
                "/v1/jobs",
                protocol.JobView,
                body=protocol.SubmitRequest(spec=self._spec),
                headers={protocol.IDEMPOTENCY_HEADER: self._key},
            )
        self._id, self._view, self._committed = view.id, view, view.committed_rounds
        self._resumes = view.committed_rounds > 0 or view.open_round is not None
        if self._resumes:
            log.warning(
                "job %s (%s) is %s, with %d rounds committed", view.id, view.spec.name, view.state, self._committed
            )
        return view

    async def status(self) -> protocol.JobView:
        if self._id is None:
            return await self.register()
        self._view = await self.wire.call("GET", self._path, protocol.JobView)
        return self._view

    async def cancel(self, reason: str, retry: Retry | None = None) -> None:
        await self.register()
        self._view = await self.wire.call(
            "POST", f"{self._path}/cancel", protocol.JobView, body=protocol.CancelRequest(reason=reason), retry=retry
        )

    async def complete(self) -> None:
        await self.register()
        self._view = await self.wire.call("POST", f"{self._path}/complete", protocol.JobView)

    async def next_round(self) -> int | None:
        """The number of the next round, or None when the job has run all."""
        view = await self.register()
        if view.state in {"cancelled", "failed"}:
            raise _ended(view)
        rounds = view.spec.rounds
        if view.state == "completed" or (rounds is not None and self._committed >= rounds):
            return None
        return self._committed + 1

    async def run(
        self, number: int, model: Model, config: Mapping[str, Setting], *, resume: bool
    ) -> tuple[protocol.RoundView, dict[str, Any]]:
        """Run a round to its commit; its view and its aggregate, in the kinds of ``model``."""
        await self._open(number, models.encode(model), config, resume=resume)
        view, result = await self._committed_round(number)
        aggregate = models.restore(await self.wire.fetch(result), model)
        self._committed, self._resumes = number, False
        return view, aggregate

    async def result(self, like: Model | None) -> dict[str, Any] | None:
        view = await self.status()
        if view.model is None:
            return None
        blob = await self.wire.fetch(view.model)
        return models.arrays(models.parse(blob)) if like is None else models.restore(blob, like)

    async def leave(self, error: BaseException | None) -> None:
        """The end of a `with` block."""
        if error is None:
            await self.complete()
        elif self._view is not None and not isinstance(error, Unavailable | Overloaded | JobEnded):
            try:
                await self.cancel(": ".join(filter(None, (type(error).__name__, str(error))))[:200], _FAREWELL)
            except VennueError as failure:
                log.warning("job %s could not be cancelled: %s", self._id, failure)

    async def _open(self, number: int, data: bytes, config: Mapping[str, Setting], *, resume: bool) -> None:
        """Open a round on the model, unless it is the server that goes on: with a resumed or an asynchronous job."""
        digest: Digest | None = None
        if (self._resumes and resume) or self.view.spec.mode == "async":
            view = await self.status()
            if view.open_round is not None or view.committed_rounds >= number:
                return
            digest = view.model
        request = protocol.RoundRequest(round=number, model=digest or await self.wire.store(data), config=dict(config))
        try:
            await self.wire.call("POST", f"{self._path}/rounds", protocol.RoundView, body=request)
        except NotFound as error:
            if error.field != "model" or digest is not None:
                raise
            await self.wire.store(data, again=True)  # it was deleted since it was found
            await self.wire.call("POST", f"{self._path}/rounds", protocol.RoundView, body=request)

    async def _committed_round(self, number: int) -> tuple[protocol.RoundView, Digest]:
        """Wait until the round commits, however many attempts it takes; says once when no device can serve it."""
        warned = False
        while True:
            asked_at = self.wire.clock()
            view = await self.wire.call("GET", f"{self._path}/rounds/{number}?wait={POLL_S}", protocol.RoundView)
            if view.state == "committed" and view.result is not None:
                return view, view.result
            if view.state in {"aborted", "cancelled"}:
                job = await self.status()
                if job.state != "active":
                    raise _ended(job)
            held = self.wire.clock() - asked_at >= PAUSE_S
            if held and not warned and view.state == "open" and view.bound < view.demand:
                reason = (await self.status()).reason
                if warned := reason.code in _HOPELESS:
                    log.warning("job %s waits, round %d: %s", self._id, number, reason.text)
            if not held:
                await self.wire.transport.sleep(self.wire.rng.uniform(0.5, 1.0) * PAUSE_S)


class _RoundBase:
    """What both kinds of round tell."""

    def __init__(self, driver: _Driver, number: int, config: Mapping[str, Setting] | None) -> None:
        self.number = number
        """From 1."""
        self.config: dict[str, Setting] = dict(config or {})
        """Settings for the devices (learning rate, local epochs); change them before the round runs."""
        self.view: protocol.RoundView | None = None
        """All that the server says about the round, once it has committed."""
        self._driver = driver

    @property
    def metrics(self) -> dict[str, float]:
        """The devices' metrics, averaged with the weights of their updates; empty before the round has run."""
        return {} if self.view is None else self.view.metrics

    @property
    def reported(self) -> int:
        """How many devices' updates the aggregate holds; 0 before the round has run."""
        return 0 if self.view is None else self.view.reported


class Round(_RoundBase):
    """One turn of training."""

    def run(self, model: Model, *, resume: bool = True) -> dict[str, Any]:
        """Send the model to the devices, wait for their updates, and return the aggregate.

        Args:
            model: names to numpy arrays, or a PyTorch state dict. The aggregate comes back in its order and its kinds.
            resume: the first round of a job that goes on (`Job.attach`, or a ``key`` used before) runs on the job's
                last committed model, or joins the round that is open, and takes only the form of ``model``. False runs
                it on ``model``. All rounds but the first of an asynchronous job run on what the last one committed.

        Raises:
            InvalidModel: ``model`` is not a mapping of names to arrays of numbers.
            JobEnded: the job was cancelled or has failed.
            Conflict: the round is open on another model.
            Unavailable: the server cannot be reached; the round goes on there.
        """
        self.view, aggregate = blocking(self._driver.run(self.number, model, self.config, resume=resume))
        return aggregate


class AsyncRound(_RoundBase):
    """One turn of training, to be awaited."""

    async def run(self, model: Model, *, resume: bool = True) -> dict[str, Any]:
        """See `Round.run`."""
        self.view, aggregate = await self._driver.run(self.number, model, self.config, resume=resume)
        return aggregate


class _JobBase:
    """What both kinds of job know without asking."""

    _driver: _Driver

    @property
    def id(self) -> JobId:
        """The job's id. Raises Conflict before the job is registered."""
        return self._driver.view.id

    @property
    def spec(self) -> JobSpec:
        """What the job asks for. Raises Conflict before the job is registered."""
        return self._driver.view.spec


class Job(_JobBase):
    """A job, submitted to a server when its ``with`` block begins, or with the first call that needs it.

    A ``with`` block completes the job when it ends well. An exception in it cancels the job with that reason, and goes
    on; except that `Unavailable`, `Overloaded` and the end of this process leave the job as it is, to be gone on with.

    Args:
        server: its address, as in ``"http://127.0.0.1:8765"``. By default that of the environment variable
            ``VENNUE_SERVER``, or where ``vennue serve`` listens on this machine when it is told nothing else.
        spec: what the job asks for; or give its fields as keywords.
        key: names this submission for ever. The same key and the same spec are the same job, so a program that is run
            again goes on where it stopped. By default a random one, so that every `Job` is a new job.
        retry: how persistent it is when the server cannot be reached.
        transport: an httpx transport to use instead of the network's; it stays the caller's to close.
        timing: where time and chance come from.

    Raises:
        InvalidInput: the address or the spec makes no sense; names the field. The server checks the spec further.
    """

    def __init__(
        self,
        server: str | None = None,
        spec: JobSpec | Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
        timing: Timing | None = None,
        **fields: Unpack[SpecFields],
    ) -> None:
        checked = _spec(spec, fields)
        self._driver = _Driver(_wire(server, retry, transport, timing), checked, key or uuid.uuid4().hex, None)

    @classmethod
    def attach(
        cls,
        server: str | None,
        job: str,
        *,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
        timing: Timing | None = None,
    ) -> Self:
        """The job with this id. Raises NotFound, with the first call, if the server does not know it."""
        attached = cls.__new__(cls)
        attached._driver = _Driver(_wire(server, retry, transport, timing), None, "", JobId(job))  # noqa: SLF001 - own class
        return attached

    def register(self) -> protocol.JobView:
        """Submit the job now. Repeating it changes nothing.

        Raises:
            InvalidInput: the server refuses the spec; names the field, the value, the limit and the fix.
            Conflict: the key was used for another spec.
        """
        return blocking(self._driver.register())

    def rounds(self, config: Mapping[str, Setting] | None = None) -> Iterator[Round]:
        """The rounds that are left to run; without end for an open-ended job.

        Args:
            config: what each round's ``config`` begins with.

        Raises:
            JobEnded: the job was cancelled or has failed.
            Conflict: the caller went on to the next round without having run the last.
        """
        while (number := blocking(self._driver.next_round())) is not None:
            turn = Round(self._driver, number, config)
            yield turn
            _check_run(turn)

    def status(self) -> protocol.JobView:
        """The job as it stands, with the reason for it."""
        return blocking(self._driver.status())

    def result(self, like: Model | None = None) -> dict[str, Any] | None:
        """The last committed model, as numpy arrays or in the kinds of ``like``; None before the first commit."""
        return blocking(self._driver.result(like))

    def cancel(self, reason: str = "cancelled by its owner") -> None:
        """End the job now. Cancelling a job that has ended changes nothing."""
        blocking(self._driver.cancel(reason))

    def complete(self) -> None:
        """End an open-ended job well. A job with declared rounds completes with the last."""
        blocking(self._driver.complete())

    def close(self) -> None:
        """Close the connections; a later call opens new ones. The job goes on."""
        blocking(self._driver.wire.transport.close())

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            blocking(self._driver.leave(error))
        finally:
            self.close()


class AsyncJob(_JobBase):
    """A job, for asyncio. Arguments and behaviour are those of `Job`."""

    def __init__(
        self,
        server: str | None = None,
        spec: JobSpec | Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        timing: Timing | None = None,
        **fields: Unpack[SpecFields],
    ) -> None:
        checked = _spec(spec, fields)
        self._driver = _Driver(_async_wire(server, retry, transport, timing), checked, key or uuid.uuid4().hex, None)

    @classmethod
    def attach(
        cls,
        server: str | None,
        job: str,
        *,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        timing: Timing | None = None,
    ) -> Self:
        """See `Job.attach`."""
        attached = cls.__new__(cls)
        attached._driver = _Driver(_async_wire(server, retry, transport, timing), None, "", JobId(job))  # noqa: SLF001 - own class
        return attached

    async def register(self) -> protocol.JobView:
        """See `Job.register`."""
        return await self._driver.register()

    async def rounds(self, config: Mapping[str, Setting] | None = None) -> AsyncIterator[AsyncRound]:
        """See `Job.rounds`."""
        while (number := await self._driver.next_round()) is not None:
            turn = AsyncRound(self._driver, number, config)
            yield turn
            _check_run(turn)

    async def status(self) -> protocol.JobView:
        """See `Job.status`."""
        return await self._driver.status()

    async def result(self, like: Model | None = None) -> dict[str, Any] | None:
        """See `Job.result`."""
        return await self._driver.result(like)

    async def cancel(self, reason: str = "cancelled by its owner") -> None:
        """See `Job.cancel`."""
        await self._driver.cancel(reason)

    async def complete(self) -> None:
        """See `Job.complete`."""
        await self._driver.complete()

    async def close(self) -> None:
        """Close the connections; a later call opens new ones. The job goes on."""
        await self._driver.wire.transport.close()

    async def __aenter__(self) -> Self:
        await self.register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._driver.leave(error)
        finally:
            await self.close()


def _wire(
    server: str | None, retry: Retry | None, transport: httpx.BaseTransport | None, timing: Timing | None
) -> Wire:
    timing = timing or Timing()
    return Wire(BlockingTransport(server, transport, timing), retry or Retry(), timing)


def _async_wire(
    server: str | None, retry: Retry | None, transport: httpx.AsyncBaseTransport | None, timing: Timing | None
) -> Wire:
    timing = timing or Timing()
    return Wire(AsyncioTransport(server, transport, timing), retry or Retry(), timing)


def _check_run(turn: _RoundBase) -> None:
    if turn.view is None:
        raise Conflict(
            f"round {turn.number} was not run",
            field="round",
            fix="call round.run(model) in the loop, or leave the loop with `break`",
        )


def _ended(view: protocol.JobView) -> JobEnded:
    return JobEnded(f"job {view.id} ({view.spec.name}) has ended: {view.reason.text}", field="job", value=view.id)


def _spec(spec: JobSpec | Mapping[str, Any] | None, fields: SpecFields) -> JobSpec:
    """The spec from one of its forms, its types checked. Whether it makes sense, the server decides."""
    if spec is not None and fields:
        raise InvalidInput("give a spec or its fields, not both", field="spec", fix="leave one of them out")
    if isinstance(spec, JobSpec):
        return spec
    given = fields if spec is None else spec
    known = JobSpec.__struct_fields__
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            raise InvalidInput(
                "a job has no such field",
                field=name,
                limit=", ".join(known),
                fix=f"did you mean {nearest[0]}?" if nearest else "leave it out",
            )
    try:
        return msgspec.convert(given, JobSpec)
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at `$.")
        missing = text.partition("required field `")[2].rstrip("`")
        field = at.rstrip("`") or missing or "spec"
        raise InvalidInput(
            text[:1].lower() + text[1:], field=field, value=given.get(field), fix="see vennue.core.job.JobSpec"
        ) from error
