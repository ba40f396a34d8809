"""Jobs as their owners drive them: ``Job`` blocks, ``AsyncJob`` awaits; they behave alike.

    with vennue.Job("http://127.0.0.1:8765", name="keyboard", demand=10, rounds=5) as job:
        for round in job.rounds():
            model = round.run(model)

The server keeps the job: it binds devices, tries an aborted attempt again, and survives restarts. So the owner's
program only waits, and may itself stop and come back, by the job's id (``Job.attach``) or by submitting under the same
``key``: it then goes on with the next round from the last committed model.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

import httpx
import msgspec

from vennue import protocol
from vennue.core.errors import Conflict, InvalidInput, did_you_mean
from vennue.core.ids import JobId
from vennue.core.job import After, JobSpec, Setting
from vennue.sdk.driver import Driver
from vennue.sdk.models import Model
from vennue.sdk.retry import Retry
from vennue.sdk.transport import Timing, blocking
from vennue.sdk.wire import async_wire, blocking_wire

log = logging.getLogger("vennue.sdk")


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


class _RoundBase:
    """What both kinds of round tell."""

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Setting] | None) -> None:
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

    def __repr__(self) -> str:
        how = "not run yet" if self.view is None else f"{self.view.state} with {self.reported} reports"
        return f"<{type(self).__name__} {self.number} of job {self._driver.view.id}: {how}>"


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

    _driver: Driver

    @property
    def id(self) -> JobId:
        """The job's id. Raises Conflict before the job is registered."""
        return self._driver.view.id

    @property
    def spec(self) -> JobSpec:
        """What the job asks for. Raises Conflict before the job is registered."""
        return self._driver.view.spec

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._driver}>"


class Job(_JobBase):
    """A job, submitted to a server when its ``with`` block begins, or with the first call that needs it.

    A ``with`` block completes the job when it ends well. An exception in it cancels the job with that reason, and goes
    on; except that `Unavailable`, `Overloaded` and the end of this process leave the job as it is, to be gone on with.
    So do Ctrl-C, `sys.exit` and a cancelled asyncio task, if there is a ``key`` (or an id, with `attach`) by which
    the program, run again, finds the job; the log says so.

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
        self._driver = Driver(blocking_wire(server, retry, transport, timing), checked, key, None)

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
        attached._driver = Driver(blocking_wire(server, retry, transport, timing), None, None, JobId(job))  # noqa: SLF001 - own class
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

    def run(
        self,
        model: Model,
        config: Mapping[str, Setting] | None = None,
        *,
        until: Callable[[Round, dict[str, Any]], object] | None = None,
    ) -> dict[str, Any]:
        """Run the rounds that are left, each on what the last one made; the last model, in the kinds of ``model``.

        Args:
            model: where a new job begins. A job that goes on begins with its last committed model, see `Round.run`.
            config: as for `rounds`.
            until: called after each round with it and its model; what is true ends the run. It may print, or save.

        Raises:
            JobEnded, InvalidModel, Conflict, Unavailable: as `Round.run`.
        """
        ran = False
        for turn in self.rounds(config):
            model, ran = turn.run(model), True
            if until is not None and until(turn, model):
                break
        return dict(model) if ran else self.result(model) or dict(model)

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
        self._driver = Driver(async_wire(server, retry, transport, timing), checked, key, None)

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
        attached._driver = Driver(async_wire(server, retry, transport, timing), None, None, JobId(job))  # noqa: SLF001 - own class
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

    async def run(
        self,
        model: Model,
        config: Mapping[str, Setting] | None = None,
        *,
        until: Callable[[AsyncRound, dict[str, Any]], object] | None = None,
    ) -> dict[str, Any]:
        """See `Job.run`."""
        ran = False
        async for turn in self.rounds(config):
            model, ran = await turn.run(model), True
            if until is not None and until(turn, model):
                break
        return dict(model) if ran else await self.result(model) or dict(model)

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


_REQUIRED = {"name": 'name="keyboard"', "demand": "demand=10, the devices that a round takes"}


def _check_run(turn: _RoundBase) -> None:
    if turn.view is None:
        raise Conflict(
            f"round {turn.number} was not run",
            field="round",
            fix="call round.run(model) in the loop, or leave the loop with `break`",
        )


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
            raise InvalidInput(
                "a job has no such field",
                field=name,
                limit=", ".join(known),
                fix=did_you_mean(name, known, "leave it out"),
            )
    for name, example in _REQUIRED.items():
        if name not in given:
            raise InvalidInput("is missing, and every job needs one", field=name, fix=f"add {example}")
    try:
        return msgspec.convert(given, JobSpec)
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at `$.")
        field = at.rstrip("`") or "spec"
        value = given.get(field)
        listed = text.startswith("Expected `array`") and isinstance(value, str)
        fix = f'write ["{value}"]' if listed else "docs/jobs.md tells what each field takes"
        raise InvalidInput(text[:1].lower() + text[1:], field=field, value=value, fix=fix) from error
