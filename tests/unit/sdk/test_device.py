"""Devices: the dialogue of a session, and every way in which a task or a session can end."""

import asyncio
import contextlib
import logging
import threading

import httpx
import numpy as np
import pytest

from tests.unit.sdk.fake import SERVER, FakeServer, answer, model, offer, problem
from vennue.core.errors import Conflict, InvalidInput, InvalidUpdate, Unavailable
from vennue.core.ids import AssignmentId, Digest
from vennue.protocol import CheckInAnswer, ReportReceipt
from vennue.sdk import AsyncDevice, Device, Retry, Timing
from vennue.sdk.models import parse

CHECK_IN = "POST /v1/check-ins"
RECEIPT = ReportReceipt(assignment=AssignmentId("j1.1.1.1"), sha256=Digest("0" * 64))
NOTHING = CheckInAnswer(retry_after_s=20.0)
TOO_LATE = problem(409, "too-late", "the round has closed")


def path(step, assignment="j1.1.1.1"):
    return f"{'PUT' if step == 'report' else 'POST'} /v1/assignments/{assignment}/{step}"


class Busy(FakeServer):
    """Holds the model of its tasks."""

    def __init__(self):
        super().__init__()
        self.model = self.holds(model(1, 2))


@pytest.fixture
def server():
    """One with a task for every check-in, and a friendly word for all that is done with it."""
    server = Busy()
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model)))
    server.on(path("accept"), offer(server.model, expires_in_s=300.0))
    server.on(path("decline"), NOTHING)
    server.on(path("abort"), httpx.Response(204))
    server.on(path("report"), RECEIPT)
    return server


@pytest.fixture
def device(server, time):
    return Device(
        SERVER, device_id="d1", attributes={"ram_gb": 6}, private={"samples": 31337}, transport=server,
        timing=time.timing,
    )  # fmt: skip


def take(device):
    """The first task of a session that goes on."""
    device.session_under_way = device.tasks()
    return next(device.session_under_way)


def test_a_task_is_checked_in_for_downloaded_and_reported(device, server):
    for task in device.tasks(max_tasks=1):
        assert task.report({"w": task.model["w"] * 2}, examples=12, metrics={"loss": 0.5})
    assert server.calls == [CHECK_IN, f"GET /v1/blobs/{server.model[:6]}", path("report")]
    (report,) = server.sent(path("report"))
    assert parse(report.content)["w"].stored.tolist() == [2, 4]
    assert report.headers["vennue-examples"] == "12.0"
    assert report.headers["vennue-metrics"] == '{"loss": 0.5}'
    assert report.headers["authorization"] == "Bearer secret of j1.1.1.1"


def test_a_check_in_tells_the_name_and_the_public_attributes(device, server):
    take(device)
    assert server.bodies(CHECK_IN) == [{"device": "d1", "attributes": {"ram_gb": 6}, "declined": []}]


def test_a_task_tells_what_its_owner_said(device, server):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model, round=7, config={"lr": 0.1})))
    task = take(device)
    assert (task.id, task.job, task.name, task.round, task.config) == ("j1.1.1.1", "j1", "keyboard", 7, {"lr": 0.1})
    assert task.model["w"].tolist() == [1, 2]


def test_the_lease_of_a_task_runs_down(device, time):
    task = take(device)
    time.now += 90
    assert task.expires_in_s == 510
    time.now += 9000
    assert task.expires_in_s == 0


def test_a_device_without_a_task_comes_back_when_it_was_told_to(device, server, time):
    server.on(CHECK_IN, NOTHING, CheckInAnswer(retry_after_s=7.0), CheckInAnswer(task=offer(server.model)))
    take(device)
    assert time.waits == [20.0, 7.0]


def test_a_session_takes_task_after_task(device):
    assert sum(task.report(task.model, examples=1) for task in device.tasks(max_tasks=3)) == 3


def test_a_model_is_downloaded_once_for_tasks_that_share_it(device, server):
    for task in device.tasks(max_tasks=3):
        task.report(task.model, examples=1)
    assert len(server.sent(f"GET /v1/blobs/{server.model[:6]}")) == 1


def test_training_in_place_does_not_change_the_next_tasks_model(device):
    seen = []
    for task in device.tasks(max_tasks=2):
        seen.append(task.model["w"].tolist())
        task.model["w"] += 1
        task.report(task.model, examples=1)
    assert seen == [[1, 2], [1, 2]]


# -- private requirements --------------------------------------------------------------------------------------------


def test_a_private_requirement_that_is_met_is_accepted_before_the_download(device, server):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model, private_requirement="device.samples > 100")))
    task = take(device)
    assert server.calls == [CHECK_IN, path("accept"), f"GET /v1/blobs/{server.model[:6]}"]
    assert task.expires_in_s == 300


def test_a_private_requirement_may_combine_public_and_private_attributes(device, server):
    text = "device.samples > 100 && device.ram_gb >= 6"
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model, private_requirement=text)))
    assert take(device).name == "keyboard"


@pytest.mark.parametrize("text", ["device.samples > 99999", "device.never_heard_of > 1", "this does not parse (((("])
def test_a_private_requirement_that_is_not_met_is_declined_and_the_next_offer_taken(device, server, text):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model, private_requirement=text)))
    server.on(path("decline"), CheckInAnswer(task=offer(server.model, "j2.1.1.1")))
    task = take(device)
    assert task.job == "j2"
    assert server.calls == [CHECK_IN, path("decline"), f"GET /v1/blobs/{server.model[:6]}"]
    assert server.bodies(path("decline"))[0]["declined"] == ["j1"]


def test_private_attributes_never_leave_the_device(device, server):
    server.on(
        CHECK_IN,
        CheckInAnswer(task=offer(server.model, private_requirement="device.samples > 100")),
        CheckInAnswer(task=offer(server.model, private_requirement="device.samples > 99999")),
        CheckInAnswer(task=offer(server.model)),
    )
    for task in device.tasks(max_tasks=2):
        task.report(task.model, examples=1)
    with contextlib.suppress(KeyError), device:
        take(device)
        raise KeyError(31337)
    told = b"".join(bytes(request.content) + repr(request.headers.raw).encode() for request in server.requests)
    assert path("decline") in server.calls
    assert path("abort") in server.calls
    assert b"31337" not in told


def test_a_job_that_was_declined_is_named_at_later_check_ins_until_the_device_changes(device, server):
    refused = CheckInAnswer(task=offer(server.model, private_requirement="device.samples > 99999"))
    server.on(CHECK_IN, refused, NOTHING, CheckInAnswer(task=offer(server.model, "j2.1.1.1")))
    server.on(path("report", "j2.1.1.1"), RECEIPT)
    tasks = device.tasks()
    next(tasks).report(model(1, 2), examples=1)
    device.private = {"samples": 100_000}
    next(tasks)
    assert [body["declined"] for body in server.bodies(CHECK_IN)] == [[], ["j1"], ["j1"], []]


def test_a_device_that_declined_and_is_offered_nothing_else_waits_as_long_as_it_is_told(device, server, time):
    refused = CheckInAnswer(task=offer(server.model, private_requirement="device.samples > 99999"))
    server.on(CHECK_IN, refused, CheckInAnswer(task=offer(server.model, "j2.1.1.1")))
    take(device)
    assert server.calls[:3] == [CHECK_IN, path("decline"), CHECK_IN]
    assert time.waits == [20.0]


def test_a_task_that_the_caller_declines_is_given_back_with_the_reason(device, server):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model)), NOTHING)
    with contextlib.suppress(StopIteration):
        tasks = device.tasks(duration_s=10)
        next(tasks).decline("the battery is low")
        next(tasks)
    assert server.bodies(path("decline")) == [{"reason": "the battery is low", "declined": ["j1"]}]


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [TOO_LATE, problem(404, "not-found"), problem(409, "job-ended")])
def test_a_report_that_comes_too_late_is_a_warning_and_not_an_error(device, server, caplog, answer):
    server.on(path("report"), answer)
    outcomes = [task.report(task.model, examples=1) for task in device.tasks(max_tasks=2)]
    assert outcomes == [False, False]
    assert caplog.text.count("the report on j1.1.1.1 was not counted") == 2


@pytest.mark.parametrize("step", ["accept", "decline"])
def test_an_offer_that_is_over_when_it_is_answered_is_forgotten(device, server, step):
    text = "device.samples > 0" if step == "accept" else "device.samples < 0"
    first = CheckInAnswer(task=offer(server.model, "j9.1.1.1", private_requirement=text))
    server.on(CHECK_IN, first, CheckInAnswer(task=offer(server.model)))
    server.on(path(step, "j9.1.1.1"), TOO_LATE)
    assert take(device).job == "j1"


def test_a_job_without_a_usable_model_is_given_back_and_others_are_served(device, server, caplog):
    server.on(CHECK_IN, CheckInAnswer(task=offer("f" * 64, "j9.1.1.1")), CheckInAnswer(task=offer(server.model)))
    server.on(path("abort", "j9.1.1.1"), httpx.Response(204))
    assert take(device).job == "j1"
    assert server.calls[2] == path("abort", "j9.1.1.1")
    assert server.bodies(CHECK_IN)[1]["declined"] == ["j9"]
    assert "job j9 (keyboard) has no usable model" in caplog.text


def test_a_blob_that_is_no_model_is_a_job_without_a_usable_model(device, server):
    digest = "e9b9adbea9a6f5c2e7a3c5cb4cf2ac2d5b3e9d3d7c9e0b8e5f1b2a6a8b1c0d1e"
    server.on(CHECK_IN, CheckInAnswer(task=offer(digest, "j9.1.1.1")), CheckInAnswer(task=offer(server.model)))
    server.on(path("abort", "j9.1.1.1"), httpx.Response(204))
    assert take(device).job == "j1"


def train_and_fail(device):
    for _ in device.tasks():
        raise ZeroDivisionError


def test_an_exception_in_training_gives_the_task_back_and_reaches_the_caller(device, server):
    with pytest.raises(ZeroDivisionError):
        train_and_fail(device)
    assert server.bodies(path("abort")) == [{"reason": "the device stopped", "declined": []}]


def test_the_server_learns_the_kind_of_error_that_ends_a_with_block_and_not_its_text(device, server):
    with contextlib.suppress(ZeroDivisionError), device:
        take(device)
        raise ZeroDivisionError("by 31337")
    assert server.bodies(path("abort")) == [{"reason": "the device stopped: ZeroDivisionError", "declined": []}]


def test_leaving_the_loop_gives_the_task_back(device, server):
    for _ in device.tasks():
        break
    assert server.bodies(path("abort")) == [{"reason": "the device stopped", "declined": []}]


def test_a_task_that_the_caller_passes_over_is_given_back_before_the_next(device, server, caplog):
    for _ in device.tasks(max_tasks=2):
        pass
    given_back = [path("abort"), CHECK_IN, path("abort")]
    assert [call for call in server.calls if not call.startswith("GET")] == [CHECK_IN, *given_back]
    assert "task j1.1.1.1 is given back: the device went on without a report" in caplog.text


def test_a_device_that_gives_back_one_task_after_another_waits_longer_each_time_until_one_succeeds(device, time):
    taken_at, fates = [], iter(["abort", "abort", "abort", "abort", "abort", "report", "abort", "abort"])
    for task in device.tasks(max_tasks=9):
        taken_at.append(time.now)
        if next(fates, "abort") == "report":
            task.report(model(1, 2), examples=1)
        else:
            task.abort("the battery is low")
    # A single one is no habit. The waits are drawn; here each is as long as it may be.
    assert np.diff(taken_at).tolist() == [0, 1, 2, 4, 8, 0, 0, 1]


def test_a_task_that_cannot_be_given_back_is_left_to_its_lease(device, server, time, caplog):
    server.on(path("abort"), httpx.ConnectError("refused"))
    for _ in device.tasks():
        break
    assert "its lease will end it" in caplog.text
    assert len(server.sent(path("abort"))) == 3


def test_an_offer_that_came_with_the_last_decline_is_given_back_at_the_end(device, server):
    server.on(path("decline"), CheckInAnswer(task=offer(server.model, "j2.1.1.1")))
    server.on(path("abort", "j2.1.1.1"), httpx.Response(204))
    for task in device.tasks(max_tasks=1):
        task.decline("no")
    assert server.calls[-1] == path("abort", "j2.1.1.1")


def test_a_second_report_is_a_conflict(device):
    task = take(device)
    task.report(task.model, examples=1)
    with pytest.raises(Conflict, match="is over already"):
        task.report(task.model, examples=1)


def test_an_update_unlike_the_model_is_refused_before_it_is_sent_and_may_be_corrected(device, server):
    task = take(device)
    with pytest.raises(InvalidUpdate, match="shape"):
        task.report(model(1, 2, 3), examples=1)
    assert path("report") not in server.calls
    assert task.report(model(3, 4), examples=1)


def test_an_update_that_the_server_refuses_may_be_corrected(device, server):
    server.on(path("report"), problem(422, "invalid-update", "element 0 is nan", field="w"), RECEIPT)
    task = take(device)
    with pytest.raises(InvalidUpdate, match="w: element 0 is nan"):
        task.report(model(np.nan, 1), examples=1)
    assert not task.done
    assert task.report(model(1, 1), examples=1)


@pytest.mark.parametrize("examples", [0, -1, float("nan"), float("inf"), True, "7", None])
def test_a_weight_that_is_no_positive_number_is_refused(device, examples):
    with pytest.raises(InvalidInput) as caught:
        take(device).report(model(1, 2), examples=examples)
    assert caught.value.field == "examples"


def test_a_metric_that_is_no_number_is_refused_by_name(device):
    with pytest.raises(InvalidInput) as caught:
        take(device).report(model(1, 2), examples=1, metrics={"loss": float("nan")})
    assert caught.value.field == "metrics.loss"


def test_numpy_numbers_are_numbers(device, server):
    take(device).report(model(1, 2), examples=np.int64(3), metrics={"loss": np.float32(0.5)})
    assert server.requests[-1].headers["vennue-examples"] == "3.0"


def test_attributes_that_json_cannot_hold_are_refused():
    with pytest.raises(InvalidInput) as caught:
        Device(SERVER, attributes={"f": object()})
    assert caught.value.field == "attributes"


def test_attributes_that_the_server_refuses_end_the_session_with_its_words(device, server):
    server.on(CHECK_IN, problem(422, "invalid-input", "a number must be finite", field="attributes.ram_gb"))
    with pytest.raises(InvalidInput, match=r"attributes\.ram_gb: a number must be finite"):
        take(device)


def test_an_overloaded_server_is_waited_for_however_long_it_asks(device, server, time):
    overloaded = problem(503, "overloaded", retry_after_s=600.0)
    server.on(CHECK_IN, overloaded, overloaded, CheckInAnswer(task=offer(server.model)))
    take(device)
    assert time.waits == [600.0, 600.0]


def test_a_server_that_stays_away_ends_the_session(server, time):
    server.on(CHECK_IN, httpx.ConnectError("refused"))
    with pytest.raises(Unavailable):
        take(Device(SERVER, transport=server, retry=Retry(total_s=5), timing=time.timing))


# -- sessions --------------------------------------------------------------------------------------------------------


def test_a_device_without_a_name_gets_one_of_its_own():
    assert Device(SERVER).id != Device(SERVER).id


def test_a_session_takes_no_task_after_its_time(device, time):
    taken = 0
    for task in device.tasks(duration_s=100):
        taken += 1
        time.now += 60
        task.report(task.model, examples=1)
    assert taken == 2


def test_a_session_does_not_wait_for_what_comes_after_its_end(device, server, time):
    server.on(CHECK_IN, NOTHING)
    assert list(device.tasks(duration_s=50)) == []
    assert time.waits == [20.0, 20.0]


def test_a_session_that_is_stopped_while_it_waits_ends(server):
    server.on(CHECK_IN, NOTHING)
    stop = threading.Event()
    device = Device(SERVER, transport=server, timing=Timing(sleep=lambda delay_s: stop.set()))
    assert list(device.tasks(stop=stop)) == []


def test_a_session_that_is_stopped_while_the_server_is_away_ends(server):
    stop = threading.Event()
    server.on(CHECK_IN, httpx.ConnectError("refused"))
    device = Device(SERVER, transport=server, timing=Timing(sleep=lambda delay_s: stop.set()))
    assert list(device.tasks(stop=stop)) == []


def test_a_wait_ends_when_another_thread_stops_the_session(server):
    stop = threading.Event()

    def stop_then_answer(request):
        threading.Thread(target=stop.set).start()
        return httpx.Response(200, content=b'{"retry_after_s": 3600}')

    server.on(CHECK_IN, stop_then_answer)
    assert list(Device(SERVER, transport=server).tasks(stop=stop)) == []


def test_a_report_is_still_delivered_after_the_session_was_stopped(device, server):
    stop = threading.Event()
    server.on(path("report"), httpx.ConnectError("refused"), RECEIPT)
    for task in device.tasks(stop=stop):
        stop.set()
        assert task.report(task.model, examples=1)
    assert path("abort") not in server.calls


def out_for(time, outage_s):
    """No server until so long from now."""
    back_at = time.now + outage_s

    def answer_once_back(request):
        if time.now < back_at:
            raise httpx.ConnectError("refused")
        return answer(RECEIPT)

    return answer_once_back


def test_r6_a_report_outlives_an_outage_of_ten_minutes_whatever_its_lease(device, server, time):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model, expires_in_s=60.0)))
    task = take(device)
    server.on(path("report"), out_for(time, 600.0))
    assert task.report(task.model, examples=1)
    assert 600 <= sum(time.waits) <= 610


@pytest.mark.parametrize(("lease_s", "kept_s"), [(600.0, 3600.0), (7200.0, 7200.0)])
def test_a_report_is_kept_for_an_hour_or_for_its_lease_if_that_is_longer(device, server, time, lease_s, kept_s):
    server.on(CHECK_IN, CheckInAnswer(task=offer(server.model, expires_in_s=lease_s)))
    task = take(device)
    server.on(path("report"), httpx.ConnectError("refused"))
    with pytest.raises(Unavailable, match="cannot be reached"):
        task.report(task.model, examples=1)
    assert kept_s - 10 <= sum(time.waits) <= kept_s


def test_a_device_that_is_to_stop_holds_a_report_no_longer_than_any_call(server, time):
    stop = threading.Event()
    times = []

    def refuse(request):
        times.append(time.now)
        if time.now > 1000 + 400:
            stop.set()
        raise httpx.ConnectError("refused")

    server.on(path("report"), refuse)
    device = Device(SERVER, transport=server, timing=time.timing)
    for task in device.tasks(stop=stop):
        with pytest.raises(Unavailable):
            task.report(task.model, examples=1)
    assert 180 <= times[-1] - 1400 <= 200


def test_a_device_that_never_tries_again_does_not_try_a_report_again(server, time):
    server.on(path("report"), httpx.ConnectError("refused"))
    device = Device(SERVER, transport=server, timing=time.timing, retry=Retry(attempts=1))
    with pytest.raises(Unavailable):
        take(device).report(model(1, 2), examples=1)
    assert time.waits == []


def test_a_device_is_in_one_session_at_a_time(device):
    running = device.tasks()
    next(running)
    with pytest.raises(Conflict, match="in a session already"):
        take(device)


def test_an_old_iteration_that_is_closed_late_does_not_end_the_new_session(device, server):
    old = device.tasks()
    next(old).report(model(1, 2), examples=1)
    device.close()
    new = device.tasks()
    task = next(new)
    old.close()
    assert task.report(model(1, 2), examples=1)


# -- asyncio ---------------------------------------------------------------------------------------------------------


def script(server):
    """A session with everything in it: a wait, a decline, an accept, a failed download, a late report."""
    server.on(
        CHECK_IN,
        httpx.ReadTimeout(""),
        NOTHING,
        CheckInAnswer(task=offer(server.model, private_requirement="device.samples < 0")),
        CheckInAnswer(task=offer("f" * 64)),
        CheckInAnswer(task=offer(server.model, private_requirement="device.samples > 0")),
    )
    server.on(path("report"), TOO_LATE)


def essence(server):
    return [(request.method, request.url.path, request.content) for request in server.requests]


async def test_an_async_device_has_the_same_dialogue(device, server, time):
    script(server)
    for task in device.tasks(max_tasks=1):
        task.report(model(5, 6), examples=3, metrics={"loss": 1.0})
    blocking, server.requests[:] = essence(server), []
    waits, time.waits[:] = list(time.waits), []

    script(server)
    async with AsyncDevice(
        SERVER, device_id="d1", attributes={"ram_gb": 6}, private={"samples": 31337}, transport=server,
        timing=time.async_timing,
    ) as awaiting:  # fmt: skip
        async for task in awaiting.tasks(max_tasks=1):
            await task.report(model(5, 6), examples=3, metrics={"loss": 1.0})
    assert essence(server) == blocking
    assert time.waits == waits


async def test_an_async_task_can_be_declined_and_aborted(server, time):
    async with AsyncDevice(SERVER, transport=server, timing=time.async_timing) as device:
        tasks = device.tasks()
        await (await anext(tasks)).abort("no")
        await (await anext(tasks)).decline("no")
    assert path("abort") in server.calls
    assert path("decline") in server.calls


async def test_cancelling_an_async_device_gives_its_task_back(server):
    training = asyncio.Event()

    async def train():
        async with AsyncDevice(SERVER, transport=server) as device:
            async for _ in device.tasks():
                training.set()
                await asyncio.Event().wait()

    running = asyncio.create_task(train())
    await training.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert server.bodies(path("abort")) == [{"reason": "the device stopped: CancelledError", "declined": []}]


async def test_an_async_session_that_is_stopped_while_it_waits_ends(server):
    stop = asyncio.Event()

    def stop_then_answer(request):
        asyncio.get_running_loop().call_soon(stop.set)
        return httpx.Response(200, content=b'{"retry_after_s": 3600}')

    server.on(CHECK_IN, stop_then_answer)
    async with AsyncDevice(SERVER, transport=server) as device:
        assert [task async for task in device.tasks(stop=stop)] == []


async def test_a_blocking_device_works_inside_a_running_loop(device):
    assert take(device).report(model(1, 2), examples=1)


def test_tokens_stay_out_of_the_log(device, server, caplog):
    caplog.set_level(logging.DEBUG, "vennue.sdk")
    script(server)
    for task in device.tasks(max_tasks=1):
        task.report(task.model, examples=1)
    assert caplog.records
    assert "secret" not in caplog.text


def test_a_form_of_models_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(InvalidInput, match=r"model_form: .*use one of plain, compressed, delta, float16, .* int8"):
        Device(SERVER, model_form="delat")


def test_a_device_shows_its_name_and_what_it_does(device):
    assert repr(device) == "<Device 'd1': in no session>"
    task = take(device)
    assert repr(device) == "<Device 'd1': at work on j1.1.1.1>"
    assert repr(task).startswith("<Task j1.1.1.1: round ")
    task.report(model(1, 2), examples=1)
    assert repr(device) == "<Device 'd1': in a session>"
    device.close()
    assert repr(device) == "<Device 'd1': in no session>"
