"""Managed jobs: the platform runs their rounds to the end, through restarts, and says why one cannot go on."""

import asyncio

import pytest

from tests.unit.control.rig import DISK_FULL, rig_at, until, update
from vennue.control.managed import meets
from vennue.core.errors import Conflict, InvalidInput, InvalidModel, NotFound, StorageError
from vennue.core.job import JobSpec
from vennue.protocol import Managed, Target
from vennue.testing import LocalPool, in_virtual_time


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as made:
        yield made


async def submit(rig, *, rounds=3, key=None, spec=None, **managed):
    given = {"model": rig.model(), "config": {"lr": 0.5}} | managed
    fields = {"name": "job", "demand": 1, "rounds": rounds} | (spec or {})
    view, _ = await rig.coordinator.submit(JobSpec(**fields), key, Managed(**given))
    return view


async def one_round(rig, job, number, **metrics):
    """A device serves the round that is open, and the platform goes on."""
    task = rig.task(f"d{number}")
    assert (task.job, task.round) == (job, number)
    await rig.report(task, float(number), **metrics)
    await until(
        lambda: (
            rig.coordinator.pool.jobs[job].committed == number
            and (rig.coordinator.pool.jobs[job].state.terminal or rig.coordinator.pool.jobs[job].attempt is not None)
        )
    )
    await rig.coordinator.settled()
    return task


async def test_the_platform_runs_all_rounds_each_from_the_last_commit_and_completes_the_job(rig):
    view = await submit(rig)
    assert (view.open_round.round, view.open_round.model) == (1, rig.model())
    tasks = [await one_round(rig, view.id, number) for number in (1, 2, 3)]
    ended = await rig.coordinator.job(view.id)
    assert (ended.state, ended.committed_rounds) == ("completed", 3)
    assert rig.numbers(ended.model) == [3.0, 3.0]
    assert [rig.numbers(task.model) for task in tasks] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert [task.config["lr"] for task in tasks] == [0.5, 0.5, 0.5]


async def test_a_target_that_an_evaluation_reaches_completes_the_job(rig):
    view = await submit(rig, rounds=None, evaluate_every=2, target=Target(metric="loss", at_most=0.5))
    tasks = [await one_round(rig, view.id, number, loss=1.0 / number) for number in (1, 2)]
    ended = await rig.coordinator.job(view.id)
    assert (ended.state, ended.committed_rounds) == ("completed", 2)
    assert [task.config.get("evaluate", False) for task in tasks] == [False, True]


async def test_a_target_reached_between_evaluations_does_not_count(rig):
    view = await submit(rig, rounds=None, evaluate_every=2, target=Target(metric="loss", at_most=0.5))
    await one_round(rig, view.id, 1, loss=0.1)
    assert (await rig.coordinator.job(view.id)).state == "active"


async def test_a_restarted_server_goes_on_with_the_next_round(tmp_path):
    async with rig_at(tmp_path) as rig:
        view = await submit(rig)
        await one_round(rig, view.id, 1)
    async with rig_at(tmp_path, rig.clock) as rig:
        await until(lambda: rig.coordinator.pool.jobs[view.id].attempt is not None)
        await rig.coordinator.settled()
        await one_round(rig, view.id, 2)
        await one_round(rig, view.id, 3)
        ended = await rig.coordinator.job(view.id)
        assert (ended.state, ended.committed_rounds) == ("completed", 3)
        assert ended.managed == Managed(model=rig.model(), config={"lr": 0.5})


async def test_a_crash_between_a_commit_and_the_next_round_is_made_good_at_the_start(tmp_path, monkeypatch):
    async with rig_at(tmp_path) as rig:
        view = await submit(rig)

        async def never(id):
            return None

        monkeypatch.setattr(rig.coordinator.managed, "advance", never)
        await rig.report(rig.task("d1"), 1.0)
        await until(lambda: rig.coordinator.pool.jobs[view.id].committed == 1)
        await rig.coordinator.settled()
        assert rig.coordinator.pool.jobs[view.id].attempt is None
    async with rig_at(tmp_path, rig.clock) as rig:
        await until(lambda: rig.coordinator.pool.jobs[view.id].attempt is not None)
        goes_on = await rig.coordinator.job(view.id)
        assert goes_on.open_round is not None
        assert goes_on.open_round.round == 2


async def test_nobody_else_opens_the_rounds_of_a_managed_job(rig):
    view = await submit(rig)
    with pytest.raises(Conflict, match="the platform runs the rounds"):
        await rig.coordinator.open_round(view.id, 1, rig.model(), {})


async def test_between_two_rounds_it_waits_for_the_platform_and_not_for_its_owner(rig, monkeypatch):
    async def not_yet(model):
        raise DISK_FULL

    view = await submit(rig)
    monkeypatch.setattr(rig.coordinator.data.models, "check", not_yet)
    await rig.report(rig.task("d1"), 1.0)
    await until(lambda: rig.coordinator.pool.jobs[view.id].committed == 1)
    reason = (await rig.coordinator.job(view.id)).reason
    assert (reason.code, reason.text) == (
        "waiting-for-platform",
        "round 2 waits for the platform, which runs this job, to open it",
    )


async def test_its_owner_may_cancel_it_at_any_time(rig):
    view = await submit(rig)
    await rig.coordinator.cancel(view.id, "enough")
    assert (await rig.coordinator.job(view.id)).state == "cancelled"
    assert rig.check_in("d1") is None


async def test_a_model_that_is_not_there_or_is_none_is_refused_at_the_submission(rig):
    with pytest.raises(NotFound):
        await submit(rig, model="0" * 64)
    with pytest.raises(InvalidModel):
        await submit(rig, model=rig.blobs.put(b"no model"))
    assert rig.coordinator.pool.jobs == {}


@pytest.mark.parametrize(
    ("managed", "rounds", "field"),
    [
        ({}, None, "rounds"),
        ({"model": "start.safetensors"}, 3, "managed.model"),
        ({"evaluate_every": 0}, 3, "managed.evaluate_every"),
        ({"target": Target(metric="loss")}, 3, "managed.target"),
        ({"target": Target(metric="loss", at_most=1.0, at_least=0.0)}, 3, "managed.target"),
        ({"target": Target(metric="loss", at_most=float("nan"))}, 3, "managed.target"),
    ],
)
async def test_what_could_never_end_or_makes_no_sense_is_refused_by_field(rig, managed, rounds, field):
    with pytest.raises(InvalidInput) as caught:
        await submit(rig, rounds=rounds, **managed)
    assert caught.value.field == field
    assert rig.coordinator.pool.jobs == {}


async def test_an_asynchronous_job_cannot_evaluate_every_other_round_since_its_devices_are_all_told_the_same(rig):
    asked = JobSpec(name="learner", demand=2, rounds=3, mode="async", buffer_size=2)
    with pytest.raises(InvalidInput) as caught:
        await rig.coordinator.submit(asked, managed=Managed(model=rig.model(), evaluate_every=2))
    assert caught.value.field == "managed.evaluate_every"
    await rig.coordinator.submit(asked, managed=Managed(model=rig.model()))


async def test_one_key_makes_one_managed_job(rig):
    first, again = await submit(rig, key="k"), await submit(rig, key="k")
    assert first.id == again.id
    with pytest.raises(Conflict):
        await submit(rig, key="k", config={"lr": 1.0})


async def reported_and_committed(rig, task):
    await rig.report(task, 1.0)
    await rig.coordinator.round(task.job, 1, wait_s=20)


async def test_a_ledger_that_fails_at_a_commit_costs_the_job_nothing(rig, monkeypatch):
    monkeypatch.setattr("vennue.control.shell.RETRY_LEDGER_S", 0.0)
    view = await submit(rig, rounds=1)
    task = rig.task("d1")
    rig.ledger.failure = DISK_FULL
    with pytest.raises(StorageError):
        await reported_and_committed(rig, task)
    rig.ledger.failure = None
    await until(lambda: rig.coordinator.failure is None)
    await until(lambda: rig.coordinator.pool.jobs[view.id].state == "completed")
    committed = await rig.coordinator.round(view.id, 1)
    assert (committed.state, committed.attempt) == ("committed", 1)


async def test_a_managed_job_that_follows_another_begins_when_that_has_ended(rig):
    first = await submit(rig, rounds=1)
    second = await submit(rig, rounds=1, spec={"after": (first.id,)})
    assert second.open_round.state == "waiting"
    await one_round(rig, first.id, 1)
    await one_round(rig, second.id, 1)
    assert (await rig.coordinator.job(second.id)).state == "completed"


def test_a_round_without_the_metric_does_not_meet_its_target():
    assert not meets(Target(metric="loss", at_most=1.0), {"accuracy": 0.1})
    assert meets(Target(metric="accuracy", at_least=0.1), {"accuracy": 0.1})
    assert not meets(Target(metric="accuracy", at_least=0.1), {"accuracy": 0.09})


@in_virtual_time
async def test_a_disk_that_fails_between_two_rounds_delays_the_next_one(monkeypatch):
    async with LocalPool() as pool, pool.device() as device:
        data = pool.coordinator.data
        check, failures = data.models.check, iter([None, DISK_FULL, DISK_FULL, None])

        async def fails_at_times(digest):
            failure = next(failures, None)
            if failure is not None:
                raise failure
            await check(digest)

        model = pool.blobs.put(update(0.0))
        monkeypatch.setattr(data.models, "check", fails_at_times)
        view, _ = await pool.coordinator.submit(JobSpec(name="job", demand=1, rounds=2), None, Managed(model=model))
        async for task in device.tasks(max_tasks=2, duration_s=3600):
            await task.report(task.model, examples=1)
        await asyncio.sleep(1)
        assert (await pool.coordinator.job(view.id)).state == "completed"
