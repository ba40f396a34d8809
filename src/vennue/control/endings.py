"""How assignments ended, for as long as their devices are likely to ask; and credit to those that were only too late.

A device that trained and came too late has done its part: its update cannot count any more, but its work is counted
for the job, once, so that an owner sees how much a deadline or a lease wastes. Memory is bounded.
"""

from collections import Counter, OrderedDict

from vennue.core.assignment import Outcome
from vennue.core.ids import AssignmentId, JobId, attempt_of, job_of

_WORKED = frozenset({Outcome.LOST, Outcome.CLOSED, Outcome.DISPLACED})
"""The ends after which a report may still come: the device has worked, and others were sooner."""


class Endings:
    """The ends of the latest assignments that ended otherwise than by their report.

    Args:
        limit: how many are remembered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: OrderedDict[AssignmentId, Outcome] = OrderedDict()
        self._credited: set[AssignmentId] = set()
        self.late: Counter[JobId] = Counter()
        """Reports that came too late, by job, since the start."""

    def note(self, assignment: AssignmentId, outcome: str) -> None:
        """An assignment has ended."""
        self._ends[assignment] = Outcome(outcome)
        if len(self._ends) > self._limit:
            forgotten, _ = self._ends.popitem(last=False)
            self._credited.discard(forgotten)

    def of(self, assignment: AssignmentId) -> Outcome | None:
        """How an assignment ended, if it did lately."""
        return self._ends.get(assignment)

    def credit(self, assignment: AssignmentId) -> bool:
        """Credit a late report to its device: whether that was done now, and not before."""
        if self._ends.get(assignment) not in _WORKED or assignment in self._credited:
            return False
        self._credited.add(assignment)
        self.late[job_of(attempt_of(assignment))] += 1
        return True
