"""Ledgers that were not written by this server: an older version's, whose rows are taken up, and damaged ones."""

import json
import sqlite3

import pytest

from tests.unit.control.rig import Clock, Rig, rig_at, until
from vennue.core.errors import InvalidInput, StorageError
from vennue.core.ids import JobId
from vennue.core.requirement import DEFAULT_SCHEMA

OLD = JobId("old-1")

# The tables and rows that the first version of the schema left behind for a job in its second round.
TABLES = """
CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE jobs (id TEXT NOT NULL PRIMARY KEY, arrival BIGINT NOT NULL, state TEXT NOT NULL,
    submitted_at DOUBLE NOT NULL, ended_at DOUBLE, record TEXT NOT NULL);
CREATE TABLE attempts (id TEXT NOT NULL PRIMARY KEY, job TEXT NOT NULL, round BIGINT NOT NULL, number BIGINT NOT NULL,
    state TEXT NOT NULL, opened_at DOUBLE NOT NULL, closed_at DOUBLE, record TEXT NOT NULL);
CREATE INDEX attempts_of_round ON attempts (job, round, number);
CREATE INDEX attempts_by_state ON attempts (state);
CREATE TABLE commits (job TEXT NOT NULL, round BIGINT NOT NULL, committed_at DOUBLE NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (job, round));
CREATE TABLE idempotency (key TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL);
INSERT INTO meta VALUES ('schema_version', '1');
"""


def write_first_version(path, model):
    job = {
        "id": "old-1", "spec": {"name": "old", "demand": 1, "rounds": 3}, "state": "active", "arrival": 0,
        "submitted_at": 900.0, "ended_at": None, "committed": 1, "model": model, "attained": 1,
        "scheduling_delay_s": 2.0, "collection_s": 5.0, "reason": None,
    }  # fmt: skip
    attempt = {
        "id": "old-1.2.1", "job": "old-1", "round": 2, "number": 1, "state": "open", "model": model, "config": {},
        "opened_at": 950.0, "closed_at": None, "bound": 0, "reported": 0, "scheduling_delay_s": 0.0, "result": None,
        "reason": None,
    }  # fmt: skip
    commit = {
        "job": "old-1", "round": 1, "attempt": "old-1.1.1", "result": model, "reports": 1, "weight": 1.0,
        "metrics": {"loss": 0.5}, "committed_at": 940.0,
    }  # fmt: skip
    done = attempt | {"id": "old-1.1.1", "round": 1, "state": "committed", "closed_at": 940.0, "result": model}
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    database.execute("INSERT INTO jobs VALUES ('old-1', 0, 'active', 900.0, NULL, ?)", (json.dumps(job),))
    for row in (attempt, done):
        database.execute(
            "INSERT INTO attempts VALUES (?, 'old-1', ?, 1, ?, 950.0, ?, ?)",
            (row["id"], row["round"], row["state"], row["closed_at"], json.dumps(row)),
        )
    database.execute("INSERT INTO commits VALUES ('old-1', 1, 940.0, ?)", (json.dumps(commit),))
    database.execute(
        "INSERT INTO idempotency VALUES ('k', ?)", (json.dumps({"key": "k", "fingerprint": "f", "job": "old-1"}),)
    )
    database.commit()
    database.close()


async def test_a_job_of_the_first_version_goes_on_where_it_was(tmp_path):
    async with rig_at(tmp_path) as rig:
        model = rig.model()
    (tmp_path / "ledger.sqlite").unlink()
    for left in tmp_path.glob("ledger.sqlite-*"):
        left.unlink()
    write_first_version(tmp_path / "ledger.sqlite", model)
    async with rig_at(tmp_path) as rig:
        await rig.coordinator.settled()
        assert (await rig.coordinator.round(OLD, 1)).metrics == {"loss": 0.5}
        task = rig.task("d1")
        assert (task.job, task.round) == (OLD, 2)
        await rig.report(task, 4.0)
        await until(lambda: rig.coordinator.pool.jobs[OLD].committed == 2)
        view = await rig.coordinator.job(OLD)
        assert (view.state, view.committed_rounds) == ("active", 2)
        assert view.model is not None
        assert rig.numbers(view.model) == [4.0, 4.0]


# -- ledgers that make no sense, or not any more ---------------------------------------------------------------------


def change(path, statement, *values):
    """Do to a ledger what another program might."""
    database = sqlite3.connect(path / "ledger.sqlite")
    database.execute(statement, values)
    database.commit()
    database.close()


async def refused(path, kind, match):
    """The error with which a server does not start."""
    rig = Rig(path, Clock())
    try:
        with pytest.raises(kind, match=match) as caught:
            await rig.coordinator.start()
    finally:
        await rig.ledger.close()
    return caught.value


@pytest.mark.parametrize("note", ["policy", "usage", "managed/j"])
async def test_a_note_that_makes_no_sense_is_told_with_the_fix(tmp_path, note):
    async with rig_at(tmp_path):
        pass
    change(tmp_path, "INSERT INTO meta VALUES (?, '{\"cut\": ')", f"note:{note}")
    error = await refused(tmp_path, StorageError, "it holds a note that makes no sense")
    assert error.fix == "restore the data directory from a backup"


async def test_a_round_of_a_job_that_is_not_there_is_told_with_the_fix(tmp_path):
    async with rig_at(tmp_path) as rig:
        job = await rig.job()
        await rig.open(job)
    change(tmp_path, "DELETE FROM jobs")
    await refused(tmp_path, StorageError, f"it tells of job '{job}', which it does not hold")


async def test_an_active_job_whose_attribute_the_pool_does_not_know_any_more_is_named_and_one_that_has_ended_is_kept(
    tmp_path,
):
    lidar = DEFAULT_SCHEMA.extend({"lidar": "bool"})
    async with rig_at(tmp_path, schema=lidar) as rig:
        job = await rig.job(requirement="device.lidar")
    error = await refused(tmp_path, InvalidInput, f"job {job}, which is active, cannot go on: .*lidar")
    assert error.field == "requirement"
    assert "cancel it" in str(error.fix)
    async with rig_at(tmp_path, schema=lidar) as rig:
        await rig.coordinator.cancel(job, "its attribute goes")
    async with rig_at(tmp_path) as rig:
        assert (await rig.coordinator.job(job)).state == "cancelled"
