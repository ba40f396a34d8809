"""The dialogue about one job: submit or find it, open its rounds, wait for their commits, end it; once for both kinds.

It waits and sends through a `Wire` alone, so it runs under asyncio and without it. What it promises its users is told
in `vennue.sdk.job`.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

from vennue import protocol
from vennue.core.errors import Conflict, JobEnded, NotFound, Overloaded, Unavailable, VennueError
from vennue.core.ids import Digest, JobId
from vennue.core.job import JobSpec, Setting
from vennue.sdk import models
from vennue.sdk.models import Model
from vennue.sdk.retry import Retry
from vennue.sdk.wire import Wire

log = logging.getLogger("vennue.sdk")

POLL_S = 30
"""How long the server may hold a question about a round."""
PAUSE_S = 1.0
"""Between two questions, when the server answers the first one at once."""
_HOPELESS = {
    "no-eligible-device", "no-supply-yet", "stalled", "infeasible", "needs-other-devices", "losing-devices",
    "refusing-reports",
}  # fmt: skip
"""Reasons for which a round waits that somebody must do something about."""
_FAREWELL = Retry(attempts=4, total_s=10.0)
_STOPS = KeyboardInterrupt | SystemExit | asyncio.CancelledError
"""What ends a program, rather than what goes wrong in one."""


class Driver:
    """One job, as its owner's program talks about it.

    Args:
        wire: to the server.
        spec: what to submit; None for a job that is there.
        key: names the submission; None takes a random one, under which nobody can come back.
        job: the id of a job that is there.
    """

    def __init__(self, wire: Wire, spec: JobSpec | None, key: str | None, job: JobId | None) -> None:
        self.wire = wire
        self._spec = spec
        self._key = key or uuid.uuid4().hex
        self._found_again = bool(key) or job is not None
        """Whether this program, run again, finds the job again."""
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

    def __str__(self) -> str:
        """The job as last seen, in a few words."""
        if self._view is None:
            return (
                f"{self._id}: not asked for yet" if self._spec is None else f"{self._spec.name!r}: not registered yet"
            )
        view = self._view
        rounds = f" of {view.spec.rounds}" if view.spec.rounds else ""
        return f"{view.id} ({view.spec.name!r}): {view.state}, {view.committed_rounds}{rounds} rounds committed"

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
        aggregate = models.restore((await self.wire.fetch(result)).blob, model)
        self._committed, self._resumes = number, False
        return view, aggregate

    async def result(self, like: Model | None) -> dict[str, Any] | None:
        view = await self.status()
        if view.model is None:
            return None
        blob = (await self.wire.fetch(view.model)).blob
        return models.arrays(models.parse(blob)) if like is None else models.restore(blob, like)

    async def leave(self, error: BaseException | None) -> None:
        """The end of a `with` block."""
        if error is None:
            await self.complete()
        elif self._view is None or isinstance(error, Unavailable | Overloaded | JobEnded):
            return
        elif self._found_again and isinstance(error, _STOPS):
            if self._view.state == "active":
                log.warning(
                    "job %s goes on without this program: run it again to go on with it, or end it: `vennue cancel %s`",
                    self._id, self._id,
                )  # fmt: skip
        else:
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
        """Wait until the round commits, however many attempts it takes; says once when it gets nowhere."""
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
            if held and not warned and view.state == "open" and (view.bound < view.demand or view.refused_reports):
                reason = (await self.status()).reason
                if warned := reason.code in _HOPELESS:
                    log.warning("job %s waits, round %d: %s", self._id, number, reason.text)
            if not held:
                await self.wire.transport.sleep(self.wire.rng.uniform(0.5, 1.0) * PAUSE_S)


def _ended(view: protocol.JobView) -> JobEnded:
    at = "" if view.ended_at is None else time.strftime(" at %Y-%m-%d %H:%M:%S UTC", time.gmtime(view.ended_at))
    fix = "submit a new job, under another key"
    if view.committed_rounds:
        fix = f"its last model stays, see Job.result; to go on from it, {fix}"
    return JobEnded(
        f"job {view.id} ({view.spec.name}) has ended{at}: {view.reason.text}", field="job", value=view.id, fix=fix
    )
