"""The selector: what devices ask of the pool, from check-in to report.

A check-in is the hot path: one event, one token, no waiting, unless the attempt that the device is bound to is itself
not durable yet. A report is counted after it is durable in the data plane, and acknowledged after it is counted.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final

from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import Body
from vennue.control.pacing import Pace, Pacing, Want
from vennue.control.recorder import Recorder
from vennue.control.returns import Returns
from vennue.control.tokens import Tokens
from vennue.core.assignment import Assignment, Outcome
from vennue.core.batch import Collected
from vennue.core.errors import (
    InvalidInput,
    InvalidUpdate,
    NotFound,
    Overloaded,
    StorageError,
    TooLate,
    VennueError,
)
from vennue.core.events import Abort, Accept, CheckIn, Decline, Report
from vennue.core.ids import AssignmentId, DeviceId, Digest, JobId, Signature, attempt_of, job_of
from vennue.core.profile import expected_response_s
from vennue.core.requirement import Profile
from vennue.core.round import Attempt
from vennue.protocol import (
    MODEL_HEADER,
    CheckInAnswer,
    CheckInRequest,
    DeclineRequest,
    ReportReceipt,
    Task,
)
from vennue.updates.sums import Receipt

MAX_DEVICE_NAME: Final = 128
HINT_S: Final = 0.25
"""How old the pool-wide picture may be by which idle devices are paced."""
RETRY_S: Final = 1.0
REFUSED: Final = "it was too late when it came before"

_ENDINGS: Final = {
    Outcome.DECLINED: "the device declined it",
    Outcome.ABORTED: "the device aborted it",
    Outcome.LOST: "its lease ran out, or the device checked in with other attributes",
    Outcome.CLOSED: "its round closed without it",
    Outcome.DISPLACED: "its place went back to a device that had it before the server was restarted",
}


class Selector:
    """Serves the devices of one pool. All methods belong to the coordinator's event loop.

    Args:
        coordinator: started.
        pacing: when devices that found no task come back.
        rng: of the draws for random plans and of the spread of ``retry_after_s``.
        recorder: records check-ins, where they are to be.
    """

    def __init__(
        self, coordinator: Coordinator, pacing: Pacing, rng: random.Random, *, recorder: Recorder | None = None
    ) -> None:
        self._coordinator = coordinator
        self._tokens = Tokens(coordinator.secret)
        self.pace = Pace(pacing)
        """When devices without a task come back."""
        self._rng = rng
        self._recorder = recorder
        self._returns = Returns()
        self._hint_until = -float("inf")
        self._active_bits = 0
        self._short_bits = 0

    def check_in(self, request: CheckInRequest) -> tuple[CheckInAnswer | None, Awaitable[CheckInAnswer | None] | None]:
        """Bind a device, or tell it when to come back.

        Returns:
            The answer, and what to wait for before it is given (usually nothing). The answer is None where devices
            are bound together: what is to be waited for then gives it.

        Raises:
            InvalidInput: the device's name or attributes make no sense.
        """
        device = DeviceId(request.device)
        if not 0 < len(device) <= MAX_DEVICE_NAME or not device.isprintable():
            raise InvalidInput(
                f"must be 1 to {MAX_DEVICE_NAME} printable characters",
                field="device",
                value=device[:MAX_DEVICE_NAME],
                fix="give the device a stable name of its own",
            )
        coordinator = self._coordinator
        coordinator.counters.check_ins += 1
        registry = coordinator.pool.registry
        profile = registry.profile_of_raw(bytes(request.attributes))
        waits = coordinator.gathering.join(device) if coordinator.pool.batch.window_s else None
        assignment = coordinator.apply(
            CheckIn(
                device,
                profile,
                draw=self._rng.random(),
                response_s=expected_response_s(profile),
                declined=self._closed_to(device, request.declined),
            )
        )
        if self._recorder is not None:
            self._recorder.note(profile, device, coordinator.pool.now)
        if waits is not None:
            if isinstance(assignment, Collected):
                return None, self._gathered(waits, profile)
            coordinator.gathering.leave(device)
        if assignment is None:
            return self._come_back(registry.signature(profile)), None
        return self._offer(assignment)

    async def _gathered(self, waits: asyncio.Future[Assignment | None], profile: Profile) -> CheckInAnswer:
        """The answer to a check-in that waits for others."""
        assignment = await asyncio.shield(waits)
        pool = self._coordinator.pool
        if assignment is None or pool.table.holds(assignment.device) is not assignment:
            return self._come_back(pool.registry.signature(profile))
        answer, pending = self._offer(assignment)
        if pending is not None:
            await pending
        return answer

    def overloaded(self) -> Overloaded:
        """What a device is told for which there is no time at all: to come back, spread as every answer is."""
        self._coordinator.counters.shed += 1
        wait_s = self.pace.retry_after_s(Want.SHED, self._coordinator.now(), self._rng.random())
        return Overloaded("the server has more to do than it can at this moment", retry_after_s=wait_s)

    def accept(self, id: AssignmentId, token: str) -> tuple[Task, asyncio.Future[None] | None]:
        """The device takes the task: the same task, with the lease that covers the work."""
        device = self._device(id, token)
        self._live(id)
        assignment = self._coordinator.apply(Accept(id, device))
        return self._task(assignment), self._coordinator.unsaved(assignment.attempt)

    def decline(
        self, id: AssignmentId, token: str, request: DeclineRequest
    ) -> tuple[CheckInAnswer, asyncio.Future[None] | None]:
        """The device does not take the task: its next one, or when to come back."""
        device = self._device(id, token)
        held = self._live(id)
        assignment = self._coordinator.apply(
            Decline(
                id,
                device,
                request.reason[:200],
                draw=self._rng.random(),
                response_s=held.response_s,
                declined=self._closed_to(device, request.declined),
            )
        )
        return (self._come_back(held.signature), None) if assignment is None else self._offer(assignment)

    def abort(self, id: AssignmentId, token: str, request: DeclineRequest) -> None:
        """The device gives up a task that it had taken; its slot is free again."""
        device = self._device(id, token)
        held = self._live(id)
        coordinator = self._coordinator
        job = coordinator.pool.jobs[held.job]
        coordinator.apply(Abort(id, device, request.reason[:200]))
        now = coordinator.now()
        self._returns.note(device, job.id, now, most_s=job.spec.effective_lease_s)
        coordinator.setbacks.given_back(job, held.attempt, request.reason, now)

    async def report(
        self,
        id: AssignmentId,
        token: str,
        weight: float,
        metrics: Mapping[str, float],
        body: Body,
        *,
        sha256: Digest | None = None,
        model: Digest | None = None,
    ) -> ReportReceipt:
        """Take a device's update: make it durable, count it, acknowledge it. Repeating it changes nothing.

        Args:
            id: the assignment.
            token: proves that it is the device's.
            weight: the number of examples that the update was trained on.
            metrics: names and finite numbers.
            body: the update.
            sha256: the body's digest, where the device announced it.
            model: the digest of the model that was trained, where the device said so.

        Raises:
            Forbidden: the assignment is somebody else's.
            TooLate: it has ended; the message says how.
            InvalidUpdate: the update does not fit the round's model.
        """
        device = self._device(id, token)
        data, counters = self._coordinator.data, self._coordinator.counters
        receipt = await data.receipt(id)
        counted = False
        repeated = True
        if receipt is None:
            try:
                attempt, version = await self._taking(id)
                self._check_model(attempt, model)
                try:
                    receipt = await data.receive(id, weight, metrics, body, sha256=sha256, token=token, version=version)
                except TooLate:  # its round has ended while it arrived; or the pool was rebuilt, and takes it again
                    await self._taking(id)
                    raise Overloaded("the server was interrupted", retry_after_s=RETRY_S, fix="send it again") from None
                counted = await self._count(attempt, version, device, receipt)
                repeated = receipt.duplicate  # of uploads that race, the one that is stored may not be first to count
            except VennueError as error:
                self._coordinator.check_working()
                # A repeat; or two uploads of one report have raced, and the second one is answered like a repeat.
                receipt = await data.old_receipt(id)
                if receipt is None:
                    self._coordinator.note_refusal(attempt_of(id), error)
                    if isinstance(error, TooLate):
                        counters.late_reports += self._coordinator.endings.credit(id)
                        # A restart must not count what was told to be too late.
                        await data.refuse(attempt_of(id), [id])
                        await self._coordinator.settled()
                    raise
        if counted:
            counters.reports += 1
            counters.report_bytes += receipt.body_bytes
            if self._returns:
                self._returns.forgive(device, job_of(attempt_of(id)))
        else:
            counters.duplicates += 1
        return ReportReceipt(assignment=id, sha256=receipt.sha256, duplicate=repeated)

    def refuse(self, id: AssignmentId, token: str, error: VennueError) -> None:
        """What was said of a report was refused before the report was read: it is counted, if it is the device's.

        Raises:
            NotFound: there is no such assignment.
            Forbidden: the assignment is somebody else's.
        """
        self._device(id, token)
        self._coordinator.note_refusal(attempt_of(id), error)

    async def _taking(self, id: AssignmentId) -> tuple[Attempt, int]:
        """The attempt that takes the assignment's report, and the version of the model that the device was given.

        Raises:
            TooLate: none does any more.
        """
        pool = self._coordinator.pool
        try:
            assignment = self._live(id)
        except TooLate:
            # Many model updates may have been made of an asynchronous attempt, each with reports in it.
            attempt = pool.awaits(id)
            data = self._coordinator.data
            if attempt is None or data.is_refused(id) or await data.old_receipt(id) is not None:
                raise
            return attempt, attempt.version_at_restart
        attempt = pool.jobs[assignment.job].attempt
        assert attempt is not None, "a live assignment belongs to an open attempt"
        return attempt, assignment.version

    async def _count(self, attempt: Attempt, version: int, device: DeviceId, receipt: Receipt) -> bool:
        """Count a durable report; whether it was counted now. One that does not count is dropped."""
        coordinator = self._coordinator
        try:
            check_not_refused(coordinator, [receipt.assignment])
            counted: bool = coordinator.apply(Report(receipt.assignment, device))
        except StorageError:
            # The pool is being rebuilt, and may have found the report by now: it stays, to count then or when repeated.
            raise
        except VennueError:
            await coordinator.data.drop(receipt.assignment)
            raise
        if counted:
            coordinator.data.count(receipt, staleness=attempt.version - version)
        await coordinator.settled()
        return counted

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _device(self, id: AssignmentId, token: str) -> DeviceId:
        if job_of(attempt_of(id)) not in self._coordinator.pool.jobs:
            raise NotFound(f"there is no assignment {id[:200]}", field="assignment", value=id[:200])
        return self._tokens.device(id, token)

    def _live(self, id: AssignmentId) -> Assignment:
        return live_assignment(self._coordinator, id)

    @staticmethod
    def _check_model(attempt: Attempt, model: Digest | None) -> None:
        """Refuse an update that says itself that it was trained from another model than the round's."""
        if model is None or attempt.spec.mode == "async" or model == attempt.model:
            return
        raise InvalidUpdate(
            "the update was trained from the model of another round",
            field=MODEL_HEADER,
            value=model,
            limit=attempt.model,
            fix="train the model that the task names",
        )

    def _closed_to(self, device: DeviceId, declined: list[str]) -> frozenset[JobId] | None:
        """The jobs that a device is not given: those that it says it declined, and those it gave back just now."""
        jobs = frozenset(map(JobId, declined)) if declined else None
        if self._returns:
            barred = self._returns.barred(device, self._coordinator.now())
            return barred | (jobs or frozenset()) or None
        return jobs

    def _offer(self, assignment: Assignment) -> tuple[CheckInAnswer, asyncio.Future[None] | None]:
        coordinator = self._coordinator
        coordinator.counters.tasks += 1
        return CheckInAnswer(task=self._task(assignment)), coordinator.unsaved(assignment.attempt)

    def _come_back(self, signature: Signature) -> CheckInAnswer:
        self._refresh_hint()
        want = Want.IDLE
        if signature & self._short_bits:
            want = Want.SHORT
        elif signature & self._active_bits:
            want = Want.BUSY
        now = self._coordinator.pool.now
        return CheckInAnswer(retry_after_s=self.pace.retry_after_s(want, now, self._rng.random()))

    def _task(self, assignment: Assignment) -> Task:
        coordinator = self._coordinator
        job = coordinator.pool.jobs[assignment.job]
        attempt = job.attempt
        assert attempt is not None, "a live assignment belongs to an open attempt"
        return Task(
            assignment=assignment.id,
            token=self._tokens.issue(assignment.id, assignment.device),
            job=job.id,
            name=job.spec.name,
            round=attempt.round,
            model=attempt.model,
            expires_in_s=max(0.0, assignment.expires_at - coordinator.pool.now),
            private_requirement=None if job.private is None else job.private.text,
            config=attempt.config,
            codecs=job.spec.codecs,
            changes=job.spec.mode == "async",
        )

    def _refresh_hint(self) -> None:
        pool = self._coordinator.pool
        if pool.now < self._hint_until:
            return
        self._hint_until = pool.now + HINT_S
        self._active_bits = self._short_bits = 0
        for bit in pool.registry.bits():
            self._active_bits |= 1 << bit
        for request in pool.table.requests():
            if request.needs > 0:
                self._short_bits |= 1 << request.bit


def live_assignment(coordinator: Coordinator, id: AssignmentId) -> Assignment:
    """The live assignment; `TooLate`, with how it ended, when it is over."""
    try:
        return coordinator.pool.table.live(id)
    except NotFound:
        end = coordinator.endings.of(id)
        how = None if end is None else _ENDINGS.get(end)
        raise TooLate(
            f"assignment {id} is over: {how or 'its round has closed'}",
            field="assignment",
            value=id,
            fix="check in again",
        ) from None


def check_not_refused(coordinator: Coordinator, assignments: Iterable[AssignmentId]) -> None:
    """Call it as reports are about to count: `TooLate` if one of them was refused, by whatever way it came then."""
    for assignment in assignments:
        if coordinator.data.is_refused(assignment):
            raise TooLate(REFUSED, field="assignment", value=assignment, fix="check in again")
