"""Jobs: what an owner asks for, and where the job stands.

`JobSpec` is the wire form, the YAML form and the stored form at once; `JobSpec.check` is the only place that decides
whether one makes sense. `Job` is the live state machine's memory of one job; only the pool changes it.
"""

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

from vennue.core.errors import Conflict, InvalidInput
from vennue.core.ids import Digest, JobId
from vennue.core.requirement import AttributeSchema, Requirement

if TYPE_CHECKING:
    from vennue.core.round import Attempt

Setting = bool | int | float | str
"""A value that an owner passes on to devices."""

When = Literal["completed", "ended"]

MAX_DEMAND = 10_000_000
MAX_PREDECESSORS = 1000
MAX_CODECS = 16
PLAIN = ("plain",)
DEFAULT_MIN_FRACTION = 0.8
DAY_S = 86_400.0
DEFAULT_ROUND_LIMIT_S = 7 * DAY_S
MIN_DEADLINE_S = 1.0
"""Below this no device could answer: a check-in, a download, a training step and an upload do not fit."""
MAX_DURATION_S = 36_525 * DAY_S
"""A hundred years: what is reckoned with longer ones could become infinite."""


class After(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job that another one waits for."""

    job: JobId
    when: When = "completed"
    """``ended``: whatever its end. ``completed``: only if it ends well; otherwise the job that waits is cancelled."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a job asks for. Durations are in seconds.

    With a deadline, a round commits as soon as ``min_fraction`` of ``demand`` have reported, and at the deadline if
    enough were bound and have reported; otherwise it is tried again. Without one it waits for all ``demand`` reports
    and replaces devices presumed lost. An asynchronous job keeps ``demand`` devices training and commits a model
    update at every ``buffer_size`` reports.
    """

    name: str
    demand: int
    """Devices per round (synchronous), or devices training at once (asynchronous)."""
    rounds: int | None = None
    """Rounds the job will run; None when it is open-ended. Declared rounds let policies plan further ahead."""
    requirement: str = "true"
    """Who may serve, as a CEL expression over public device attributes."""
    private_requirement: str | None = None
    """A second CEL expression, evaluated on the device over attributes that never leave it."""
    mode: Literal["sync", "async"] = "sync"
    deadline_s: float | None = None
    """Limit on a round, from its opening to its commit."""
    min_fraction: float = DEFAULT_MIN_FRACTION
    """The share of ``demand`` whose reports are enough, in a round with a deadline."""
    min_reports: int | None = None
    """Reports that are enough, as a number instead of ``min_fraction``, in rounds with and without a deadline."""
    overcommit: float | Literal["auto"] = 1.0
    """Devices bound per device asked for, at least 1. ``auto``: as many as the losses seen so far make necessary."""
    buffer_size: int | None = None
    """Reports per model update of an asynchronous job."""
    max_staleness: int | None = None
    """Model updates after which an asynchronous device's report is refused; None for no limit."""
    lease_s: float | None = None
    """How long a device may take before it is presumed lost; by default the deadline, or ten minutes without one."""
    round_limit_s: float = DEFAULT_ROUND_LIMIT_S
    """A round without a deadline is tried again after this long, whatever happens."""
    max_attempts: int | None = None
    """Attempts at one round before the job fails; None to try for ever."""
    weight: float = 1.0
    """Priority among jobs: 2 counts twice as much as 1."""
    tenant: str = "default"
    """Whose job it is, for quotas."""
    if_infeasible: Literal["refuse", "wait"] = "refuse"
    """What becomes of the job when the pool, as observed, can never run it: refused, or waiting until it can."""
    after: tuple[JobId | After, ...] = ()
    """Jobs that must end before this one begins. A plain id stands for one that must end well."""
    time_limit_s: float | None = None
    """The job fails if it has not ended so long after it could begin; None for no limit."""
    silence_limit_s: float = 7 * DAY_S
    """The job fails if its owner neither has a round open nor asks after it for so long."""
    strategy: str = "fedavg"
    """How reports become the next model: the name of one of the server's strategies."""
    strategy_options: dict[str, Setting] = {}
    """The strategy's options, such as its learning rate."""
    weighting: Literal["examples", "uniform"] = "examples"
    """Whether a report counts by the examples that it was trained on, or like any other."""
    accumulator: Literal["float32", "float64"] = "float32"
    """The precision in which reports are summed."""
    codecs: tuple[str, ...] = PLAIN
    """How reports may travel, the preferred way first: ``plain`` as they are, ``int8`` shorter."""

    def check(self, schema: AttributeSchema) -> tuple[Requirement, Requirement | None]:
        """The parsed public and private requirements.

        Raises:
            InvalidInput: a field makes no sense; the error names it, the value, the limit and the fix.
        """
        if not 1 <= len(self.name) <= 200 or not self.name.isprintable():
            raise _bad("name", self.name[:200], "must be 1 to 200 printable characters", "name the job")
        if not 1 <= len(self.tenant) <= 64 or not self.tenant.isprintable():
            raise _bad("tenant", self.tenant[:64], "must be 1 to 64 printable characters", "leave it out for none")
        self._check_numbers()
        self._check_after()
        if not 1 <= len(self.codecs) <= MAX_CODECS or len(set(self.codecs)) < len(self.codecs):
            raise _bad("codecs", ", ".join(self.codecs)[:200], "must name at least one, each once", 'write ["plain"]')
        if self.mode == "async":
            self._check_async()
        elif self.buffer_size is not None or self.max_staleness is not None:
            field = "buffer_size" if self.buffer_size is not None else "max_staleness"
            raise _bad(field, getattr(self, field), "only applies to asynchronous jobs", 'set mode to "async"')
        requirement = Requirement.parse(self.requirement, schema)
        private = None
        if self.private_requirement is not None:
            try:
                private = Requirement.parse(self.private_requirement, AttributeSchema.open())
            except InvalidInput as error:
                error.field = "private_requirement"
                raise
        return requirement, private

    def check_idle_fields(self) -> None:
        """Make sure that every field says something, together with the others.

        This is for whoever writes a spec: a job that is there already goes on as it did.

        Raises:
            InvalidInput: one would be passed over in this mode, or with this deadline.
        """
        if self.min_fraction != DEFAULT_MIN_FRACTION:
            if self.mode == "async":
                raise _bad(
                    "min_fraction", self.min_fraction, "an asynchronous job has no rounds", "buffer_size says it there"
                )
            if self.deadline_s is None:
                raise _bad(
                    "min_fraction",
                    self.min_fraction,
                    "only applies to rounds with a deadline: others wait for all reports",
                    "give a deadline_s, or say with min_reports how many are enough",
                )
        if self.mode == "async" and self.overcommit != 1.0:
            raise _bad(
                "overcommit",
                self.overcommit,
                "an asynchronous job keeps as many devices training as it demands",
                "leave it out, and raise the demand for more",
            )
        if self.deadline_s is not None and self.round_limit_s != DEFAULT_ROUND_LIMIT_S:
            raise _bad(
                "round_limit_s",
                self.round_limit_s,
                "only applies to rounds without a deadline",
                "leave out one of them",
            )

    def _check_numbers(self) -> None:
        if not 1 <= self.demand <= MAX_DEMAND:
            raise _bad("demand", self.demand, f"must be 1 to {MAX_DEMAND} devices", "ask for at least one device")
        if self.rounds is not None and self.rounds < 1:
            raise _bad("rounds", self.rounds, "must be at least 1", "leave it out for an open-ended job")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise _bad("max_attempts", self.max_attempts, "must be at least 1", "leave it out to try for ever")
        self._check_enough()
        if self.overcommit != "auto" and not 1 <= self.overcommit <= 10:
            raise _bad("overcommit", self.overcommit, "must be 1 to 10", '1.3 binds 30 % more, "auto" measures')
        if not 0 < self.weight <= 1000:
            raise _bad("weight", self.weight, "must be above 0 and at most 1000", "1 is the usual weight")
        if self.deadline_s is not None and not self.deadline_s >= MIN_DEADLINE_S:  # false for NaN, too
            raise _bad(
                "deadline_s",
                self.deadline_s,
                f"no device can answer in under {MIN_DEADLINE_S:g} s",
                f"allow at least {MIN_DEADLINE_S:g} s, or leave it out to wait for all devices",
            )
        for field in ("deadline_s", "lease_s", "round_limit_s", "time_limit_s", "silence_limit_s"):
            value = getattr(self, field)
            if value is not None and not MIN_DEADLINE_S <= value <= MAX_DURATION_S:
                raise _bad(
                    field, value, f"must be {MIN_DEADLINE_S:g} s to a hundred years", "give a duration that can pass"
                )
        if self.time_limit_s is not None and self.deadline_s is not None and self.time_limit_s < self.deadline_s:
            raise _bad(
                "time_limit_s",
                self.time_limit_s,
                f"is shorter than one round's deadline of {self.deadline_s:g} s",
                "allow the job at least one round",
            )

    def _check_enough(self) -> None:
        if not 0 < self.min_fraction <= 1:
            raise _bad("min_fraction", self.min_fraction, "must be above 0 and at most 1", "0.8 means 80 %")
        if self.min_reports is None:
            return
        if not 1 <= self.min_reports <= self.demand:
            raise _bad(
                "min_reports",
                self.min_reports,
                f"must be 1 to the demand, which is {self.demand}",
                "a round cannot have more reports than devices",
            )
        if self.min_fraction != DEFAULT_MIN_FRACTION:
            raise _bad("min_reports", self.min_reports, "contradicts min_fraction", "give one of the two")

    def _check_after(self) -> None:
        if len(self.after) > MAX_PREDECESSORS:
            raise _bad("after", len(self.after), f"must be at most {MAX_PREDECESSORS} jobs", "wait for the last ones")
        if len(self.predecessors) < len(self.after):
            raise _bad("after", ", ".join(_after(one).job for one in self.after), "names a job twice", "name it once")

    def _check_async(self) -> None:
        if self.buffer_size is None or not 1 <= self.buffer_size <= MAX_DEMAND:
            raise _bad(
                "buffer_size", self.buffer_size, "an asynchronous job needs at least 1", "say how many reports it takes"
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise _bad("max_staleness", self.max_staleness, "must be at least 0", "leave it out for no limit")
        for field in ("deadline_s", "min_reports"):
            if getattr(self, field) is not None:
                raise _bad(field, getattr(self, field), "an asynchronous job has no rounds", "leave it out")

    @property
    def predecessors(self) -> dict[JobId, When]:
        """The jobs that must end before this one begins, and how."""
        return {one.job: one.when for one in map(_after, self.after)}

    @property
    def wanted(self) -> int:
        """Devices bound per attempt: the demand times the overcommit; without one if that is to be measured."""
        return self.wanted_at(1.0 if self.overcommit == "auto" else self.overcommit)

    def wanted_at(self, overcommit: float) -> int:
        """Devices bound per attempt at this overcommit: rounded down, but never below the demand."""
        return max(self.demand, math.floor(round(self.demand * overcommit, 9)))

    @property
    def goal(self) -> int:
        """Reports at which an attempt commits at once."""
        if self.mode == "async":
            return self.buffer_size or 1
        if self.min_reports is not None:
            return self.min_reports
        return self.demand if self.deadline_s is None else share(self.min_fraction, self.demand)

    @property
    def effective_lease_s(self) -> float:
        """How long a device may take before it is presumed lost."""
        if self.lease_s is not None:
            return self.lease_s
        return self.deadline_s if self.deadline_s is not None else 600.0


def share(fraction: float, of: int) -> int:
    """The smallest whole number that is at least ``fraction`` of ``of`` (0.7 of 10 is 7, not 8 by a rounding error)."""
    return math.ceil(round(fraction * of, 9))


def _after(one: JobId | After) -> After:
    return one if isinstance(one, After) else After(job=one)


def _bad(field: str, value: object, message: str, fix: str) -> InvalidInput:
    return InvalidInput(f"{message}, got {value!r}", field=field, value=value, fix=fix)


class JobState(StrEnum):
    """Where a job stands. The last three are for ever."""

    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        """Whether nothing can change any more."""
        return self is not JobState.ACTIVE


class Job:
    """One job's live state. Only the pool changes it."""

    __slots__ = (
        "arrival", "attained", "attempt", "bit", "collection_s", "committed", "ended_at", "id", "model", "private",
        "quiet_since", "reason", "requirement", "scheduling_delay_s", "spec", "started_at", "state", "story",
        "submitted_at", "waits_for",
    )  # fmt: skip

    def __init__(
        self,
        id: JobId,
        spec: JobSpec,
        requirement: Requirement,
        private: Requirement | None,
        bit: int,
        *,
        arrival: int,
        submitted_at: float,
    ) -> None:
        self.id = id
        self.spec = spec
        self.requirement = requirement
        self.private = private
        self.bit = bit
        self.arrival = arrival
        self.submitted_at = submitted_at
        self.waits_for: set[JobId] = set()
        """Jobs that must end before this one begins, and have not ended."""
        self.started_at = submitted_at
        """When the job could begin: at its submission, or when the last of those that it waited for ended."""
        self.quiet_since = submitted_at
        """When its owner was last heard of, or its last round ended, if that was later."""
        self.ended_at: float | None = None
        self.state = JobState.ACTIVE
        self.reason: str | None = None
        """Why the job was cancelled or failed."""
        self.committed = 0
        """Rounds committed (model updates, for an asynchronous job)."""
        self.model: Digest | None = None
        """The last committed aggregate."""
        self.attempt: Attempt | None = None
        """The attempt in progress."""
        self.attained = 0
        """Devices bound to the job's closed attempts."""
        self.scheduling_delay_s = 0.0
        """Summed over committed rounds: from opening to the last device bound."""
        self.collection_s = 0.0
        """Summed over committed rounds: from the last device bound to the commit."""
        self.story: deque[tuple[float, str]] = deque(maxlen=64)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.state}, {self.committed} rounds committed>"

    def tell(self) -> tuple[str, ...]:
        """The job's latest events, oldest first, with their pool times."""
        return tuple(f"{at:.3f} s {text}" for at, text in self.story)

    @property
    def rounds_left(self) -> int | None:
        """Declared rounds not yet committed, or None when the job is open-ended."""
        return None if self.spec.rounds is None else self.spec.rounds - self.committed

    @property
    def time_limit_at(self) -> float:
        """When the job fails for having taken too long."""
        limit_s = self.spec.time_limit_s
        return math.inf if limit_s is None or self.waits_for else self.started_at + limit_s

    @property
    def silence_limit_at(self) -> float:
        """When the job fails for its owner's silence, if nothing happens before."""
        if self.attempt is not None or self.waits_for:
            return math.inf
        return self.quiet_since + self.spec.silence_limit_s

    def overdue(self, now: float) -> str | None:
        """The reason why the job fails now, if a limit of its own has been reached."""
        if self.time_limit_at <= now:
            return f"it had not ended within its time limit of {self.spec.time_limit_s:g} s"
        if self.silence_limit_at <= now:
            return f"its owner was silent for {self.spec.silence_limit_s:g} s, with no round open"
        return None


def unended_predecessors(id: JobId, spec: JobSpec, jobs: Mapping[JobId, Job]) -> list[JobId]:
    """The jobs that a new job must wait for. They are there before it, so it can close no circle but with itself.

    Args:
        id: of the new job.
        spec: what it asks for.
        jobs: all jobs that there are.

    Raises:
        InvalidInput: it waits for itself, or for a job that is not there.
        Conflict: it waits for the success of a job that can no longer complete.
    """
    waits_for = []
    for name, when in spec.predecessors.items():
        if name == id:
            raise InvalidInput(
                f"the jobs would wait for each other in a circle: {id} → {id}",
                field="after",
                value=id,
                fix="name jobs that were submitted before",
            )
        earlier = jobs.get(name)
        if earlier is None:
            raise InvalidInput(
                f"there is no job {name}", field="after", value=name, fix="name jobs that were submitted before"
            )
        if not earlier.state.terminal:
            waits_for.append(name)
        elif when == "completed" and earlier.state is not JobState.COMPLETED:
            raise Conflict(
                f"job {name} can no longer complete, it is {earlier.state}",
                field="after",
                value=name,
                fix="write {job: …, when: ended} to begin whatever its end",
            )
    return waits_for
