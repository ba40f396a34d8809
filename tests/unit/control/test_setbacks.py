"""What a job's owner is told of reports that were refused, and of tasks that devices gave back."""

import logging

import numpy as np
import pytest

from tests.unit.control.rig import Rig, body, rig_at, update
from tests.unit.server.test_app import ask
from vennue.control.setbacks import MAX_KINDS, SetbackLog
from vennue.core.errors import InvalidUpdate, Overloaded, TooLate, VennueError
from vennue.protocol import DeclineRequest, Setback, Setbacks, Task
from vennue.server.app import App
from vennue.server.config import Limits
from vennue.tensors.model import save


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as made:
        yield made


async def refused(rig: Rig, task: Task, data: bytes) -> VennueError:
    with pytest.raises(VennueError) as caught:
        await rig.selector.report(task.assignment, task.token, 1.0, {}, body(data))
    return caught.value


async def setbacks(rig: Rig, job) -> Setbacks:
    found = (await rig.coordinator.job(job)).setbacks
    assert found is not None
    return found


async def test_an_owner_sees_how_many_reports_were_refused_and_the_last_reason_of_each_kind(rig):
    job = await rig.job(demand=3)
    await rig.open(job)
    first, second = rig.task("d1"), rig.task("d2")
    await refused(rig, first, update(float("nan")))
    rig.clock.now += 1
    await refused(rig, second, update(float("inf")))
    half = await refused(rig, second, save({"w": np.zeros(2, np.float16)}, {"vennue.codec": "float16"}))
    found = await setbacks(rig, job)
    assert (found.refused_reports, found.returned_tasks) == (3, 0)
    assert [(each.kind, each.field, each.count) for each in found.kinds] == [
        ("invalid-update", "codec", 1),
        ("invalid-update", "w", 2),
    ]
    assert (found.kinds[0].last, found.kinds[1].last_at) == (half.message, rig.clock.now)
    assert (await rig.coordinator.explain(job)).setbacks == found
    view = await rig.coordinator.round(job, 1)
    assert (view.refused_reports, view.returned_tasks, view.reported) == (3, 0, 0)


async def test_an_owner_sees_how_many_tasks_were_given_back_and_why_the_last_one_was(rig):
    job = await rig.job(demand=3)
    await rig.open(job)
    for device, reason in (("d1", "battery"), ("d2", "diverged\x1b[2J")):
        task = rig.task(device)
        rig.selector.abort(task.assignment, task.token, DeclineRequest(reason=reason))
    kinds = [Setback(kind="given-back", count=2, last="diverged?[2J", last_at=rig.clock.now)]
    assert await setbacks(rig, job) == Setbacks(refused_reports=0, returned_tasks=2, kinds=kinds)
    assert (await rig.coordinator.round(job, 1)).returned_tasks == 2


async def test_reports_that_count_leave_nothing_to_tell(rig):
    job = await rig.job(demand=2)
    await rig.open(job)
    await rig.report(rig.task("d1"))
    assert (await rig.coordinator.job(job)).setbacks is None


async def test_a_round_that_refuses_more_reports_than_it_counts_says_so_with_the_reason(rig):
    job = await rig.job(demand=2)
    await rig.open(job)
    first, second = rig.task("d1"), rig.task("d2")
    await rig.report(first)
    assert (await rig.coordinator.job(job)).reason.code == "collecting"
    await refused(rig, second, update(float("nan")))
    assert (await rig.coordinator.job(job)).reason.code == "collecting"
    error = await refused(rig, second, update(float("nan")))
    reason = (await rig.coordinator.job(job)).reason
    assert reason.code == "refusing-reports"
    said = f"1 of 2 reports of round 1 are in, and 2 reports were refused, the last for w: {error.message}"
    assert reason.text == said


async def test_what_a_round_before_refused_says_nothing_of_the_next(rig):
    job = await rig.job(demand=1, rounds=2)
    await rig.open(job)
    given_back = rig.task("d1")
    rig.selector.abort(given_back.assignment, given_back.token, DeclineRequest())
    task = rig.task("d2")
    await refused(rig, task, update(float("nan")))
    await rig.report(task)
    await rig.coordinator.round(job, 1, wait_s=20)
    await rig.open(job, 2)
    assert isinstance(await refused(rig, given_back, update(1.0)), TooLate)
    assert (await rig.coordinator.round(job, 2)).refused_reports == 0
    assert [each.kind for each in (await setbacks(rig, job)).kinds] == ["too-late", "invalid-update", "given-back"]


async def test_the_first_of_a_kind_in_an_attempt_is_logged_and_no_other(rig, caplog):
    caplog.set_level(logging.INFO, "vennue.control")
    job = await rig.job(demand=3)
    await rig.open(job)
    task = rig.task("d1")
    for _ in range(5):
        await refused(rig, task, update(float("nan")))
        await refused(rig, task, update(1.0, size=3))
    rig.selector.abort(task.assignment, task.token, DeclineRequest(reason="battery"))
    said = [line for line in caplog.messages if "refused" in line or "given back" in line]
    assert len(said) == len({line.partition(": ")[2] for line in said})
    assert said[0].startswith(f"{job}.1.1: a report was refused: w: ")
    assert said[-1] == f"{job}.1.1: a task was given back: battery; others like it are only counted"


async def test_setbacks_end_with_their_job(rig):
    job = await rig.job(demand=2)
    await rig.open(job)
    task = rig.task("d1")
    await refused(rig, task, update(float("nan")))
    await rig.coordinator.cancel(job, "enough")
    await refused(rig, task, update(1.0))
    assert (await rig.coordinator.job(job)).setbacks is None
    assert rig.coordinator.setbacks._by_job == {}


async def test_kinds_are_bounded_and_the_sum_counts_those_that_are_forgotten(rig):
    job = await rig.job(demand=2)
    await rig.open(job)
    log, known = SetbackLog(), rig.coordinator.pool.jobs[job]
    for number in range(MAX_KINDS + 5):
        log.refused(known, known.attempt.id, InvalidUpdate("x" * 10_000, field=f"metrics.{number}"), 1.0)
    found = log.of(known)
    assert found is not None
    assert [each.field for each in found.kinds] == [f"metrics.{number}" for number in range(MAX_KINDS + 4, 4, -1)]
    assert found.refused_reports == MAX_KINDS + 5
    assert max(len(each.last) for each in found.kinds) == 200


async def test_a_server_that_is_busy_is_no_setback_of_the_job(rig):
    job = await rig.job(demand=2)
    await rig.open(job)
    known = rig.coordinator.pool.jobs[job]
    rig.coordinator.setbacks.refused(known, known.attempt.id, Overloaded("busy", retry_after_s=1.0), 1.0)
    assert (await rig.coordinator.job(job)).setbacks is None


@pytest.mark.parametrize(
    ("headers", "field"),
    [({"vennue_examples": "nan"}, "Vennue-Examples"), ({"vennue_metrics": "[]"}, "Vennue-Metrics")],
)
async def test_what_is_wrong_with_a_report_s_headers_is_told_if_the_report_is_the_device_s(rig, headers, field):
    app = App(rig.coordinator, rig.selector, Limits(), "1")
    job = await rig.job(demand=2)
    await rig.open(job)
    task = rig.task("d1")
    for token in ("somebody's", task.token):
        answer = await ask(
            app, "PUT", f"/v1/assignments/{task.assignment}/report", b"", authorization=f"Bearer {token}", **headers
        )
        assert answer.status == 422
    found = await setbacks(rig, job)
    assert [(each.field, each.count) for each in found.kinds] == [(field, 1)]
