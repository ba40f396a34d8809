"""The kernel's memory: every job, device, assignment and timer of a run as a row of an array.

Rows are numpy records, so compiled code reads and writes them like structs, and Python sees the same memory. Lists,
heaps and rings within them are made of indices; −1 is none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from vennue.simulation.kernel.caching import cache_directory

Array = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])

_jit = cast("Callable[..., Any]", njit)  # its declared types lack some of its settings

_SETTINGS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
"""How numba compiles. Without ``_nrt``, which counts references to arrays at every call, it is ten times as fast."""


def compiled(function: F) -> F:
    """Compile a function as a part of those that call it."""
    return cast("F", _jit(**_SETTINGS, no_cpython_wrapper=True, forceinline=True)(function))


def kept(function: F) -> F:
    """Compile a function that Python calls, and keep it on disk with all that it calls."""
    with cache_directory() as cached:
        return cast("F", _jit(**_SETTINGS, cache=cached)(function))


(
    FINISHED, HORIZON, PAUSED, NEED_SESSIONS, NEED_ROOM, NEED_LOG, NEED_ARRIVAL, JOB_ENDED, NEED_COUNT, NEED_PLAN,
    NEED_OFFERS, NEED_RATES, NEED_LOTTERIES,
) = range(13)  # fmt: skip
"""Why the loop came back: the run is over, or Python must do something before it can go on."""

WAITING, ACTIVE, COMPLETED, FAILED_JOB = range(4)
"""`JOB.state`. The first has not arrived."""
STATES = ("unfinished", "unfinished", "completed", "failed")

FIRST, UNIFORM, ANY, OWNER = range(4)
"""`CLOCK.choice`: which of the offers that are open to it a device takes; or, as `vennue.policies.partition` has it, on
which job it settles, by chance or as its owner, whether or not that job needs devices."""


def _record(*, floats: str, ints: str) -> np.dtype[Any]:
    """A record of 8-byte fields, whose names are separated by white space. Truth values are ints, too."""
    return np.dtype([*((name, "f8") for name in floats.split()), *((name, "i8") for name in ints.split())])


CLOCK = _record(
    floats="""
        now horizon_s bin_s limit_s
        poll_s dispatch_s replan_s expected_workload_s
        planned_at stale_at turns_at rates_until
        epsilon starvation_limit
    """,
    ints="""
        fits_only anonymous tasks keep learns
        running arrived ended
        index session exhausted phase visit kind
        ranking grouped everyone choice tiers tiered renewed plan plans epoch claims needy groups
        sampled milestones registry listing listed listed_milestones listed_registry
        serial generation sequence
        free_visit free_slot finishes first_poll polls attempts assignments
    """,
)
"""The run as a whole: options; when the plan, the supply's bucket and its rates go out of date; how many jobs still
run, have arrived, or have ended without Python knowing; the place in the batch and in the check-in under way; the plan;
what was sampled of the check-ins, and the listing of the sample by capability; the last numbers given to attempts,
assignments and tasks; how full the arrays are."""

JOB = _record(
    floats="""
        arrival_s workload_s nominal_s limit_s lease_s min_fraction weight
        opened_at waiting_since since deadline_at limit_at last_bound_at ended_at
        lottery key behind urgency low_s high_s scheduling_delay_s collection_s
    """,
    ints="""
        requirement demand wanted goal least_bound rounds max_staleness max_attempts asynchronous timed dated
        state open filled was_filled committing ended_as serial planned drawn foreseen band
        seen known ordered weighed_at weighs lessons
        round number version live reported closing head tail
        committed attained service attempts bound used aborted straggling failed
    """,
)
"""A job, with its attempt: what it asks for; since when and until when; what plans rank it by, and the tier that they
restrict it to; its attempt's number (``serial``) now, in the plan and at its lottery; how much its reports and rounds
have taught; the counts of its devices, and the list of its live assignments."""

KIND = _record(floats="", ints="seen check_ins news plan epoch cursor length")
"""Devices of one kind: check-ins, and those that the supply has not heard of; which plan's offers are listed, how far
they are known to be filled (at which ``epoch``, see `vennue.core.offers`), and how many they are."""

VISIT = _record(floats="end_s slowness link_s dispatch choice", ints="session device kind asked tasks slot generation")
"""A device in a session. Its assignment is the one in ``slot`` as long as that has the same generation."""

SLOT = _record(
    floats="bound_at expires_at finish_at end_s response_s", ints="generation device kind job version previous next"
)
"""A live assignment (generation 0: none), in a list of its job's."""

HOLDER = _record(floats="", ints="device slot")
FINISH = _record(floats="time_s", ints="sequence visit")
POLL = _record(floats="time_s", ints="visit")
GROUP = _record(floats="supply_per_s held_per_s demand length", ints="size first begin end members listing splits")
"""A job group in the course of a plan, as `vennue.policies.allocation.Group`."""

REPORT = np.dtype({"names": ["expected_s", "took_s", "took_bits"], "formats": ["f4", "f4", "u4"], "offsets": [0, 4, 4]})
SAMPLE = np.dtype({"names": ["expected_s", "bits", "kind"], "formats": ["f8", "u8", "i8"], "offsets": [0, 0, 8]})
"""A report, and a check-in of the sample. The bits of a float that is not negative are in the order of the floats."""

ROUND = _record(floats="scheduling_delay_s collection_s", ints="")
TIER = _record(floats="", ints="reports below")
ITEM = _record(floats="weight expected_s took_s", ints="order spare tier")
DIGIT = _record(floats="", ints="begin")

ATTEMPT = _record(floats="opened_s scheduling_delay_s closed_s", ints="job round number outcome bound reported")
ASSIGNMENT = _record(floats="bound_s", ints="session job round number")
"""Rows of what is left behind, see `vennue.simulation.result.RunResult`."""


class Lessons(NamedTuple):
    """What is learned from reports, rounds and check-ins, see `vennue.simulation.kernel.learning`."""

    reports: Array
    """For each job, a ring of the latest reports."""
    known: Array
    """The reports as they were at the last refresh; in the order of the time they took, once somebody asked."""
    rounds: Array
    """For each job, a ring of the latest rounds."""
    p95s_s: Array
    """For each job, the 95 % quantile of the response times in each tier, and that of all tiers alike."""
    bounds_s: Array
    """For each group, the expected response times that separate its tiers."""
    lotteries: Array
    """For each job, the lotteries of first attempts at the rounds from `JOB.foreseen` on."""
    sample: Array
    """A ring of the latest check-ins."""
    listed: Array
    """The ring as it was listed last, in the order of the expected times."""
    tiers: Array
    """Scratch, as are the next two."""
    items: Array
    digits: Array


class State(NamedTuple):
    """What happens: everything that the loop reads and changes, plans aside."""

    clock: Array
    """One `CLOCK`."""
    jobs: Array
    kinds: Array
    visits: Array
    """Devices that are online and of further interest; ``slot`` links the free ones."""
    slots: Array
    """Live assignments; ``next`` links those of a job in the order of binding, and the free ones."""
    finishes: Array
    """A heap of tasks under way, by time."""
    polls: Array
    """A ring of idle devices that will ask again. They all wait equally long, so it is in order."""
    timers: Array
    """A tree of minima over the jobs' next timers; the least is at 1, job *j*'s own in the second half."""
    due: Array
    """Scratch: jobs whose timer is due."""
    holders: Array
    """A hash table (open addressing) from devices to the slots of what they hold."""
    busy: Array
    """`Usage.busy`."""
    attempts: Array
    assignments: Array
    lessons: Lessons


class Plans(NamedTuple):
    """What is planned. Jobs are named by their index, and groups by that of their requirement."""

    meets: Array
    """Whether devices of a kind (rows) meet a requirement (columns)."""
    offers: Array
    """For each kind, jobs in the order of the plan, as far as `KIND.length`."""
    tiers: Array
    """For each offer, the expected response times from and below which it is open."""
    order: Array
    """The jobs, those whose requests need devices in front and in their rank."""
    groups: Array
    queue: Array
    """The jobs of ``order`` by group, from `GROUP.begin` to `GROUP.end`."""
    demands_to: Array
    """For each of ``queue``, the group's demand up to and including it."""
    lengths_to: Array
    scarce: Array
    """The groups that need devices, the scarcest first; ``owners`` and ``descending`` are indices here."""
    descending: Array
    members: Array
    """For each group, the groups whose queues stand behind one another in its."""
    rates_per_s: Array
    """Check-ins per second of each region."""
    region_of_kind: Array
    """For each kind, its region; −1 while it has none."""
    owners: Array
    """For each region, the group that owns it."""
    cover: Array
    """For each group, the regions that meet its requirement, a bit each."""
    held: Array
    """For each group, the regions that it holds; the next three are scratch."""
    smaller: Array
    wanted: Array
    shared: Array
    names: Array
    """For each job, its id and a slash as bytes; nothing unless devices choose by them."""
    text: Array
    """Scratch, for a job's name and a device's."""
