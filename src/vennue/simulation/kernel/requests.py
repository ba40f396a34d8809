"""Open attempts' needs for devices in compiled code: `vennue.core.plan.Request`."""

from vennue.simulation.kernel.state import State, compiled


@compiled
def needs(s: State, job: int) -> int:
    """`Request.needs`: devices still to be bound to the job's attempt, if it is open."""
    j = s.jobs[job]
    return j.wanted - j.live if j.asynchronous != 0 else j.wanted - j.live - j.reported


@compiled
def is_needy(s: State, job: int) -> bool:
    """Whether the job has a request that needs devices."""
    return s.jobs[job].open != 0 and needs(s, job) > 0
