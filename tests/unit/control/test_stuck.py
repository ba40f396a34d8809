"""A strategy that never ends and a ledger that fails, together: other jobs go on, and nothing counts twice."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.control.rig import DISK_FULL, rig_at, until
from vennue.core.errors import StorageError
from vennue.updates.strategies import FedAvg
from vennue.updates.strategies.registry import STRATEGIES


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def rig(tmp_path, monkeypatch, release):
    entered = threading.Event()

    class Endless(FedAvg):
        name = "endless"

        def step(self, block: Any, memory: Mapping[str, Any]) -> Any:
            entered.set()
            release.wait()
            return super().step(block, memory)

    monkeypatch.setitem(STRATEGIES.registered, "endless", Endless)
    monkeypatch.setattr("vennue.control.shell.RETRY_LEDGER_S", 0.0)
    monkeypatch.setattr("vennue.control.dataplane.PATIENCE_S", 0.05)
    async with rig_at(tmp_path) as started:
        started.entered = entered  # type: ignore[attr-defined]
        yield started
        release.set()


async def fail_and_recover(rig) -> None:
    rig.ledger.failure = DISK_FULL
    with pytest.raises(StorageError):
        await rig.job()
    rig.ledger.failure = None
    await until(lambda: rig.coordinator.failure is None)


async def test_a_ledger_that_works_again_does_not_wait_for_a_strategy_that_never_ends(rig, release):
    endless, other = await rig.job(demand=1, strategy="endless"), await rig.job(demand=1)
    await rig.open(endless)
    await rig.report(rig.task("d1"), 1.0)
    await until(rig.entered.is_set)
    await rig.open(other)
    task = rig.task("d2")
    await fail_and_recover(rig)
    await rig.report(task, 3.0)
    assert rig.numbers((await rig.coordinator.round(other, 1, wait_s=20)).result) == [3.0, 3.0]
    attempt = rig.coordinator.pool.jobs[endless].attempt
    assert (attempt.number, len(attempt.request.reported)) == (2, 0)
    assert any(
        "had not ended when the ledger worked again" in line for line in rig.coordinator.pool.jobs[endless].tell()
    )

    release.set()  # what ends after all changes nothing
    await rig.report(rig.task("d3"), 5.0)
    view = await rig.coordinator.round(endless, 1, wait_s=20)
    assert (view.attempt, view.weight, rig.numbers(view.result)) == (2, 1.0, [5.0, 5.0])
