"""The reference engine: the real pool, event by event, under virtual time.

Nothing of the pool's behaviour is repeated here: the engine plays the devices and the job owners, and `Pool` decides.
So any policy works, and with ``validate`` every invariant of the core is checked after every event. It runs some
twenty thousand events a second; `vennue.simulation.kernel` gives the same results a hundred times as fast.

At equal times, the pool's timers come first, then jobs arrive, then tasks finish, then idle devices ask again, then
sessions begin.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vennue.core.assignment import Assignment
from vennue.core.batch import Collected
from vennue.core.effects import (
    Answered,
    AssignmentEnded,
    AttemptClosed,
    AttemptOpened,
    AttemptRecord,
    Commit,
    Effect,
    JobEnded,
    PolicyFailed,
    SaveAttempt,
)
from vennue.core.errors import InvalidInput, TooLate
from vennue.core.events import CheckIn, Committed, Decline, Event, OpenRound, Report, SubmitJob, Tick
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, Digest, JobId, attempt_of, job_of
from vennue.core.invariants import Auditor
from vennue.core.job import JobState
from vennue.core.plan import Planner
from vennue.core.pool import Pool
from vennue.core.round import AttemptState
from vennue.simulation.result import (
    ABORTED,
    ASSIGNMENT_COLUMNS,
    ATTEMPT_COLUMNS,
    CANCELLED,
    COMMITTED,
    FAILED,
    FATES,
    MAX_ATTEMPTS,
    REPORT_ABORTED,
    STRAGGLING,
    USED,
    Columns,
    End,
    Usage,
    add_interval,
    in_order,
    job_columns,
    region_columns,
    too_many_attempts,
)
from vennue.simulation.world import STEP, Batch, SimulatedJob, World

MODEL = Digest("0" * 64)
"""Nothing is trained: every round starts from this model and ends in it."""

_EVENTS_PER_LOOK = 256
_OUTCOMES = {
    AttemptState.COMMITTED: COMMITTED,
    AttemptState.ABORTED: ABORTED,
    AttemptState.CANCELLED: CANCELLED,
}


class _Visit:
    """A device during one session."""

    __slots__ = (
        "asked", "choice", "device", "dispatch", "end_s", "kind", "link_s", "session", "slowness", "tasks",
    )  # fmt: skip

    def __init__(
        self,
        session: int,
        device: int,
        end_s: float,
        kind: int,
        slowness: float,
        link_s: float,
        dispatch: float,
        choice: float,
    ) -> None:
        self.session = session
        self.device = DeviceId(str(device))
        self.end_s = end_s
        self.kind = kind
        self.slowness = slowness
        self.link_s = link_s
        self.dispatch = dispatch
        self.choice = choice
        self.asked = 0
        """Check-ins in this session so far."""
        self.tasks = 0


class ReferenceEngine:
    """Runs a world under a policy, once.

    Args:
        world: the world.
        planner: the policy.
        validate: check every invariant after every event, which makes it ten times as slow.
        keep_assignments: whether to keep a row for every device bound.
    """

    name = "reference"

    def __init__(
        self, world: World, planner: Planner, *, validate: bool = False, keep_assignments: bool = False
    ) -> None:
        self._world = world
        self._options = world.options
        self._planner = planner
        self.pool = Pool(
            planner,
            schema=world.schema,
            seed=world.seed,
            replan_interval_s=world.options.replan_interval_s,
            batch_window_s=world.options.batch_window_s,
            supply=world.supply(),
            once_per_round=False,  # what counts here is sessions, not whose they are
        )
        self._shell: Pool | Auditor = self.pool
        if validate:
            self._shell = Auditor(self.pool)
            promises = bool(getattr(planner, "work_conserving", True))
            self._shell.work_conserving = promises and not world.options.replan_interval_s
        self._index = {job.id: index for index, job in enumerate(world.jobs)}
        self._arrivals = deque(world.jobs)
        self._running = len(world.jobs)
        self._longest_s = max(job.nominal_s for job in world.jobs)
        self._finishes: list[tuple[float, int, _Visit, Assignment]] = []
        self._polls: deque[tuple[float, _Visit]] = deque()
        self._waiting: dict[DeviceId, tuple[_Visit, int]] = {}  # whose check-in waits for others
        self._sequence = itertools.count()
        self._finish_of: dict[AssignmentId, tuple[float, float]] = {}  # of live assignments: finish, end of session
        self._since: dict[AttemptId, float] = {}  # when an asynchronous attempt's current update began
        self.usage = Usage(world.horizon_s)
        self._attempts: list[tuple[float, ...]] = []
        self._assignments: list[tuple[float, ...]] | None = [] if keep_assignments else None
        self._fates = [[0] * len(FATES) for _ in world.jobs]
        self._bound = [0] * len(world.jobs)
        self._opened = [0] * len(world.jobs)
        self._check_ins = [0] * len(world.kinds)
        self._sessions = 0
        self._batch: Batch | None = None
        self._used = 0  # sessions of the batch that have begun
        self.now = 0.0

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self, look: Callable[[], bool]) -> End:
        """Run to the end, or until ``look``, which is called now and then, says to stop."""
        sessions = self._begin_sessions()
        upcoming = next(sessions, None)
        for events in itertools.count(1):
            if not self._running:
                return "finished"
            if events % _EVENTS_PER_LOOK == 0 and look():
                return "stopped"
            session_at = math.inf if upcoming is None else upcoming[0]
            wake = self.pool.next_wake()
            arrival_at = self._arrivals[0].arrival_s if self._arrivals else math.inf
            finish_at = self._finishes[0][0] if self._finishes else math.inf
            poll_at = self._polls[0][0] if self._polls else math.inf
            at = min(math.inf if wake is None else wake, arrival_at, finish_at, poll_at, session_at)
            if at >= self._world.horizon_s:
                self.now = self._world.horizon_s
                return "horizon"
            self.now = at
            if at == wake:
                self._handle(Tick())
            elif at == arrival_at:
                self._arrive(self._arrivals.popleft())
            elif at == finish_at:
                _, _, visit, assignment = heapq.heappop(self._finishes)
                self._finish(visit, assignment)
            elif at == poll_at:
                self._check_in(self._polls.popleft()[1])
            else:
                assert upcoming is not None
                self._used += 1
                self._sessions += 1
                self._check_in(upcoming[1])
                upcoming = next(sessions, None)
        raise AssertionError("the loop has no other end")

    def _begin_sessions(self) -> Iterator[tuple[float, _Visit]]:
        session = 0
        for batch in self._world.batches():
            self._count_online()
            self._batch, self._used = batch, 0
            for time_s, *properties in zip(*(column.tolist() for column in batch), strict=True):
                device, *rest = properties
                yield time_s, _Visit(session, device, *rest)
                session += 1

    def _count_online(self) -> None:
        if self._batch is not None:
            self.usage.add_sessions(self._batch, self._used)
            self._batch = None

    # -- devices ----------------------------------------------------------------------------------------------------

    def _check_in(self, visit: _Visit) -> None:
        asked = visit.asked
        visit.asked += 1
        self._check_ins[visit.kind] += 1
        profile = self._world.kinds[visit.kind]
        draw = (visit.choice + asked * STEP) % 1.0
        response_s = self._world.expected_workload_s * visit.slowness + visit.link_s
        declined = self._too_long(visit)
        self._waiting[visit.device] = visit, asked  # it may fill a batch, and be answered at once
        assignment = self._handle(CheckIn(visit.device, profile, draw, response_s, declined))
        if isinstance(assignment, Collected):
            return
        del self._waiting[visit.device]
        if assignment is not None and declined and assignment.job in declined:
            # Held since an earlier session; the pool does not know yet that the device will not make it now either.
            other = self._handle(
                Decline(assignment.id, visit.device, "its session is too short", draw, response_s, declined)
            )
            assignment = other if isinstance(other, Assignment) else None
        self._answered(visit, assignment, asked)

    def _answered(self, visit: _Visit, assignment: Assignment | None, asked: int) -> None:
        if assignment is None:
            self._ask_again(visit)
        else:
            self._start(visit, assignment, asked)

    def _too_long(self, visit: _Visit) -> frozenset[JobId] | None:
        """The jobs whose task would outlast the session on the mean device."""
        if not self._options.accept_only_what_fits:
            return None
        if self.now + self._longest_s <= visit.end_s:
            return None
        return frozenset(job.id for job in self._world.jobs if self.now + job.nominal_s > visit.end_s)

    def _start(self, visit: _Visit, assignment: Assignment, asked: int) -> None:
        """The device takes the task, or takes it up again that it held from an earlier session."""
        index = self._index[assignment.job]
        visit.tasks += 1
        delay_s = self._options.dispatch_s * ((visit.dispatch + asked * STEP) % 1.0)
        task_s = self._world.jobs[index].workload_s * visit.slowness + visit.link_s
        finish_at = self.now + (delay_s + task_s)
        if assignment.id not in self._finish_of:
            self._bound[index] += 1
            if self._assignments is not None:
                _, round_number, number = assignment.attempt.rsplit(".", 2)
                self._assignments.append((visit.session, index, int(round_number), int(number), self.now))
        self._finish_of[assignment.id] = finish_at, visit.end_s
        usage = self.usage
        leaves_at = max(self.now, min(finish_at, visit.end_s, usage.limit_s))  # it may have gone while it waited
        add_interval(usage.busy, usage.bin_s, self.now, leaves_at)
        if finish_at <= visit.end_s:
            heapq.heappush(self._finishes, (finish_at, next(self._sequence), visit, assignment))

    def _finish(self, visit: _Visit, assignment: Assignment) -> None:
        try:
            self._handle(Report(assignment.id, visit.device))
        except TooLate:
            pass  # its fate was settled when the pool gave it up
        else:
            del self._finish_of[assignment.id]
        self._ask_again(visit)

    def _ask_again(self, visit: _Visit) -> None:
        options = self._options
        again_at = self.now + options.poll_interval_s
        served = options.tasks_per_session and visit.tasks >= options.tasks_per_session
        if options.poll_interval_s and not served and again_at < visit.end_s:
            self._polls.append((again_at, visit))

    # -- owners -----------------------------------------------------------------------------------------------------

    def _arrive(self, job: SimulatedJob) -> None:
        self._handle(SubmitJob(job.id, job.spec))
        self._handle(OpenRound(job.id, 1, MODEL))

    def _handle(self, event: Event) -> Assignment | Collected | None:
        """Let the pool handle an event, and do at once whatever it asks for."""
        try:
            answer = self._shell.handle(event, self.now)
        finally:
            effects = self._shell.drain()
            for effect in effects:
                self._carry_out(effect)
        return answer if isinstance(answer, Assignment | Collected) else None

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Answered(device, assignment):
                visit, asked = self._waiting.pop(device)
                self._answered(visit, assignment, asked)
            case AssignmentEnded(id):
                finish_at, end_s = self._finish_of.pop(id)
                self._fates[self._index[job_of(attempt_of(id))]][STRAGGLING if finish_at <= end_s else FAILED] += 1
            case AttemptOpened(attempt):
                self._opened[self._index[job_of(attempt)]] += 1
            case Commit(attempt, assignments):
                self._commit(attempt, len(assignments))
            case SaveAttempt(record) if record.state.closed:
                self._close(record)
            case AttemptClosed(attempt, AttemptState.COMMITTED):
                job = self.pool.jobs[job_of(attempt)]
                if job.state is JobState.ACTIVE:
                    self._handle(OpenRound(job.id, job.committed + 1, MODEL))
            case JobEnded():
                self._running -= 1
            case PolicyFailed(reason):
                raise InvalidInput(f"the policy failed at {self.now:.3f} s: {reason}", field="policy", fix="correct it")
            case _:
                pass

    def _commit(self, id: AttemptId, reports: int) -> None:
        job = self.pool.jobs[job_of(id)]
        index = self._index[job.id]
        attempt = job.attempt
        if attempt is None or attempt.id != id:
            return  # its job has failed in the same moment
        self._fates[index][USED] += reports
        if attempt.spec.mode == "async":
            since = self._since.pop(id, attempt.opened_at)
            row = (index, job.committed + 1, attempt.number, since, math.nan, self.now, COMMITTED, reports, reports)
            self._attempts.append(row)
            self._since[id] = self.now
        self._handle(Committed(id, MODEL))

    def _close(self, record: AttemptRecord) -> None:
        index = self._index[record.job]
        asynchronous = self._world.jobs[index].spec.mode == "async"
        committed = record.state is AttemptState.COMMITTED
        if asynchronous or not committed:
            self._fates[index][REPORT_ABORTED] += record.reported
        if len(self._attempts) >= MAX_ATTEMPTS:
            raise too_many_attempts(self.now, self.done)
        opened_at = self._since.pop(record.id, record.opened_at)
        if asynchronous and committed:
            return  # a row per model update is there already
        delay_s = math.nan if asynchronous else record.scheduling_delay_s
        outcome = _OUTCOMES[record.state]
        self._attempts.append(
            (index, record.round, record.number, opened_at, delay_s, self.now, outcome, record.bound, record.reported)
        )

    # -- what is left behind ----------------------------------------------------------------------------------------

    @property
    def done(self) -> float:
        """Device-rounds committed so far."""
        return float(sum(fates[USED] for fates in self._fates))

    def columns(self) -> dict[str, Any]:
        """The fields of `RunResult` that the run decides."""
        self._count_online()
        jobs = [self.pool.jobs.get(job.id) for job in self._world.jobs]
        fates = np.array(self._fates, dtype=np.int64)
        columns = job_columns(self._world)
        columns["ended_s"] = np.array(
            [math.nan if job is None or job.ended_at is None else job.ended_at for job in jobs]
        )
        columns["state"] = np.array(
            ["unfinished" if job is None or not job.state.terminal else job.state.value for job in jobs]
        )
        columns["committed"] = np.array([0 if job is None else job.committed for job in jobs])
        columns["attempts"] = np.array(self._opened)
        for name in ("scheduling_delay_s", "collection_s"):
            columns[name] = np.array([0.0 if job is None else getattr(job, name) for job in jobs])
        columns["bound"] = np.array(self._bound)
        columns |= {name: fates[:, fate] for fate, name in enumerate(FATES)}
        return {
            "jobs": columns,
            "attempts": in_order(_table(self._attempts, ATTEMPT_COLUMNS)),
            "assignments": None if self._assignments is None else _table(self._assignments, ASSIGNMENT_COLUMNS),
            "regions": region_columns(self._world, np.array(self._check_ins)),
            "sessions": self._sessions,
            "plans": self.pool.plans,
        }


def _table(rows: list[tuple[float, ...]], types: dict[str, str]) -> Columns:
    columns = zip(*rows, strict=True) if rows else ([] for _ in types)
    return {name: np.array(column, dtype=kind) for (name, kind), column in zip(types.items(), columns, strict=True)}
