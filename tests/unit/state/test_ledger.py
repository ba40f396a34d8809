"""What is particular to the SQL ledger: schema versions, durability settings, and errors that say what to do."""

import errno
import os
import sqlite3
import subprocess
import sys

import pytest
import sqlalchemy as sa

from vennue.core.errors import StorageError
from vennue.state import schema
from vennue.state.directory import DataDirectory
from vennue.state.ledger import SqlLedger


async def opened(path):
    ledger = SqlLedger.at(path)
    await ledger.open()
    await ledger.close()


async def test_a_new_database_gets_the_newest_version(tmp_path):
    await opened(tmp_path / "ledger.sqlite")
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        versions = database.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    database.close()
    assert versions == [(str(len(schema.MIGRATIONS)),)]


async def test_a_newer_schema_is_refused_by_both_versions_and_the_fix_and_left_alone(tmp_path):
    path = tmp_path / "ledger.sqlite"
    await opened(path)
    database = sqlite3.connect(path)
    database.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
    database.commit()
    with pytest.raises(StorageError) as caught:
        await opened(path)
    assert (caught.value.value, caught.value.limit) == (7, len(schema.MIGRATIONS))
    assert "7" in caught.value.message
    assert str(len(schema.MIGRATIONS)) in caught.value.message
    assert "upgrade" in str(caught.value.fix)
    assert database.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall() == [("7",)]
    database.close()


@pytest.mark.parametrize("record", ["{not JSON", '{"id": "j"}'], ids=["no JSON", "a field is missing"])
async def test_a_row_that_makes_no_sense_is_told_with_the_fix(tmp_path, record):
    path = tmp_path / "ledger.sqlite"
    await opened(path)
    database = sqlite3.connect(path)
    database.execute("INSERT INTO jobs VALUES ('j', 1, 'active', 1.0, NULL, ?)", (record,))
    database.commit()
    database.close()
    ledger = SqlLedger.at(path)
    await ledger.open()
    with pytest.raises(StorageError, match="a JobRecord that makes no sense") as caught:
        await ledger.load()
    await ledger.close()
    assert caught.value.value == record
    assert "backup" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("schema_version", "one", "its schema version is no number"),
        ("secret", "no hexadecimal", "the pool's secret is not 32 bytes"),
        ("secret", "", "the pool's secret is not 32 bytes"),
        ("secret", "00ff", "the pool's secret is not 32 bytes"),
    ],
)
async def test_what_the_ledger_knows_of_itself_and_makes_no_sense_is_told_with_the_fix(tmp_path, key, value, told):
    path = tmp_path / "ledger.sqlite"
    await opened(path)
    database = sqlite3.connect(path)
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    database.commit()
    database.close()

    async def start():
        ledger = SqlLedger.at(path)
        await ledger.open()
        try:
            await ledger.secret()
        finally:
            await ledger.close()

    with pytest.raises(StorageError, match=told) as caught:
        await start()
    assert caught.value.fix == "restore the data directory from a backup"


def test_an_older_schema_runs_only_the_migrations_it_has_not_seen():
    ran = []
    engine = sa.create_engine("sqlite://")
    migrations = (*schema.MIGRATIONS, lambda _: ran.append(2), lambda _: ran.append(3))
    with engine.begin() as connection:
        assert schema.migrate(connection, migrations[:2]) == 0
        assert schema.migrate(connection, migrations) == 2
        assert schema.migrate(connection, migrations) == 3
    engine.dispose()
    assert ran == [2, 3]


async def test_a_migration_that_fails_leaves_the_old_version(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    await opened(path)

    def fail(connection: sa.Connection) -> None:
        connection.execute(sa.text("CREATE TABLE half (x INTEGER)"))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(schema.migrate, "__defaults__", ((*schema.MIGRATIONS, fail),))
    with pytest.raises(StorageError):
        await opened(path)
    database = sqlite3.connect(path)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version = database.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    database.close()
    assert "half" not in tables
    assert version == (str(len(schema.MIGRATIONS)),)


async def test_commits_are_synced_to_the_disk(tmp_path):
    ledger = SqlLedger.at(tmp_path / "ledger.sqlite")
    await ledger.open()
    async with ledger._engine.connect() as connection:
        journal = await connection.scalar(sa.text("PRAGMA journal_mode"))
        synchronous = await connection.scalar(sa.text("PRAGMA synchronous"))
    await ledger.close()
    assert (journal, synchronous) == ("wal", 2)  # 2 is FULL


async def test_a_file_that_is_no_database_is_refused_with_the_fix(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"this is not a database, but long enough to be looked at" * 20)
    with pytest.raises(StorageError) as caught:
        await opened(path)
    assert "not a database" in caught.value.message
    assert "backup" in str(caught.value.fix)


async def test_a_database_held_by_another_program_is_refused_with_the_fix(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    await opened(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr("vennue.state.ledger.BUSY_TIMEOUT_S", 0.0)
    ledger = SqlLedger.at(path)
    with pytest.raises(StorageError) as caught:
        await ledger.secret()
    await ledger.close()
    holder.close()
    assert "locked" in caught.value.message
    assert "other program" in str(caught.value.fix)


def test_a_second_server_in_this_process_is_refused_by_the_data_directory(tmp_path):
    with DataDirectory(tmp_path / "data"):
        with pytest.raises(StorageError) as caught:
            DataDirectory(tmp_path / "data")
        assert str(os.getpid()) in caught.value.message
        assert caught.value.field == "data_dir"


def test_a_second_server_in_another_process_is_refused_by_the_data_directory(tmp_path):
    program = f"""
from pathlib import Path
from vennue.state.directory import DataDirectory
try:
    DataDirectory(Path({str(tmp_path / "data")!r}))
except Exception as error:
    print(type(error).__name__)
"""
    with DataDirectory(tmp_path / "data"):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "StorageError\n"


def test_a_data_directory_can_be_taken_again_once_it_is_closed(tmp_path):
    DataDirectory(tmp_path / "data").close()
    DataDirectory(tmp_path / "data").close()


def test_a_lock_that_is_no_file_is_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(StorageError, match="the data directory's lock is no file") as caught:
        DataDirectory(tmp_path)
    assert caught.value.value == str(tmp_path / "lock")


def test_a_data_directory_below_a_file_is_refused_with_the_fix(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        DataDirectory(tmp_path / "file" / "data")
    assert "name a directory" in str(caught.value.fix)


def test_a_read_only_data_directory_is_refused_with_the_fix(tmp_path, monkeypatch):
    def read_only(*args: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StorageError) as caught:
        DataDirectory(tmp_path)
    assert "Read-only file system" in caught.value.message
    assert "make it writable" in str(caught.value.fix)
