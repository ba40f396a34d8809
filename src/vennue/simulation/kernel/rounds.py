"""The kernel's rounds: how attempts open, close, commit and are tried again.

The rules are those of `vennue.core.lifecycle` and `vennue.core.round`, with the owner and the data plane answering at
once. Each function names what it stands for.
"""

import math

import numpy as np

from vennue.simulation.kernel.learning import observe_round
from vennue.simulation.kernel.state import ACTIVE, COMPLETED, FAILED_JOB, State, compiled
from vennue.simulation.kernel.tables import forget, set_timer
from vennue.simulation.result import ABORTED, CANCELLED, COMMITTED


@compiled
def open_attempt(s: State, job: int, round_number: int, number: int, waiting_since: float, now: float) -> None:
    """`Pool._open_attempt`."""
    c = s.clock[0]
    j = s.jobs[job]
    c.serial += 1
    j.serial = c.serial
    j.open = 1
    j.round = round_number
    j.number = number
    j.opened_at = now
    j.since = now
    j.waiting_since = waiting_since
    j.deadline_at = now + j.limit_s
    j.last_bound_at = math.nan
    j.filled = 0
    j.was_filled = 0
    j.version = 0
    j.live = 0
    j.reported = 0
    j.service = j.attained
    j.attempts += 1
    c.stale_at = -math.inf
    set_timer(s, job)


@compiled
def fire(s: State, now: float) -> None:
    """`Pool.fire`: leases that have run out, attempts whose time is up, then jobs; commits are carried out last."""
    first = len(s.timers) // 2
    count = 0
    for job in range(len(s.jobs)):
        if s.timers[first + job] <= now:
            s.due[count] = job
            count += 1
    for index in range(count):
        j = s.jobs[s.due[index]]
        while j.head >= 0 and s.slots[j.head].expires_at <= now:
            give_back(s, j.head)
    for index in range(count):
        job = s.due[index]
        j = s.jobs[job]
        j.committing = 0
        if j.open == 0 or j.deadline_at > now:
            continue
        if _enough_at_deadline(s, job):
            j.committing = 1
            close(s, job)
        else:
            _retry(s, job, now)
    for index in range(count):
        job = s.due[index]
        if s.jobs[job].state == ACTIVE and s.jobs[job].limit_at <= now:
            _fail(s, job, now)
    for index in range(count):
        job = s.due[index]
        if s.jobs[job].state == ACTIVE and s.jobs[job].committing != 0:
            commit_round(s, job, now)


@compiled
def _enough_at_deadline(s: State, job: int) -> bool:
    """`Attempt.enough_at_deadline`."""
    j = s.jobs[job]
    if j.timed == 0:
        return False
    bound = min(j.live + j.reported, j.demand)
    # `share`, whose rounding to nine decimals only matters next to whole numbers
    return bound >= j.least_bound and j.reported >= math.ceil(np.rint(j.min_fraction * bound * 1e9) / 1e9)


@compiled
def close(s: State, job: int) -> None:
    """Close the attempt's request: the devices that have not reported have worked in vain."""
    j = s.jobs[job]
    j.closing = j.live + j.reported
    j.attained += j.closing
    index = j.head
    while index >= 0:
        following = s.slots[index].next
        settle_fate(s, index)
        free(s, index)
        index = following
    j.head = -1
    j.tail = -1
    j.live = 0
    j.open = 0
    s.clock[0].stale_at = -math.inf
    set_timer(s, job)


@compiled
def commit_round(s: State, job: int, now: float) -> None:
    """`Pool._committed` after `_close`; then the owner opens the next round."""
    j = s.jobs[job]
    j.used += j.reported
    j.committed += 1
    j.scheduling_delay_s += j.last_bound_at - j.opened_at
    j.collection_s += now - j.last_bound_at
    if s.clock[0].learns != 0:
        observe_round(s, job, j.last_bound_at - j.opened_at, now - j.last_bound_at)
    _log_attempt(s, job, j.round, COMMITTED, j.closing, now)
    if j.committed == j.rounds:
        _end_job(s, job, COMPLETED, now)
    else:
        open_attempt(s, job, j.committed + 1, 1, now, now)


@compiled
def commit_update(s: State, job: int, now: float) -> None:
    """`Pool._next_version`: a model update of an asynchronous job."""
    j = s.jobs[job]
    j.used += j.reported
    j.service += j.reported
    j.committed += 1
    had_devices_at = max(j.since, j.last_bound_at)
    j.scheduling_delay_s += had_devices_at - j.since
    j.collection_s += now - had_devices_at
    _log_attempt(s, job, j.committed, COMMITTED, j.reported, now)
    j.since = now
    j.reported = 0
    j.version += 1
    j.deadline_at = now + j.limit_s
    set_timer(s, job)
    if j.committed == j.rounds:
        close(s, job)
        _end_job(s, job, COMPLETED, now)


@compiled
def _retry(s: State, job: int, now: float) -> None:
    """`Pool._retry`: abort the attempt and try again."""
    j = s.jobs[job]
    close(s, job)
    j.aborted += j.reported
    _log_attempt(s, job, j.round, ABORTED, j.closing, now)
    if j.number >= j.max_attempts:
        _end_job(s, job, FAILED_JOB, now)
    elif j.asynchronous != 0 and j.version > 0:
        open_attempt(s, job, j.committed + 1, 1, now, now)
    else:
        open_attempt(s, job, j.round, j.number + 1, j.waiting_since, now)


@compiled
def _fail(s: State, job: int, now: float) -> None:
    """`Pool._job_due`: the job has taken too long."""
    j = s.jobs[job]
    if j.open != 0:
        close(s, job)
    j.aborted += j.reported
    _log_attempt(s, job, j.round, CANCELLED, j.closing, now)
    _end_job(s, job, FAILED_JOB, now)


@compiled
def _end_job(s: State, job: int, state: int, now: float) -> None:
    """`Pool._end_job`."""
    c = s.clock[0]
    j = s.jobs[job]
    c.running -= 1
    c.ended += 1
    c.stale_at = -math.inf
    j.ended_as = c.ended
    j.state = state
    j.ended_at = now
    set_timer(s, job)


@compiled
def _log_attempt(s: State, job: int, round_number: int, outcome: int, bound: int, now: float) -> None:
    c = s.clock[0]
    j = s.jobs[job]
    row = s.attempts[c.attempts]
    c.attempts += 1
    row.job = job
    row.round = round_number
    row.number = j.number
    row.opened_s = j.since
    row.scheduling_delay_s = 0.0 if math.isnan(j.last_bound_at) else j.last_bound_at - j.opened_at
    if j.asynchronous != 0:
        row.scheduling_delay_s = math.nan
    row.closed_s = now
    row.outcome = outcome
    row.bound = bound
    row.reported = j.reported


@compiled
def give_back(s: State, index: int) -> None:
    """`Pool._given_back`: an assignment ends without a report, and its slot is free again."""
    c = s.clock[0]
    j = s.jobs[s.slots[index].job]
    settle_fate(s, index)
    remove(s, index)
    c.epoch += 1
    if j.filled != 0:
        j.filled = 0
        c.stale_at = -math.inf


@compiled
def settle_fate(s: State, index: int) -> None:
    """Count a device-round that did not report in time, see `vennue.simulation.result.FATES`."""
    slot = s.slots[index]
    if slot.finish_at <= slot.end_s:
        s.jobs[slot.job].straggling += 1
    else:
        s.jobs[slot.job].failed += 1


@compiled
def remove(s: State, index: int) -> None:
    """Take an assignment out of its job's list and out of the table."""
    slot = s.slots[index]
    j = s.jobs[slot.job]
    if slot.previous >= 0:
        s.slots[slot.previous].next = slot.next
    else:
        j.head = slot.next
    if slot.next >= 0:
        s.slots[slot.next].previous = slot.previous
    else:
        j.tail = slot.previous
    j.live -= 1
    if slot.previous < 0:
        set_timer(s, slot.job)
    free(s, index)


@compiled
def free(s: State, index: int) -> None:
    """Forget an assignment."""
    c = s.clock[0]
    slot = s.slots[index]
    if c.anonymous == 0:
        forget(s, slot.device)
    slot.generation = 0
    slot.next = c.free_slot
    c.free_slot = index
