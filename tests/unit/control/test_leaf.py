"""A leaf: reports in, sums out, each counted once by the root, and acknowledged only then."""

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.unit.control.leaf_rig import AT_ONCE, LeafRig, leaf_under, unreachable
from tests.unit.control.rig import Clock, Rig, body, rig_at, sha256, until, update
from vennue.control import branch
from vennue.control.branch import Flush
from vennue.control.leaf import PassOn
from vennue.core.errors import (
    Conflict,
    Forbidden,
    InvalidUpdate,
    Overloaded,
    StorageError,
    TooLate,
    Unavailable,
)
from vennue.core.ids import AssignmentId, attempt_of
from vennue.tensors.codecs import CODECS, CONTENT_KEY
from vennue.updates.spool import Spool
from vennue.updates.strategies import FedAvg, Share
from vennue.updates.strategies.registry import STRATEGIES


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path / "root", Clock()) as started:
        yield started


@pytest.fixture
async def leaf(rig, tmp_path):
    async with leaf_under(rig, tmp_path / "leaf") as started:
        yield started


async def round_of(rig: Rig, devices: int, **spec):
    job = await rig.job(**{"demand": devices, **spec})
    await rig.open(job)
    return job, [rig.task(f"d{n}") for n in range(devices)]


async def result(rig, job, number=1):
    view = await rig.coordinator.round(job, number, wait_s=20)
    assert view.state == "committed"
    return rig.numbers(view.result)[0]


def files(leaf):
    # os.walk, which does not mind that a leaf at work removes directories meanwhile
    found = [Path(directory, name) for directory, _, names in os.walk(leaf.directory) for name in names]
    return [path for path in found if {"blobs", "spares"}.isdisjoint(path.parts)]


# -- what goes right -------------------------------------------------------------------------------------------------


async def test_reports_become_one_sum_and_are_acknowledged_when_the_root_has_counted_it(rig, tmp_path):
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=both) as leaf:
        job, tasks = await round_of(rig, 2)
        first = asyncio.create_task(leaf.report(tasks[0], 1.0, weight=3.0, loss=1.0))
        await until(lambda: leaf.leaf.waiting == 1)
        assert not first.done()
        second = await leaf.report(tasks[1], 5.0, weight=1.0, loss=5.0)
        assert (await first).duplicate is second.duplicate is False
        assert await result(rig, job) == 2.0  # (3·1 + 5) / 4
        view = await rig.coordinator.round(job, 1)
        assert (view.weight, view.metrics) == (4.0, {"loss": 2.0})
        assert len(leaf.upstream.sent) == 1
        assert files(leaf) == []


async def test_a_sum_goes_up_when_its_first_report_has_waited_long_enough(rig, tmp_path):
    async with leaf_under(rig, tmp_path / "leaf", flush=Flush(reports=99, bytes=2**30, age_s=0.01, margin_s=0)) as leaf:
        _, tasks = await round_of(rig, 2)
        assert not (await leaf.report(tasks[0])).duplicate


async def test_a_sum_goes_up_when_so_many_bytes_wait(rig, tmp_path):
    flush = Flush(reports=99, bytes=2 * len(update(1.0)), age_s=1e6, margin_s=0)
    async with leaf_under(rig, tmp_path / "leaf", flush=flush) as leaf:
        _, tasks = await round_of(rig, 3)
        await asyncio.gather(leaf.report(tasks[0]), leaf.report(tasks[1]))
        assert len(leaf.upstream.sent) == 1


async def test_a_sum_goes_up_before_the_round_ends_whatever_it_waits_for(rig, tmp_path):
    flush = Flush(reports=99, bytes=2**30, age_s=1e6, margin_s=60.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=flush) as leaf:
        _, tasks = await round_of(rig, 2, deadline_s=60.0)
        assert not (await leaf.report(tasks[0])).duplicate


@pytest.mark.parametrize("codec", ["float16", "int8", "top-k"])
async def test_codecs_are_decoded_at_the_leaf(rig, leaf, codec):
    job, tasks = await round_of(rig, 1, codecs=(codec,))
    data = CODECS[codec].encode({"w": np.array([127, 0], np.float32)}, metadata={CONTENT_KEY: "change"})
    await leaf.report(tasks[0], data=data)
    assert await result(rig, job) == pytest.approx(127.0)


async def test_a_strategy_weighs_each_report_at_the_leaf(rig, leaf):
    """Norm clipping to 2: changes of norm 2, of 1.2 and of √2·8 come to lengths 2, 1.2 and 2."""
    job, tasks = await round_of(rig, 2, strategy="norm-clipping", strategy_options={"norm": float(np.sqrt(2))})
    await leaf.report(tasks[0], 8.0)
    await rig.report(tasks[1], 0.5)
    assert await result(rig, job) == pytest.approx((1.0 + 0.5) / 2)


async def test_devices_may_report_to_the_root_and_to_leaves_at_any_depth(rig, leaf, tmp_path):
    async with LeafRig(tmp_path / "lower", lambda: leaf.leaf, leaf.blobs) as lower:
        job, tasks = await round_of(rig, 4)
        await rig.report(tasks[0], 1.0)
        await leaf.report(tasks[1], 2.0)
        receipts = await asyncio.gather(lower.report(tasks[2], 3.0), lower.report(tasks[3], 6.0))
        assert not any(receipt.duplicate for receipt in receipts)
        assert await result(rig, job) == 3.0
        assert files(leaf) == files(lower) == []


# -- exactly once ----------------------------------------------------------------------------------------------------


async def test_a_repeat_gets_its_receipt_and_counts_once(rig, leaf):
    job, tasks = await round_of(rig, 2)
    data = update(1.0)
    first = await leaf.leaf.receive(tasks[0].assignment, tasks[0].token, 1.0, {}, body(data), sha256=sha256(data))
    again = await leaf.report(tasks[0], 9.0)
    at_root = await rig.report(tasks[0], 9.0)
    assert [r.duplicate for r in (first, again, at_root)] == [False, True, True]
    assert first.sha256 == again.sha256 == at_root.sha256
    await leaf.report(tasks[1], 3.0)
    assert await result(rig, job) == 2.0


async def test_a_report_that_the_root_has_already_is_a_duplicate_and_the_others_count(rig, tmp_path):
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=both) as leaf:
        job, tasks = await round_of(rig, 2)
        await rig.report(tasks[0], 1.0)
        receipts = await asyncio.gather(leaf.report(tasks[0], 1.0), leaf.report(tasks[1], 3.0))
        assert [receipt.duplicate for receipt in receipts] == [True, False]
        assert await result(rig, job) == 2.0
        assert [len(manifest.reports) for manifest in leaf.upstream.sent] == [2, 1]


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_sum_whose_delivery_breaks_on_either_way_counts_once(rig, leaf, lost):
    job, tasks = await round_of(rig, 1)
    failures = 3

    async def breaks(call: str) -> None:
        nonlocal failures
        if call == "send" and failures:
            failures -= 1
            raise unreachable()

    setattr(leaf.upstream, lost, breaks)
    receipt = await leaf.report(tasks[0], 7.0)
    assert receipt.duplicate == (lost == "after")
    assert await result(rig, job) == 7.0
    assert rig.coordinator.counters.reports == 1


async def test_a_leaf_that_died_sends_what_its_spool_holds(rig, tmp_path):
    never = Flush(reports=99, bytes=2**30, age_s=1e6, margin_s=0.0)
    job, tasks = await round_of(rig, 2)
    async with leaf_under(rig, tmp_path / "leaf", flush=never) as leaf:
        waiting = asyncio.create_task(leaf.report(tasks[0], 1.0))
        await until(lambda: leaf.leaf.waiting == 1)
        await leaf.crash()
        waiting.cancel()
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        await until(lambda: rig.coordinator.counters.reports == 1)
        await leaf.report(tasks[0], 9.0)  # what counts is what was spooled first
        await leaf.report(tasks[1], 5.0)
        assert await result(rig, job) == 3.0


async def test_a_leaf_that_died_after_the_root_had_counted_its_sum_does_not_count_it_again(rig, tmp_path):
    job, tasks = await round_of(rig, 2)
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        stuck = asyncio.Event()

        async def answer_is_lost(call: str) -> None:
            if call == "send":
                stuck.set()
                await asyncio.Event().wait()

        leaf.upstream.after = answer_is_lost
        waiting = asyncio.create_task(leaf.report(tasks[0], 1.0))
        await stuck.wait()
        await leaf.crash()
        waiting.cancel()
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        assert (await leaf.report(tasks[0], 1.0)).duplicate
        await leaf.report(tasks[1], 3.0)
        assert await result(rig, job) == 2.0


async def test_what_was_spooled_for_a_round_that_is_over_is_removed(rig, tmp_path):
    job, tasks = await round_of(rig, 2)
    never = Flush(reports=99, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=never) as leaf:
        waiting = asyncio.create_task(leaf.report(tasks[0], 1.0))
        await until(lambda: leaf.leaf.waiting == 1)
        await leaf.crash()
        waiting.cancel()
    await rig.coordinator.cancel(job, "enough")
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        await until(lambda: not files(leaf))


async def test_files_of_reports_that_went_up_are_kept_for_the_next_ones_until_the_leaf_stops(rig, tmp_path):
    spares = tmp_path / "leaf" / "spares"
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        _, tasks = await round_of(rig, 2)
        await leaf.report(tasks[0], 1.0)
        await until(lambda: len(list(spares.glob("*"))) == 1)
        await leaf.report(tasks[1], 1.0)
        await until(lambda: len(list(spares.glob("*"))) == 1)
    assert not spares.exists()


# -- what does not count ---------------------------------------------------------------------------------------------


async def test_a_report_that_came_too_late_is_taken_out_and_its_device_told_why(rig, tmp_path):
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=both) as leaf:
        job, (late, _) = await round_of(rig, 2, lease_s=60.0)
        rig.clock.now += 1000
        other, third = rig.task("d7"), rig.task("d8")
        refused, counted = asyncio.create_task(leaf.report(late)), asyncio.create_task(leaf.report(other, 3.0))
        with pytest.raises(TooLate, match="lease ran out"):
            await refused
        assert not (await counted).duplicate
        await rig.report(third, 5.0)
        assert await result(rig, job) == 4.0


async def test_a_token_that_is_not_the_device_s_is_refused_before_the_body(rig, leaf):
    _, tasks = await round_of(rig, 2)
    stolen = tasks[0].token
    with pytest.raises(Forbidden):
        await leaf.leaf.receive(tasks[1].assignment, stolen, 1.0, {}, body(update(1.0)))
    assert files(leaf) == []


async def test_an_update_that_does_not_fit_is_refused_at_the_leaf(rig, leaf):
    job, tasks = await round_of(rig, 1)
    for data in (update(float("nan")), update(1.0, size=3), update(1.0)[:-1]):
        before = leaf.leaf.refused_bytes
        with pytest.raises(InvalidUpdate):
            await leaf.report(tasks[0], data=data)
        assert before < leaf.leaf.refused_bytes <= before + len(data)
    with pytest.raises(InvalidUpdate, match="another round"):
        await leaf.leaf.receive(
            tasks[0].assignment, tasks[0].token, 1.0, {}, body(update(1.0)), model=sha256(b"another")
        )
    assert files(leaf) == []
    assert leaf.leaf.counters.refused_reports == 4
    refused_bytes = leaf.leaf.refused_bytes
    await leaf.report(tasks[0], 2.0)
    assert await result(rig, job) == 2.0
    for known in list(leaf.leaf._branches.values()):
        await leaf.leaf._forget(known)
    assert leaf.leaf.refused_bytes == refused_bytes


async def test_a_round_that_is_over_and_one_that_takes_no_sums_are_passed_on(rig, leaf):
    job, tasks = await round_of(rig, 1)
    await rig.report(tasks[0])
    await rig.coordinator.round(job, 1, wait_s=20)
    with pytest.raises(PassOn):
        await leaf.report(tasks[0])
    _, tasks = await round_of(rig, 3, strategy="median")
    with pytest.raises(PassOn):
        await leaf.report(tasks[0])
    with pytest.raises(PassOn):
        await leaf.leaf.receive(AssignmentId("none.1.1.1"), "x.y", 1.0, {}, body(b""))
    assert files(leaf) == []


async def test_reports_of_a_cancelled_job_are_told_so_and_leave_nothing(rig, tmp_path):
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=both) as leaf:
        job, tasks = await round_of(rig, 2)
        first = asyncio.create_task(leaf.report(tasks[0]))
        await until(lambda: leaf.leaf.waiting == 1)
        await rig.coordinator.cancel(job, "enough")
        outcomes = await asyncio.gather(first, leaf.report(tasks[1]), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TooLate, TooLate]
        assert files(leaf) == []


async def test_while_the_root_is_away_a_device_is_told_that_its_report_is_safe_and_asks_again(rig, tmp_path):
    async with leaf_under(rig, tmp_path / "leaf", answer_s=0.01) as leaf:
        job, tasks = await round_of(rig, 1)
        away = True

        async def breaks(call: str) -> None:
            if call == "send" and away:
                raise unreachable()

        leaf.upstream.before = breaks
        for _ in range(3):
            with pytest.raises(Overloaded, match="safe here"):
                await leaf.report(tasks[0], 4.0)
        away = False
        await until(lambda: rig.coordinator.counters.reports == 1)
        leaf.leaf._answer_s = 20.0
        assert (await leaf.report(tasks[0], 4.0)).assignment == tasks[0].assignment
        assert await result(rig, job) == 4.0


async def test_an_attempt_that_cannot_be_asked_for_is_asked_for_again_by_the_next_report(rig, leaf):
    _, tasks = await round_of(rig, 1)
    away = True

    async def breaks(_: str) -> None:
        if away:
            raise unreachable()

    leaf.upstream.before = breaks
    with pytest.raises(Unavailable):
        await leaf.report(tasks[0])
    away = False
    assert not (await leaf.report(tasks[0])).duplicate


# -- leaves of leaves ------------------------------------------------------------------------------------------------


async def test_a_late_report_two_levels_down_costs_only_itself(rig, leaf, tmp_path):
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with LeafRig(tmp_path / "lower", lambda: leaf.leaf, leaf.blobs, flush=both) as lower:
        job, (late, _) = await round_of(rig, 2, lease_s=60.0)
        rig.clock.now += 1000
        other, third = rig.task("d7"), rig.task("d8")
        refused, counted = asyncio.create_task(lower.report(late)), asyncio.create_task(lower.report(other, 3.0))
        with pytest.raises(TooLate):
            await refused
        assert not (await counted).duplicate
        await leaf.report(third, 5.0)
        assert await result(rig, job) == 4.0
        assert files(leaf) == files(lower) == []


async def test_a_device_that_turns_from_one_leaf_to_another_counts_once(rig, tmp_path):
    held = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with (
        leaf_under(rig, tmp_path / "upper", flush=held) as upper,
        LeafRig(tmp_path / "lower", lambda: upper.leaf, upper.blobs) as lower,
    ):
        job, tasks = await round_of(rig, 2)
        at_upper = asyncio.create_task(upper.report(tasks[0], 1.0))
        await until(lambda: upper.leaf.waiting == 1)
        at_lower = asyncio.create_task(lower.report(tasks[0], 1.0))
        await until(lambda: lower.leaf.waiting == 1)
        await upper.report(tasks[1], 3.0)
        assert {(await at_upper).duplicate, (await at_lower).duplicate} == {False, True}
        assert await result(rig, job) == 2.0
        assert rig.coordinator.counters.reports == 2


async def test_a_report_in_a_sum_that_is_refused_for_another_s_sake_is_not_acknowledged(rig, tmp_path):
    """The device asks at the upper leaf, where its report is part of a sum from below that comes to nothing."""
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with (
        leaf_under(rig, tmp_path / "upper", flush=both) as upper,
        LeafRig(tmp_path / "lower", lambda: upper.leaf, upper.blobs, flush=both) as lower,
    ):
        job, (late, _) = await round_of(rig, 2, lease_s=60.0)
        rig.clock.now += 1000
        sound, third = rig.task("d7"), rig.task("d8")
        gate = asyncio.Event()

        async def hold(call: str) -> None:
            if call == "send":
                await gate.wait()

        upper.upstream.before = hold
        below = [asyncio.create_task(lower.report(task, 3.0)) for task in (late, sound)]
        await until(lambda: upper.leaf.waiting == 2)
        above = asyncio.create_task(upper.report(sound, 3.0))
        await asyncio.sleep(0)
        lower.leaf._trunk.flush = AT_ONCE
        gate.set()
        with pytest.raises(Overloaded, match="send it again"):
            await above
        with pytest.raises(TooLate):
            await below[0]
        upper.leaf._trunk.flush = AT_ONCE
        assert not (await below[1]).duplicate
        assert (await upper.report(sound, 3.0)).duplicate
        await rig.report(third, 5.0)
        assert await result(rig, job) == 4.0


async def test_a_sum_that_arrives_while_one_of_its_reports_comes_by_itself_waits_for_that_one(rig, tmp_path):
    both = Flush(reports=2, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "upper", flush=both) as upper:
        job, tasks = await round_of(rig, 3)
        async with LeafRig(tmp_path / "lower", lambda: upper.leaf, upper.blobs, flush=both) as lower:
            gate, arriving = asyncio.Event(), asyncio.Event()
            send = lower.upstream.send

            async def slowly(attempt, id, manifest, sums):
                data = sums.read_bytes()

                def chunks(limit):
                    async def two():
                        yield data[:20]
                        arriving.set()
                        await gate.wait()
                        yield data[20:]

                    return two()

                lower.upstream.send = send  # type: ignore[method-assign] # the next time as always
                return await upper.leaf.report(attempt, id, manifest, chunks)

            lower.upstream.send = slowly  # type: ignore[method-assign]
            below = [asyncio.create_task(lower.report(task, 3.0)) for task in tasks[:2]]
            await arriving.wait()
            above = asyncio.create_task(upper.report(tasks[0], 3.0))
            await until(lambda: upper.leaf.waiting == 1)
            gate.set()
            await asyncio.sleep(0.1)  # the sum from below is complete by now, and has to wait
            assert upper.leaf.waiting == 1
            assert not above.done()
            await upper.report(tasks[2], 6.0)
            assert not (await above).duplicate
            upper.leaf._trunk.flush = AT_ONCE
            assert [receipt.duplicate for receipt in await asyncio.gather(*below)] == [True, False]
        assert await result(rig, job) == 4.0
        assert rig.coordinator.counters.reports == 3
        assert files(upper) == files(lower) == []


async def test_one_sum_from_below_that_arrives_twice_at_once_is_one_sum(rig, leaf, tmp_path):
    job, tasks = await round_of(rig, 2)
    async with LeafRig(tmp_path / "lower", lambda: leaf.leaf, leaf.blobs) as lower:
        send = lower.upstream.send

        async def twice(*arguments):
            first, second = await asyncio.gather(send(*arguments), send(*arguments), return_exceptions=True)
            assert not isinstance(first, Exception) or not isinstance(second, Exception)
            return second if isinstance(first, Exception) else first

        lower.upstream.send = twice  # type: ignore[method-assign]
        await asyncio.gather(lower.report(tasks[0], 1.0), lower.report(tasks[1], 3.0))
    assert await result(rig, job) == 2.0
    assert files(leaf) == []


async def test_a_leaf_that_cannot_sum_up_for_a_round_has_leaves_below_send_reports_one_by_one(rig, leaf, tmp_path):
    _, tasks = await round_of(rig, 1, strategy="median", demand=3)
    assert not (await leaf.leaf.attempt(attempt_of(tasks[0].assignment))).sums
    async with LeafRig(tmp_path / "lower", lambda: leaf.leaf, leaf.blobs) as lower:
        with pytest.raises(PassOn):
            await lower.report(tasks[0])


# -- ends, and what fails meanwhile ----------------------------------------------------------------------------------


async def test_a_stop_sends_up_what_waits(rig, tmp_path):
    never = Flush(reports=99, bytes=2**30, age_s=1e6, margin_s=0.0)
    async with leaf_under(rig, tmp_path / "leaf", flush=never) as leaf:
        job, tasks = await round_of(rig, 2)
        waiting = [asyncio.create_task(leaf.report(task, value)) for task, value in zip(tasks, (1.0, 3.0), strict=True)]
        await until(lambda: leaf.leaf.waiting == 2)
        await leaf.leaf.stop(20.0)
        assert [receipt.duplicate for receipt in await asyncio.gather(*waiting)] == [False, False]
        assert await result(rig, job) == 2.0
        await leaf.leaf.stop(20.0)  # once more is nothing


@pytest.mark.parametrize("stuck", ["send", "attempt"])
async def test_a_stop_while_the_root_does_not_answer_loses_nothing_and_does_not_hang(rig, tmp_path, stuck):
    job, tasks = await round_of(rig, 2)
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        asked = asyncio.Event()

        async def for_ever(call: str) -> None:
            if call == stuck:
                asked.set()
                await asyncio.Event().wait()

        leaf.upstream.before = for_ever
        waiting = asyncio.create_task(leaf.report(tasks[0], 1.0))
        await asked.wait()
        async with asyncio.timeout(20):
            await leaf.leaf.stop(0.01)
            with pytest.raises((Unavailable, asyncio.CancelledError)):
                await waiting
        with pytest.raises(Unavailable, match="stops"):
            await leaf.report(tasks[1], 1.0)
    if stuck == "send":
        async with leaf_under(rig, tmp_path / "leaf"):
            await until(lambda: rig.coordinator.counters.reports == 1)
    await rig.report(tasks[0], 1.0)
    await rig.report(tasks[1], 3.0)
    assert await result(rig, job) == 2.0


async def test_a_stop_while_the_root_is_away_tells_devices_to_ask_again_and_keeps_their_reports(rig, tmp_path):
    job, tasks = await round_of(rig, 1)
    async with leaf_under(rig, tmp_path / "leaf") as leaf:

        async def breaks(call: str) -> None:
            if call == "send":
                raise unreachable()

        leaf.upstream.before = breaks
        waiting = asyncio.create_task(leaf.report(tasks[0], 7.0))
        await until(lambda: len(leaf.leaf._branches) == 1 and leaf.leaf.waiting == 1)
        await leaf.leaf.stop(5.0)
        with pytest.raises(Unavailable):
            await waiting
    async with leaf_under(rig, tmp_path / "leaf"):
        assert await result(rig, job) == 7.0


async def test_a_strategy_that_never_ends_keeps_no_leaf_from_its_end(rig, tmp_path, monkeypatch):
    entered, release = threading.Event(), threading.Event()

    class Endless(FedAvg):
        name = "endless"

        def share(self, update):
            entered.set()
            release.wait()
            return super().share(update)

    monkeypatch.setitem(STRATEGIES.registered, "endless", Endless)
    monkeypatch.setattr("vennue.control.leaf.END_S", 0.0)
    monkeypatch.setattr("vennue.control.crew.END_S", 0.0)
    job = await rig.job(demand=1, strategy="endless")
    await rig.open(job)
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        report = asyncio.ensure_future(leaf.report(rig.task("d1")))
        await asyncio.to_thread(entered.wait, 60)
        stopping = asyncio.ensure_future(leaf.leaf.stop(0.0))
        done, _ = await asyncio.wait((stopping,), timeout=20)
        release.set()
        assert done == {stopping}
        await stopping
        with pytest.raises(Unavailable):
            await report


async def test_a_spool_that_cannot_be_removed_stops_neither_the_leaf_s_end_nor_a_round_s(rig, tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise StorageError("cannot remove the spool: read-only file system", field="path")

    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        _, tasks = await round_of(rig, 2)
        await leaf.report(tasks[0])
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "discard", read_only)
            (known,) = leaf.leaf._branches.values()
            await leaf.leaf._forget(known)
            assert leaf.leaf.attempts == 0
            assert not (await leaf.report(tasks[1])).duplicate
            (known,) = leaf.leaf._branches.values()
            known.is_over = True
            await leaf.leaf.stop(1.0)


async def test_a_disk_that_is_full_delays_a_sum_and_loses_none_of_its_reports(rig, leaf, monkeypatch):
    job, tasks = await round_of(rig, 1)
    write, failures = branch._write, 2

    def full(*arguments):
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageError("cannot write a partial sum: no space left on device", field="path")
        return write(*arguments)

    monkeypatch.setattr(branch, "_write", full)
    assert not (await leaf.report(tasks[0], 7.0)).duplicate
    assert failures == 0
    assert await result(rig, job) == 7.0


async def test_a_report_that_counts_is_acknowledged_although_it_cannot_be_removed_from_the_spool(
    rig, tmp_path, monkeypatch
):
    def read_only(*_):
        raise StorageError("cannot remove an update: read-only file system", field="path")

    job, tasks = await round_of(rig, 2)
    async with leaf_under(rig, tmp_path / "leaf") as leaf:
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "remove", read_only)
            assert not (await leaf.report(tasks[0], 1.0)).duplicate
        await leaf.crash()
    async with leaf_under(rig, tmp_path / "leaf") as leaf:  # which has it still, and learns that it counts
        await until(lambda: files(leaf) == [])
        await leaf.report(tasks[1], 3.0)
    assert await result(rig, job) == 2.0


@pytest.mark.parametrize("error", [Forbidden("another key", field="Authorization"), Conflict("no", field="partial")])
async def test_what_the_upstream_has_against_the_leaf_itself_is_no_fault_of_the_device(rig, leaf, error):
    job, tasks = await round_of(rig, 1)

    async def refuses(call: str) -> None:
        if call == "send":
            raise error

    leaf.upstream.before = refuses
    with pytest.raises(Unavailable, match="could not have the report counted"):
        await leaf.report(tasks[0], 7.0)
    assert files(leaf) == []
    await rig.report(tasks[0], 7.0)
    assert await result(rig, job) == 7.0


async def test_a_strategy_that_raises_at_a_leaf_keeps_no_device_waiting(rig, leaf, monkeypatch):
    def raises(*_: object) -> Share:
        raise KeyError("loss")

    job, tasks = await round_of(rig, 1)
    with monkeypatch.context() as patched:
        patched.setattr(FedAvg, "share", raises)
        with pytest.raises(Unavailable, match="report counted: the strategy fedavg fails: KeyError in test_leaf"):
            await leaf.report(tasks[0], 7.0)
    await leaf.report(tasks[0], 7.0)
    assert await result(rig, job) == 7.0


async def test_a_sum_for_a_round_that_is_over_learns_what_counted(rig, leaf, tmp_path):
    """The answer to a sum is lost, the round ends, and the leaf above has forgotten it."""
    job, tasks = await round_of(rig, 1)
    async with LeafRig(tmp_path / "lower", lambda: leaf.leaf, leaf.blobs) as lower:
        lost = True

        async def breaks(call: str) -> None:
            nonlocal lost
            if call == "send" and lost:
                lost = False
                await rig.coordinator.round(job, 1, wait_s=20)
                for known in list(leaf.leaf._branches.values()):
                    await leaf.leaf._forget(known)
                raise unreachable()

        lower.upstream.after = breaks
        assert (await lower.report(tasks[0], 7.0)).duplicate
        assert await result(rig, job) == 7.0


async def test_a_leaf_that_is_idle_forgets_its_attempts_and_learns_them_anew(rig, leaf, monkeypatch):
    _, tasks = await round_of(rig, 2)
    await leaf.report(tasks[0])
    (known,) = leaf.leaf._branches.values()
    await until(lambda: known.idle_since(known.busy_at + 1))
    await leaf.leaf._forget(known)
    assert leaf.leaf.attempts == 0
    assert not (await leaf.report(tasks[1])).duplicate


async def test_leaves_of_different_rounds_do_not_wait_for_each_other(rig, leaf):
    first, tasks = await round_of(rig, 1)
    second = await rig.job(demand=1)
    await rig.open(second)
    others = [rig.task("another")]
    blocked = asyncio.Event()

    async def hold(call: str) -> None:
        if call == "send" and leaf.upstream.sent and not blocked.is_set():
            await blocked.wait()

    leaf.upstream.after = hold
    slow = asyncio.create_task(leaf.report(tasks[0], 1.0))
    await until(lambda: len(leaf.upstream.sent) == 1)
    blocked_by_first = asyncio.create_task(leaf.report(others[0], 2.0))
    await until(lambda: len(leaf.upstream.sent) == 2)
    blocked.set()
    await asyncio.gather(slow, blocked_by_first)
    assert (await result(rig, first), await result(rig, second)) == (1.0, 2.0)
