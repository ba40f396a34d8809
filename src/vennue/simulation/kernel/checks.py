"""The invariants of the design (section 5) that the kernel's memory can show, for runs with ``validate``.

The reference engine has the core check itself after every event. The kernel handles a million events a second, so its
memory is looked at every so many events: every assignment, job and timer that is there at that moment. Not seen here is
what shows in single events only: that a report counts once (6), and that no device is turned away that the plan has a
request for (8). The property test of the engines holds the kernel to the assignments of the reference, which sees both.
"""

from collections.abc import Iterator

import numpy as np

from vennue.core.errors import InvariantViolated
from vennue.simulation.kernel.state import ACTIVE, COMPLETED, Array, State
from vennue.simulation.result import FATES

Complaints = Iterator[str]


class Checks:
    """Looks at a run's memory now and then. What has ended must stay as it was.

    Args:
        meets: whether the devices of a kind (rows) meet a requirement (columns).
    """

    def __init__(self, meets: Array) -> None:
        self._meets = meets
        self._ended: Array | None = None
        self._committed: Array | None = None

    def check(self, state: State) -> None:
        """Check everything.

        Raises:
            InvariantViolated: with all complaints.
        """
        live = state.slots[state.slots["generation"] > 0]
        complaints = [
            *_one_live_assignment_per_device(state, live),
            *self._assignments_are_eligible(state, live),
            *_demand_is_not_exceeded(state),
            *_counters_are_derived(state, live),
            *self._ended_jobs_stay_ended(state),
            *_open_attempts_have_a_timer(state),
        ]
        if complaints:
            raise InvariantViolated(f"at {float(state.clock['now'][0]):.3f} s: " + "; ".join(complaints))

    def _assignments_are_eligible(self, state: State, live: Array) -> Complaints:
        met = self._meets[live["kind"], state.jobs["requirement"][live["job"]]]
        for slot in live[~met.astype(bool)]:
            yield f"2. a device of kind {slot['kind']} serves job {slot['job']}, whose requirement it does not meet"

    def _ended_jobs_stay_ended(self, state: State) -> Complaints:
        jobs = state.jobs
        ended = jobs["state"] >= COMPLETED
        for index in np.flatnonzero(ended & ((jobs["open"] != 0) | (jobs["live"] != 0))):
            yield f"5. job {index} has ended, and has an attempt"
        for index in np.flatnonzero((jobs["state"] == COMPLETED) & (jobs["committed"] != jobs["rounds"])):
            yield f"5. job {index} is completed after {jobs['committed'][index]} of {jobs['rounds'][index]} rounds"
        if self._ended is not None:
            for index in np.flatnonzero((self._ended >= COMPLETED) & (self._ended != jobs["state"])):
                yield f"5. job {index} had ended, and its state has changed"
        if self._committed is not None:
            for index in np.flatnonzero(self._committed > jobs["committed"]):
                yield f"5. job {index} had committed {self._committed[index]} rounds, and now has fewer"
        self._ended, self._committed = jobs["state"].copy(), jobs["committed"].copy()


def _one_live_assignment_per_device(state: State, live: Array) -> Complaints:
    if state.clock["anonymous"][0]:
        return
    devices, counts = np.unique(live["device"], return_counts=True)
    for device, count in zip(devices[counts > 1], counts[counts > 1], strict=True):
        yield f"1. device {device} holds {count} live assignments"
    holders = state.holders[state.holders["device"] >= 0]
    if len(holders) != len(live) or (state.slots["device"][holders["slot"]] != holders["device"]).any():
        yield f"1. {len(live)} assignments are live, the table of devices has {len(holders)} or names others"


def _demand_is_not_exceeded(state: State) -> Complaints:
    jobs = state.jobs
    used = np.where(jobs["asynchronous"] != 0, jobs["live"], jobs["live"] + jobs["reported"])
    for index in np.flatnonzero((jobs["open"] != 0) & (used > jobs["wanted"])):
        yield f"3. job {index} holds {used[index]} assignments, it wants {jobs['wanted'][index]}"


def _counters_are_derived(state: State, live: Array) -> Complaints:
    jobs = state.jobs
    counted = np.bincount(live["job"], minlength=len(jobs))
    for index in np.flatnonzero(counted != jobs["live"]):
        yield f"4. job {index} counts {jobs['live'][index]} live assignments, there are {counted[index]}"
    reported = np.where(jobs["open"] != 0, jobs["reported"], 0)
    accounted = sum((jobs[fate] for fate in FATES), jobs["live"] + reported)
    for index in np.flatnonzero(accounted != jobs["bound"]):
        yield f"4. job {index} has bound {jobs['bound'][index]} devices, {accounted[index]} are accounted for"


def _open_attempts_have_a_timer(state: State) -> Complaints:
    jobs, timers = state.jobs, state.timers
    first = len(timers) // 2
    heads = np.where(jobs["head"] >= 0, state.slots["expires_at"][jobs["head"]], np.inf)
    due_at = np.minimum(np.where(jobs["state"] == ACTIVE, jobs["limit_at"], np.inf), heads)
    due_at = np.minimum(due_at, np.where(jobs["open"] != 0, jobs["deadline_at"], np.inf))
    for index in np.flatnonzero(timers[first : first + len(jobs)] != due_at):
        yield f"7. job {index} is due at {due_at[index]}, its timer is set to {timers[first + index]}"
    if timers[1] != timers[first:].min():
        yield f"7. the next timer is due at {timers[first:].min()}, the run wakes at {timers[1]}"
