"""Jobs: submitting, running rounds, going on after a stop, and the ways in which a job ends."""

import asyncio
import threading

import httpx
import msgspec
import numpy as np
import pytest

from tests.unit.sdk.fake import SERVER, FakeServer, answer, job_view, model, problem, round_view
from vennue import protocol
from vennue.core.errors import Conflict, InvalidInput, InvalidModel, JobEnded, NotFound, Overloaded, Unavailable
from vennue.core.job import JobSpec
from vennue.sdk import AsyncJob, Job, Retry
from vennue.sdk.job import _REQUIRED, SpecFields

SUBMIT = "POST /v1/jobs"
STATUS = "GET /v1/jobs/j1"
OPEN = "POST /v1/jobs/j1/rounds"
COMPLETE = "POST /v1/jobs/j1/complete"
CANCEL = "POST /v1/jobs/j1/cancel"


def arrays_of(found):
    return {name: array.tolist() for name, array in (found or {}).items()}


def wait_for(round_number):
    return f"GET /v1/jobs/j1/rounds/{round_number}?wait=30"


class Owned(FakeServer):
    """Holds the models that the rounds commit."""

    def __init__(self):
        super().__init__()
        self.aggregates = [self.holds(model(10, 20)), self.holds(model(30, 40))]


@pytest.fixture
def server():
    """A job of two rounds; each answers with a model that the test can name."""
    server = Owned()
    server.on(SUBMIT, job_view())
    server.on(STATUS, job_view())
    server.on(OPEN, round_view())
    for number, digest in enumerate(server.aggregates, 1):
        server.on(
            wait_for(number),
            round_view(number, "committed", result=digest, reported=2, metrics={"loss": 1 / number}, weight=7.0),
        )
    server.on(COMPLETE, job_view("completed", 2))
    server.on(CANCEL, job_view("cancelled", 0))
    return server


@pytest.fixture
def job(server, time):
    return Job(SERVER, name="keyboard", demand=2, rounds=2, transport=server, timing=time.timing)


def test_a_job_runs_its_rounds_each_on_the_model_of_the_last(job, server):
    current = model(1, 2)
    with job:
        for round in job.rounds():
            current = round.run(current)
    assert current["w"].tolist() == [30, 40]
    first, second = server.bodies(OPEN)
    assert (first["round"], second["round"]) == (1, 2)
    assert first["model"] == server.holds(model(1, 2))
    assert second["model"] == server.aggregates[0]
    assert server.calls[-1] == COMPLETE


def test_all_rounds_may_be_run_in_one_call(job, server):
    seen = []
    with job:
        last = job.run(model(1, 2), {"lr": 0.1}, until=lambda round, made: seen.append((round.number, arrays_of(made))))
    assert last["w"].tolist() == [30, 40]
    assert seen == [(1, {"w": [10, 20]}), (2, {"w": [30, 40]})]
    assert [body["config"] for body in server.bodies(OPEN)] == [{"lr": 0.1}, {"lr": 0.1}]


def test_a_model_that_the_server_has_is_not_uploaded(job, server):
    current = model(1, 2)
    for round in job.rounds():
        current = round.run(current)
    assert [call[:3] for call in server.calls].count("PUT") == 1


def test_a_round_tells_how_it_went(job):
    round = next(job.rounds())
    assert (round.number, round.metrics, round.reported) == (1, {}, 0)
    round.run(model(1, 2))
    assert (round.metrics, round.reported, round.view.weight) == ({"loss": 1.0}, 2, 7.0)


def test_the_settings_of_a_round_reach_the_server(job, server):
    for round in job.rounds({"lr": 0.1, "epochs": 2}):
        if round.number == 2:
            round.config["lr"] = 0.05
        round.run(model(1, 2))
    assert [body["config"] for body in server.bodies(OPEN)] == [{"lr": 0.1, "epochs": 2}, {"lr": 0.05, "epochs": 2}]


def test_a_round_is_waited_for_however_many_attempts_it_takes(job, server, time):
    digest = server.aggregates[0]
    server.on(
        wait_for(1),
        round_view(1, "open"),
        round_view(1, "aborted", reason="at its deadline"),
        httpx.ReadError("the server restarts"),
        round_view(1, "open", attempt=2),
        round_view(1, "committing", attempt=2),
        round_view(1, "committed", attempt=2, result=digest),
    )
    assert next(job.rounds()).run(model(1, 2))["w"].tolist() == [10, 20]
    assert len(server.sent(OPEN)) == 1


def test_a_server_that_answers_polls_at_once_is_not_asked_in_a_tight_loop(job, server, time):
    server.on(wait_for(1), *[round_view(1, "open")] * 3, round_view(1, "committed", result=server.aggregates[0]))
    next(job.rounds()).run(model(1, 2))
    assert time.waits == [1.0, 1.0, 1.0]


def test_a_server_that_holds_polls_is_asked_again_at_once(job, server, time):
    def held(request):
        time.now += 30
        return answer(round_view(1, "open"))

    server.on(wait_for(1), held, held, round_view(1, "committed", result=server.aggregates[0]))
    next(job.rounds()).run(model(1, 2))
    assert time.waits == []


def test_a_round_that_no_device_can_serve_says_so_once(job, server, time, caplog):
    def held(request):
        time.now += 30
        return answer(round_view(1, "open", bound=0))

    reason = protocol.Reason(code="no-eligible-device", text="0 of 2 devices: none meets 'false'")
    server.on(STATUS, msgspec.structs.replace(job_view(), reason=reason))
    server.on(wait_for(1), held, held, round_view(1, "committed", result=server.aggregates[0]))
    next(job.rounds()).run(model(1, 2))
    assert caplog.messages == ["job j1 waits, round 1: 0 of 2 devices: none meets 'false'"]


def test_a_round_that_refuses_its_reports_says_so_once(job, server, time, caplog):
    def held(request):
        time.now += 30
        return answer(msgspec.structs.replace(round_view(1, "open"), refused_reports=3))

    reason = protocol.Reason(code="refusing-reports", text="0 of 2 reports are in, and 3 were refused")
    server.on(STATUS, msgspec.structs.replace(job_view(), reason=reason))
    server.on(wait_for(1), held, held, round_view(1, "committed", result=server.aggregates[0]))
    next(job.rounds()).run(model(1, 2))
    assert caplog.messages == ["job j1 waits, round 1: 0 of 2 reports are in, and 3 were refused"]


def test_a_model_that_vanished_since_it_was_found_is_uploaded_again(job, server):
    digest = server.holds(model(1, 2))
    server.on(OPEN, problem(404, "not-found", field="model"), round_view())
    next(job.rounds()).run(model(1, 2))
    assert server.calls[1:5] == [f"HEAD /v1/blobs/{digest[:6]}", OPEN, f"PUT /v1/blobs/{digest[:6]}", OPEN]


def test_the_aggregate_comes_back_in_the_order_of_the_model(job, server):
    mine = {"w": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    server.on(wait_for(1), round_view(1, "committed", result=server.holds(mine)))
    assert list(next(job.rounds()).run(mine)) == ["w", "b"]


# -- submitting ------------------------------------------------------------------------------------------------------


def test_a_submission_that_is_tried_again_carries_the_same_key(job, server):
    server.on(SUBMIT, httpx.ReadTimeout(""), problem(503, "unavailable"), job_view())
    job.register()
    keys = {request.headers["idempotency-key"] for request in server.sent(SUBMIT)}
    assert len(server.sent(SUBMIT)) == 3
    assert len(keys) == 1


def test_two_jobs_have_two_keys(server):
    for _ in range(2):
        Job(SERVER, name="keyboard", demand=2, transport=server).register()
    assert len({request.headers["idempotency-key"] for request in server.sent(SUBMIT)}) == 2


def test_a_key_can_be_chosen(server):
    Job(SERVER, name="keyboard", demand=2, key="run-7", transport=server).register()
    assert server.requests[0].headers["idempotency-key"] == "run-7"


@pytest.mark.parametrize(
    "spec", [JobSpec(name="k", demand=3, deadline_s=60.0), {"name": "k", "demand": 3, "deadline_s": 60.0}], ids=type
)
def test_a_spec_can_be_given_whole(server, spec):
    Job(SERVER, spec, transport=server).register()
    assert server.bodies(SUBMIT) == [{"spec": {"name": "k", "demand": 3, "deadline_s": 60.0}}]


def test_registering_twice_submits_once(job, server):
    job.register()
    job.register()
    assert server.calls == [SUBMIT]


def test_text_where_a_list_belongs_is_told_with_the_list_to_write():
    with pytest.raises(InvalidInput) as caught:
        Job("http://127.0.0.1:1", name="a", demand=1, codecs="int8")  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.fix) == ("codecs", 'write ["int8"]')


def test_the_keywords_are_the_fields_of_a_spec():
    assert SpecFields.__annotations__ == JobSpec.__annotations__


def test_the_fields_that_every_job_needs_are_those_without_a_default():
    assert [field.name for field in msgspec.structs.fields(JobSpec) if field.required] == list(_REQUIRED)


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"name": "k", "demnad": 3}, "demnad", "did you mean 'demand'?"),
        ({"name": "k"}, "demand", "demand: is missing, and every job needs one .add demand=10, "),
        ({"demand": 1}, "name", "name: is missing, and every job needs one .add name="),
        ({"name": "k", "demand": "3"}, "demand", "expected `int`, got `str`"),
        ({"name": "k", "demand": 3, "mode": "later"}, "mode", "invalid enum value 'later'"),
    ],
)
def test_fields_that_are_wrong_are_refused_before_anything_is_sent(fields, field, said):
    with pytest.raises(InvalidInput, match=said.replace("?", r"\?")) as caught:
        Job(SERVER, **fields)
    assert caught.value.field == field


def test_a_spec_and_fields_together_are_refused():
    with pytest.raises(InvalidInput, match="not both"):
        Job(SERVER, JobSpec(name="k", demand=3), name="k")


def test_a_spec_that_the_server_refuses_comes_back_as_its_error(job, server):
    server.on(SUBMIT, problem(422, "infeasible", "no device is eligible", field="requirement", value=0))
    with pytest.raises(InvalidInput, match="requirement: no device is eligible"), job:
        pass
    assert server.calls == [SUBMIT]


def test_a_jobs_id_is_known_once_it_is_registered(job):
    with pytest.raises(Conflict, match="not registered yet"):
        _ = job.id
    with job:
        assert (job.id, job.spec.rounds) == ("j1", 2)


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.fixture
def resumed(server, time):
    """The job after its first round, submitted again under its key."""
    view = job_view(committed=1, model=server.aggregates[0])
    server.on(SUBMIT, view)
    server.on(STATUS, view)
    return Job(SERVER, name="keyboard", demand=2, rounds=2, key="run-7", transport=server, timing=time.timing)


def test_a_job_that_is_submitted_again_goes_on_from_its_last_committed_model(resumed, server):
    numbers = []
    current = model(1, 2)
    for round in resumed.rounds():
        numbers.append(round.number)
        current = round.run(current)
    assert numbers == [2]
    assert server.bodies(OPEN) == [{"round": 2, "model": server.aggregates[0], "config": {}}]


def test_a_round_that_is_open_is_joined(server, time):
    server.on(STATUS, job_view(open_round=round_view(1, model="c" * 64)))
    job = Job.attach(SERVER, "j1", transport=server, timing=time.timing)
    assert next(job.rounds()).run(model(1, 2))["w"].tolist() == [10, 20]
    assert OPEN not in server.calls
    assert SUBMIT not in server.calls


def test_a_round_that_commits_while_it_is_joined_is_not_opened_again(resumed, server):
    round = next(resumed.rounds())
    server.on(STATUS, job_view(committed=2, model=server.aggregates[1]))
    assert round.run(model(1, 2))["w"].tolist() == [30, 40]
    assert OPEN not in server.calls


def test_an_asynchronous_job_is_opened_once_and_then_only_waited_for(server, time):
    spec = JobSpec(name="k", demand=2, mode="async", buffer_size=1, rounds=2)
    server.on(SUBMIT, job_view(spec=spec))
    server.on(STATUS, job_view(spec=spec), job_view(spec=spec, committed=1, open_round=round_view(2)))
    job = Job(SERVER, spec, transport=server, timing=time.timing)
    results = [round.run(model(1, 2))["w"].tolist() for round in job.rounds()]
    assert results == [[10, 20], [30, 40]]
    assert [body["round"] for body in server.bodies(OPEN)] == [1]


def test_a_resumed_round_can_be_run_on_ones_own_model(resumed, server):
    next(resumed.rounds()).run(model(5, 6), resume=False)
    assert server.bodies(OPEN)[0]["model"] == server.holds(model(5, 6))


def test_only_the_first_round_of_a_resumed_job_takes_the_committed_model(server, time):
    view = job_view(committed=1, model=server.aggregates[0], spec=JobSpec(name="k", demand=2))
    server.on(SUBMIT, view)
    server.on(STATUS, view)
    server.on(wait_for(3), round_view(3, "committed", result=server.aggregates[1]))
    rounds = Job(SERVER, name="k", demand=2, key="x", transport=server, timing=time.timing).rounds()
    next(rounds).run(model(1, 2))
    next(rounds).run(model(7, 8))
    assert [body["model"] for body in server.bodies(OPEN)] == [server.aggregates[0], server.holds(model(7, 8))]


def test_a_job_that_has_completed_has_no_rounds_and_still_its_result(server, time):
    view = job_view("completed", 2, model=server.aggregates[1])
    server.on(SUBMIT, view)
    server.on(STATUS, view)
    job = Job(SERVER, name="keyboard", demand=2, rounds=2, key="run-7", transport=server, timing=time.timing)
    assert list(job.rounds()) == []
    assert arrays_of(job.result()) == {"w": [30, 40]}


def test_a_job_without_a_commit_has_no_result(job):
    assert job.result() is None


def test_a_job_that_is_not_there_cannot_be_attached_to(server):
    with pytest.raises(NotFound):
        Job.attach(SERVER, "j7", transport=server).status()


# -- ends ------------------------------------------------------------------------------------------------------------


def test_an_exception_cancels_the_job_with_the_reason_and_reaches_the_caller(job, server):
    with pytest.raises(ValueError, match="diverged"), job:
        raise ValueError("diverged")
    assert server.bodies(CANCEL) == [{"reason": "ValueError: diverged"}]
    assert COMPLETE not in server.calls


def test_an_exception_without_a_text_is_named_as_the_reason(job, server):
    with pytest.raises(ZeroDivisionError), job:
        raise ZeroDivisionError
    assert server.bodies(CANCEL) == [{"reason": "ZeroDivisionError"}]


STOPS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError]


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_of_the_program_leaves_a_job_with_a_key_to_be_gone_on_with_and_says_so_once(server, time, caplog, stop):
    with pytest.raises(stop), Job(SERVER, name="k", demand=2, key="run-7", transport=server, timing=time.timing):
        raise stop
    assert server.calls == [SUBMIT]
    (record,) = caplog.records
    assert "job j1 goes on without this program" in record.message
    assert "`vennue cancel j1`" in record.message


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_of_the_program_leaves_a_job_that_it_attached_to(server, time, stop):
    with pytest.raises(stop), Job.attach(SERVER, "j1", transport=server, timing=time.timing):
        raise stop
    assert server.calls == [STATUS]


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_of_the_program_cancels_a_job_that_nobody_could_come_back_to(job, server, stop):
    with pytest.raises(stop), job:
        raise stop
    assert server.bodies(CANCEL) == [{"reason": stop.__name__}]


def test_a_stop_after_the_job_has_ended_does_not_say_that_it_goes_on(server, time, caplog):
    job = Job(SERVER, name="k", demand=2, rounds=2, key="run-7", transport=server, timing=time.timing)
    server.on(SUBMIT, job_view("completed", 2))
    with pytest.raises(KeyboardInterrupt), job:
        raise KeyboardInterrupt
    assert "goes on" not in caplog.text


def test_other_exceptions_cancel_a_job_with_a_key_too(server, time):
    with (
        pytest.raises(ValueError, match="diverged"),
        Job(SERVER, name="k", demand=2, key="run-7", transport=server, timing=time.timing),
    ):
        raise ValueError("diverged")
    assert server.bodies(CANCEL) == [{"reason": "ValueError: diverged"}]


def test_an_exception_that_cannot_cancel_the_job_still_reaches_the_caller(job, server, caplog):
    server.on(CANCEL, httpx.ConnectError("refused"))
    with pytest.raises(ValueError, match="diverged"), job:
        raise ValueError("diverged")
    assert "could not be cancelled" in caplog.text


@pytest.mark.parametrize(
    "failure",
    [httpx.ConnectError("refused"), problem(503, "storage"), problem(503, "overloaded", retry_after_s=1.0)],
    ids=["unreachable", "its disk is full", "overloaded"],
)
def test_a_server_that_cannot_answer_leaves_the_job_to_be_gone_on_with(server, time, failure):
    server.on(OPEN, failure)
    job = Job(SERVER, name="k", demand=2, transport=server, timing=time.timing, retry=Retry(attempts=2))
    with pytest.raises((Unavailable, Overloaded)), job:
        next(job.rounds()).run(model(1, 2))
    assert CANCEL not in server.calls


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_a_job_that_ends_while_a_round_runs_says_why(job, server, state):
    reason = {"code": state, "text": "cancelled by an operator"}
    server.on(wait_for(1), round_view(1, "open"), round_view(1, "aborted" if state == "failed" else "cancelled"))
    server.on(STATUS, job_view(state, reason=msgspec.convert(reason, type(job_view().reason))))
    with pytest.raises(JobEnded, match=r"job j1 \(keyboard\) has ended: cancelled by an operator"), job:
        next(job.rounds()).run(model(1, 2))
    assert CANCEL not in server.calls


def test_an_end_is_told_with_its_time_and_what_can_still_be_done(server, time):
    server.on(SUBMIT, job_view("failed", 1, ended_at=1_700_000_000.0))
    job = Job(SERVER, name="k", demand=2, key="old", transport=server, timing=time.timing)
    with pytest.raises(JobEnded, match="has ended at 2023-11-14 22:13:20 UTC: ") as caught:
        next(job.rounds())
    assert "under another key" in str(caught.value)


def test_a_job_and_its_rounds_show_what_they_are_and_how_far(job, server, time):
    assert repr(job) == "<Job 'keyboard': not registered yet>"
    assert repr(Job.attach(SERVER, "j1", transport=server)) == "<Job j1: not asked for yet>"
    job.register()
    assert repr(job) == "<Job j1 ('keyboard'): active, 0 of 2 rounds committed>"
    round = next(job.rounds())
    assert repr(round) == "<Round 1 of job j1: not run yet>"
    round.run(model(1, 2))
    assert repr(round) == "<Round 1 of job j1: committed with 2 reports>"
    job.complete()
    assert repr(job) == "<Job j1 ('keyboard'): completed, 2 of 2 rounds committed>"
    assert repr(AsyncJob(SERVER, name="k", demand=2)) == "<AsyncJob 'k': not registered yet>"


def test_a_job_that_has_ended_has_no_further_round(server, time):
    server.on(SUBMIT, job_view("cancelled"))
    job = Job(SERVER, name="k", demand=2, key="old", transport=server, timing=time.timing)
    with pytest.raises(JobEnded):
        next(job.rounds())


def test_going_on_without_running_the_round_is_an_error_and_not_a_loop(job):
    with pytest.raises(Conflict, match="round 1 was not run"):
        for _ in job.rounds():
            pass


def test_an_open_ended_job_is_left_with_break_and_completes(server, time):
    server.on(SUBMIT, job_view(spec=JobSpec(name="k", demand=2)))
    with Job(SERVER, name="k", demand=2, transport=server, timing=time.timing) as job:
        for round in job.rounds():
            round.run(model(1, 2))
            if round.number == 2:
                break
    assert server.calls[-1] == COMPLETE


def test_a_model_that_is_none_is_refused_before_anything_is_sent(job, server):
    with pytest.raises(InvalidModel):
        next(job.rounds()).run({"w": "not numbers"})
    assert OPEN not in server.calls


def test_a_job_can_be_cancelled_from_another_thread_by_attaching(job, server):
    other = Job.attach(SERVER, "j1", transport=server)
    thread = threading.Thread(target=other.cancel, args=("enough",))
    thread.start()
    thread.join()
    assert server.bodies(CANCEL) == [{"reason": "enough"}]


# -- asyncio ---------------------------------------------------------------------------------------------------------


def essence(server):
    return [(request.method, request.url.path, request.content) for request in server.requests]


async def test_an_async_job_has_the_same_dialogue(job, server, time):
    with job:
        for round in job.rounds({"lr": 0.1}):
            round.run(model(1, 2))
    blocking, server.requests[:] = essence(server), []
    del server.blobs[server.holds(model(1, 2))]
    asynchronous = AsyncJob(SERVER, name="keyboard", demand=2, rounds=2, transport=server, timing=time.async_timing)
    async with asynchronous:
        async for round in asynchronous.rounds({"lr": 0.1}):
            await round.run(model(1, 2))
    assert essence(server) == blocking


async def test_an_async_job_can_be_attached_to_asked_and_cancelled(server, time):
    server.on(STATUS, job_view(committed=1, model=server.aggregates[0]))
    job = AsyncJob.attach(SERVER, "j1", transport=server, timing=time.async_timing)
    assert (await job.status()).committed_rounds == 1
    assert arrays_of(await job.result(model(0, 0))) == {"w": [10, 20]}
    await job.cancel()
    assert server.bodies(CANCEL) == [{"reason": "cancelled by its owner"}]
    await job.complete()
    await job.close()


async def test_cancelling_the_task_of_an_async_job_leaves_a_job_with_a_key(server, time):
    entered = asyncio.Event()

    async def drive():
        async with AsyncJob(SERVER, name="k", demand=2, key="run-7", transport=server, timing=time.async_timing):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(drive())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.calls == [SUBMIT]
