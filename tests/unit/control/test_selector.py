"""The selector: tokens, leases, reports that count once, and devices that are told when to come back."""

import asyncio

import msgspec
import pytest

from tests.unit.control.rig import DISK_FULL, Clock, Rig, body, rig_at, sha256, until, update
from vennue.control.parts import Parts
from vennue.core.errors import (
    Forbidden,
    InvalidInput,
    InvalidUpdate,
    NotFound,
    Overloaded,
    StorageError,
    TooLarge,
    TooLate,
)
from vennue.core.ids import AssignmentId
from vennue.protocol import CheckInRequest, DeclineRequest, Task


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as made:
        yield made


# -- check-ins -------------------------------------------------------------------------------------------------------


async def test_a_device_is_given_all_it_needs_to_train(rig):
    job = await rig.job(name="Keyboard", lease_s=120)
    await rig.open(job)
    task = rig.task("d1")
    assert (task.assignment, task.job, task.name, task.round) == (f"{job}.1.1.1", job, "Keyboard", 1)
    assert (task.model, task.config, task.expires_in_s) == (rig.model(), {"lr": 0.5}, 120.0)
    assert task.private_requirement is None


async def test_a_device_that_checks_in_again_gets_the_same_task_with_what_is_left_of_its_lease(rig):
    job = await rig.job(lease_s=120)
    await rig.open(job)
    first = rig.task("d1")
    rig.clock.now += 20
    again = rig.task("d1")
    assert (again.assignment, again.token) == (first.assignment, first.token)
    assert again.expires_in_s == 100.0


async def test_a_check_in_waits_for_the_attempt_that_it_is_bound_to_to_be_durable(rig):
    job = await rig.job(demand=1)
    rig.ledger.gate.clear()
    opening = asyncio.create_task(rig.open(job))
    await until(lambda: rig.coordinator.pool.jobs[job].attempt is not None)
    answer, pending = rig.selector.check_in(CheckInRequest(device="d1"))
    assert answer.task is not None
    assert pending is not None
    assert not pending.done()
    rig.ledger.gate.set()
    await pending
    await opening
    _, pending = rig.selector.check_in(CheckInRequest(device="d1"))
    assert pending is None


@pytest.mark.parametrize("device", ["", "x" * 129, "a\nb", "\x00"])
async def test_a_device_without_a_proper_name_is_refused(rig, device):
    with pytest.raises(InvalidInput) as caught:
        rig.check_in(device)
    assert caught.value.field == "device"


async def test_attributes_that_make_no_sense_are_refused(rig):
    with pytest.raises(InvalidInput) as caught:
        rig.selector.check_in(CheckInRequest(device="d1", attributes=msgspec.Raw(b"[1]")))
    assert caught.value.field == "attributes"


@pytest.mark.parametrize(
    ("ram_gb", "demand", "least", "most"),
    [(2, 1, 50.0, 150.0), (6, 1, 5.0, 15.0)],
    ids=["no job wants the device", "its job needs nobody now"],
)
async def test_a_device_without_a_task_comes_back_within_the_bounds_of_its_situation(rig, ram_gb, demand, least, most):
    job = await rig.job(demand=demand, requirement="device.ram_gb >= 4")
    await rig.open(job)
    rig.task("first", ram_gb=6)
    waits = set()
    for number in range(50):
        answer, _ = rig.selector.check_in(
            CheckInRequest(device=f"d{number}", attributes=msgspec.Raw(b'{"ram_gb": %d}' % ram_gb))
        )
        assert answer.task is None
        waits.add(answer.retry_after_s)
    assert len(waits) == 50  # no herd
    assert min(waits) >= least
    assert max(waits) < most


async def test_a_device_that_declined_a_job_short_of_devices_comes_back_soon(rig):
    job = await rig.job(demand=5)
    await rig.open(job)
    task = rig.task("d1")
    answer, _ = rig.selector.decline(task.assignment, task.token, DeclineRequest(reason="busy", declined=[job]))
    assert answer.task is None
    assert answer.retry_after_s is not None
    assert 0.5 <= answer.retry_after_s < 1.5


# -- answers to an offer ---------------------------------------------------------------------------------------------


async def test_a_private_requirement_is_offered_first_and_the_lease_grows_with_acceptance(rig):
    job = await rig.job(private_requirement="device.samples >= 100", lease_s=500)
    await rig.open(job)
    offer = rig.task("d1")
    assert (offer.private_requirement, offer.expires_in_s) == ("device.samples >= 100", 30.0)
    task, _ = rig.selector.accept(offer.assignment, offer.token)
    assert task.expires_in_s == 500.0


async def test_a_declining_device_is_given_the_next_job_at_once(rig):
    """Case Q22."""
    first, second = await rig.job(), await rig.job()
    await rig.open(first)
    await rig.open(second)
    offer = rig.task("d1")
    assert offer.job == first
    answer, _ = rig.selector.decline(offer.assignment, offer.token, DeclineRequest(declined=[first]))
    assert answer.task is not None
    assert answer.task.job == second


async def test_an_aborted_task_s_slot_is_free_at_once(rig):
    job = await rig.job(demand=1)
    await rig.open(job)
    task = rig.task("d1")
    assert rig.check_in("d2") is None
    rig.selector.abort(task.assignment, task.token, DeclineRequest(reason="battery"))
    assert rig.task("d2").assignment == f"{job}.1.1.2"


async def test_a_device_that_gives_back_a_job_s_tasks_is_given_the_next_later_each_time(rig):
    job = await rig.job(demand=1, lease_s=6)
    await rig.open(job)
    for wait_s in (1.0, 2.0, 4.0, 6.0, 6.0):  # no longer than the lease of the job
        task = rig.task("d1")
        rig.selector.abort(task.assignment, task.token, DeclineRequest())
        assert rig.check_in("d1") is None
        rig.clock.now += wait_s - 0.1
        assert rig.check_in("d1") is None
        rig.clock.now += 0.1 + 1e-6


async def test_a_device_that_gave_back_a_task_is_given_one_of_another_job_at_once(rig):
    first, second = await rig.job(demand=1, name="first"), await rig.job(demand=1, name="second")
    await rig.open(first)
    await rig.open(second)
    task = rig.task("d1")
    assert task.job == first
    rig.selector.abort(task.assignment, task.token, DeclineRequest())
    task = rig.task("d1")
    assert task.job == second
    answer, _ = rig.selector.decline(task.assignment, task.token, DeclineRequest(declined=[second]))
    assert answer.task is None  # neither the job that it declines nor the one that it gave back


async def test_a_device_whose_report_counts_has_no_habit_of_giving_tasks_back(rig):
    job = await rig.job(demand=1, rounds=2)
    await rig.open(job)
    for wait_s in (1.0, 2.0):
        task = rig.task("d1")
        rig.selector.abort(task.assignment, task.token, DeclineRequest())
        rig.clock.now += wait_s
    await rig.report(rig.task("d1"))
    await rig.coordinator.round(job, 1, wait_s=20)
    await rig.open(job, 2)
    task = rig.task("d1")
    rig.selector.abort(task.assignment, task.token, DeclineRequest())
    rig.clock.now += 1.0
    assert rig.task("d1").job == job


# -- tokens ----------------------------------------------------------------------------------------------------------


async def two_tasks(rig: Rig) -> tuple[Task, Task]:
    job = await rig.job()
    await rig.open(job)
    return rig.task("d1"), rig.task("d2")


async def test_a_report_for_somebody_else_s_assignment_is_forbidden_and_changes_nothing(rig):
    mine, theirs = await two_tasks(rig)
    with pytest.raises(Forbidden):
        await rig.selector.report(theirs.assignment, mine.token, 1.0, {}, body(update(1.0)))
    for call in (rig.selector.abort, rig.selector.decline):
        with pytest.raises(Forbidden):
            call(theirs.assignment, mine.token, DeclineRequest())
    with pytest.raises(Forbidden):
        rig.selector.accept(theirs.assignment, mine.token)
    assert len(rig.coordinator.pool.table.assignments()) == 2


@pytest.mark.parametrize("token", ["", ".", "a.b", "ZDE.", "ZDE.AAAA", "é.é", "ZDE." + "A" * 43, "%" * 100])
async def test_a_forged_token_is_forbidden(rig, token):
    mine, _ = await two_tasks(rig)
    with pytest.raises(Forbidden):
        await rig.selector.report(mine.assignment, token, 1.0, {}, body(update(1.0)))


async def test_d10_a_token_survives_a_restart_and_is_still_good_for_its_own_assignment_only(tmp_path):
    async with rig_at(tmp_path) as rig:
        mine, theirs = await two_tasks(rig)
    async with rig_at(tmp_path) as rig:
        assert not (await rig.report(mine)).duplicate
        assert (await rig.report(mine)).duplicate
        with pytest.raises(Forbidden):
            await rig.selector.report(theirs.assignment, mine.token, 1.0, {}, body(update(1.0)))


async def test_an_assignment_of_no_job_is_not_found(rig):
    with pytest.raises(NotFound):
        rig.selector.accept(AssignmentId("nobody.1.1.1"), "a.b")
    with pytest.raises(NotFound):
        rig.selector.accept(AssignmentId("nonsense"), "a.b")


# -- reports ---------------------------------------------------------------------------------------------------------


async def test_a_report_is_acknowledged_with_the_digest_that_was_announced(rig):
    mine, _ = await two_tasks(rig)
    digest = sha256(update(1.0))
    receipt = await rig.selector.report(mine.assignment, mine.token, 1.0, {}, body(update(1.0)), sha256=digest)
    assert (receipt.sha256, receipt.duplicate) == (digest, False)
    assert rig.coordinator.counters.reports == 1
    assert rig.coordinator.counters.report_bytes == len(update(1.0))


async def test_a_report_of_another_digest_than_was_announced_is_refused(rig):
    mine, _ = await two_tasks(rig)
    with pytest.raises(InvalidInput, match="digest"):
        await rig.selector.report(mine.assignment, mine.token, 1.0, {}, body(update(2.0)), sha256=sha256(update(1.0)))
    assert not (await rig.report(mine, 1.0)).duplicate


async def test_a_repeated_report_gets_the_first_one_s_receipt_and_counts_once(rig):
    """Case C1."""
    mine, theirs = await two_tasks(rig)
    first = await rig.report(mine, 1.0)
    again = await rig.report(mine, 100.0)
    assert (again.sha256, again.duplicate) == (first.sha256, True)
    await rig.report(theirs, 3.0)
    view = await rig.coordinator.round(mine.job, 1, wait_s=20)
    assert rig.numbers(view.result) == [2.0, 2.0]


async def test_a_report_repeated_after_the_round_is_over_still_gets_its_receipt(rig):
    mine, theirs = await two_tasks(rig)
    first = await rig.report(mine)
    await rig.report(theirs)
    await rig.coordinator.round(mine.job, 1, wait_s=20)
    await until(lambda: not rig.coordinator._tasks)
    again = await rig.report(mine)
    assert (again.sha256, again.duplicate) == (first.sha256, True)


async def test_of_uploads_that_race_one_counts_and_it_is_the_one_that_is_told_so(rig):
    mine, theirs = await two_tasks(rig)
    values = [1.0, 5.0, 9.0, 13.0]
    receipts = await asyncio.gather(*(rig.report(mine, value) for value in values))
    assert sorted(receipt.duplicate for receipt in receipts) == [False, True, True, True]
    (counted,) = (value for value, receipt in zip(values, receipts, strict=True) if not receipt.duplicate)
    await rig.report(theirs, 3.0)
    view = await rig.coordinator.round(mine.job, 1, wait_s=20)
    assert (view.reported, rig.numbers(view.result)) == (2, [(counted + 3.0) / 2] * 2)


async def test_a_repeat_that_comes_to_count_the_first_upload_is_told_that_it_is_a_repeat(rig, monkeypatch):
    """The first upload is durable, but the second, with another body, overtakes it on the way to the pool."""
    mine, theirs = await two_tasks(rig)
    receive = rig.coordinator.data.receive
    first_is_stored, second_is_done = asyncio.Event(), asyncio.Event()

    async def overtaken(*arguments, **options):
        receipt = await receive(*arguments, **options)
        if not receipt.duplicate:
            first_is_stored.set()
            await second_is_done.wait()
        return receipt

    monkeypatch.setattr(rig.coordinator.data, "receive", overtaken)
    first = asyncio.create_task(rig.report(mine, 1.0))
    await first_is_stored.wait()
    second = await rig.report(mine, 9.0)
    second_is_done.set()
    assert (second.duplicate, (await first).duplicate) == (True, False)
    await rig.report(theirs, 3.0)
    view = await rig.coordinator.round(mine.job, 1, wait_s=20)
    assert rig.numbers(view.result) == [2.0, 2.0]


def let_expire(rig: Rig, task: Task) -> None:
    rig.clock.now += 1000
    rig.check_in("d9")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda rig, task: rig.selector.abort(task.assignment, task.token, DeclineRequest()), "aborted"),
        (lambda rig, task: rig.selector.decline(task.assignment, task.token, DeclineRequest()), "declined"),
        (let_expire, "lease ran out"),
    ],
    ids=["aborted", "declined", "expired"],
)
async def test_a_report_on_an_ended_assignment_is_too_late_and_told_how_it_ended(rig, end, told):
    job = await rig.job(demand=1, lease_s=60)
    await rig.open(job)
    task = rig.task("d1")
    end(rig, task)
    with pytest.raises(TooLate, match=told):
        await rig.report(task)
    assert rig.coordinator.counters.refused_reports == 1


async def test_a_report_after_its_round_closed_without_it_is_told_so(rig):
    job = await rig.job(demand=2, deadline_s=100, min_fraction=0.5)
    await rig.open(job)
    quick, slow = rig.task("d1"), rig.task("d2")
    await rig.report(quick)
    await rig.coordinator.round(job, 1, wait_s=20)
    with pytest.raises(TooLate, match="its round closed without it"):
        await rig.report(slow)


async def test_s2_a_late_report_is_credited_once_and_not_aggregated(rig):
    job = await rig.job(demand=2, deadline_s=100, min_fraction=0.5)
    await rig.open(job)
    quick, slow = rig.task("d1"), rig.task("d2")
    await rig.report(quick, 5.0)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    for _ in range(3):
        with pytest.raises(TooLate):
            await rig.report(slow, 7.0)
    assert rig.numbers(view.result) == [5.0, 5.0]
    assert (await rig.coordinator.job(job)).late_reports == 1
    counters = rig.coordinator.counters
    assert (counters.late_reports, counters.refused_reports) == (1, 3)


async def test_a_report_on_a_declined_task_is_not_credited(rig):
    mine, _ = await two_tasks(rig)
    rig.selector.decline(mine.assignment, mine.token, DeclineRequest())
    with pytest.raises(TooLate):
        await rig.report(mine)
    assert rig.coordinator.counters.late_reports == 0


async def test_an_acceptance_after_its_time_is_too_late(rig):
    job = await rig.job(private_requirement="device.samples >= 100")
    await rig.open(job)
    offer = rig.task("d1")
    rig.clock.now += 31
    with pytest.raises(TooLate):
        rig.selector.accept(offer.assignment, offer.token)


async def test_attributes_that_change_between_check_in_and_acceptance_end_the_offer(rig):
    job = await rig.job(requirement="device.ram_gb >= 4", private_requirement="device.samples >= 100")
    await rig.open(job)
    offer = rig.task("d1", ram_gb=6)
    assert rig.check_in("d1", ram_gb=2) is None
    with pytest.raises(TooLate):
        rig.selector.accept(offer.assignment, offer.token)
    assert rig.task("d2", ram_gb=6).job == job


async def test_a_token_that_is_used_again_changes_nothing(rig):
    job = await rig.job(demand=2, private_requirement="device.samples >= 100", lease_s=500)
    await rig.open(job)
    offer = rig.task("d1")
    first, _ = rig.selector.accept(offer.assignment, offer.token)
    rig.clock.now += 10
    again, _ = rig.selector.accept(offer.assignment, offer.token)
    assert (first.expires_in_s, again.expires_in_s) == (500.0, 490.0)
    await rig.report(again)
    for call in (rig.selector.decline, rig.selector.abort):
        with pytest.raises(TooLate):
            call(offer.assignment, offer.token, DeclineRequest())
    assert len(rig.coordinator.pool.attempts()[0].request.reported) == 1


async def test_a_device_that_claims_a_thousand_sessions_at_once_has_one_task(rig):
    job = await rig.job(demand=5)
    await rig.open(job)
    tasks = [rig.task("d1") for _ in range(1000)]
    assert len({(task.assignment, task.token) for task in tasks}) == 1
    assert len(rig.coordinator.pool.table.assignments()) == 1


async def test_a_lease_that_runs_out_during_the_upload_leaves_nothing_of_the_report(rig):
    job = await rig.job(demand=1, lease_s=60)
    await rig.open(job)
    task = rig.task("d1")
    data = update(1.0)

    def slow(limit: int):
        async def chunks():
            yield data[:10]
            rig.clock.now += 1000
            yield data[10:]

        return chunks()

    with pytest.raises(TooLate):
        await rig.selector.report(task.assignment, task.token, 1.0, {}, slow)
    other = rig.task("d2")
    await rig.report(other, 5.0)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.reported, rig.numbers(view.result)) == (1, [5.0, 5.0])


@pytest.mark.parametrize("found", [True, False], ids=["found by the recovery", "too late for the recovery"])
async def test_a_report_that_becomes_durable_while_the_pool_is_rebuilt_counts_and_is_not_removed(
    rig, monkeypatch, found
):
    """The ledger fails during its upload; the recovery looks for reports after it is there, or before."""
    monkeypatch.setattr("vennue.control.shell.RETRY_LEDGER_S", 0.0)
    job = await rig.job(demand=1)
    await rig.open(job)
    task = rig.task("d1")
    looking, look = asyncio.Event(), asyncio.Event()
    recover = rig.data.recover

    async def slowly(attempt, committed):
        before = [] if found else await recover(attempt, committed)
        looking.set()
        await look.wait()
        return await recover(attempt, committed) if found else before

    monkeypatch.setattr(rig.data, "recover", slowly)
    rig.ledger.failure = DISK_FULL
    with pytest.raises(StorageError):
        await rig.job()
    rig.ledger.failure = None
    await looking.wait()
    with pytest.raises(StorageError):
        await rig.report(task, 7.0)
    look.set()
    await until(lambda: rig.coordinator.failure is None)
    assert (await rig.report(task, 7.0)).duplicate  # its body is there already
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.state, view.attempt, rig.numbers(view.result)) == ("committed", 1, [7.0, 7.0])


async def test_a_report_that_is_cut_off_leaves_nothing_and_may_be_sent_again(rig):
    mine, _ = await two_tasks(rig)
    with pytest.raises(InvalidUpdate):
        await rig.selector.report(mine.assignment, mine.token, 1.0, {}, body(update(1.0)[:-1]))
    receipt = await rig.report(mine, 1.0)
    assert not receipt.duplicate


async def test_an_update_of_another_shape_is_refused_and_the_device_keeps_its_lease(rig):
    mine, _ = await two_tasks(rig)
    with pytest.raises(InvalidUpdate):
        await rig.selector.report(mine.assignment, mine.token, 1.0, {}, body(update(1.0, size=3)))
    with pytest.raises(InvalidUpdate):
        await rig.report(mine, float("nan"))
    assert not (await rig.report(mine, 1.0)).duplicate


async def test_a_body_above_what_the_model_allows_is_refused_while_it_arrives(rig):
    mine, _ = await two_tasks(rig)
    with pytest.raises((TooLarge, InvalidUpdate)):
        await rig.selector.report(mine.assignment, mine.token, 1.0, {}, body(update(1.0) * 10_000, chunk=65_536))


async def test_more_uploads_than_allowed_at_once_are_told_to_come_back(tmp_path):
    async with rig_at(tmp_path, max_uploads=1) as rig:
        mine, theirs = await two_tasks(rig)
        going_on, data = asyncio.Event(), update(1.0)

        def held(limit: int):
            async def chunks():
                yield data[:10]
                await going_on.wait()
                yield data[10:]

            return chunks()

        first = asyncio.create_task(rig.selector.report(mine.assignment, mine.token, 1.0, {}, held))
        await until(lambda: rig.data.uploads.active == 1)
        with pytest.raises(Overloaded):
            await rig.report(theirs)
        going_on.set()
        await first
        assert not (await rig.report(theirs)).duplicate


@pytest.mark.parametrize("in_parts", [False, True])
async def test_models_that_arrive_slowly_keep_no_report_out(tmp_path, in_parts):
    async with rig_at(tmp_path, max_uploads=4) as rig:
        mine, _ = await two_tasks(rig)
        parts = Parts(rig.blobs, rig.data.uploads)

        async def never():
            yield b"x"
            await asyncio.Event().wait()

        def upload(number: int):
            digest = sha256(bytes([number]))
            return parts.append(digest, never(), offset=0) if in_parts else rig.data.models.store(digest, never(), 10)

        models = [asyncio.create_task(upload(number)) for number in range(2)]
        await until(lambda: rig.data.uploads.active == 2)
        with pytest.raises(Overloaded):
            await upload(2)
        assert not (await rig.report(mine)).duplicate
        for model in models:
            model.cancel()
        await asyncio.wait(models)
        assert rig.data.uploads.active == 0
        with pytest.raises(InvalidInput):  # there is a place again
            await rig.data.models.store(sha256(b"a"), body(b"b")(1), 1)


async def test_an_upload_that_is_broken_off_by_the_server_s_end_leaves_no_part(tmp_path):
    async with rig_at(tmp_path, Clock()) as rig:
        mine, _ = await two_tasks(rig)

        def never(limit: int):
            async def chunks():
                yield update(1.0)[:10]
                await asyncio.Event().wait()

            return chunks()

        upload = asyncio.create_task(rig.selector.report(mine.assignment, mine.token, 1.0, {}, never))
        await until(lambda: rig.data.uploads.active == 1)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert rig.data.uploads.active == 0
        assert [path for path in (tmp_path / "spool").rglob("*") if path.is_file()] == []
