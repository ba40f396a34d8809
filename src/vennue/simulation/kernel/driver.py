"""Drives the compiled loop: feeds it sessions and plans, keeps the supply, and collects what it leaves behind.

Policies are asked exactly when the pool would ask them, about the same view: the same requests, the same rates. They
see `Request` objects whose assignment tables are mere lengths.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from vennue.core.assignment import Assignment
from vennue.core.errors import InvalidInput, described
from vennue.core.ids import AssignmentId, AttemptId, attempt_id
from vennue.core.plan import EMPTY_PLAN, Plan, Planner, PoolView, Request
from vennue.core.region import RequirementRegistry
from vennue.core.round import lottery
from vennue.policies.allocation import Regions
from vennue.simulation.kernel import state as codes
from vennue.simulation.kernel.checks import Checks
from vennue.simulation.kernel.loop import advance, arrive, enter
from vennue.simulation.kernel.setup import grown, link, new_plans, new_state, no_holders, offers_table, with_regions
from vennue.simulation.kernel.state import Array
from vennue.simulation.result import (
    FATES,
    MAX_ATTEMPTS,
    Columns,
    End,
    Usage,
    in_order,
    job_columns,
    region_columns,
    too_many_attempts,
)
from vennue.simulation.world import Batch, World

_EVENTS_PER_CALL = 500_000
_EVENTS_PER_CHECK = 10_000
_CALLS_PER_LOOK = 256
"""Plans that take Python a few milliseconds each: Ctrl-C is heard within a second or two among them, too."""


class KernelEngine:
    """Runs a world under a policy, once.

    Args:
        world: the world.
        planner: the policy.
        validate: check the invariants that the kernel's memory can show, every 10 000 events.
        keep_assignments: whether to keep a row for every device bound.
    """

    name = "kernel"

    def __init__(
        self, world: World, planner: Planner, *, validate: bool = False, keep_assignments: bool = False
    ) -> None:
        self._world = world
        self._planner = planner
        self._registry = RequirementRegistry()
        self._supply = world.supply()
        self._bits = [-1] * len(world.jobs)
        self._requests: list[Request | None] = [None] * len(world.jobs)
        self._plan: Plan = EMPTY_PLAN
        self.usage = Usage(world.horizon_s)
        self._state = new_state(world, planner, self.usage, keep_assignments=keep_assignments)
        self._plans = new_plans(world, planner)
        self._clock = self._state.clock[0]
        self._batches: Iterator[Batch] = world.batches()
        self._batch = _NO_SESSIONS
        self._attempts: list[Array] = []
        self._assignments: list[Array] = []
        self._keep_assignments = keep_assignments
        self._checks = Checks(self._plans.meets) if validate else None

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self, look: Callable[[], bool]) -> End:
        """Run to the end, or until ``look``, which is called now and then, says to stop."""
        handlers: dict[int, Callable[[], None]] = {
            codes.NEED_SESSIONS: self._next_batch,
            codes.NEED_ROOM: self._make_room,
            codes.NEED_LOG: self._make_room_for_logs,
            codes.NEED_ARRIVAL: self._job_arrives,
            codes.JOB_ENDED: self._jobs_end,
            codes.NEED_COUNT: self._count_check_in,
            codes.NEED_PLAN: self._make_plan,
            codes.NEED_OFFERS: self._list_offers,
            codes.NEED_RATES: self._renew_rates,
            codes.NEED_LOTTERIES: self._draw_lotteries,
            codes.PAUSED: lambda: None,
        }
        events = _EVENTS_PER_CALL if self._checks is None else _EVENTS_PER_CHECK
        for calls in itertools.count(1):
            code = advance(self._state, self._plans, self._batch, len(self._batch.time_s), events)
            if self._checks is not None and code in {codes.PAUSED, codes.FINISHED, codes.HORIZON}:
                self._checks.check(self._state)
            if code == codes.FINISHED:
                return "finished"
            if code == codes.HORIZON:
                return "horizon"
            if (code in {codes.NEED_SESSIONS, codes.PAUSED} or calls % _CALLS_PER_LOOK == 0) and look():
                return "stopped"
            handlers[code]()
        raise AssertionError("the loop has no other end")

    def _next_batch(self) -> None:
        self._count_online()
        batch = next(self._batches, None)
        self._clock["exhausted"] = batch is None
        self._batch = _NO_SESSIONS if batch is None else batch
        self._clock["index"] = 0

    def _count_online(self) -> None:
        self.usage.add_sessions(self._batch, int(self._clock["index"]))

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _job_arrives(self) -> None:
        index = int(self._clock["arrived"])
        job = self._world.jobs[index]
        self._bits[index] = self._registry.register(self._world.requirements[job.requirement])
        self._clock["arrived"] = index + 1
        self._clock["registry"] = self._registry.version
        self._clock["rates_until"] = -math.inf
        self._state.jobs["state"][index] = codes.ACTIVE
        if job.spec.time_limit_s is not None:
            self._state.jobs["limit_at"][index] = job.arrival_s + job.spec.time_limit_s
        arrive(self._state, index, float(self._clock["now"]))

    def _jobs_end(self) -> None:
        order = self._state.jobs["ended_as"]
        for index in sorted(np.flatnonzero(order).tolist(), key=order.tolist().__getitem__):
            self._registry.release(self._bits[index])
            self._bits[index] = -1
        order[:] = 0
        self._clock["ended"] = 0
        self._clock["registry"] = self._registry.version
        self._clock["rates_until"] = -math.inf

    # -- supply and plans -------------------------------------------------------------------------------------------

    def _count_check_in(self) -> None:
        """Count a check-in that turns the supply's bucket, or is the first of its kind."""
        self._count_news()
        kind = int(self._state.visits["kind"][self._clock["visit"]])
        self._supply.observe(self._world.kinds[kind], float(self._clock["now"]))
        self._state.kinds["seen"][kind] = 1
        self._clock["turns_at"] = self._supply.turns_at

    def _count_news(self) -> None:
        """Tell the supply of the check-ins since the last time, all within its open bucket."""
        news = self._state.kinds["news"]
        within = math.nextafter(self._supply.turns_at, -math.inf)
        for kind in np.flatnonzero(news).tolist():
            self._supply.observe(self._world.kinds[kind], within, int(news[kind]))
        news[:] = 0

    def _renew_rates(self) -> None:
        """Take over the supply, for plans that are made in compiled code."""
        clock = self._clock
        self._count_news()
        rates = self._supply.region_rates(self._registry, float(clock["now"]))
        clock["rates_until"] = self._supply.rates_until
        clock["renewed"] = 1  # good for one plan, even if they are out of date at once
        regions = Regions(rates)
        cover = [0] * len(self._plans.groups)
        for job, bit in zip(self._world.jobs, self._bits, strict=True):
            if bit >= 0:
                cover[job.requirement], self._plans.groups["supply_per_s"][job.requirement] = regions.cover(bit)
        place = {signature: index for index, signature in enumerate(sorted(rates))}
        self._plans = with_regions(
            self._plans,
            [regions.part(1 << index)[0] for index in range(len(rates))],
            [place.get(self._registry.signature(profile), -1) for profile in self._world.kinds],
            cover,
        )

    def _draw_lotteries(self) -> None:
        jobs = self._state.jobs
        lotteries = self._state.lessons.lotteries
        for index in np.flatnonzero((jobs["open"] != 0) & (jobs["drawn"] != jobs["serial"])).tolist():
            row = jobs[index]
            job, first, number = self._world.jobs[index].id, int(row["round"]), int(row["number"])
            row["lottery"] = lottery(self._world.seed, attempt_id(job, first, number))
            row["drawn"] = row["serial"]
            if number == 1:
                row["foreseen"] = first
                for ahead in range(lotteries.shape[1]):
                    lotteries[index, ahead] = lottery(self._world.seed, attempt_id(job, first + ahead, 1))

    def _make_plan(self) -> None:
        """`Pool._replan`."""
        clock, jobs = self._clock, self._state.jobs
        now = float(clock["now"])
        self._count_news()
        rates = self._supply.region_rates(self._registry, now)
        view = PoolView(now, self._needy(), rates, rates_version=self._supply.rates_version)
        try:
            self._plan = self._planner.plan(view)
        except Exception as error:
            reason = described(error, type(self._planner).__module__)
            raise InvalidInput(
                f"the policy failed at {now:.3f} s: {reason}", field="policy", fix="correct it"
            ) from error
        if callable(self._plan.choice):
            raise InvalidInput(
                "the kernel does not know the function by which the policy's plan chooses", field="policy",
                fix="run it with the engine reference, or set its sees_everyone",
            )  # fmt: skip
        clock["stale_at"] = self._plan.until if self._plan.until > now else math.inf
        jobs["planned"] = jobs["serial"]
        clock["choice"] = codes.UNIFORM if self._plan.choice == "uniform" else codes.FIRST
        clock["tiered"] = 0
        clock["planned_at"] = now
        clock["plans"] += 1
        clock["plan"] += 1
        clock["epoch"] += 1

    def _needy(self) -> list[Request]:
        """The open requests that need devices, in the order in which they opened."""
        jobs = self._state.jobs
        found = []
        for index in np.flatnonzero(jobs["open"]).tolist():
            row = jobs[index]
            request = self._request(index, row)
            request.live = cast("dict[AssignmentId, Assignment]", range(row["live"]))
            request.reported = cast("dict[AssignmentId, Assignment]", range(row["reported"]))
            if request.continuous:
                request.attained = int(row["service"])
                request.committed = int(row["committed"])
                request.rounds_left = int(row["rounds"]) - request.committed
            if request.needs > 0:
                found.append((int(row["serial"]), request))
        found.sort(key=lambda item: item[0])
        return [request for _, request in found]

    def _request(self, index: int, row: Any) -> Request:
        """The request of a job's open attempt, as `Pool._open_attempt` makes it."""
        job = self._world.jobs[index]
        spec = job.spec
        attempt = attempt_id(job.id, int(row["round"]), int(row["number"]))
        request = self._requests[index]
        if request is None or request.attempt != attempt:
            opened_at = float(row["opened_at"])
            request = self._requests[index] = Request(
                attempt,
                job.id,
                self._bits[index],
                demand=spec.demand,
                wanted=int(row["wanted"]),
                opened_at=opened_at,
                deadline_at=None if spec.deadline_s is None else opened_at + spec.deadline_s,
                arrival=index,
                rounds_left=int(row["rounds"] - row["committed"]),
                attained=int(row["service"]),
                lottery=lottery(self._world.seed, attempt),
                weight=spec.weight,
                continuous=spec.mode == "async",
                arrived_at=job.arrival_s,
                committed=int(row["committed"]),
                waiting_since=float(row["waiting_since"]),
            )
        return request

    def _list_offers(self) -> None:
        """List the plan's offers to a kind of devices, for the attempts that are open."""
        state, kind = self._state, int(self._clock["kind"])
        jobs = state.jobs
        signature = self._registry.signature(self._world.kinds[kind])
        open_now: dict[AttemptId, int] = {
            request.attempt: index
            for index, request in enumerate(self._requests)
            if request is not None and jobs["open"][index] and jobs["serial"][index] == jobs["planned"][index]
        }
        listed = [(open_now[offer.attempt], offer) for offer in self._plan.walk(signature) if offer.attempt in open_now]
        plans = self._plans
        if len(listed) > plans.offers.shape[1]:
            offers, tiers = offers_table(len(state.kinds), 2 * len(listed))
            offers[:, : plans.offers.shape[1]] = plans.offers
            tiers[:, : plans.tiers.shape[1]] = plans.tiers
            self._plans = plans = plans._replace(offers=offers, tiers=tiers)
        for place, (index, offer) in enumerate(listed):
            plans.offers[kind, place] = index
            if offer.tier is None:
                plans.tiers[kind, place] = -math.inf, math.inf
            else:
                plans.tiers[kind, place] = offer.tier.low_s, offer.tier.high_s
                self._clock["tiered"] = 1
        row = state.kinds[kind]
        row["plan"] = self._clock["plan"]
        row["length"] = len(listed)
        row["cursor"] = 0
        row["epoch"] = self._clock["epoch"]

    # -- room -------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Twice as many visits and assignments as there are."""
        state, clock = self._state, self._clock
        if clock["free_visit"] < 0:
            size = len(state.visits)
            visits = grown(state.visits)
            clock["free_visit"] = link(visits["slot"], size)
            polls = np.zeros(len(visits), codes.POLL)
            polls[:size] = np.roll(state.polls, -int(clock["first_poll"]))
            clock["first_poll"] = 0
            self._state = state._replace(visits=visits, polls=polls, finishes=grown(state.finishes))
        else:
            size = len(state.slots)
            slots = grown(state.slots)
            clock["free_slot"] = link(slots["next"], size)
            self._state = state._replace(slots=slots, holders=no_holders(len(slots)))
            if not clock["anonymous"]:
                for slot in np.flatnonzero(slots["generation"]).tolist():
                    enter(self._state, int(slots["device"][slot]), slot)

    def _make_room_for_logs(self) -> None:
        self._collect_logs()
        if sum(map(len, self._attempts)) >= MAX_ATTEMPTS:
            raise too_many_attempts(self.now, self.done)

    def _collect_logs(self) -> None:
        state, clock = self._state, self._clock
        self._attempts.append(state.attempts[: clock["attempts"]].copy())
        self._assignments.append(state.assignments[: clock["assignments"]].copy())
        clock["attempts"] = clock["assignments"] = 0

    # -- what is left behind ----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual time."""
        return float(self._clock["now"])

    @property
    def done(self) -> float:
        """Device-rounds committed so far."""
        return float(self._state.jobs["used"].sum())

    def columns(self) -> dict[str, Any]:
        """The fields of `RunResult` that the run decides."""
        self._count_online()
        self._batch = _NO_SESSIONS
        self._collect_logs()
        jobs = self._state.jobs
        columns = job_columns(self._world)
        columns["ended_s"] = jobs["ended_at"].copy()
        columns["state"] = np.array(codes.STATES)[jobs["state"]]
        for name in ("committed", "attempts", "scheduling_delay_s", "collection_s", "bound", *FATES):
            columns[name] = jobs[name].copy()
        return {
            "jobs": columns,
            "attempts": in_order(_columns(self._attempts)),
            "assignments": _columns(self._assignments) if self._keep_assignments else None,
            "regions": region_columns(self._world, self._state.kinds["check_ins"].copy()),
            "sessions": int(self._clock["session"]),
            "plans": int(self._clock["plans"]),
        }


_NO_SESSIONS = Batch(*(np.empty(0, kind) for kind in ("f8", "i8", "f8", "i8", "f8", "f8", "f8", "f8")))


def _columns(logs: list[Array]) -> Columns:
    log = np.concatenate(logs)
    return {name: log[name].copy() for name in log.dtype.names or ()}
