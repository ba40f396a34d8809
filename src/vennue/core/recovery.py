"""The pool after a crash: rebuilt from the ledger, told of the reports that the data plane has, open to who comes back.

Device state is never in the ledger, so nobody knows which devices were at work. A device that reports shows its token,
and the pool takes the report for the attempt that goes on; if all places were given away meanwhile, the one given last
goes back. Ids of assignments carry the number of restarts, so that none is given twice.
"""

from collections.abc import Iterable
from typing import Final

from vennue.core.assignment import Assignment
from vennue.core.effects import AttemptRecord, JobRecord
from vennue.core.errors import InvalidInput
from vennue.core.events import Recover, Report
from vennue.core.ids import AssignmentId, DeviceId, Signature, attempt_of, restarts_before
from vennue.core.job import Job
from vennue.core.lifecycle import Lifecycle
from vennue.core.records import job_of_record
from vennue.core.requirement import AttributeSchema, Requirement
from vennue.core.round import Attempt, AttemptState

SERVED: Final = "the device has reported in this round already"
NO_PLACE: Final = "all places of its round have gone to reports, some of them from before the restart"


class Recovery(Lifecycle):
    """The part of the pool that bridges a crash. Use it as a `Pool`."""

    def restore(self, jobs: Iterable[JobRecord], open_attempts: Iterable[AttemptRecord], now: float) -> None:
        """Rebuild from the ledger, into an empty pool: jobs as they were, and the attempts that were open.

        Assignments are soft state. They are gone, and the devices check in again; but one that has trained meanwhile
        may still report, and the reports that were counted are told by `Recover`. Attempts have their whole time again.
        """
        self.now = max(self.now, now)
        for record in sorted(jobs, key=lambda r: r.arrival):
            requirement, private = self._checked(record)
            bit = -1 if record.state.terminal else self.registry.register(requirement)
            job = job_of_record(record, requirement, private, bit)
            self.jobs[job.id] = job
            self._arrivals = max(self._arrivals, record.arrival + 1)
            if not job.state.terminal:
                self._take_up(job)
        for held in open_attempts:
            job = self.jobs[held.job]
            if job.state.terminal:
                continue
            goes_on = held.state is not AttemptState.WAITING
            if goes_on:
                self._tell(job, self.now, "the server was restarted")
            attempt = self._open_attempt(
                job, held.round, held.number, held.model, held.config, self.now,
                waiting_since=held.opened_at, restarts=held.restarts + goes_on,
            )  # fmt: skip
            if goes_on:
                attempt.opened_at = attempt.request.opened_at = held.opened_at
                if not attempt.version:  # when the latest model update was made is not known here
                    attempt.since = held.opened_at

    def _checked(self, record: JobRecord) -> tuple[Requirement, Requirement | None]:
        """A recovered job's requirements. Of one that has ended, the pool need not know the attributes any more.

        Raises:
            InvalidInput: an active job needs attributes that the pool was given before, and now was not.
        """
        if record.state.terminal:
            return record.spec.check(AttributeSchema.open())
        try:
            return record.spec.check(self.schema)
        except InvalidInput as error:
            error.message = f"job {record.id}, which is active, cannot go on: {error.message}"
            error.fix = "start with the attributes that the pool had when the job was submitted, and cancel it first"
            raise

    def _recover(self, event: Recover, now: float) -> None:
        """Count the reports again that an attempt had before a crash, unless it has closed meanwhile."""
        attempt = self._attempts.get(event.attempt)
        if attempt is None or attempt.state is not AttemptState.OPEN:
            return
        job = self.jobs[attempt.job]
        if event.failure is not None:
            self._retry(job, attempt, now, f"its reports were lost: {event.failure}")
            return
        for report in event.reports:
            if report.assignment not in attempt.returned:
                self._admit(attempt, self._returning(attempt, report.assignment, report.device))
        request = attempt.request
        # There may be more than places: losses are measured anew, and may ask for fewer devices than before; and of a
        # report that lost its place as it came, nobody was told. Any of them may have been acknowledged, so all count.
        request.wanted = max(request.wanted, len(request.reported))
        self._tell(job, now, f"attempt {attempt.id} goes on with {len(request.reported)} reports")
        attempt.filled = request.needs <= 0
        self.planning.soon("goes on after a restart", attempt.id)
        if attempt.ready:
            self._start_commit(attempt, now)

    def _admit(self, attempt: Attempt, assignment: Assignment) -> None:
        attempt.returned.add(assignment.id)
        self.table.admit(assignment)

    def _returning(self, attempt: Attempt, id: AssignmentId, device: DeviceId) -> Assignment:
        """An assignment from before a crash, of which only its token has told."""
        request = attempt.request
        return Assignment(
            id, device, request, Signature(1 << request.bit), attempt.opened_at, attempt.deadline_at,
            accepted=True, version=attempt.version_at_restart,
        )  # fmt: skip

    def _take_up(self, job: Job) -> None:
        """What follows from a recovered job's predecessors, and its limits. Its owner is heard of again."""
        earlier = [self.jobs[name] for name in job.spec.predecessors]
        self._follow(job, (one.id for one in earlier if not one.state.terminal))
        job.started_at = max([job.submitted_at, *(one.ended_at or 0.0 for one in earlier)])
        job.quiet_since = self.now
        self._arm(job)

    def without_place(self, attempt: Attempt, reports: Iterable[Report]) -> dict[AssignmentId, str]:
        """Of reports that come together, those that the attempt cannot count beside the others, and why.

        A device has one report in a round: the one of the assignment that it holds, if there are two. A report from
        before a crash takes a free place, or that of a device that still works; never that of another report.
        """
        request = attempt.request
        if request.continuous:
            return {}
        refused: dict[AssignmentId, str] = {}
        devices: set[DeviceId] = set()
        places = request.wanted - len(request.reported)
        for report in sorted(reports, key=lambda one: one.assignment not in request.live):
            if request.job in self.table.served(report.device) or (
                self.table.once_per_round and report.device in devices
            ):
                refused[report.assignment] = SERVED
            elif places <= 0:
                refused[report.assignment] = NO_PLACE
            else:
                places -= 1
                devices.add(report.device)
        return refused

    def awaits(self, id: AssignmentId) -> Attempt | None:
        """The attempt that goes on since before a crash, and takes a report of this assignment from back then."""
        attempt = self._attempts.get(attempt_of(id))
        if attempt is None or attempt.state is not AttemptState.OPEN or id in attempt.returned:
            return None
        try:
            return attempt if restarts_before(id) < attempt.restarts else None
        except ValueError:
            return None
