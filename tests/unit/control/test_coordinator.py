"""The coordinator: what is answered is durable, what was durable is there after a restart, a broken disk is told."""

import asyncio
from typing import Any

import pytest

from tests.unit.control.rig import DISK_FULL, Clock, Rig, rig_at, until, update
from vennue.control.distribution import Distribution
from vennue.control.notes import PolicyChoice
from vennue.core.errors import (
    Conflict,
    IllegalTransition,
    InvalidInput,
    InvalidModel,
    InvariantViolated,
    JobEnded,
    NotFound,
    Overloaded,
    StorageError,
    TooLate,
)
from vennue.core.events import Tick
from vennue.core.ids import AssignmentId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.core.plan import Plan, PoolView
from vennue.core.tenant import Quota
from vennue.policies import registry
from vennue.state.ledger import SqlLedger
from vennue.tensors.layout import ModelLayout

SPEC = JobSpec(name="Next word!", demand=2, rounds=1)


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as made:
        yield made


# -- jobs ------------------------------------------------------------------------------------------------------------


async def test_a_job_is_in_the_ledger_when_its_owner_is_answered(rig, tmp_path):
    view, is_new = await rig.coordinator.submit(SPEC)
    assert is_new
    assert view.id.startswith("next-word-")
    other = SqlLedger.at(tmp_path / "ledger.sqlite")
    assert [job.id for job in (await other.load()).jobs] == [view.id]
    await other.close()


async def test_one_key_and_body_make_one_job(rig):
    views = [await rig.coordinator.submit(SPEC, "k-1") for _ in range(3)]
    assert [is_new for _, is_new in views] == [True, False, False]
    assert len({view.id for view, _ in views}) == 1
    assert len((await rig.coordinator.jobs(10)).jobs) == 1


async def test_one_key_sent_twice_at_once_makes_one_job(rig):
    """Case C4."""
    views = await asyncio.gather(*(rig.coordinator.submit(SPEC, "k-1") for _ in range(5)))
    assert len({view.id for view, _ in views}) == 1
    assert sum(is_new for _, is_new in views) == 1


async def test_a_key_with_another_body_is_refused_and_names_the_job_it_made(rig):
    view, _ = await rig.coordinator.submit(SPEC, "k-1")
    with pytest.raises(Conflict, match=view.id):
        await rig.coordinator.submit(JobSpec(name="other", demand=2), "k-1")
    assert len((await rig.coordinator.jobs(10)).jobs) == 1


@pytest.mark.parametrize("key", ["", "é", "a\n", "x" * 201])
async def test_a_key_that_makes_no_sense_is_refused(rig, key):
    with pytest.raises(InvalidInput) as caught:
        await rig.coordinator.submit(SPEC, key)
    assert caught.value.field == "Idempotency-Key"


async def test_a_refused_spec_leaves_its_key_free(rig):
    with pytest.raises(InvalidInput):
        await rig.coordinator.submit(JobSpec(name="x", demand=0), "k-1")
    view, is_new = await rig.coordinator.submit(SPEC, "k-1")
    assert is_new
    assert view.spec == SPEC


async def test_q18_beyond_its_limit_of_active_jobs_a_pool_asks_owners_to_come_back(tmp_path):
    async with rig_at(tmp_path, max_jobs=2) as rig:
        first, _ = await rig.coordinator.submit(SPEC, "first")
        await rig.job()
        with pytest.raises(Overloaded) as caught:
            await rig.job()
        assert (caught.value.value, caught.value.limit, caught.value.retry_after_s) == (2, 2, 60.0)
        assert (await rig.coordinator.submit(SPEC, "first"))[0].id == first.id
        await rig.coordinator.cancel(first.id, "done")
        await rig.job()


async def test_jobs_are_listed_page_by_page_each_once_although_more_come_meanwhile(rig):
    ids = [await rig.job(name=name) for name in "abcde"]
    first = await rig.coordinator.jobs(2)
    assert ([view.id for view in first.jobs], first.next) == (ids[:2], ids[1])
    ids.append(await rig.job(name="f"))
    second = await rig.coordinator.jobs(2, first.next)
    third = await rig.coordinator.jobs(2, second.next)
    assert [view.id for page in (first, second, third) for view in page.jobs] == ids
    assert third.next is None
    with pytest.raises(InvalidInput) as caught:
        await rig.coordinator.jobs(2, JobId("nobody's"))
    assert caught.value.field == "after"


async def test_many_jobs_submitted_at_once_share_transactions(rig):
    """Case Q18: the disk is synced a few times, not once per job."""
    views = await asyncio.gather(*(rig.coordinator.submit(SPEC) for _ in range(100)))
    assert len({view.id for view, _ in views}) == 100
    assert rig.ledger.saves <= 5


# -- rounds ----------------------------------------------------------------------------------------------------------


async def test_a_round_commits_the_exact_weighted_mean_of_its_reports(rig):
    job = await rig.job()
    await rig.open(job)
    await rig.report(rig.task("d1"), 1.0, weight=3.0, loss=4.0)
    await rig.report(rig.task("d2"), 5.0, weight=1.0, loss=0.0)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert view.state == "committed"
    assert rig.numbers(view.result) == [2.0, 2.0]  # (3·1 + 1·5) / 4
    assert (view.reported, view.weight, view.metrics) == (2, 4.0, {"loss": 3.0})
    assert (await rig.coordinator.job(job)).model == view.result


async def test_opening_a_round_again_changes_nothing(rig):
    job = await rig.job()
    first = await rig.coordinator.open_round(job, 1, rig.model(), {})
    again = await rig.coordinator.open_round(job, 1, rig.model(), {})
    assert (first.attempt, again.attempt) == (1, 1)


async def test_opening_a_committed_round_again_answers_with_the_commit(rig):
    job = await rig.job(demand=1)
    await rig.open(job)
    await rig.report(rig.task("d1"))
    committed = await rig.coordinator.round(job, 1, wait_s=20)
    assert await rig.coordinator.open_round(job, 1, rig.model(), {}) == committed
    with pytest.raises(IllegalTransition):
        await rig.coordinator.open_round(job, 1, rig.model(9.0), {})


async def test_a_round_on_a_model_that_is_not_there_is_refused_with_the_fix(rig):
    job = await rig.job()
    absent = Digest("0" * 64)
    with pytest.raises(NotFound) as caught:
        await rig.coordinator.open_round(job, 1, absent, {})
    assert caught.value.field == "model"
    assert caught.value.fix == f"upload it first: PUT /v1/blobs/{absent}"
    assert (await rig.coordinator.job(job)).open_round is None


async def test_a_round_on_a_model_that_was_damaged_is_refused_until_it_is_uploaded_again(tmp_path, caplog):
    async with rig_at(tmp_path) as rig:
        job, digest = await rig.job(), rig.model(1.0)
        path = rig.blobs.path(digest)
        sound = path.read_bytes()
    path.write_bytes(sound[:-1] + b"\x41")
    async with rig_at(tmp_path) as rig:
        with pytest.raises(NotFound, match="damaged on the disk") as refusal:
            await rig.coordinator.open_round(job, 1, digest, {})
        assert "PUT" in (refusal.value.fix or "")
        assert "is put aside" in caplog.text
        assert rig.blobs.put(sound) == digest
        await rig.coordinator.open_round(job, 1, digest, {})


async def test_a_round_on_a_blob_that_is_no_model_is_refused(rig):
    job = await rig.job()
    blob = rig.blobs.put(b"not a model")
    with pytest.raises(InvalidModel):
        await rig.coordinator.open_round(job, 1, blob, {})


@pytest.mark.parametrize("dtype", ["F32", "I64"])
async def test_a_round_on_a_model_without_numbers_to_learn_is_refused(rig, dtype):
    job = await rig.job()
    elements = 0 if dtype == "F32" else 1
    layout = ModelLayout.of([("w", dtype, (elements,))])
    with pytest.raises(InvalidModel, match="nothing to learn"):
        await rig.coordinator.open_round(job, 1, rig.blobs.put(layout.header + bytes(8 * elements)), {})


async def test_a_round_that_was_never_opened_is_not_found(rig):
    job = await rig.job()
    with pytest.raises(NotFound) as caught:
        await rig.coordinator.round(job, 1)
    assert caught.value.field == "round"


async def test_settings_beyond_a_page_are_refused(rig):
    job = await rig.job()
    with pytest.raises(InvalidInput) as caught:
        await rig.coordinator.open_round(job, 1, rig.model(), {"x": "y" * 20_000})
    assert (caught.value.field, caught.value.limit) == ("config", 16_384)


async def test_a_strategy_that_fails_costs_its_own_round_an_attempt_and_no_other_job_anything(rig, monkeypatch):
    broken, sound = await rig.job(demand=1, requirement="device.ram_gb >= 4"), await rig.job(demand=1)
    await rig.open(broken)
    await rig.open(sound)
    aggregate = rig.data.aggregate

    async def fail(attempt: str, assignments: Any, **options: Any) -> Any:
        if attempt.startswith(broken):
            raise ZeroDivisionError("a strategy's own mistake")
        return await aggregate(attempt, assignments, **options)

    monkeypatch.setattr(rig.data, "aggregate", fail)
    first, second = rig.task("d1", ram_gb=6), rig.task("d2", ram_gb=2)
    assert (first.job, second.job) == (broken, sound)
    await rig.report(first)
    await rig.report(second)
    assert (await rig.coordinator.round(sound, 1, wait_s=20)).state == "committed"
    await until(lambda: rig.coordinator.counters.failed_commits == 1)
    await rig.coordinator.settled()
    view = await rig.coordinator.round(broken, 1)
    assert (view.state, view.attempt) == ("open", 2)


async def test_a_round_is_tried_again_at_its_deadline_though_nothing_else_happens(tmp_path):
    class Leap(Clock):
        """Stands still until the round is open, then jumps far ahead."""

        leaps = False

        def __call__(self) -> float:
            if self.leaps:
                self.leaps, self.now = False, self.now + 10_000
                return self.now - 10_000
            return self.now

    clock = Leap()
    async with rig_at(tmp_path, clock) as rig:
        job = await rig.job(deadline_s=60)
        model = rig.model()
        await rig.coordinator.data.models.check(model)
        clock.leaps = True
        await rig.coordinator.open_round(job, 1, model, {})
        await until(lambda: not clock.leaps and len(rig.coordinator.pool.attempts()) == 1)
        await until(lambda: rig.coordinator.pool.attempts()[0].number == 2)
        assert (await rig.coordinator.round(job, 1)).attempt == 2


async def test_a_policy_that_fails_is_counted_and_stops_nothing(tmp_path):
    class Failing:
        def plan(self, view: PoolView) -> Plan:
            raise RuntimeError("a policy's own mistake")

    async with rig_at(tmp_path, planner=Failing()) as rig:
        job = await rig.job()
        await rig.open(job)
        assert rig.check_in("d1") is None
        assert rig.coordinator.counters.policy_failures >= 1
        assert (await rig.coordinator.job(job)).state == "active"


# -- long polls ------------------------------------------------------------------------------------------------------


async def test_a_long_poll_is_answered_when_the_round_commits(rig):
    job = await rig.job(demand=1)
    await rig.open(job)
    poll = asyncio.create_task(rig.coordinator.round(job, 1, wait_s=1000))
    await until(lambda: len(rig.coordinator.waiters) == 1)
    await rig.report(rig.task("d1"))
    assert (await poll).state == "committed"
    assert len(rig.coordinator.waiters) == 0


async def test_a_long_poll_is_answered_when_the_job_is_cancelled(rig):
    job = await rig.job()
    await rig.open(job)
    poll = asyncio.create_task(rig.coordinator.round(job, 1, wait_s=1000))
    await until(lambda: len(rig.coordinator.waiters) == 1)
    await rig.coordinator.cancel(job, "enough")
    view = await poll
    assert (view.state, view.reason) == ("cancelled", "enough")


async def test_a_long_poll_is_answered_at_a_stop(rig):
    job = await rig.job()
    await rig.open(job)
    poll = asyncio.create_task(rig.coordinator.round(job, 1, wait_s=1000))
    await until(lambda: len(rig.coordinator.waiters) == 1)
    rig.coordinator.announce_stop()
    assert (await poll).state == "open"


async def test_more_long_polls_than_allowed_are_told_to_come_back(tmp_path):
    async with rig_at(tmp_path, max_waiters=1) as rig:
        job = await rig.job()
        await rig.open(job)
        poll = asyncio.create_task(rig.coordinator.round(job, 1, wait_s=1000))
        await until(lambda: len(rig.coordinator.waiters) == 1)
        with pytest.raises(Overloaded):
            await rig.coordinator.round(job, 1, wait_s=1000)
        rig.coordinator.announce_stop()
        await poll


# -- restart ---------------------------------------------------------------------------------------------------------


async def test_after_a_restart_jobs_and_commits_are_there_and_open_rounds_go_on(tmp_path):
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=1)
        await rig.open(job)
        await rig.report(rig.task("d1"), 7.0)
        committed = await rig.coordinator.round(job, 1, wait_s=20)
        await rig.open(job, 2)
        ended = await rig.job(name="ended")
        await rig.coordinator.cancel(ended, "enough")
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        assert await rig.coordinator.round(job, 1) == committed
        view = await rig.coordinator.job(job)
        assert (view.committed_rounds, view.model) == (1, committed.result)
        assert view.open_round is not None
        assert (view.open_round.round, view.open_round.attempt) == (2, 1)
        assert (await rig.coordinator.job(ended)).state == "cancelled"
        task = rig.task("d1")
        assert (task.assignment, task.config) == (f"{job}.2.1.1-1", {"lr": 0.5})
        await rig.report(task)
        assert (await rig.coordinator.round(job, 2, wait_s=20)).state == "committed"


async def test_after_a_restart_a_key_still_names_its_job(tmp_path):
    async with rig_at(tmp_path) as rig:
        first, _ = await rig.coordinator.submit(SPEC, "k-1")
    async with rig_at(tmp_path) as rig:
        again, is_new = await rig.coordinator.submit(SPEC, "k-1")
    assert (again.id, is_new) == (first.id, False)


async def test_after_a_restart_what_a_tenant_used_of_its_day_still_counts(tmp_path):
    quotas = {"team": Quota(devices_per_day=3, borrow=False)}
    async with rig_at(tmp_path, quotas=quotas) as rig:
        job = await rig.job(tenant="team")
        await rig.open(job)
        for device in ("d1", "d2"):
            await rig.report(rig.task(device))
        await rig.coordinator.round(job, 1, wait_s=20)
    async with rig_at(tmp_path, Clock(2000.0), quotas=quotas) as rig:
        await rig.open(job, 2)
        assert [rig.check_in(device) is not None for device in ("d1", "d2")] == [True, False]
        reason = (await rig.coordinator.job(job)).reason
        assert reason.code == "no-supply-yet" or "3 of 3 bound in a day" in reason.text


async def test_an_owner_s_long_poll_is_heard_of(rig):
    job = await rig.job(silence_limit_s=60)
    rig.clock.now += 50
    await rig.coordinator.job(job)
    rig.clock.now += 50
    rig.coordinator.apply(Tick())
    assert (await rig.coordinator.job(job)).state == "active"
    rig.clock.now += 60
    rig.coordinator.apply(Tick())
    view = await rig.coordinator.job(job)
    assert (view.state, view.reason.text) == (
        "failed",
        "failed after 0 rounds: its owner was silent for 60 s, with no round open",
    )


async def test_q9_a_job_s_round_waits_in_the_ledger_until_the_job_before_has_ended(tmp_path):
    async with rig_at(tmp_path) as rig:
        first = await rig.job(demand=1)
        second = await rig.job(demand=1, after=(first,))
        await rig.open(second)
        assert (await rig.coordinator.round(second, 1)).state == "waiting"
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        reason = (await rig.coordinator.job(second)).reason
        assert (reason.code, reason.blocking) == ("waiting-for-job", [first])
        await rig.coordinator.complete(first)
        view = await rig.coordinator.round(second, 1)
        assert (view.state, view.attempt) == ("open", 1)
        await rig.report(rig.task("d1"))
        assert (await rig.coordinator.round(second, 1, wait_s=20)).state == "committed"


async def test_an_aborted_attempt_stays_aborted_after_a_restart(tmp_path):
    """Case R1."""
    async with rig_at(tmp_path) as rig:
        job = await rig.job(deadline_s=60)
        await rig.open(job)
        task = rig.task("d1")
        rig.clock.now += 60
        rig.coordinator.apply(Tick())
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        view = await rig.coordinator.round(job, 1)
        with pytest.raises(TooLate):
            await rig.report(task)
    assert (view.state, view.attempt) == ("open", 2)


async def test_acknowledged_reports_survive_a_crash_and_are_in_the_round_s_aggregate(tmp_path):
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=3)
        await rig.open(job)
        first = rig.task("d1")
        receipt = await rig.report(first, 1.0, weight=3.0)
        await rig.report(rig.task("d2"), 5.0)
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        view = await rig.coordinator.round(job, 1)
        assert (view.state, view.attempt, view.reported) == ("open", 1, 2)
        again = await rig.report(first, 100.0)
        assert (again.sha256, again.duplicate) == (receipt.sha256, True)
        await rig.report(rig.task("d3"), 9.0, weight=1.0)
        view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.state, view.reported, view.weight) == ("committed", 3, 5.0)
    assert view.result is not None
    assert rig.numbers(view.result) == pytest.approx([3.4, 3.4])  # (3·1 + 5 + 9) / 5


async def test_r6_a_device_that_trains_while_the_server_is_down_reports_to_the_next_one(tmp_path):
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=2, lease_s=300)
        await rig.open(job)
        tasks = [rig.task(device) for device in ("d1", "d2")]
    async with rig_at(tmp_path, Clock(1600.0)) as rig:  # ten minutes later: the leases would have run out
        for task, value in zip(tasks, (1.0, 3.0), strict=True):
            await rig.report(task, value)
        view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.state, view.attempt) == ("committed", 1)
    assert view.result is not None
    assert rig.numbers(view.result) == [2.0, 2.0]


async def test_a_device_whose_place_went_back_to_one_from_before_the_restart_is_told_so(tmp_path):
    async with rig_at(tmp_path) as rig:
        job = await rig.job(demand=1, deadline_s=500, min_reports=1)
        await rig.open(job)
        old = rig.task("d1")
        other = await rig.job(demand=2)
        await rig.open(other)
        kept = rig.task("d2")
    async with rig_at(tmp_path, Clock(1100.0)) as rig:
        new = [rig.task(device) for device in ("n1", "n2", "n3")]
        assert [task.job for task in new] == [job, other, other]
        await rig.report(kept)
        with pytest.raises(TooLate, match="before the server was restarted"):
            await rig.report(new[2])
        assert rig.coordinator.counters.late_reports == 1
        await rig.report(old)
        assert (await rig.coordinator.round(job, 1, wait_s=20)).state == "committed"


async def test_reports_that_cannot_be_read_after_a_crash_cost_their_round_an_attempt_and_no_other(tmp_path, caplog):
    async with rig_at(tmp_path) as rig:
        broken, sound = await rig.job(demand=2), await rig.job(demand=2, requirement="device.ram_gb >= 4")
        await rig.open(broken)
        await rig.open(sound)
        await rig.report(rig.task("d1", ram_gb=2))
        other = rig.task("d2", ram_gb=6)
        assert other.job == broken
        await rig.report(rig.task("d3", ram_gb=6))
        [spooled] = (tmp_path / "spool" / f"{broken}.1.1").iterdir()
        spooled.write_bytes(spooled.read_bytes()[:-1] + b"\xff")  # a version that is yet to come
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        views = [await rig.coordinator.round(job, 1) for job in (broken, sound)]
    assert [(view.attempt, view.reported) for view in views] == [(2, 0), (1, 1)]
    assert f"what was received of {broken}.1.1 before the restart cannot be read" in caplog.text


async def test_a_round_whose_model_is_gone_after_a_restart_ends_its_job_with_the_reason_and_no_other(tmp_path, caplog):
    async with rig_at(tmp_path) as rig:
        broken, sound = await rig.job(), await rig.job()
        lost = rig.model(9.0)
        await rig.coordinator.open_round(broken, 1, lost, {})
        await rig.open(sound)
        rig.blobs.path(lost).unlink()
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        await until(lambda: rig.coordinator.pool.jobs[broken].state.terminal)
        assert (await rig.coordinator.job(broken)).state == "cancelled"
        assert f"the model of its round is gone: {lost}" in str(rig.coordinator.pool.jobs[broken].reason)
        assert (await rig.coordinator.job(sound)).state == "active"
    assert f"job {broken} cannot go on" in caplog.text


@pytest.mark.parametrize("place", [9, -1], ids=["its header", "a number"])
async def test_a_round_whose_model_was_damaged_ends_its_job_after_a_restart_and_the_model_can_be_stored_anew(
    tmp_path, place
):
    async with rig_at(tmp_path) as rig:
        job = await rig.job()
        sound = update(9.0)
        digest = rig.model(9.0)
        await rig.coordinator.open_round(job, 1, digest, {})
        await rig.report(rig.task("a"))
    path = tmp_path / "blobs" / digest[:2] / digest
    damaged = bytearray(sound)
    damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        await until(lambda: rig.coordinator.pool.jobs[job].state.terminal)
        assert f"the model of its round is gone: {digest} (it was damaged on the disk)" in str(
            rig.coordinator.pool.jobs[job].reason
        )
        assert rig.blobs.put(sound) == digest
        assert path.read_bytes() == sound


async def test_no_aggregate_is_made_on_a_model_that_was_damaged(tmp_path, monkeypatch):
    async with rig_at(tmp_path) as rig:
        job = await rig.job()
        digest = rig.model(9.0)
        await rig.coordinator.open_round(job, 1, digest, {})
        await rig.report(rig.task("a"))
    path = tmp_path / "blobs" / digest[:2] / digest
    path.write_bytes(update(8.0))
    late, check = asyncio.Event(), Distribution.check
    asked = []

    async def at_first_late(distribution: Distribution, model: Digest) -> None:
        asked.append(model)
        if len(asked) == 1:
            await late.wait()
        await check(distribution, model)

    monkeypatch.setattr(Distribution, "check", at_first_late)
    async with rig_at(tmp_path, Clock(2000.0)) as rig:
        await rig.report(rig.task("b"))
        await until(lambda: rig.coordinator.pool.jobs[job].state.terminal)
        late.set()
        assert rig.coordinator.pool.jobs[job].committed == 0


# -- a ledger that fails ---------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr("vennue.control.shell.RETRY_LEDGER_S", 0.0)


async def failed(rig: Rig) -> None:
    rig.ledger.failure = DISK_FULL
    with pytest.raises(StorageError, match="disk is full"):
        await rig.coordinator.submit(SPEC, "k-1")


async def test_when_the_ledger_fails_nothing_is_answered_as_done_and_the_reason_is_told(rig):
    job = await rig.job()
    await failed(rig)
    assert rig.coordinator.failure is not None
    assert "disk is full" in rig.coordinator.failure
    for call in (rig.coordinator.job(job), rig.coordinator.jobs(10), rig.coordinator.cancel(job, "x")):
        with pytest.raises(StorageError, match="disk is full"):
            await call
    with pytest.raises(StorageError, match="disk is full"):
        rig.check_in("d1")


async def test_when_the_ledger_works_again_the_pool_is_what_the_ledger_holds(rig, soon):
    job = await rig.job()
    await rig.open(job)
    rig.task("d1")
    await failed(rig)
    rig.ledger.failure = None
    await until(lambda: rig.coordinator.failure is None)
    assert [view.id for view in (await rig.coordinator.jobs(10)).jobs] == [job]
    assert (await rig.coordinator.round(job, 1)).attempt == 1
    again, is_new = await rig.coordinator.submit(SPEC, "k-1")
    assert is_new
    assert again.id != job
    for device in ("d1", "d2"):
        await rig.report(rig.task(device))
    assert (await rig.coordinator.round(job, 1, wait_s=20)).state == "committed"


async def test_a_pool_that_cannot_be_rebuilt_for_a_reason_nobody_foresaw_is_tried_again(rig, soon, monkeypatch, caplog):
    job = await rig.job(demand=1)
    await rig.open(job)
    reset, tries = rig.data.reset, []

    async def first_fails(keep):
        tries.append(keep)
        if len(tries) == 1:
            raise RuntimeError("nobody foresaw this")
        return await reset(keep)

    monkeypatch.setattr(rig.data, "reset", first_fails)
    await failed(rig)
    rig.ledger.failure = None
    await until(lambda: rig.coordinator.failure is None)
    assert "nobody foresaw this" in caplog.text
    await rig.report(rig.task("d1"))
    assert (await rig.coordinator.round(job, 1, wait_s=20)).state == "committed"


async def test_a_long_poll_learns_that_the_ledger_failed(rig):
    job = await rig.job()
    await rig.open(job)
    poll = asyncio.create_task(rig.coordinator.round(job, 1, wait_s=1000))
    await until(lambda: len(rig.coordinator.waiters) == 1)
    await failed(rig)
    with pytest.raises(StorageError):
        await poll


async def test_a_commit_that_the_ledger_loses_is_made_again(rig, soon):
    job = await rig.job(demand=1)
    await rig.open(job)
    rig.ledger.failure = DISK_FULL
    await rig.report(rig.task("d1"))
    await until(lambda: rig.coordinator.failure is not None)
    rig.ledger.failure = None
    await until(lambda: rig.coordinator.failure is None)
    view = await rig.coordinator.round(job, 1, wait_s=20)
    assert (view.state, view.attempt, view.reported) == ("committed", 1, 1)


async def test_any_exception_of_a_ledger_counts_as_its_failure(rig):
    rig.ledger.failure = RuntimeError("a ledger's own mistake")
    with pytest.raises(StorageError, match="a ledger's own mistake"):
        await rig.coordinator.submit(SPEC)


@pytest.mark.parametrize(
    ("opened", "fix"),
    [(0, "none has been opened yet"), (1, "name round 1, the only one so far"), (2, "name one from 1 to 2")],
)
async def test_a_round_that_has_not_been_opened_is_not_found_and_those_that_were_are_named(rig, opened, fix):
    job = await rig.job(demand=1)
    for number in range(1, opened + 1):
        await rig.open(job, number)
        if number < opened:
            await rig.report(rig.task(f"d{number}"))
            await rig.coordinator.round(job, number, wait_s=20)
    with pytest.raises(NotFound, match=r"round 99 of job .* has not been opened") as refusal:
        await rig.coordinator.round(job, 99)
    assert refusal.value.fix == fix


# -- ends ------------------------------------------------------------------------------------------------------------


async def test_an_ended_job_opens_no_round(rig):
    job = await rig.job()
    await rig.coordinator.complete(job)
    with pytest.raises(JobEnded):
        await rig.coordinator.open_round(job, 1, rig.model(), {})
    assert (await rig.coordinator.complete(job)).state == "completed"


async def test_a_job_that_is_not_there_is_not_found(rig):
    with pytest.raises(NotFound):
        await rig.coordinator.job(JobId("nobody"))


async def test_changing_the_policy_keeps_all_jobs(rig):
    """Case Q15."""
    job = await rig.job()
    await rig.open(job)
    await rig.coordinator.set_policy(PolicyChoice("srsf"))
    rig.coordinator.apply(Tick())
    assert (await rig.coordinator.pool_view()).policy == "srsf"
    assert rig.task("d1").job == job


async def test_a_policy_once_chosen_is_there_after_a_restart_with_its_parameters(tmp_path):
    async with rig_at(tmp_path) as rig:
        await rig.coordinator.set_policy(PolicyChoice("venn-sched", {"demand_scope": "job"}))
    async with rig_at(tmp_path) as rig:
        assert rig.coordinator.policy == "venn-sched"
        assert repr(rig.coordinator._planner) == "venn-sched(demand_scope='job')"


async def test_a_server_that_is_configured_anew_follows_its_configuration(tmp_path):
    async with rig_at(tmp_path, policy="fifo") as rig:
        await rig.coordinator.set_policy(PolicyChoice("srsf"))
    async with rig_at(tmp_path, policy="las") as rig:
        assert rig.coordinator.policy == "las"
    async with rig_at(tmp_path, policy="fifo") as rig:
        assert rig.coordinator.policy == "srsf"


async def test_a_chosen_policy_that_is_gone_gives_way_to_the_configured_one(tmp_path, monkeypatch, caplog):
    async with rig_at(tmp_path) as rig:
        await rig.coordinator.set_policy(PolicyChoice("srsf"))
    built_in = {name: policy for name, policy in registry.POLICIES.built_in.items() if name != "srsf"}
    monkeypatch.setattr(registry.POLICIES, "built_in", built_in)
    async with rig_at(tmp_path) as rig:
        assert rig.coordinator.policy == "fifo"
        job = await rig.job()
        await rig.open(job)
        assert rig.task("d1").job == job
    assert "there is no policy 'srsf'" in caplog.text


@pytest.mark.parametrize(
    ("choice", "field"), [(PolicyChoice("srfs"), "policy"), (PolicyChoice("venn", {"tiers": 99}), "tiers")]
)
async def test_a_policy_that_makes_no_sense_changes_nothing(rig, choice, field):
    with pytest.raises(InvalidInput) as caught:
        await rig.coordinator.set_policy(choice)
    assert (caught.value.field, rig.coordinator.policy) == (field, "fifo")


async def test_a_policy_that_the_ledger_did_not_learn_of_is_not_in_force_once_it_works_again(rig, soon):
    rig.ledger.failure = DISK_FULL
    with pytest.raises(StorageError):
        await rig.coordinator.set_policy(PolicyChoice("srsf"))
    rig.ledger.failure = None
    await until(lambda: rig.coordinator.failure is None)
    assert rig.coordinator.policy == "fifo"


async def test_the_history_of_plans_says_why_each_was_made_and_what_it_changed(rig):
    first = await rig.job(demand=1)
    second = await rig.job(demand=1)
    for device in ("e1", "e2"):
        rig.check_in(device)
    await rig.open(first)
    await rig.open(second)
    rig.task("d1")
    rig.clock.now += 1
    rig.task("d2")
    newest, before = (await rig.coordinator.plan_history()).plans[:2]
    assert before.causes == [f"{first}.1.1 needs devices", f"{second}.1.1 needs devices"]
    assert (before.requests, newest.requests) == (2, 1)
    assert newest.causes == [f"{first}.1.1 has all its devices"]
    assert newest.changes is not None
    assert [(change.before, change.now) for change in newest.changes] == [(f"{first}.1.1", f"{second}.1.1")]


async def test_under_validation_a_broken_invariant_stops_the_call_that_broke_it(tmp_path):
    async with rig_at(tmp_path) as rig:
        job = await rig.job()
        await rig.open(job)
        request = rig.coordinator.pool.attempts()[0].request
        held, stray = rig.task("d0").assignment, AssignmentId("somebody-else's.1.1.1")
        request.live[stray] = request.live[held]
        with pytest.raises(InvariantViolated, match="counted under attempt"):
            rig.check_in("d1")
        del request.live[stray]


async def test_opening_a_round_again_while_it_commits_answers_with_the_commit(rig, monkeypatch):
    job = await rig.job(demand=1)
    await rig.open(job)
    task, check = rig.task("d1"), rig.data.models.check

    async def slow(model: Digest) -> None:
        await rig.report(task)
        await rig.coordinator.round(job, 1, wait_s=20)
        await check(model)

    monkeypatch.setattr(rig.data.models, "check", slow)
    again = await rig.coordinator.open_round(job, 1, rig.model(), {})
    assert (again.state, again.attempt) == ("committed", 1)
