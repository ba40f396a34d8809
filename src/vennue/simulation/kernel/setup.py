"""The kernel's memory at the start of a run, and larger pieces of it when it needs more."""

import math

import numpy as np

from vennue.core.job import share
from vennue.core.plan import Planner
from vennue.core.profile import MAX_CHECK_INS, MAX_REPORTS, MAX_ROUNDS
from vennue.policies.fifo import Fifo
from vennue.policies.las import Las
from vennue.policies.matching import FifoMatch
from vennue.policies.partition import ClientRandom, StaticPartition
from vennue.policies.random_ import Random, RandomOrder
from vennue.policies.srsf import Srsf, SrsfJob
from vennue.policies.venn import Venn, VennSched
from vennue.simulation.kernel import planning, state
from vennue.simulation.kernel.partition import MAX_TEXT_BYTES
from vennue.simulation.kernel.state import Array, Lessons, Plans, State
from vennue.simulation.result import Usage
from vennue.simulation.world import World

_NO_LIMIT = 2**62
_ROOM = 4096
"""Visits and assignments that there is room for at first."""
_FORESEEN = 64
"""Rounds whose lotteries are drawn at once."""


def _rules(planner: Planner) -> dict[str, float]:
    """How compiled code plans for a policy: fields of the clock.

    A class derived from a built-in policy is another policy.
    """
    kind = type(planner)
    rules = {
        "ranking": _RANKINGS.get(kind, planning.IN_PYTHON),
        "grouped": kind in {VennSched, Venn},
        "everyone": kind in {StaticPartition, ClientRandom},
        "choice": _CHOICES.get(kind, state.FIRST),
        "tiers": 1,
        "epsilon": 0.0,
        "starvation_limit": math.inf,
    }
    if isinstance(planner, VennSched | Venn) and rules["grouped"]:
        rules["ranking"] = planning.BY_ROUND if planner.parameters.demand_scope == "round" else planning.BY_JOB
    if isinstance(planner, Venn) and rules["grouped"]:
        rules["epsilon"] = planner.parameters.epsilon
        rules["starvation_limit"] = planner.parameters.starvation_limit or math.inf
    if isinstance(planner, FifoMatch | Venn) and rules["ranking"] != planning.IN_PYTHON:
        rules["tiers"] = planner.parameters.tiers
    rules["learns"] = rules["tiers"] > 1 or rules["epsilon"] > 0
    return rules


_RANKINGS: dict[type, int] = {
    Random: planning.BY_ARRIVAL,
    RandomOrder: planning.BY_LOTTERY,
    Fifo: planning.BY_ARRIVAL,
    FifoMatch: planning.BY_ARRIVAL,
    Srsf: planning.BY_ROUND,
    SrsfJob: planning.BY_JOB,
    Las: planning.BY_SERVICE,
    StaticPartition: planning.BY_ARRIVAL,
    ClientRandom: planning.BY_ARRIVAL,
}
_CHOICES: dict[type, int] = {Random: state.UNIFORM, StaticPartition: state.OWNER, ClientRandom: state.ANY}


def new_state(world: World, planner: Planner, usage: Usage, *, keep_assignments: bool) -> State:
    """Everything at second 0, before anything has happened."""
    rules = _rules(planner)
    options = world.options
    count = len(world.jobs)
    clock = np.zeros(1, state.CLOCK)
    for name, value in {
        "horizon_s": world.horizon_s,
        "bin_s": usage.bin_s,
        "limit_s": usage.limit_s,
        "poll_s": options.poll_interval_s,
        "dispatch_s": options.dispatch_s,
        "replan_s": options.replan_interval_s,
        "expected_workload_s": world.expected_workload_s,
        "planned_at": -math.inf,
        "stale_at": math.inf,
        "turns_at": -math.inf,
        "rates_until": -math.inf,
        "fits_only": options.accept_only_what_fits,
        "anonymous": options.anonymous_sessions,
        "tasks": options.tasks_per_session,
        "keep": keep_assignments,
        "running": count,
        **rules,
    }.items():
        clock[name] = value
    visits = np.zeros(_ROOM, state.VISIT)
    clock["free_visit"] = link(visits["slot"], 0)
    slots = np.zeros(_ROOM, state.SLOT)
    clock["free_slot"] = link(slots["next"], 0)
    kinds = np.zeros(len(world.kinds), state.KIND)
    kinds["plan"] = -1
    leaves = 1 << (count - 1).bit_length()
    return State(
        clock=clock,
        jobs=_jobs(world),
        kinds=kinds,
        visits=visits,
        slots=slots,
        finishes=np.zeros(_ROOM, state.FINISH),
        polls=np.zeros(_ROOM, state.POLL),
        timers=np.full(2 * leaves, math.inf),
        due=np.zeros(count, np.int64),
        holders=no_holders(_ROOM),
        busy=usage.busy,
        attempts=np.zeros(max(16_384, 4 * count), state.ATTEMPT),
        assignments=np.zeros(65_536 if keep_assignments else 1, state.ASSIGNMENT),
        lessons=_lessons(count, len(world.requirements), int(rules["tiers"])),
    )


def _lessons(jobs: int, groups: int, tiers: int) -> Lessons:
    """Nothing learned yet. What is not going to be learned has no memory."""
    reports = MAX_REPORTS if tiers > 1 else 0
    sampled = MAX_CHECK_INS if tiers > 1 else 0
    return Lessons(
        reports=np.zeros((jobs, reports), state.REPORT),
        known=np.zeros((jobs, reports), state.REPORT),
        rounds=np.zeros((jobs, MAX_ROUNDS), state.ROUND),
        p95s_s=np.zeros((jobs, tiers + 1)),
        bounds_s=np.zeros((groups, tiers - 1)),
        lotteries=np.zeros((jobs, _FORESEEN)),
        sample=np.zeros(sampled, state.SAMPLE),
        listed=np.zeros(sampled, state.SAMPLE),
        tiers=np.zeros(tiers, state.TIER),
        items=np.zeros(max(MAX_CHECK_INS, MAX_REPORTS), state.ITEM),
        digits=np.zeros(256, state.DIGIT),
    )


def new_plans(world: World, planner: Planner) -> Plans:
    """Nothing planned yet, and no region known."""
    count, groups = len(world.jobs), len(world.requirements)
    offers, tiers = offers_table(len(world.kinds), count)
    return Plans(
        meets=world.meets().astype(np.uint8),
        offers=offers,
        tiers=tiers,
        order=np.arange(count),
        groups=np.zeros(groups, state.GROUP),
        queue=np.zeros(count, np.int64),
        demands_to=np.zeros(count),
        lengths_to=np.zeros(count),
        scarce=np.zeros(groups, np.int64),
        descending=np.zeros(groups, np.int64),
        members=np.zeros((groups, groups), np.int64),
        rates_per_s=np.zeros(0),
        region_of_kind=np.full(len(world.kinds), -1),
        owners=np.zeros(0, np.int64),
        cover=np.zeros((groups, 0), np.uint64),
        held=np.zeros((groups, 0), np.uint64),
        smaller=np.zeros(0, np.uint64),
        wanted=np.zeros(0, np.uint64),
        shared=np.zeros(0, np.uint64),
        names=_names(world, planner),
        text=np.zeros(MAX_TEXT_BYTES, np.uint8),
    )


def _names(world: World, planner: Planner) -> Array:
    if type(planner) is not StaticPartition:
        return np.zeros((len(world.jobs), 0), np.uint8)
    texts = [f"{job.id}/".encode() for job in world.jobs]  # equally long: numbers are filled up with zeros
    return np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1).copy()


def with_regions(plans: Plans, rates_per_s: list[float], region_of_kind: list[int], cover: list[int]) -> Plans:
    """The plans' memory for these regions.

    Args:
        plans: the memory so far.
        rates_per_s: check-ins per second of each region.
        region_of_kind: for each kind of device, its region, or −1.
        cover: for each group, the set of regions that meet its requirement, as an int.
    """
    words = -(-len(rates_per_s) // 64)
    packed = np.frombuffer(b"".join(regions.to_bytes(8 * words, "little") for regions in cover), np.uint64)
    return plans._replace(
        rates_per_s=np.array(rates_per_s),
        region_of_kind=np.array(region_of_kind, np.int64),
        owners=np.zeros(len(rates_per_s), np.int64),
        cover=packed.reshape(len(cover), words).copy(),
        held=np.zeros((len(cover), words), np.uint64),
        smaller=np.zeros(words, np.uint64),
        wanted=np.zeros(words, np.uint64),
        shared=np.zeros(words, np.uint64),
    )


def _jobs(world: World) -> Array:
    jobs = np.zeros(len(world.jobs), state.JOB)
    jobs["ended_at"] = jobs["last_bound_at"] = math.nan
    jobs["limit_at"] = math.inf
    jobs["head"] = jobs["tail"] = -1
    jobs["planned"] = -1
    for row, job in zip(jobs, world.jobs, strict=True):
        spec = job.spec
        for name, value in {
            "arrival_s": job.arrival_s,
            "workload_s": job.workload_s,
            "nominal_s": job.nominal_s,
            "limit_s": spec.round_limit_s if spec.deadline_s is None else spec.deadline_s,
            "lease_s": spec.effective_lease_s,
            "weight": spec.weight,
            "urgency": spec.weight,
            "min_fraction": spec.min_fraction,
            "requirement": job.requirement,
            "demand": spec.demand,
            "wanted": spec.demand if spec.mode == "async" else spec.wanted,
            "goal": spec.goal,
            "least_bound": share(spec.min_fraction, spec.demand),
            "rounds": spec.rounds,
            "max_staleness": _NO_LIMIT if spec.max_staleness is None else spec.max_staleness,
            "max_attempts": _NO_LIMIT if spec.max_attempts is None else spec.max_attempts,
            "asynchronous": spec.mode == "async",
            "dated": spec.deadline_s is not None,
            "timed": spec.mode == "sync" and spec.deadline_s is not None and spec.min_reports is None,
        }.items():
            row[name] = value
    return jobs


def link(following: Array, first: int) -> int:
    """Link rows from ``first`` on as a free list, and return its head."""
    following[first:] = np.arange(first + 1, len(following) + 1)
    following[-1] = -1
    return first


def grown(rows: Array) -> Array:
    """A copy with twice as many rows, the new ones zero."""
    grown = np.zeros(2 * len(rows), rows.dtype)
    grown[: len(rows)] = rows
    return grown


def no_holders(slots: int) -> Array:
    """An empty hash table of devices that is at most half full."""
    holders = np.zeros(1 << (2 * slots - 1).bit_length(), state.HOLDER)
    holders["device"] = -1
    return holders


def offers_table(kinds: int, width: int) -> tuple[Array, Array]:
    """Room for ``width`` offers to each kind of devices, and for their tiers."""
    return np.zeros((kinds, width), np.int64), np.zeros((kinds, width, 2))
