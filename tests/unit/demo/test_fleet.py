"""A fleet's phones against a server by script, in virtual time: when they come and go, and how a task can end."""

import asyncio
import json
import selectors
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

from tests.unit.sdk.fake import SERVER, FakeServer, model, offer, problem
from vennue.core.errors import InvalidInput
from vennue.core.ids import AssignmentId, Digest
from vennue.protocol import CheckInAnswer, ReportReceipt
from vennue.simulation.traces import Trace, phone_population, phone_trace
from vennue.testing.fleet import Fleet, FleetRun, Schedule, State, Trained

CHECK_IN = "POST /v1/check-ins"
REPORT = "PUT /v1/assignments/j1.1.1.1/report"
ABORT = "POST /v1/assignments/j1.1.1.1/abort"
RECEIPT = ReportReceipt(assignment=AssignmentId("j1.1.1.1"), sha256=Digest("0" * 64))
ACCEPTED = 204


class Jumping(selectors.DefaultSelector):
    """A selector that never waits: it moves its loop's clock instead."""

    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        events = super().select(0)
        if not events and timeout:
            self._loop._now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only by being waited for: it jumps to the next timer."""

    def __init__(self):
        self._now = 0.0
        super().__init__(Jumping(self))

    def time(self):
        return self._now


class AtOnce(Executor):
    """Runs what it is given on the spot."""

    def submit(self, function, /, *args, **kwargs):
        done: Future[Any] = Future()
        done.set_result(function(*args, **kwargs))
        return done


class Learner:
    """Adds one to the model; or, as told, has no data."""

    def __init__(self):
        self.trained = []
        self.has_data = True

    def private(self, device):
        return {"samples": 100 * device}

    def train(self, device, task):
        self.trained.append(device)
        if not self.has_data:
            return None
        return Trained({name: values + 1 for name, values in task.model.items()}, 7, {"loss": 0.5})


class Clocked(FakeServer):
    """Notes when each call came."""

    def __init__(self):
        super().__init__()
        self.times = []
        self.model = self.holds(model(1, 2))

    async def handle_async_request(self, request):
        self.times.append((asyncio.get_running_loop().time(), request.method, request.url.path))
        return await super().handle_async_request(request)

    def at(self, ending):
        return [time for time, _, path in self.times if path.endswith(ending)]


@pytest.fixture
def server():
    """One with a task for the first check-in and none after it."""
    server = Clocked()
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model)), CheckInAnswer(retry_after_s=1000.0))
    server.on(REPORT, RECEIPT)
    server.on(ABORT, RECEIPT)
    return server


def fleet(*sessions, devices=1, period_s=100_000.0, speedup=1.0, **changes):
    starts, ends = zip(*sessions, strict=True)
    trace = Trace([0] * len(sessions), starts, ends, period_s=period_s)
    return Fleet(devices=devices, trace=trace, population=phone_population(seed=0), speedup=speedup, **changes)


def run(server, fleet, *, until_s, learner=None):
    """The run of a fleet up to a moment; what it has done by then."""
    done = FleetRun(fleet, SERVER, learner or Learner(), network=server, workers=AtOnce())

    async def main():
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(until_s, stop.set)
        await done.run(stop)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return done


def task_s(fleet):
    """How long a task takes the fleet's first phone, in simulated seconds."""
    return fleet.phones()[0].task_s


def test_a_phone_checks_in_when_its_session_begins(server):
    run(server, fleet((300.0, 5000.0)), until_s=310)

    assert server.at("/check-ins") == [300.0]


def test_simulated_time_passes_as_many_times_as_fast_as_asked(server):
    run(server, fleet((300.0, 5000.0), speedup=100.0), until_s=4)

    assert server.at("/check-ins")[0] == 3.0


def test_a_session_that_is_under_way_when_the_fleet_starts_begins_at_once(server):
    # The session crosses the end of the period, so at second 0 the phone has been there for a while.
    run(server, fleet((90_000.0, 103_000.0), period_s=100_000.0), until_s=10)

    assert server.at("/check-ins") == [0.0]


def test_a_task_takes_as_long_as_the_phones_speed_says_and_is_reported_with_its_examples(server):
    phones = fleet((0.0, 50_000.0))

    done = run(server, phones, until_s=5000)

    assert server.at("/report") == [pytest.approx(task_s(phones))]
    request = server.sent(REPORT)[0]
    assert request.headers["vennue-examples"] == "7.0"
    assert json.loads(request.headers["vennue-metrics"]) == {"loss": 0.5}
    assert (done.summary.tasks, done.summary.reports, done.summary.drop_outs) == (1, 1, 0)


def test_after_a_task_a_phone_rests_before_it_checks_in_again(server):
    phones = fleet((0.0, 50_000.0), rest_s=600.0)

    run(server, phones, until_s=task_s(phones) + 700)

    assert server.at("/check-ins") == [0.0, pytest.approx(task_s(phones) + 600)]


def test_a_phone_whose_session_ends_at_work_vanishes_without_a_word(server):
    phones = fleet((0.0, 20.0))
    assert task_s(phones) > 20

    done = run(server, phones, until_s=1000)

    assert done.summary.drop_outs == 1
    assert done.summary.reports == 0
    assert server.at("/report") == server.at("/abort") == []
    assert max(time for time, *_ in server.times) < 20


def test_a_phone_that_was_lost_comes_back_with_its_next_session(server):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model)))
    phones = fleet((0.0, 20.0), (1000.0, 5000.0), rest_s=5000.0)

    done = run(server, phones, until_s=2000)

    assert done.summary.sessions == 2
    assert done.summary.reports == 1


def test_a_phone_that_waits_when_its_session_ends_is_no_loss(server):
    server.on(CHECK_IN, CheckInAnswer(retry_after_s=5.0))

    done = run(server, fleet((0.0, 18.0)), until_s=100)

    assert done.summary.drop_outs == 0
    assert server.at("/check-ins")[0] == 0.0
    assert max(server.at("/check-ins")) < 18


def test_a_report_that_comes_too_late_is_counted_as_late(server):
    server.on(REPORT, problem(409, "too-late"))

    done = run(server, fleet((0.0, 50_000.0)), until_s=5000)

    assert (done.summary.reports, done.summary.late) == (0, 1)


def test_a_phone_without_data_for_a_job_declines_it(server):
    server.on("POST /v1/assignments/j1.1.1.1/decline", CheckInAnswer(retry_after_s=1000.0))
    learner = Learner()
    learner.has_data = False

    done = run(server, fleet((0.0, 50_000.0)), until_s=500, learner=learner)

    assert (done.summary.declined, done.summary.reports) == (1, 0)


def test_a_private_requirement_is_met_by_what_only_the_phone_knows(server):
    task = offer(server.model, private_requirement="device.samples >= 50")
    server.on(CHECK_IN, CheckInAnswer(task=task), CheckInAnswer(retry_after_s=1000.0))
    server.on("POST /v1/assignments/j1.1.1.1/decline", CheckInAnswer(retry_after_s=1000.0))

    done = run(server, fleet((0.0, 50_000.0)), until_s=500)  # phone 0 has 0 samples

    assert done.summary.declined == 1
    assert b"samples" not in server.sent(CHECK_IN)[0].content


def test_a_fleet_that_stops_gives_held_tasks_back(server):
    phones = fleet((0.0, 50_000.0))

    done = run(server, phones, until_s=task_s(phones) / 2)

    assert len(server.sent(ABORT)) == 1
    assert done.summary.drop_outs == 0
    assert done.states() == {State.AWAY: 1}


def test_a_server_that_fails_ends_a_session_but_not_the_fleet(server):
    server.on(CHECK_IN, problem(403, "forbidden"))

    done = run(server, fleet((0.0, 100.0), (1000.0, 1100.0)), until_s=2000)

    assert done.summary.failures == 2
    assert done.summary.sessions == 2


def test_bytes_of_bodies_are_counted_both_ways(server):
    done = run(server, fleet((0.0, 50_000.0)), until_s=5000)

    assert done.summary.sent_bytes == sum(len(request.content) for request in server.requests)
    assert done.summary.received_bytes > len(server.blobs[server.model])


def test_the_same_seed_gives_the_same_phones_and_another_seed_others():
    def phones(seed):
        made = Fleet(devices=50, trace=phone_trace(), population=phone_population(seed=seed), seed=seed).phones()
        return [(phone.id, dict(phone.attributes), phone.task_s, phone.schedule) for phone in made]

    assert phones(1) == phones(1)
    assert phones(1) != phones(2)


def test_phones_beyond_those_of_the_trace_follow_them_a_day_later():
    one, other = fleet((0.0, 100.0), period_s=5 * 86_400.0, devices=2).phones()

    assert one.schedule.sessions == [(0.0, 100.0)]
    assert other.schedule.sessions == [(86_400.0, 86_500.0)]


def test_sessions_with_less_than_a_minute_between_them_are_one():
    (phone,) = fleet((0.0, 100.0), (150.0, 300.0), (400.0, 500.0)).phones()

    assert phone.schedule.sessions == [(0.0, 300.0), (400.0, 500.0)]


def test_a_schedule_repeats_with_its_period():
    sessions = Schedule([(10.0, 20.0), (95.0, 103.0)], 100.0).from_start()

    assert [next(sessions) for _ in range(4)] == [(0.0, 3.0), (10.0, 20.0), (95.0, 103.0), (110.0, 120.0)]


def test_a_shifted_schedule_keeps_its_sessions_within_the_period():
    shifted = Schedule([(10.0, 20.0), (95.0, 103.0)], 100.0).later(30.0)

    assert shifted.sessions == [(25.0, 33.0), (40.0, 50.0)]


@pytest.mark.parametrize(
    ("field", "value"), [("devices", 0), ("speedup", -1.0), ("speedup", float("inf")), ("threads", 0), ("rest_s", -1.0)]
)
def test_numbers_that_make_no_sense_are_refused_by_name(field, value):
    with pytest.raises(InvalidInput) as caught:
        fleet((0.0, 1.0), **{field: value})
    assert caught.value.field == field


def test_phones_are_of_kinds_that_the_pool_knows():
    phone = fleet((0.0, 1.0)).phones()[0]

    assert set(phone.attributes) == {"model", "cpu_score", "ram_gb", "memory_score", "android", "latency_ms"}
    assert np.isfinite(phone.task_s)
