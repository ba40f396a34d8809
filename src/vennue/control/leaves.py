"""What leaves ask of the pool: how to take an attempt's reports, and to count the partial sums that they make of them.

A partial sum counts whole or not at all, since what is in it cannot be taken out again. So it is looked at before it is
received, and counted in one event after it is durable; a leaf is told which reports keep it from being counted, leaves
them out, and sends it again. A report is known by its assignment, however it travels, so nothing counts twice.
"""

from typing import Final

from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import Body
from vennue.control.selector import check_not_refused, live_assignment
from vennue.control.tokens import Tokens
from vennue.core.errors import Conflict, Forbidden, NotFound, Overloaded, StorageError, TooLate, VennueError
from vennue.core.events import Report, ReportTogether
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, attempt_of, job_of
from vennue.core.recovery import SERVED
from vennue.core.round import AttemptState
from vennue.protocol import AttemptView, PartialManifest, PartialReceipt, PartialReport
from vennue.updates.fold import Totals
from vennue.updates.sums import MetricSums, Partial, Receipt

RETRY_S: Final = 1.0


class Leaves:
    """Serves the leaves of one pool. All methods belong to the coordinator's event loop.

    Args:
        coordinator: started.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._tokens = Tokens(coordinator.secret)

    async def attempt(self, id: AttemptId) -> AttemptView:
        """What a leaf must know of an open attempt.

        Raises:
            NotFound: there is no such job.
            TooLate: the attempt is not open.
        """
        coordinator = self._coordinator
        coordinator.check_working()
        job = coordinator.pool.jobs.get(job_of(id))
        if job is None:
            raise NotFound(f"there is no attempt {id[:200]}", field="attempt", value=id[:200])
        attempt = job.attempt
        if attempt is None or attempt.id != id or attempt.state is not AttemptState.OPEN:
            await coordinator.settled()  # a restart must not open again what a leaf was told to be over
            raise TooLate(f"attempt {id} is over", field="attempt", value=id)
        return AttemptView(
            attempt=id,
            model=attempt.model,
            spec=job.spec,
            sums=not coordinator.data.plan(id).keeps_updates,
            closes_in_s=max(0.0, attempt.deadline_at - coordinator.now()),
            token_key=self._tokens.key(id).hex(),
        )

    async def report(self, attempt: AttemptId, id: str, manifest: PartialManifest, body: Body) -> PartialReceipt:
        """Take a leaf's partial sum: make it durable, count it whole, acknowledge it; or say what must not be in it.

        Raises:
            InvalidUpdate: the sum does not fit the round's model, or does not fit what is said of it.
            Conflict: the attempt needs every update by itself.
        """
        counters = self._coordinator.counters
        try:
            receipt = await self._take(attempt, id, manifest, body)
        except VennueError:
            counters.refused_partials += 1
            raise
        if receipt.counted:
            counters.reports += len(manifest.reports)
            counters.report_bytes += sum(report.body_bytes for report in manifest.reports)
        counters.partials += receipt.counted
        counters.refused_partials += not receipt.counted
        return receipt

    async def _take(self, attempt: AttemptId, id: str, manifest: PartialManifest, body: Body) -> PartialReceipt:
        coordinator = self._coordinator
        data = coordinator.data
        partial = partial_of(id, manifest)
        obstacles = await self._obstacles(attempt, manifest)
        if obstacles is not None:
            return obstacles
        try:
            await data.receive_partial(attempt, partial, body)
            try:
                reports = tuple(Report(report.assignment, self._holder(report)) for report in manifest.reports)
                check_not_refused(coordinator, partial.receipts)
                coordinator.apply(ReportTogether(reports))
            except VennueError:
                await data.drop_partial(attempt, id)
                raise
        except (TooLate, NotFound, Conflict) as error:
            obstacles = await self._obstacles(attempt, manifest)  # some were counted, or ended, while the sum arrived
            if obstacles is not None:
                return obstacles
            if isinstance(error, TooLate):  # what was in its way is gone again
                raise Overloaded("the sum could not be counted", retry_after_s=RETRY_S, fix="send it again") from error
            raise
        await data.take(attempt, partial)
        await coordinator.settled()
        return PartialReceipt(counted=True)

    async def _obstacles(self, attempt: AttemptId, manifest: PartialManifest) -> PartialReceipt | None:
        """The reports in a partial sum that keep it from being counted; None where there are none.

        Raises:
            StorageError: one of them counts as part of another sum, and that cannot be made durable.
        """
        counted_before: list[AssignmentId] = []
        refused: dict[AssignmentId, str] = {}
        """For good."""
        wrong: dict[AssignmentId, str] = {}
        """As they are: the device itself may still be right."""
        for report in manifest.reports:
            try:
                if await self._counts(report):
                    counted_before.append(report.assignment)
            except StorageError:
                raise
            except TooLate as error:
                refused[report.assignment] = error.message
            except VennueError as error:
                wrong[report.assignment] = error.message
        self._coordinator.check_working()
        if not counted_before and not refused and not wrong:
            refused = self._without_place(attempt, manifest)
        if not counted_before and not refused and not wrong:
            return None
        await self._coordinator.data.refuse(attempt, refused)  # a restart must not count what was said to be refused
        await self._coordinator.settled()
        counters, endings = self._coordinator.counters, self._coordinator.endings
        counters.refused_reports += len(wrong)
        for reason in refused.values():
            self._coordinator.note_refusal(attempt, TooLate(reason, field="assignment"))
        counters.late_reports += sum(map(endings.credit, refused))
        return PartialReceipt(counted=False, counted_before=counted_before, refused=refused | wrong)

    async def _counts(self, report: PartialReport) -> bool:
        """Whether a report counts already.

        Raises:
            TooLate: it cannot count any more.
            StorageError: it counts as part of another sum, and that cannot be made durable.
            VennueError: it is not its device's, or of no job.
        """
        coordinator, id = self._coordinator, report.assignment
        device = self._holder(report)
        if await coordinator.data.receipt(id) is not None:
            return True
        try:
            check_not_refused(coordinator, [id])
            if coordinator.pool.awaits(id) is not None:  # it comes back to an assignment from before a restart
                if job_of(attempt_of(id)) in coordinator.pool.table.served(device):
                    raise TooLate(SERVED, field="assignment", value=id)
            elif live_assignment(coordinator, id).device != device:
                raise Forbidden("the assignment is another device's", field="token")
        except TooLate:
            if await coordinator.data.old_receipt(id) is None:
                raise
            return True
        return False

    def _without_place(self, attempt: AttemptId, manifest: PartialManifest) -> dict[AssignmentId, str]:
        """Those for which there is no place in their round beside the others."""
        pool = self._coordinator.pool
        job = pool.jobs.get(job_of(attempt))
        current = None if job is None else job.attempt
        if current is None or current.id != attempt:
            return {}
        return pool.without_place(current, [Report(each.assignment, self._holder(each)) for each in manifest.reports])

    def _holder(self, report: PartialReport) -> DeviceId:
        if job_of(attempt_of(report.assignment)) not in self._coordinator.pool.jobs:
            raise NotFound("there is no such assignment", field="assignment", value=report.assignment[:200])
        return self._tokens.device(report.assignment, report.token)


def partial_of(id: str, manifest: PartialManifest) -> Partial:
    """What the data plane knows a partial sum as."""
    receipts = {
        report.assignment: Receipt(
            report.assignment, report.body_bytes, report.weight, report.sha256, token=report.token
        )
        for report in manifest.reports
    }
    metrics = MetricSums(
        {name: value for name, (value, _) in manifest.metrics.items()},
        {name: weight for name, (_, weight) in manifest.metrics.items()},
    )
    return Partial(id, Totals(manifest.weight, manifest.models, len(manifest.reports)), metrics, receipts)
