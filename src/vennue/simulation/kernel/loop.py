"""The kernel's loop: sessions begin, devices check in, work and come back, in the order of time.

`advance` goes on until it needs what only Python can give (a plan, a batch of sessions, room) and says so with a code.
What happens is taken up again where it stopped, so `advance` makes those plans in the same way that it can make itself.
All that it calls is compiled into it, and again at each level of calls in between: the fewer levels, the sooner.
"""

import math
from typing import Any

from vennue.simulation.kernel.learning import observe_check_in, observe_report
from vennue.simulation.kernel.matching import match
from vennue.simulation.kernel.partition import settle
from vennue.simulation.kernel.planning import BY_LOTTERY, IN_PYTHON, draw_lotteries, list_offers, make_plan
from vennue.simulation.kernel.requests import is_needy, needs
from vennue.simulation.kernel.rounds import close, commit_round, commit_update, fire, give_back, open_attempt, remove
from vennue.simulation.kernel.state import (
    FINISHED,
    FIRST,
    HORIZON,
    JOB_ENDED,
    NEED_ARRIVAL,
    NEED_COUNT,
    NEED_LOG,
    NEED_LOTTERIES,
    NEED_OFFERS,
    NEED_PLAN,
    NEED_RATES,
    NEED_ROOM,
    NEED_SESSIONS,
    PAUSED,
    UNIFORM,
    Plans,
    State,
    compiled,
    kept,
)
from vennue.simulation.kernel.tables import find, insert, pop_finish, push_finish, set_timer
from vennue.simulation.result import add_interval
from vennue.simulation.world import STEP, Batch

_add_interval = compiled(add_interval)


@kept
def advance(s: State, p: Plans, batch: Batch, count: int, events: int) -> int:
    """Handle up to ``events`` events, the sessions being the first ``count`` of the batch. Returns a code."""
    c = s.clock[0]
    for _ in range(events):
        code = _lacks(s, count)
        if code >= 0:
            return code
        session_at = batch.time_s[c.index] if c.index < count else math.inf
        at = min(session_at, _next_at(s))
        if at >= c.horizon_s:
            c.now = c.horizon_s
            return HORIZON
        c.now = at
        code = _happen(s, p, batch, at)
        if code == NEED_PLAN and c.ranking != IN_PYTHON:
            make_plan(s, p, at)
            if c.tiers > 1:
                match(s, p, at)
        elif code == NEED_OFFERS and c.ranking != IN_PYTHON:
            list_offers(s, p, c.kind)
        elif code >= 0:
            return code
    return PAUSED


@kept
def arrive(s: State, job: int, now: float) -> None:
    """A job arrives and opens its first round."""
    open_attempt(s, job, 1, 1, now, now)


@kept
def enter(s: State, device: int, slot: int) -> None:
    """Enter a live assignment in the table of devices."""
    insert(s, device, slot)


@compiled
def _lacks(s: State, count: int) -> int:
    """What Python must do before anything else can happen: a code, or −1."""
    c = s.clock[0]
    if c.ended != 0:
        return JOB_ENDED
    if c.running == 0:
        return FINISHED
    if c.index == count and c.exhausted == 0:
        return NEED_SESSIONS
    if c.free_visit < 0 or c.free_slot < 0:
        return NEED_ROOM
    if c.attempts + len(s.jobs) > len(s.attempts) or c.assignments == len(s.assignments):
        return NEED_LOG
    return -1


@compiled
def _arrival_at(s: State) -> float:
    arrived = s.clock[0].arrived
    return s.jobs[arrived].arrival_s if arrived < len(s.jobs) else math.inf


@compiled
def _finish_at(s: State) -> float:
    return s.finishes[0].time_s if s.clock[0].finishes > 0 else math.inf


@compiled
def _poll_at(s: State) -> float:
    return s.polls[s.clock[0].first_poll].time_s if s.clock[0].polls > 0 else math.inf


@compiled
def _next_at(s: State) -> float:
    """When something other than the beginning of a session happens next."""
    return min(s.timers[1], _arrival_at(s), _finish_at(s), _poll_at(s))


@compiled
def _happen(s: State, p: Plans, batch: Batch, at: float) -> int:
    """The first of what happens now. A code when Python must do something first, else −1."""
    c = s.clock[0]
    if at == s.timers[1]:
        fire(s, at)
        return -1
    if at == _arrival_at(s):
        return NEED_ARRIVAL
    if at == _finish_at(s):
        _finish(s, pop_finish(s), at)
        return -1
    polls = at == _poll_at(s)
    if c.phase == 0:
        c.visit = s.polls[c.first_poll].visit if polls else _begin_session(s, batch)
    code = _check_in(s, p, c.visit, at)
    if code >= 0:
        return code
    if polls:
        c.first_poll = (c.first_poll + 1) % len(s.polls)
        c.polls -= 1
    else:
        c.index += 1
    _go_on(s, c.visit, at)
    return -1


# -- devices ---------------------------------------------------------------------------------------------------------


@compiled
def _begin_session(s: State, batch: Batch) -> int:
    """The visit of the batch's next session."""
    c = s.clock[0]
    visit = c.free_visit
    v = s.visits[visit]
    c.free_visit = v.slot
    v.session = c.session
    c.session += 1
    v.device = batch.device[c.index]
    v.end_s = batch.end_s[c.index]
    v.kind = batch.kind[c.index]
    v.slowness = batch.slowness[c.index]
    v.link_s = batch.link_s[c.index]
    v.dispatch = batch.dispatch[c.index]
    v.choice = batch.choice[c.index]
    v.asked = 0
    v.tasks = 0
    return visit


@compiled
def _leave(s: State, visit: int) -> None:
    """The device is of no further interest."""
    s.visits[visit].slot = s.clock[0].free_visit
    s.clock[0].free_visit = visit


@compiled
def _check_in(s: State, p: Plans, visit: int, now: float) -> int:
    """`Pool._check_in`: sets the visit's slot to the assignment it got or held, or −1. A code, or −1 when done.

    ``phase`` says how far it got before it needed Python: 1 counted, 2 declined what it held.
    """
    c = s.clock[0]
    v = s.visits[visit]
    if c.phase == 0:
        code = _count(s, v, now)
        if code >= 0:
            return code
    code = _plan(s, now)
    if code >= 0:
        return code
    if c.phase == 1:
        held = find(s, v.device) if c.anonymous == 0 else -1
        if held >= 0:
            slot = s.slots[held]
            if slot.bound_at == now:
                _note_bound(s, slot.job, now)
            if _fits(s, v, slot.job, now):
                v.slot = held
                v.generation = slot.generation
                c.phase = 0
                return -1
            give_back(s, held)
            c.phase = 2
            code = _plan(s, now)
            if code >= 0:
                return code
    if s.kinds[v.kind].plan != c.plan:
        c.kind = v.kind
        return NEED_OFFERS
    _take_offer(s, p, v, now)
    c.phase = 0
    return -1


@compiled
def _count(s: State, v: Any, now: float) -> int:
    """What `Pool._check_in` observes. A code, or −1 when done."""
    c = s.clock[0]
    kind = s.kinds[v.kind]
    kind.check_ins += 1
    v.asked += 1
    v.slot = -1
    c.phase = 1
    if c.tiers > 1:
        observe_check_in(s, v.kind, _response_s(s, v))
    if now >= c.turns_at or kind.seen == 0:
        return NEED_COUNT
    kind.news += 1
    return -1


@compiled
def _plan(s: State, now: float) -> int:
    """Whether the plan is out of date: a code, or −1 when it is not."""
    c = s.clock[0]
    if now < c.stale_at or now - c.planned_at < c.replan_s:
        return -1
    if (c.grouped != 0 or c.tiers > 1) and c.renewed == 0 and now >= c.rates_until:
        return NEED_RATES
    if (c.ranking == BY_LOTTERY or c.tiers > 1) and not draw_lotteries(s):
        return NEED_LOTTERIES
    return NEED_PLAN


@compiled
def _take_offer(s: State, p: Plans, v: Any, now: float) -> None:
    """`BindingTable.bind`."""
    choice = s.clock[0].choice
    if choice == FIRST:
        job = _choose(s, p, v, now)
    elif choice == UNIFORM:
        job = _choose_uniform(s, p, v, now)
    else:
        job = _choose_settled(s, p, v, now)
    if job >= 0:
        _bind(s, v, job, now)


@compiled
def _choose(s: State, p: Plans, v: Any, now: float) -> int:
    """`RegionOffers.first`: the job of the first offer that is open to the device, or −1."""
    c = s.clock[0]
    kind = s.kinds[v.kind]
    offers = p.offers[v.kind]
    tiers = p.tiers[v.kind]
    if kind.epoch != c.epoch:
        kind.epoch = c.epoch
        kind.cursor = 0
    response_s = _response_s(s, v)
    passed_over = False
    for index in range(kind.cursor, kind.length):
        job = offers[index]
        if not _is_offered(s, job):
            if not passed_over:
                kind.cursor = index + 1
        elif (c.tiered == 0 or tiers[index, 0] <= response_s < tiers[index, 1]) and _fits(s, v, job, now):
            return job
        else:
            passed_over = True
    return -1


@compiled
def _response_s(s: State, v: Any) -> float:
    """How long the device is expected to take, as it says at each check-in."""
    return s.clock[0].expected_workload_s * v.slowness + v.link_s


@compiled
def _choose_uniform(s: State, p: Plans, v: Any, now: float) -> int:
    """`RegionOffers.uniform`."""
    offers = p.offers[v.kind]
    length = s.kinds[v.kind].length
    choices = 0
    for index in range(length):
        choices += _is_offered(s, offers[index]) and _fits(s, v, offers[index], now)
    left = int(_draw(v) * choices)
    for index in range(length):
        if _is_offered(s, offers[index]) and _fits(s, v, offers[index], now):
            if left == 0:
                return offers[index]
            left -= 1
    return -1


@compiled
def _choose_settled(s: State, p: Plans, v: Any, now: float) -> int:
    """`RegionOffers.picked`."""
    job = settle(s, p, v, _draw(v))
    return job if job >= 0 and needs(s, job) > 0 and _fits(s, v, job, now) else -1


@compiled
def _draw(v: Any) -> float:
    """The check-in's uniform number in [0, 1)."""
    return (v.choice + (v.asked - 1) * STEP) % 1.0


@compiled
def _is_offered(s: State, job: int) -> bool:
    """Whether the attempt that the plan offers devices to is still open, and needs some."""
    return s.jobs[job].serial == s.jobs[job].planned and is_needy(s, job)


@compiled
def _fits(s: State, v: Any, job: int, now: float) -> bool:
    return s.clock[0].fits_only == 0 or now + s.jobs[job].nominal_s <= v.end_s


@compiled
def _bind(s: State, v: Any, job: int, now: float) -> None:
    """`BindingTable._bind`: a new assignment at the end of the job's list."""
    c = s.clock[0]
    j = s.jobs[job]
    index = c.free_slot
    slot = s.slots[index]
    c.free_slot = slot.next
    c.generation += 1
    slot.generation = c.generation
    slot.device = v.device
    slot.kind = v.kind
    slot.job = job
    slot.version = j.version
    slot.bound_at = now
    slot.expires_at = now + j.lease_s
    slot.response_s = _response_s(s, v)
    slot.previous = j.tail
    slot.next = -1
    if j.tail >= 0:
        s.slots[j.tail].next = index
    else:
        j.head = index
    j.tail = index
    j.live += 1
    j.bound += 1
    if j.head == index:
        set_timer(s, job)
    if c.anonymous == 0:
        insert(s, v.device, index)
    v.slot = index
    v.generation = c.generation
    if c.keep != 0:
        row = s.assignments[c.assignments]
        c.assignments += 1
        row.session = v.session
        row.job = job
        row.round = j.round
        row.number = j.number
        row.bound_s = now
    _note_bound(s, job, now)


@compiled
def _note_bound(s: State, job: int, now: float) -> None:
    """What `Pool._give` does after a bind."""
    j = s.jobs[job]
    if j.asynchronous == 0 or j.was_filled == 0:
        j.last_bound_at = now
    if needs(s, job) <= 0:
        j.filled = 1
        j.was_filled = 1
        s.clock[0].stale_at = -math.inf


@compiled
def _go_on(s: State, visit: int, now: float) -> None:
    """The device starts the task that it got, or waits."""
    c = s.clock[0]
    v = s.visits[visit]
    if v.slot < 0:
        _ask_again(s, visit, now)
        return
    slot = s.slots[v.slot]
    v.tasks += 1
    delay_s = c.dispatch_s * ((v.dispatch + (v.asked - 1) * STEP) % 1.0)
    task_s = s.jobs[slot.job].workload_s * v.slowness + v.link_s
    finish_at = now + (delay_s + task_s)
    slot.finish_at = finish_at
    slot.end_s = v.end_s
    _add_interval(s.busy, c.bin_s, now, min(finish_at, v.end_s, c.limit_s))
    j = s.jobs[slot.job]
    in_vain = c.poll_s == 0 and j.asynchronous == 0 and finish_at >= j.deadline_at
    if finish_at > v.end_s or in_vain:
        _leave(s, visit)
    else:
        push_finish(s, finish_at, visit)


@compiled
def _ask_again(s: State, visit: int, now: float) -> None:
    c = s.clock[0]
    v = s.visits[visit]
    again_at = now + c.poll_s
    if c.poll_s == 0 or (c.tasks != 0 and v.tasks >= c.tasks) or again_at >= v.end_s:
        _leave(s, visit)
        return
    poll = s.polls[(c.first_poll + c.polls) % len(s.polls)]
    c.polls += 1
    poll.time_s = again_at
    poll.visit = visit


@compiled
def _finish(s: State, visit: int, now: float) -> None:
    """`Pool._report`: a task is done."""
    c = s.clock[0]
    v = s.visits[visit]
    index = v.slot
    if s.slots[index].generation == v.generation:
        job = s.slots[index].job
        j = s.jobs[job]
        if j.asynchronous != 0 and j.version - s.slots[index].version > j.max_staleness:
            give_back(s, index)
        else:
            if c.tiers > 1 and j.asynchronous == 0:
                observe_report(s, job, s.slots[index].response_s, now - s.slots[index].bound_at)
            remove(s, index)
            j.reported += 1
            if j.asynchronous != 0:
                c.epoch += 1
                if j.filled != 0:
                    j.filled = 0
                    c.stale_at = -math.inf
            if j.reported >= j.goal and j.asynchronous != 0:
                commit_update(s, job, now)
            elif j.reported >= j.goal:
                close(s, job)
                commit_round(s, job, now)
    _ask_again(s, visit, now)
