"""A strategy that fails costs its own round an attempt, and is told of in one line: where it failed, and what to do."""

import logging
import re
from typing import Any

import pytest

from tests.unit.control.rig import rig_at, until
from vennue.core.errors import StrategyFailed
from vennue.core.ids import attempt_id
from vennue.server.problems import status_of
from vennue.updates.strategies import FedAvg, Median, Strategy
from vennue.updates.strategies.registry import STRATEGIES


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as started:
        yield started


FAILS = re.compile(r"the strategy mine fails: ValueError in test_failing_strategies\.py, line [0-9]+: my own fault")


@pytest.mark.parametrize("method", ["share", "step", "choose", "combine"])
async def test_a_strategy_that_raises_is_told_of_with_its_file_and_line(rig, monkeypatch, caplog, method):
    def fails(*_: object) -> Any:
        raise ValueError("my own fault")

    base: type[Strategy] = Median if method in {"choose", "combine"} else FedAvg
    monkeypatch.setitem(STRATEGIES.registered, "mine", type("Mine", (base,), {"name": "mine", method: fails}))
    job = await rig.job(demand=1, strategy="mine")
    await rig.open(job)
    await rig.report(rig.task("d1"))
    await until(lambda: rig.coordinator.pool.jobs[job].attempt.number == 2)
    assert any(FAILS.search(line) for line in rig.coordinator.pool.jobs[job].tell())
    [logged] = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert FAILS.search(logged.getMessage())
    assert (logged.exc_info, f"job {job}: " in logged.getMessage()) == (None, True)


async def test_a_check_that_raises_fails_the_server_and_not_the_report(rig, monkeypatch):
    def fails(*_: object) -> None:
        raise ValueError("my own fault")

    monkeypatch.setitem(STRATEGIES.registered, "mine", type("Mine", (FedAvg,), {"name": "mine", "check": fails}))
    job = await rig.job(demand=1, strategy="mine")
    await rig.open(job)
    with pytest.raises(StrategyFailed, match=FAILS) as failure:
        await rig.report(rig.task("d1"))
    assert status_of(failure.value) == 500
    view = await rig.coordinator.job(job)
    assert view.setbacks is not None  # it is the owner's to repair
    assert [(kind.kind, kind.last) for kind in view.setbacks.kinds] == [("strategy-failed", failure.value.message)]
    assert view.reason is not None
    assert view.reason.code == "refusing-reports"


async def test_a_result_that_is_not_finite_is_one_line_in_the_log_with_the_tensor_and_what_to_do(rig, caplog):
    job = await rig.job(demand=1, strategy_options={"learning_rate": 3e38})
    await rig.open(job)
    await rig.report(rig.task("d1"), 10.0)
    await until(lambda: rig.coordinator.pool.jobs[job].attempt.number == 2)
    [logged] = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert logged.getMessage() == (
        f"job {job}: the aggregate of attempt {attempt_id(job, 1, 1)} failed: fedavg: w: the strategy's result is not "
        "finite (lower the server's learning rate, or use a robust strategy if devices report extreme numbers)"
    )
    assert logged.exc_info is None
