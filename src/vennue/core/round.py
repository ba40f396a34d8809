"""Rounds and their attempts: when a round commits, when it is tried again.

A round is one turn of training; an attempt is one try at it. `Attempt` holds the rules of spec section 6 as pure
functions of its own counters and the time: `ready` (enough reports to commit now), `due` (when its timer fires) and
`enough_at_deadline`. The pool moves it from state to state and nothing ever moves it out of a closed one.
"""

import hashlib
import math
from enum import StrEnum

from vennue.core.errors import IllegalTransition
from vennue.core.ids import AssignmentId, AttemptId, Digest, JobId, attempt_id
from vennue.core.job import JobSpec, Setting, share
from vennue.core.plan import Request

COMMIT_LIMIT_S = 600.0
"""An aggregate that is not durable after this long counts as failed, so that no attempt waits for ever."""


class AttemptState(StrEnum):
    """Where an attempt stands. The last three are for ever."""

    WAITING = "waiting"
    """Its job waits for another one to end: the attempt needs no devices yet, and its time has not begun."""
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    CANCELLED = "cancelled"

    @property
    def closed(self) -> bool:
        """Whether the attempt is over."""
        return self in _CLOSED


_CLOSED = frozenset({AttemptState.COMMITTED, AttemptState.ABORTED, AttemptState.CANCELLED})
_ALLOWED = {
    AttemptState.WAITING: frozenset({AttemptState.OPEN, AttemptState.CANCELLED}),
    AttemptState.OPEN: frozenset({AttemptState.COMMITTING, AttemptState.ABORTED, AttemptState.CANCELLED}),
    AttemptState.COMMITTING: _CLOSED,
}


class Attempt:
    """One try at a round of a job. Owned by the pool."""

    __slots__ = (
        "closed_at", "committing", "config", "deadline_at", "filled", "id", "job", "last_bound_at", "model", "number",
        "opened_at", "reason", "request", "restarts", "result", "returned", "round", "since", "spec", "state",
        "version", "version_at_restart", "was_filled",
    )  # fmt: skip

    def __init__(
        self,
        job: JobId,
        spec: JobSpec,
        round_number: int,
        number: int,
        model: Digest,
        config: dict[str, Setting],
        request: Request,
        now: float,
        *,
        state: AttemptState = AttemptState.OPEN,
        restarts: int = 0,
    ) -> None:
        self.id: AttemptId = attempt_id(job, round_number, number)
        self.job = job
        self.spec = spec
        self.round = round_number
        self.number = number
        self.model = model
        """What the devices download."""
        self.config = config
        """The owner's settings for the devices."""
        self.request = request
        self.state = state
        self.opened_at = now
        self.since = now
        """When the round in progress began: at the opening, or (asynchronous jobs) with the latest model update."""
        self.deadline_at = math.inf if state is AttemptState.WAITING else now + self.limit_s
        self.filled = False
        """Whether it had all its devices when last planned for, and so is not part of the plan."""
        self.was_filled = False
        """Whether it has ever had all its devices at once."""
        self.last_bound_at: float | None = None
        """When the last device was bound; in an asynchronous attempt, only until its slots were first all filled."""
        self.closed_at: float | None = None
        self.committing: tuple[AssignmentId, ...] = ()
        """Assignments whose reports the aggregate in the making holds."""
        self.result: Digest | None = None
        self.reason: str | None = None
        self.version = 0
        """Model updates committed from this attempt (asynchronous jobs)."""
        self.restarts = restarts
        """How often the server was restarted since the attempt opened."""
        self.version_at_restart = 0
        """What ``version`` was then: devices from before have that model, or an older one."""
        self.returned: set[AssignmentId] = set()
        """Assignments from before the latest restart whose reports have been counted since."""

    @property
    def limit_s(self) -> float:
        """How long the attempt may be open."""
        return self.spec.deadline_s if self.spec.deadline_s is not None else self.spec.round_limit_s

    @property
    def ready(self) -> bool:
        """Whether enough devices have reported to commit at once."""
        return len(self.request.reported) >= self.spec.goal

    @property
    def enough_at_deadline(self) -> bool:
        """Spec section 6: ``min_fraction`` of the demand were bound, and ``min_fraction`` of those have reported.

        Never where the owner said how many reports are enough: with those the attempt is `ready`.
        """
        spec = self.spec
        if spec.deadline_s is None or spec.mode == "async" or spec.min_reports is not None:
            return False
        bound = min(self.request.bound, spec.demand)
        reported = len(self.request.reported)
        return bound >= share(spec.min_fraction, spec.demand) and reported >= share(spec.min_fraction, bound)

    def move(self, state: AttemptState, now: float, story: tuple[str, ...], reason: str | None = None) -> None:
        """Enter a state.

        Raises:
            IllegalTransition: the state machine does not allow it; carries the job's story.
        """
        if state not in _ALLOWED.get(self.state, frozenset()):
            raise IllegalTransition(f"attempt {self.id} is {self.state}, it cannot become {state}", story=story)
        self.state = state
        self.reason = reason
        if state is AttemptState.OPEN:
            request = self.request
            self.opened_at = self.since = request.opened_at = request.waiting_since = request.arrived_at = now
            self.deadline_at = now + self.limit_s
            request.deadline_at = None if self.spec.deadline_s is None else self.deadline_at
        elif state is AttemptState.COMMITTING:
            self.deadline_at = now + COMMIT_LIMIT_S
        elif state.closed:
            self.closed_at = now

    @property
    def scheduling_delay_s(self) -> float:
        """From the opening to the last device bound (0 while none is).

        An asynchronous attempt takes devices all along: its wait for them ends, once and for all, when its slots are
        first all filled.
        """
        return 0.0 if self.last_bound_at is None else self.last_bound_at - self.opened_at

    @property
    def had_devices_at(self) -> float:
        """When the round in progress had its devices, as far as it has: where its scheduling delay ends.

        The delay runs from ``since`` to here and the collection from here to the commit. So the two never overlap, and
        all rounds' together are never longer than the job has run. A model update of an asynchronous job that began
        with all slots filled has had its devices from its beginning.
        """
        return self.since if self.last_bound_at is None else max(self.since, self.last_bound_at)

    def note_bound(self, now: float) -> None:
        """A device was bound just now."""
        if not (self.was_filled and self.request.continuous):
            self.last_bound_at = now
        if self.request.needs <= 0:
            self.filled = self.was_filled = True


def lottery(seed: int, attempt: AttemptId) -> float:
    """The attempt's draw in [0, 1): the same for the same seed, whatever happened before."""
    digest = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2.0**56
