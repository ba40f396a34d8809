"""Partial sums at the root: counted whole, once, or not at all; and the root says why not."""

import asyncio
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from tests.unit.control.rig import Rig, body, rig_at, until, update
from vennue.control.parts import expected_report
from vennue.control.tokens import holder
from vennue.core.errors import Conflict, Forbidden, InvalidUpdate, NotFound, Overloaded, StorageError, TooLate
from vennue.core.ids import AttemptId, JobId, attempt_of
from vennue.core.recovery import NO_PLACE
from vennue.protocol import PartialManifest, PartialReceipt, PartialReport, Task
from vennue.tensors.model import save
from vennue.updates.spool import Spool
from vennue.updates.tombstones import Tombstones


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as started:
        yield started


def sums(values: Sequence[float], *, dtype=np.float32) -> bytes:
    return save({"w": np.array(values, dtype)}, {"vennue.sums": "1"})


def manifest(*tasks: Task, weight: float | None = None) -> PartialManifest:
    reports = [PartialReport(task.assignment, task.token, 100, 1.0) for task in tasks]
    total = float(len(tasks)) if weight is None else weight
    return PartialManifest(reports=reports, weight=total, models=total, metrics={"loss": (3.0, total)})


async def send(rig, id: str, *tasks: Task, data: bytes | None = None, about: PartialManifest | None = None):
    data = sums([2.0 * len(tasks)] * 2) if data is None else data
    return await rig.leaves.report(attempt_of(tasks[0].assignment), id, about or manifest(*tasks), body(data))


async def started(rig: Rig, **spec) -> tuple[JobId, list[Task]]:
    job = await rig.job(**{"demand": 3, **spec})
    await rig.open(job)
    return job, [rig.task(f"d{n}") for n in range(3)]


async def test_a_partial_sum_stands_for_its_reports_beside_a_device_s_own(rig):
    job, tasks = await started(rig)
    assert await send(rig, "p1", *tasks[:2]) == PartialReceipt(counted=True)
    await rig.report(tasks[2], 5.0, loss=0.0)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert rig.numbers(view.result) == [3.0, 3.0]  # (2 + 2 + 5) / 3
    assert (view.reported, view.weight, view.metrics) == (3, 3.0, {"loss": 1.0})
    assert (rig.coordinator.counters.reports, rig.coordinator.counters.partials) == (3, 1)


async def test_a_sum_in_float64_is_taken_too(rig):
    job, tasks = await started(rig, accumulator="float64")
    await send(rig, "p1", *tasks, data=sums([1.5, 3.0], dtype=np.float64))
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert rig.numbers(view.result) == [0.5, 1.0]


async def test_a_repeated_sum_counts_once_under_any_id(rig):
    job, tasks = await started(rig)
    await send(rig, "p1", *tasks[:2])
    for id in ("p1", "p2"):
        receipt = await send(rig, id, *tasks[:2])
        assert (receipt.counted, receipt.counted_before) == (False, [task.assignment for task in tasks[:2]])
    await rig.report(tasks[2], 2.0)
    assert (await rig.coordinator.round(job, 1, wait_s=20)).weight == 3.0


async def test_a_report_that_came_by_another_way_is_named_and_nothing_counts(rig):
    _, tasks = await started(rig)
    await rig.report(tasks[0])
    receipt = await send(rig, "p1", *tasks[:2])
    assert (receipt.counted, receipt.counted_before, receipt.refused) == (False, [tasks[0].assignment], {})
    assert await send(rig, "p2", tasks[1]) == PartialReceipt(counted=True)


async def test_a_device_that_reported_to_a_leaf_may_repeat_it_at_the_root(rig):
    _, tasks = await started(rig)
    await send(rig, "p1", *tasks[:2])
    assert (await rig.report(tasks[0], 9.0)).duplicate


async def test_an_assignment_that_is_over_is_named_with_the_reason(rig):
    job, tasks = await started(rig, lease_s=60)
    rig.clock.now += 1000
    late = rig.task("d9")
    receipt = await send(rig, "p1", tasks[0], late)
    assert not receipt.counted
    assert receipt.refused == {tasks[0].assignment: f"assignment {tasks[0].assignment} is over: its lease ran out, or "
                               "the device checked in with other attributes"}  # fmt: skip
    told = (await rig.coordinator.job(job)).setbacks
    assert [(each.kind, each.count, each.last) for each in told.kinds] == [("too-late", 1, *receipt.refused.values())]
    assert await send(rig, "p2", late) == PartialReceipt(counted=True)


async def test_refused_sums_are_counted_and_so_are_the_reports_that_they_are_refused_for(rig):
    _, tasks = await started(rig, lease_s=60)
    counters = rig.coordinator.counters
    forged = PartialReport(tasks[1].assignment, tasks[2].token, 100, 1.0)
    wrong = msgspec.structs.replace(manifest(tasks[1]), reports=[forged])
    await send(rig, "p1", tasks[1], about=wrong)
    with pytest.raises(InvalidUpdate):
        await send(rig, "p2", tasks[1], data=sums([np.nan, 1.0]))
    assert (counters.refused_partials, counters.refused_reports, counters.late_reports) == (2, 1, 0)
    rig.clock.now += 1000
    rig.check_in("d9")
    for _ in range(2):
        await send(rig, "p3", *tasks[:2])
    assert (counters.refused_partials, counters.refused_reports) == (4, 5)
    assert counters.late_reports == 2  # each credited once
    assert (counters.partials, counters.reports) == (0, 0)


async def test_a_lease_that_runs_out_while_the_sum_arrives_leaves_nothing_of_it(rig, tmp_path):
    _, tasks = await started(rig, lease_s=60)

    def slow(limit: int):
        async def chunks():
            data = sums([4.0, 4.0])
            yield data[:10]
            rig.clock.now += 1000
            rig.check_in("d9")
            yield data[10:]

        return chunks()

    receipt = await rig.leaves.report(attempt_of(tasks[0].assignment), "p1", manifest(*tasks[:2]), slow)
    assert set(receipt.refused) == {task.assignment for task in tasks[:2]}
    assert [path for path in (tmp_path / "spool").rglob("*") if path.is_file()] == []


async def test_a_token_of_another_device_is_refused(rig):
    _, tasks = await started(rig)
    stolen = msgspec.structs.replace(tasks[0], token=tasks[1].token)
    receipt = await send(rig, "p1", stolen, tasks[1])
    assert list(receipt.refused) == [tasks[0].assignment]


async def test_a_sum_after_the_round_is_told_what_counted(rig):
    job, tasks = await started(rig)
    await send(rig, "p1", *tasks)
    await rig.coordinator.round(job, 1, wait_s=20)
    await until(lambda: rig.coordinator.pool.jobs[job].attempt is None)
    receipt = await send(rig, "p2", *tasks)
    assert receipt.counted_before == [task.assignment for task in tasks]


async def test_a_sum_that_completes_the_round_is_in_its_aggregate(rig):
    """The commit begins with the very event that counts the sum."""
    job, tasks = await started(rig, demand=6, deadline_s=60.0, min_fraction=0.5)
    await send(rig, "p1", *tasks)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.reported, rig.numbers(view.result)) == (3, [2.0, 2.0])


# -- crashes, and receipts that wait for the disk --------------------------------------------------------------------


async def test_a_sum_that_was_counted_counts_after_a_crash_with_the_same_weight(tmp_path):
    async with rig_at(tmp_path) as rig:
        job, tasks = await started(rig)
        heavy = [PartialReport(task.assignment, task.token, 100, 3.0) for task in tasks[:2]]
        about = PartialManifest(reports=heavy, weight=6.0, models=6.0, metrics={})
        assert (await send(rig, "p1", *tasks[:2], about=about)).counted
    async with rig_at(tmp_path) as rig:
        assert (await rig.coordinator.round(job, 1)).reported == 2
        again = await send(rig, "p2", *tasks[:2])
        assert again.counted_before == [task.assignment for task in tasks[:2]]
        assert (await rig.report(tasks[0], 9.0)).duplicate
        await rig.report(tasks[2], 2.0, weight=2.0)
        view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.attempt, view.reported, view.weight) == (1, 3, 8.0)
    assert view.result is not None
    assert rig.numbers(view.result) == [1.0, 1.0]  # (4 + 2·2) / 8


async def test_a_sum_whose_counting_is_not_durable_is_acknowledged_to_nobody_and_gone_after_a_crash(
    tmp_path, monkeypatch
):
    def read_only(*_):
        raise StorageError("cannot mark an update as taken: read-only file system", field="path")

    async with rig_at(tmp_path) as rig:
        job, tasks = await started(rig)
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "take", read_only)
            for attempt in (
                send(rig, "p1", *tasks[:2]),
                send(rig, "p1", *tasks[:2]),
                send(rig, "p2", *tasks),
                rig.report(tasks[0]),
            ):
                with pytest.raises(StorageError, match="as taken"):
                    await attempt
    async with rig_at(tmp_path) as rig:
        assert (await rig.coordinator.round(job, 1)).reported == 0
        assert (await send(rig, "p1", *tasks)).counted
        assert (await rig.coordinator.round(job, 1, wait_s=20)).weight == 3.0


async def test_a_sum_whose_counting_could_not_be_made_durable_counts_once_it_can(rig, monkeypatch):
    def read_only(*_):
        raise StorageError("cannot mark an update as taken: read-only file system", field="path")

    job, tasks = await started(rig)
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "take", read_only)
        with pytest.raises(StorageError):
            await send(rig, "p1", *tasks[:2])
    again = await send(rig, "p1", *tasks[:2])
    assert again.counted_before == [task.assignment for task in tasks[:2]]
    await rig.report(tasks[2], 5.0)
    assert rig.numbers((await rig.coordinator.round(job, 1, wait_s=20)).result) == [3.0, 3.0]


async def test_no_receipt_for_a_report_in_a_sum_is_given_before_the_sum_is_taken_durably(rig, monkeypatch):
    gate, entered, take = threading.Event(), threading.Event(), Spool.take

    def slow(spool, key):
        entered.set()
        assert gate.wait(20)
        return take(spool, key)

    monkeypatch.setattr(Spool, "take", slow)
    job, tasks = await started(rig)
    asking = [asyncio.create_task(send(rig, "p1", *tasks[:2]))]
    await asyncio.to_thread(entered.wait, 20)
    # The pool has counted it, and a crash would still undo that.
    assert (await rig.coordinator.round(job, 1)).reported == 2
    asking += [asyncio.create_task(ask) for ask in (rig.report(tasks[0]), send(rig, "p2", *tasks[1:]))]
    done, _ = await asyncio.wait(asking, timeout=0.1)
    assert not done
    gate.set()
    first, repeat, other = await asyncio.gather(*asking)
    assert first.counted
    assert repeat.duplicate
    assert other.counted_before == [tasks[1].assignment]


async def test_one_sum_that_arrives_twice_at_once_counts_once(rig):
    job, tasks = await started(rig)
    receipts = await asyncio.gather(*(send(rig, "p1", *tasks[:2]) for _ in range(4)))
    assert sorted(receipt.counted for receipt in receipts) == [False, False, False, True]
    assert all(receipt.counted or len(receipt.counted_before) == 2 for receipt in receipts)
    await rig.report(tasks[2], 5.0)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.weight, rig.numbers(view.result)) == (3.0, [3.0, 3.0])


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
async def test_a_sum_with_the_id_of_another_one_is_refused_and_both_their_reports_may_still_count(rig, at_once):
    job, tasks = await started(rig)
    first = asyncio.create_task(send(rig, "p1", *tasks[:2]))
    if not at_once:
        await first
    other = send(rig, "p1", tasks[2], data=sums([5.0, 5.0]))
    answers = await asyncio.gather(first, other, return_exceptions=True)
    (refused,) = (answer for answer in answers if isinstance(answer, Conflict))
    assert (refused.field, refused.value) == ("partial", "p1")
    assert "an id of its own" in (refused.fix or "")
    for task, value in zip(tasks, (2.0, 2.0, 5.0), strict=True):
        await rig.report(task, value)  # a repeat, where its sum counts
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.state, view.reported, rig.numbers(view.result)) == ("committed", 3, [3.0, 3.0])


async def test_overlapping_sums_that_arrive_at_once_count_one_of_them(rig):
    _, tasks = await started(rig)
    first, second = await asyncio.gather(send(rig, "p1", *tasks[:2]), send(rig, "p2", *tasks[1:]))
    assert {first.counted, second.counted} == {True, False}
    assert (second if first.counted else first).counted_before == [tasks[1].assignment]


async def test_of_devices_that_return_together_those_too_many_for_the_round_are_named(tmp_path):
    async with rig_at(tmp_path) as rig:
        _, old = await started(rig)
    async with rig_at(tmp_path) as rig:
        await rig.report(rig.task("n1"))
        await rig.report(rig.task("n2"))
        receipt = await send(rig, "p1", *old)
        assert not receipt.counted
        assert receipt.refused == dict.fromkeys([old[1].assignment, old[2].assignment], NO_PLACE)
        assert (await send(rig, "p2", old[0])).counted


@pytest.mark.parametrize("told_by", ["itself", "a sum"])
async def test_what_was_refused_as_too_late_counts_by_no_way_after_a_crash(tmp_path, told_by):
    """The leases are forgotten then, and the devices' tokens are good; but what was said is said."""
    async with rig_at(tmp_path) as rig:
        _, tasks = await started(rig, lease_s=60)
        rig.clock.now += 1000
        rig.check_in("d9")
        if told_by == "itself":
            with pytest.raises(TooLate):
                await rig.report(tasks[0])
        else:
            assert list((await send(rig, "p1", tasks[0])).refused) == [tasks[0].assignment]
    for number in range(2):  # and after another one
        async with rig_at(tmp_path) as rig:
            with pytest.raises(TooLate):
                await rig.report(tasks[0])
            assert list((await send(rig, f"q{number}", *tasks[:2])).refused) == [tasks[0].assignment]
            with pytest.raises(TooLate):
                await expected_report(rig.coordinator, tasks[0].assignment, tasks[0].token)
    async with rig_at(tmp_path) as rig:
        assert (await send(rig, "r1", *tasks[1:])).counted  # nobody was told so of these


async def test_a_sum_that_arrives_while_a_report_in_it_is_refused_does_not_count(tmp_path):
    """Both come back to an assignment from before a restart; the other one's device has reported meanwhile."""
    async with rig_at(tmp_path) as rig:
        _, old = await started(rig)
    async with rig_at(tmp_path) as rig:

        def slow(limit: int):
            async def chunks():
                data = sums([4.0, 4.0])
                yield data[:10]
                await rig.data.refuse(attempt_of(old[0].assignment), [old[0].assignment])
                yield data[10:]

            return chunks()

        receipt = await rig.leaves.report(attempt_of(old[0].assignment), "p1", manifest(*old[:2]), slow)
        assert (receipt.counted, list(receipt.refused)) == (False, [old[0].assignment])
        with pytest.raises(TooLate):
            await rig.report(old[0])


async def test_nobody_is_told_of_a_refusal_that_cannot_be_made_durable(rig, monkeypatch):
    def full(*_, **__):
        raise StorageError("no space left on device", field="path")

    _, tasks = await started(rig, lease_s=60)
    rig.clock.now += 1000
    rig.check_in("d9")
    with monkeypatch.context() as patch:
        patch.setattr(Tombstones, "refuse", full)
        for asked in (rig.report(tasks[0]), send(rig, "p1", tasks[0])):
            with pytest.raises(StorageError, match="no space left"):
                await asked
    with pytest.raises(TooLate):
        await rig.report(tasks[0])


async def test_a_report_that_counts_cannot_be_refused(rig):
    _, tasks = await started(rig)
    await rig.report(tasks[0])
    await send(rig, "p1", tasks[1])
    for task in tasks[:2]:
        with pytest.raises(Overloaded, match="was counted this very moment"):
            await rig.data.refuse(attempt_of(task.assignment), [task.assignment])


async def test_a_sum_whose_round_ends_while_it_arrives_is_told_of_each_report(rig):
    job, tasks = await started(rig)

    def ends(limit: int):
        async def chunks():
            data = sums([4.0, 4.0])
            yield data[:10]
            for task in tasks:
                await rig.report(task)
            await rig.coordinator.round(job, 1, wait_s=20)
            await until(lambda: rig.coordinator.pool.jobs[job].attempt is None)
            yield data[10:]

        return chunks()

    receipt = await rig.leaves.report(attempt_of(tasks[0].assignment), "p1", manifest(*tasks[:2]), ends)
    assert (receipt.counted, receipt.refused) == (False, {})
    assert receipt.counted_before == [task.assignment for task in tasks[:2]]


async def test_while_the_pool_is_rebuilt_no_report_is_told_to_be_too_late(rig, monkeypatch):
    """The ledger fails and works again; meanwhile, for a moment, the data plane expects no attempt at all."""
    monkeypatch.setattr("vennue.control.shell.RETRY_LEDGER_S", 0.0)
    job, tasks = await started(rig)
    await send(rig, "p1", tasks[0])
    rebuilding, go_on, find = asyncio.Event(), asyncio.Event(), rig.data.recover

    async def slowly(attempt, committed):
        rebuilding.set()
        await go_on.wait()
        return await find(attempt, committed)

    monkeypatch.setattr(rig.data, "recover", slowly)
    rig.ledger.failure = StorageError("disk is full", field="ledger")
    with pytest.raises(StorageError):
        await rig.job()
    rig.ledger.failure = None
    await rebuilding.wait()
    for asked in (
        rig.report(tasks[1]),
        send(rig, "p2", *tasks),
        rig.leaves.attempt(attempt_of(tasks[0].assignment)),
    ):
        with pytest.raises(StorageError, match="cannot save anything at this moment"):
            await asked
    go_on.set()
    await until(lambda: rig.coordinator.failure is None)
    # The single report was on the disk by then, and was found there.
    assert (await send(rig, "p3", *tasks)).counted_before == [task.assignment for task in tasks[:2]]
    assert (await send(rig, "p4", tasks[2])).counted
    assert (await rig.coordinator.round(job, 1, wait_s=20)).reported == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sums([np.nan, 1.0]), "element 0 is nan"),
        (sums([np.inf, 1.0]), "element 0 is inf"),
        (sums([1.0, 1.0, 1.0]), "not a sum of updates of the round's model"),
        (update(1.0), "not a sum of updates of the round's model"),
        (sums([1.0, 1.0])[:-1], "cut off"),
    ],
)
async def test_numbers_that_cannot_be_right_are_refused_and_the_round_goes_on(rig, data, message):
    job, tasks = await started(rig)
    with pytest.raises(InvalidUpdate, match=message):
        await send(rig, "p1", *tasks, data=data)
    assert (await send(rig, "p2", *tasks)).counted
    assert rig.numbers((await rig.coordinator.round(job, 1, wait_s=20)).result) == [2.0, 2.0]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e12])
async def test_a_weight_that_cannot_be_right_is_refused(rig, weight):
    _, tasks = await started(rig)
    with pytest.raises(InvalidUpdate, match="weight"):
        await send(rig, "p1", *tasks, about=manifest(*tasks, weight=weight))


@pytest.mark.parametrize("weight", [1.0, 4.0, 1e308])
async def test_a_sum_that_does_not_weigh_what_its_reports_do_is_refused(rig, weight):
    job, tasks = await started(rig)
    about = msgspec.structs.replace(manifest(*tasks), weight=weight, metrics={})
    with pytest.raises(InvalidUpdate, match="do together") as refusal:
        await send(rig, "p1", *tasks, about=about)
    assert refusal.value.field == "weight"
    assert (await send(rig, "p2", *tasks)).counted
    assert (await rig.coordinator.round(job, 1, wait_s=20)).reported == 3


async def test_a_sum_with_more_models_in_it_than_it_weighs_is_refused(rig):
    _, tasks = await started(rig)
    with pytest.raises(InvalidUpdate, match="do together"):
        await send(rig, "p1", *tasks, about=msgspec.structs.replace(manifest(*tasks), models=1e6))


async def test_a_report_named_twice_and_an_empty_sum_are_refused(rig):
    _, tasks = await started(rig)
    with pytest.raises(InvalidUpdate, match="name each of its updates, once"):
        await send(rig, "p1", tasks[0], tasks[0])
    with pytest.raises(InvalidUpdate, match="name each of its updates"):
        await rig.leaves.report(attempt_of(tasks[0].assignment), "p1", manifest(), body(sums([0.0, 0.0])))


@pytest.mark.parametrize("spec", [{"strategy": "median"}, {"mode": "async", "buffer_size": 2}])
async def test_a_round_that_needs_every_update_by_itself_takes_no_sums(rig, spec):
    _, tasks = await started(rig, **spec)
    assert not (await rig.leaves.attempt(attempt_of(tasks[0].assignment))).sums
    with pytest.raises(Conflict):
        await send(rig, "p1", *tasks)


async def test_a_leaf_learns_what_it_needs_of_an_open_attempt(rig):
    job, tasks = await started(rig, deadline_s=60.0)
    view = await rig.leaves.attempt(attempt_of(tasks[0].assignment))
    assert (view.model, view.spec.demand, view.sums, view.closes_in_s) == (tasks[0].model, 3, True, 60.0)
    key = bytes.fromhex(view.token_key)
    assert holder(key, tasks[0].assignment, tasks[0].token) == "d0"
    with pytest.raises(Forbidden):
        holder(key, tasks[0].assignment, tasks[1].token)
    with pytest.raises(TooLate):
        await rig.leaves.attempt(AttemptId(f"{job}.1.2"))
    with pytest.raises(NotFound):
        await rig.leaves.attempt(AttemptId("nothing.1.1"))
