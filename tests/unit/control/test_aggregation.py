"""From a job's spec to the next model: strategies and their memory, asynchronous rounds, codecs, receipts that stay."""

import asyncio
import gc
import shutil
from typing import Any

import numpy as np
import pytest

from tests.unit.control.rig import Clock, body, rig_at, sha256, until, update
from vennue.control.parts import Parts
from vennue.core.errors import InvalidInput, InvalidUpdate, StorageError, TooLate
from vennue.core.ids import AssignmentId, AttemptId, attempt_of
from vennue.core.job import JobSpec
from vennue.tensors.codecs import CODECS, CONTENT_KEY
from vennue.tensors.model import save
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.strategies import FedAvg, Share, registry
from vennue.updates.tombstones import Tombstones

CHANGE = {CONTENT_KEY: "change"}


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as started:
        yield started


def change(value: float) -> bytes:
    return save({"w": np.full(2, value, np.float32)}, CHANGE)


async def send(rig, task, data, weight=1.0, **metrics):
    return await rig.selector.report(task.assignment, task.token, weight, metrics, body(data))


async def run_round(rig, job, number, model, *updates):
    """A round in which each device reports one of the updates; its view."""
    await rig.coordinator.open_round(job, number, model, {})
    for at, data in enumerate(updates):
        await send(rig, rig.task(f"d{at}"), data)
    view = await rig.coordinator.round(job, number, wait_s=20)
    assert view.state == "committed"
    return view


# -- strategies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["in one server", "across a restart"])
async def test_a_strategy_s_memory_goes_from_round_to_round(tmp_path, restart):
    """FedAvgM with β = 0.5: velocities 1 and 1.5, so the model is at 1, then 2.5."""
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=1, strategy="fedavgm", strategy_options={"momentum": 0.5})
        first = await run_round(rig, job, 1, rig.model(), change(1.0))
        if not restart:
            second = await run_round(rig, job, 2, first.result, change(1.0))
            assert rig.numbers(second.result) == [2.5, 2.5]
    if restart:
        async with rig_at(tmp_path) as rig:
            second = await run_round(rig, job, 2, first.result, change(1.0))
            assert rig.numbers(second.result) == [2.5, 2.5]


@pytest.mark.parametrize("damage", ["lost", "its header", "a number"])
async def test_a_strategy_whose_memory_the_disk_has_lost_begins_anew(tmp_path, caplog, damage):
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=1, strategy="fedavgm", strategy_options={"momentum": 0.5})
        first = await run_round(rig, job, 1, rig.model(), change(1.0))
        commit = await rig.ledger.commit(job, 1)
        assert commit is not None
        (digest,) = commit.memory.values()
    path = tmp_path / "blobs" / digest[:2] / digest
    damaged = bytearray(path.read_bytes())
    damaged[9 if damage == "its header" else -2] ^= 1
    path.unlink()
    if damage != "lost":
        path.write_bytes(damaged)
    async with rig_at(tmp_path) as rig:
        second = await run_round(rig, job, 2, first.result, change(1.0))
        assert rig.numbers(second.result) == [2.0, 2.0]  # as FedAvg's first round
        third = await run_round(rig, job, 3, second.result, change(1.0))
        assert rig.numbers(third.result) == [3.5, 3.5]
    assert f"what the strategy of {job}.2.1 remembers is lost, so it begins anew" in caplog.text


async def test_a_model_of_another_form_begins_without_memory(rig):
    job = await rig.job(demand=1, strategy="fedavgm")
    await run_round(rig, job, 1, rig.model(), update(1.0))
    other = rig.blobs.put(update(0.0, size=3))
    view = await run_round(rig, job, 2, other, update(1.0, size=3))
    assert rig.numbers(view.result) == [1.0, 1.0, 1.0]


async def test_a_strategy_that_raises_costs_its_round_an_attempt_and_leaves_nothing_unheard(rig, monkeypatch):
    def raises(*_: object) -> Share:
        raise KeyError("loss")

    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    job = await rig.job(demand=1)
    await rig.open(job)
    with monkeypatch.context() as patched:
        patched.setattr(FedAvg, "share", raises)
        await rig.report(rig.task("d1"), 1.0)
        await until(lambda: rig.coordinator.pool.jobs[job].attempt.number == 2)
    await rig.coordinator.settled()
    await rig.report(rig.task("d2"), 3.0)
    assert rig.numbers((await rig.coordinator.round(job, 1, wait_s=20)).result) == [3.0, 3.0]
    gc.collect()
    assert unheard == []


async def test_a_median_is_taken_over_the_reports_themselves(rig):
    job = await rig.job(demand=3, strategy="median")
    view = await run_round(rig, job, 1, rig.model(), update(1.0), update(2.0), update(1e15))
    assert rig.numbers(view.result) == [2.0, 2.0]
    assert view.reported == 3


async def test_a_report_without_the_metric_that_the_strategy_needs_is_refused(rig):
    job = await rig.job(demand=1, strategy="q-fedavg")
    await rig.open(job)
    task = rig.task("d")
    with pytest.raises(InvalidUpdate, match=r"metrics\.loss"):
        await send(rig, task, update(1.0))
    assert not (await send(rig, task, update(1.0), loss=0.5)).duplicate


async def test_fedprox_tells_the_devices_its_mu_unless_the_owner_does(rig):
    job = await rig.job(demand=2, strategy="fedprox", strategy_options={"mu": 0.25})
    await rig.open(job)
    assert rig.task("d").config == {"proximal_mu": 0.25, "lr": 0.5}
    other = await rig.job(demand=2, strategy="fedprox")
    await rig.coordinator.open_round(other, 1, rig.model(), {"proximal_mu": 1.0})
    assert rig.coordinator.pool.jobs[other].attempt.config == {"proximal_mu": 1.0}


async def test_uniform_weights_count_reports_alike(rig):
    job = await rig.job(demand=2, weighting="uniform", accumulator="float64")
    await rig.open(job)
    await rig.report(rig.task("d1"), 1.0, weight=1000.0)
    await rig.report(rig.task("d2"), 3.0, weight=1.0)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (rig.numbers(view.result), view.weight) == ([2.0, 2.0], 2.0)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"strategy": "fedavgg"}, "strategy"),
        ({"strategy": "fedadam", "strategy_options": {"rate": 1}}, "strategy_options.rate"),
        ({"strategy": "fedadam", "strategy_options": {"beta_1": 2}}, "strategy_options.beta_1"),
        ({"strategy": "krum", "demand": 4}, "demand"),
        ({"strategy": "krum", "demand": 7, "deadline_s": 60.0, "min_fraction": 0.7}, "demand"),
        ({"strategy": "krum", "demand": 5000}, "demand"),
        ({"strategy": "trimmed-mean"}, "demand"),
        ({"strategy": "median", "accumulator": "float64"}, "accumulator"),
        ({"codecs": ("int9",)}, "codecs"),
        ({"codecs": ()}, "codecs"),
        ({"codecs": ("int8", "int8")}, "codecs"),
    ],
)
async def test_what_cannot_be_aggregated_is_refused_when_it_is_submitted(rig, spec, field):
    with pytest.raises(InvalidInput) as refusal:
        await rig.coordinator.submit(JobSpec(**{"name": "x", "demand": 9, **spec}))
    assert refusal.value.field == field


async def test_a_job_whose_strategy_was_removed_is_cancelled_and_the_others_go_on(tmp_path, monkeypatch):
    async with rig_at(tmp_path) as rig:
        doomed = await rig.job(strategy="fedadam")
        await rig.open(doomed)
        other = await rig.job()
        await rig.open(other)
    monkeypatch.setattr(registry.STRATEGIES, "built_in", {"fedavg": FedAvg})
    async with rig_at(tmp_path) as rig:
        await until(lambda: rig.coordinator.pool.jobs[doomed].state.terminal)
        view = await rig.coordinator.job(doomed)
        assert (view.state, "there is no strategy" in str(view.reason.text)) == ("cancelled", True)
        assert rig.task("d").job == other


# -- codecs ----------------------------------------------------------------------------------------------------------


async def test_a_task_names_the_codecs_that_the_job_takes(rig):
    await rig.open(await rig.job(codecs=("int8", "plain")))
    task = rig.task("d")
    assert task.codecs == ("int8", "plain")
    assert not (await send(rig, task, CODECS["int8"].encode({"w": np.ones(2, np.float32)}))).duplicate


async def test_a_codec_that_the_job_does_not_take_is_refused_by_name(rig):
    await rig.open(await rig.job())
    with pytest.raises(InvalidUpdate) as refusal:
        await send(rig, rig.task("d"), CODECS["int8"].encode({"w": np.ones(2, np.float32)}))
    assert (refusal.value.value, refusal.value.limit) == ("int8", "plain")


async def test_models_and_changes_meet_in_one_round(rig):
    job = await rig.job(demand=2)
    view = await run_round(rig, job, 1, rig.blobs.put(update(10.0)), update(12.0), change(4.0))
    assert rig.numbers(view.result) == [13.0, 13.0]  # 10 + (2 + 4) / 2


async def test_an_update_of_another_round_s_model_is_refused(rig):
    job = await rig.job(demand=1)
    await rig.open(job)
    task = rig.task("d")
    for model, accepted in ((sha256(b"another"), False), (task.model, True)):
        sending = rig.selector.report(task.assignment, task.token, 1.0, {}, body(update(1.0)), model=model)
        if accepted:
            assert not (await sending).duplicate
        else:
            with pytest.raises(InvalidUpdate, match="the model of another round"):
                await sending


# -- asynchronous rounds ---------------------------------------------------------------------------------------------


async def committed(rig, job, number):
    view = await rig.coordinator.round(job, number, wait_s=20)
    assert view.state == "committed"
    return rig.numbers(view.result)


async def test_an_asynchronous_job_commits_every_buffer_and_discounts_stale_changes(rig):
    """FedBuff, two per buffer. The third device began at version 0 and reports at version 1: s = 1/√2."""
    job = await rig.job(demand=3, mode="async", buffer_size=2, strategy="fedbuff", weighting="uniform")
    await rig.open(job)
    tasks = [rig.task(f"d{n}") for n in range(3)]
    assert all(task.changes for task in tasks)
    await send(rig, tasks[0], change(1.0))
    await send(rig, tasks[1], change(3.0))
    assert await committed(rig, job, 1) == [2.0, 2.0]
    fresh = rig.task("d4")
    await send(rig, tasks[2], change(4.0))
    await send(rig, fresh, change(2.0))
    expected = 2.0 + (4.0 / np.sqrt(2) + 2.0) / 2
    assert await committed(rig, job, 2) == pytest.approx([expected, expected])


async def test_the_model_updates_of_an_asynchronous_job_share_out_its_time_and_none_is_counted_twice(tmp_path):
    clock = Clock()
    async with rig_at(tmp_path, clock) as rig:
        job = await rig.job(demand=2, rounds=3, mode="async", buffer_size=1)
        await rig.open(job)
        began_at = clock()
        clock.now += 4
        tasks = [rig.task("a"), rig.task("b")]
        for number, task in enumerate(tasks, start=1):
            clock.now += 10
            await send(rig, task, change(1.0))
            await committed(rig, job, number)
        clock.now += 5
        third = rig.task("c")
        open_view = await rig.coordinator.round(job, 3)
        assert (open_view.opened_at - began_at, open_view.scheduling_delay_s) == (24, 0)
        clock.now += 10
        await send(rig, third, change(1.0))
        await committed(rig, job, 3)
        views = [await rig.coordinator.round(job, number) for number in (1, 2, 3)]
        times = [(view.opened_at - began_at, view.scheduling_delay_s, view.collection_s) for view in views]
        assert times == [(0, 4, 10), (14, 0, 10), (24, 0, 15)]
        whole = await rig.coordinator.job(job)
        assert (whole.scheduling_delay_s, whole.collection_s, whole.jct_s) == (4, 35, 39)


async def test_an_asynchronous_job_takes_no_whole_models(rig):
    await rig.open(await rig.job(demand=1, mode="async", buffer_size=1))
    with pytest.raises(InvalidUpdate, match="asynchronous, so it takes changes"):
        await send(rig, rig.task("d"), update(1.0))


async def test_a_report_that_is_too_stale_is_refused_and_leaves_nothing(rig):
    job = await rig.job(demand=2, mode="async", buffer_size=1, max_staleness=0)
    await rig.open(job)
    slow, fast = rig.task("slow"), rig.task("fast")
    await send(rig, fast, change(1.0))
    assert await committed(rig, job, 1) == [1.0, 1.0]
    with pytest.raises(TooLate, match="1 model versions old"):
        await send(rig, slow, change(5.0))
    await send(rig, rig.task("next"), change(1.0))
    assert await committed(rig, job, 2) == [2.0, 2.0]


async def test_an_asynchronous_job_runs_many_model_updates_in_flat_space(rig, tmp_path):
    job = await rig.job(demand=1, rounds=30, mode="async", buffer_size=1)
    await rig.open(job)
    for number in range(1, 31):
        await send(rig, rig.task(f"d{number}"), change(1.0))
        assert await committed(rig, job, number) == [number, number]
        assert len(list((tmp_path / "spool").rglob("*.update"))) <= 1
    assert (await rig.coordinator.job(job)).state == "completed"


async def test_what_an_asynchronous_job_acknowledged_is_in_its_model_although_the_server_died_before_the_commit(
    tmp_path,
):
    """The aggregate is made, and not yet on record, when the server dies."""
    async with rig_at(tmp_path / "first") as rig:
        job = await rig.job(demand=2, mode="async", buffer_size=2)
        await rig.open(job)
        tasks = [rig.task(f"d{n}") for n in range(2)]
        await send(rig, tasks[0], change(1.0))
        models = len(list((tmp_path / "first" / "blobs").rglob("*")))
        rig.ledger.gate.clear()
        second = asyncio.create_task(send(rig, tasks[1], change(3.0)))
        await until(lambda: rig.coordinator.pool.jobs[job].committed == 1)
        assert len(list((tmp_path / "first" / "blobs").rglob("*"))) > models
        shutil.copytree(tmp_path / "first", tmp_path / "after the crash")
        rig.ledger.gate.set()
        await second
    async with rig_at(tmp_path / "after the crash") as rig:
        assert await committed(rig, job, 1) == [2.0, 2.0]
        assert (await send(rig, tasks[0], change(9.0))).duplicate
        assert (await rig.coordinator.round(job, 1)).reported == 2


async def test_what_is_in_an_asynchronous_job_s_commit_is_in_no_other_although_the_server_died_right_after_it(
    tmp_path, monkeypatch
):
    def died(*_):
        raise StorageError("the server is dead", field="path")

    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=2, mode="async", buffer_size=2)
        await rig.open(job)
        tasks = [rig.task(f"d{n}") for n in range(2)]
        monkeypatch.setattr(RoundAggregator, "go_on", died)
        for task, value in zip(tasks, (1.0, 3.0), strict=True):
            await send(rig, task, change(value))
        assert await committed(rig, job, 1) == [2.0, 2.0]
        assert len(list((tmp_path / "spool").rglob("*.update"))) == 2
    monkeypatch.undo()
    async with rig_at(tmp_path) as rig:
        assert list((tmp_path / "spool").rglob("*.update")) == []
        for number in range(2, 4):
            assert (await send(rig, tasks[0], change(9.0))).duplicate
            for n in range(2):
                await send(rig, rig.task(f"e{number}{n}"), change(1.0))
            assert await committed(rig, job, number) == [1.0 + number, 1.0 + number]


async def test_a_stale_change_weighs_as_much_after_a_crash_as_before(tmp_path):
    """S = 1/√2 for the report of a device that was given version 0, when the model is at version 1."""
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=3, mode="async", buffer_size=2, strategy="fedbuff", weighting="uniform")
        await rig.open(job)
        tasks = [rig.task(f"d{n}") for n in range(3)]
        await send(rig, tasks[0], change(1.0))
        await send(rig, tasks[1], change(3.0))
        await committed(rig, job, 1)
        await send(rig, tasks[2], change(4.0))
    async with rig_at(tmp_path) as rig:
        await send(rig, rig.task("fresh"), change(2.0))
        expected = 2.0 + (4.0 / np.sqrt(2) + 2.0) / 2
        assert await committed(rig, job, 2) == pytest.approx([expected, expected])


@pytest.mark.parametrize("spec", [{"mode": "async", "buffer_size": 1}, {}], ids=["asynchronous", "synchronous"])
async def test_an_aggregate_whose_receipts_cannot_be_kept_is_no_commit_yet(tmp_path, monkeypatch, spec):
    """Without them, a crash would count reports twice, or a repeat be told to be too late. It is made again."""

    def full(*_, **__):
        raise StorageError("cannot keep the receipts of a round: no space left on device", field="path")

    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=1, **spec)
        await rig.open(job)
        task = rig.task("d1")
        with monkeypatch.context() as patch:
            patch.setattr(Tombstones, "bury", full)
            await send(rig, task, change(1.0))
            await until(lambda: rig.coordinator.counters.failed_commits == 1)
        assert await committed(rig, job, 1) == [1.0, 1.0]
    async with rig_at(tmp_path) as rig:
        assert (await send(rig, task, change(1.0))).duplicate


async def test_a_pool_that_is_rebuilt_waits_for_the_aggregate_that_is_under_way(rig, monkeypatch):
    """Its receipts would be taken for those of the commit that is made in its place, perhaps of other reports."""
    making, go_on, committed = asyncio.Event(), asyncio.Event(), rig.data.committed

    async def slow(attempt: AttemptId) -> None:
        making.set()
        await go_on.wait()
        await committed(attempt)

    monkeypatch.setattr(rig.data, "committed", slow)
    job = await rig.job(demand=1, mode="async", buffer_size=1)
    await rig.open(job)
    task = rig.task("d1")
    attempt = attempt_of(task.assignment)
    await send(rig, task, change(1.0))
    await making.wait()

    async def rebuild() -> list[AssignmentId]:
        await rig.data.reset(keep=[attempt])
        rig.data.expect(attempt, rig.model(), rig.coordinator.pool.jobs[job].spec)
        return [each.assignment for each in await rig.data.recover(attempt, 0)]

    rebuilding = asyncio.ensure_future(rebuild())
    await asyncio.wait([rebuilding], timeout=0.3)
    assert not rebuilding.done()
    go_on.set()
    assert await rebuilding == [task.assignment]


async def test_a_disk_that_is_full_at_the_end_of_a_round_costs_none_of_its_reports(rig, monkeypatch):
    job = await rig.job(demand=2)
    await rig.open(job)

    async def full(*_: object, **__: object) -> None:
        raise StorageError("cannot store a blob: no space left on device", field="path")

    with monkeypatch.context() as patch:
        patch.setattr(rig.data, "aggregate", full)
        for number, task in enumerate([rig.task("d1"), rig.task("d2")]):
            await rig.report(task, 1.0 + 2 * number)
        await until(lambda: rig.coordinator.counters.failed_commits >= 1)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.state, view.attempt, view.reported) == ("committed", 1, 2)


async def test_a_job_that_is_cancelled_while_its_disk_is_full_ends(rig, monkeypatch):
    job = await rig.job(demand=1)
    await rig.open(job)

    async def full(*_: object, **__: object) -> None:
        raise StorageError("cannot store a blob: no space left on device", field="path")

    monkeypatch.setattr(rig.data, "aggregate", full)
    await rig.report(rig.task("d1"))
    await until(lambda: rig.coordinator.counters.failed_commits >= 1)
    await rig.coordinator.cancel(job, "no longer of use")
    assert (await rig.coordinator.job(job)).state == "cancelled"


# -- receipts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["in one server", "across a restart"])
async def test_a_repeat_after_the_round_gets_the_same_receipt(tmp_path, restart):
    async with rig_at(tmp_path, Clock()) as rig:
        job = await rig.job(demand=1)
        await rig.open(job)
        task, data = rig.task("d"), update(1.0)
        first = await rig.selector.report(task.assignment, task.token, 1.0, {}, body(data), sha256=sha256(data))
        await rig.coordinator.round(job, 1, wait_s=20)
        again = await rig.report(task, 7.0)
    if restart:
        async with rig_at(tmp_path, Clock()) as rig:
            again = await rig.report(task, 7.0)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.assignment, again.sha256) == (first.assignment, first.sha256)


async def test_a_repeat_of_an_asynchronous_report_gets_its_receipt_while_the_job_goes_on(rig):
    job = await rig.job(demand=1, mode="async", buffer_size=1)
    await rig.open(job)
    task = rig.task("d")
    await send(rig, task, change(1.0))
    await committed(rig, job, 1)
    assert (await send(rig, task, change(1.0))).duplicate
    assert (await rig.coordinator.job(job)).committed_rounds == 1


async def test_a_report_that_was_never_counted_has_no_receipt(rig):
    job = await rig.job(demand=1, overcommit=2.0)
    await rig.open(job)
    counted, late = rig.task("d1"), rig.task("d2")
    await rig.report(counted)
    await rig.coordinator.round(job, 1, wait_s=20)
    with pytest.raises(TooLate):
        await rig.report(late)


async def test_what_came_of_reports_in_parts_goes_with_their_attempt_and_with_no_other(rig):
    parts = Parts(rig.blobs, rig.data.uploads)
    ended, other = await rig.job(demand=1), await rig.job(demand=1)
    await rig.open(ended)
    await rig.open(other)
    before_bytes = rig.blobs.used_bytes
    for task in (rig.task("d1"), rig.task("d2")):
        await parts.append(sha256(b"a report"), body(b"a rep")(1), offset=0, owner=task.assignment)
    assert rig.blobs.used_bytes == before_bytes + 10
    await rig.coordinator.cancel(ended, "no longer of use")
    await until(lambda: rig.blobs.used_bytes == before_bytes + 5)
