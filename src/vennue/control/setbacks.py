"""What goes wrong with a job's reports, for its owner: how many were refused, how many tasks given back, and why.

A device is told why its report is refused, but the owner of its job is not there to hear it. So reports and tasks are
counted by the kind of their end, with the last reason of each, for the job's view; the first of a kind in an attempt
is logged. A report that counts costs nothing here. All of it is soft state, bounded by the active jobs: it is gone when
its job ends or the server restarts.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from vennue.core.errors import InvalidInput, InvalidUpdate, StrategyFailed, TooLarge, TooLate, VennueError
from vennue.core.ids import AttemptId, JobId
from vennue.core.job import Job
from vennue.protocol import Setback, Setbacks

log = logging.getLogger("vennue.control")

GIVEN_BACK: Final = "given-back"
MAX_KINDS: Final = 8
"""Kinds that are told apart for each job: those seen last. The sums count all."""
MAX_TEXT: Final = 200

_Kind = tuple[str, str | None]


@dataclass(slots=True)
class Counts:
    """How many reports were refused and tasks given back, over some time."""

    refused: int = 0
    returned: int = 0
    last_refusal: str = ""
    """The last refused report's field and reason,"""
    last_return: str = ""
    """and what was said with the last task that was given back."""


@dataclass(slots=True)
class _OfJob:
    total: Counts = field(default_factory=Counts)
    kinds: OrderedDict[_Kind, Setback] = field(default_factory=OrderedDict)
    round: tuple[AttemptId, int] | None = None
    here: Counts = field(default_factory=Counts)
    """In this round,"""
    attempt: AttemptId | None = None
    logged: set[_Kind] = field(default_factory=set)
    """and in this attempt; one of an asynchronous job runs many rounds."""


class SetbackLog:
    """The setbacks of all active jobs. It belongs to the coordinator's event loop."""

    def __init__(self) -> None:
        self._by_job: dict[JobId, _OfJob] = {}

    def refused(self, job: Job, attempt: AttemptId, error: VennueError, now: float) -> None:
        """A report was refused. Nothing is noted if that says nothing of the job, as when its connection broke."""
        if isinstance(error, InvalidUpdate | StrategyFailed | TooLarge | TooLate) or type(error) is InvalidInput:
            self._note(job, attempt, (error.code, error.field and _printable(error.field)), error.message, now)

    def given_back(self, job: Job, attempt: AttemptId, reason: str, now: float) -> None:
        """A device gave up its task."""
        self._note(job, attempt, (GIVEN_BACK, None), reason or "no reason was given", now)

    def of(self, job: Job) -> Setbacks | None:
        """What a job's owner is told; None while there is nothing to tell."""
        found = self._by_job.get(job.id)
        if found is None:
            return None
        kinds = list(reversed(found.kinds.values()))
        return Setbacks(refused_reports=found.total.refused, returned_tasks=found.total.returned, kinds=kinds)

    def here(self, job: Job) -> Counts:
        """What has gone wrong in the job's open round, or since an asynchronous job's last model update."""
        found = self._by_job.get(job.id)
        return found.here if found is not None and found.round == _round(job) else Counts()

    def forget(self, job: JobId) -> None:
        """The job has ended."""
        self._by_job.pop(job, None)

    def _note(self, job: Job, attempt: AttemptId, kind: _Kind, reason: str, now: float) -> None:
        if job.state.terminal:
            return
        found = self._by_job.setdefault(job.id, _OfJob())
        before = found.kinds.pop(kind, None)
        if len(found.kinds) >= MAX_KINDS:
            found.kinds.popitem(last=False)
        setback = found.kinds[kind] = Setback(
            kind=kind[0],
            field=kind[1],
            count=1 if before is None else before.count + 1,
            last=_printable(reason),
            last_at=now,
        )
        _add(found.total, setback)
        if job.attempt is None or job.attempt.id != attempt:
            return
        if found.round != _round(job):
            found.round, found.here = _round(job), Counts()
        _add(found.here, setback)
        if found.attempt != attempt:
            found.attempt, found.logged = attempt, set()
        if kind not in found.logged and len(found.logged) < MAX_KINDS:
            found.logged.add(kind)
            what = "a task was given back" if kind[0] == GIVEN_BACK else "a report was refused"
            log.warning("%s: %s: %s; others like it are only counted", attempt, what, setback.told)


def _add(counts: Counts, setback: Setback) -> None:
    if setback.kind == GIVEN_BACK:
        counts.returned += 1
        counts.last_return = setback.last
    else:
        counts.refused += 1
        counts.last_refusal = setback.told


def _round(job: Job) -> tuple[AttemptId, int] | None:
    return None if job.attempt is None else (job.attempt.id, job.committed)


def _printable(text: str) -> str:
    """Text of a device, as it may be shown on a terminal and in a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_TEXT])
