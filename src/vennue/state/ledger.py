"""The ledger: the durable record of jobs, attempts, commits and idempotency keys. Device state never enters it.

What `Ledger.save` has returned for survives any crash; a batch is one transaction, so it is there whole or not at
all. `SqlLedger` keeps the contract on any database that SQLAlchemy and one of its async drivers reach: SQLite in WAL
mode for one machine, PostgreSQL for many.
"""

import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from vennue.core.effects import AttemptRecord, Effect, JobRecord, SaveAttempt, SaveJob
from vennue.core.errors import StorageError
from vennue.core.ids import AttemptId, Digest, JobId
from vennue.core.round import AttemptState
from vennue.state import schema

BUSY_TIMEOUT_S = 5.0
"""How long SQLite waits for another process (a backup, a shell) that holds its lock."""

SECRET_BYTES = 32

_NOTE: Final = "note:"
"""What the keys of notes begin with in the table that has the secret, too."""

Record = TypeVar("Record", bound=msgspec.Struct)


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One committed round (for an asynchronous job, one model update)."""

    job: JobId
    round: int
    attempt: AttemptId
    result: Digest
    reports: int
    weight: float
    """Total weight of the reports, in examples."""
    metrics: dict[str, float]
    committed_at: float
    memory: dict[str, Digest] = {}
    """What the strategy remembers for the next round: a blob for each of its slots."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key, what was asked with it (a digest) and the job that it made."""

    key: str
    fingerprint: str
    job: JobId


class Batch(msgspec.Struct, kw_only=True):
    """Records that become durable together. A later record of the same id supersedes an earlier one."""

    jobs: dict[JobId, JobRecord] = {}
    attempts: dict[AttemptId, AttemptRecord] = {}
    commits: list[CommitRecord] = []
    keys: list[KeyRecord] = []
    notes: dict[str, str] = {}
    """Whatever else a server must know again after a restart: a text for each name."""

    def add(self, effect: Effect) -> bool:
        """Take a durable effect's record; False for any other effect."""
        if isinstance(effect, SaveJob):
            self.jobs[effect.record.id] = effect.record
        elif isinstance(effect, SaveAttempt):
            self.attempts[effect.record.id] = effect.record
        else:
            return False
        return True

    def __bool__(self) -> bool:
        return bool(self.jobs or self.attempts or self.commits or self.keys or self.notes)


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a server needs to go on where the last one stopped."""

    jobs: list[JobRecord]
    """In the order of their arrival."""
    open_attempts: list[AttemptRecord]
    keys: list[KeyRecord]
    notes: dict[str, str]
    latest: float
    """The latest pool time on record, seconds; 0 in an empty ledger."""


class Ledger(Protocol):
    """The contract of every ledger. All methods raise `StorageError` when the storage fails."""

    async def open(self) -> None:
        """Connect and bring the schema up to date. Call it once, before anything else."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    async def secret(self) -> bytes:
        """The pool's secret, drawn when first asked for and the same ever after."""
        ...

    async def save(self, batch: Batch) -> None:
        """Make a batch durable, whole; when this returns, it is."""
        ...

    async def load(self) -> Recovered:
        """What is needed to go on."""
        ...

    async def latest_attempt(self, job: JobId, round_number: int) -> AttemptRecord | None:
        """The round's latest attempt."""
        ...

    async def commit(self, job: JobId, round_number: int) -> CommitRecord | None:
        """The round's commit."""
        ...

    async def latest_commits(self, number: int) -> list[CommitRecord]:
        """The latest commits of each job, so many at most, in no order."""
        ...


class SqlLedger:
    """The ledger in a SQL database.

    Args:
        url: as SQLAlchemy writes it, with an async driver: ``sqlite+aiosqlite:///…``, ``postgresql+asyncpg://…``.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url)
        self._insert: Any = postgresql.insert
        if self._engine.dialect.name == "sqlite":
            self._insert = sqlite.insert
            _tune_sqlite(self._engine)

    @classmethod
    def at(cls, path: Path) -> "SqlLedger":
        """The embedded ledger: a SQLite file."""
        return cls(f"sqlite+aiosqlite:///{path}")

    async def open(self) -> None:
        try:
            async with self._transaction("open the ledger") as connection:
                await connection.run_sync(schema.migrate)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._engine.dispose()

    async def secret(self) -> bytes:
        fresh = secrets.token_hex(SECRET_BYTES)
        async with self._transaction("read the pool's secret") as connection:
            await connection.execute(
                self._insert(schema.meta).values(key="secret", value=fresh).on_conflict_do_nothing()
            )
            kept = await connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.key == "secret"))
        try:
            secret = bytes.fromhex(str(kept))
        except ValueError:
            secret = b""
        if len(secret) != SECRET_BYTES:  # which would let anybody forge tokens
            raise schema.senseless(f"the pool's secret is not {SECRET_BYTES} bytes in hexadecimal")
        return secret

    async def save(self, batch: Batch) -> None:
        async with self._transaction("save to the ledger") as connection:
            await self._upsert(connection, schema.jobs, batch.jobs.values())
            await self._upsert(connection, schema.attempts, batch.attempts.values())
            await self._upsert(connection, schema.commits, batch.commits)
            await self._upsert(connection, schema.idempotency, batch.keys)
            if batch.notes:
                statement = self._insert(schema.meta)
                await connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=["key"], set_={"value": statement.excluded["value"]}
                    ),
                    [{"key": _NOTE + name, "value": text} for name, text in batch.notes.items()],
                )

    async def load(self) -> Recovered:
        jobs, attempts, keys = schema.jobs, schema.attempts, schema.idempotency
        closed = [state for state in AttemptState if state.closed]
        async with self._transaction("read the ledger") as connection:
            job_rows = await connection.scalars(sa.select(jobs.c.record).order_by(jobs.c.arrival))
            open_rows = await connection.scalars(
                sa.select(attempts.c.record).where(attempts.c.state.not_in(closed)).order_by(attempts.c.opened_at)
            )
            key_rows = await connection.scalars(sa.select(keys.c.record))
            note_rows = await connection.execute(
                sa.select(schema.meta.c.key, schema.meta.c.value).where(schema.meta.c.key.startswith(_NOTE))
            )
            latest = [
                await connection.scalar(sa.select(sa.func.max(column)))
                for column in (
                    jobs.c.submitted_at,
                    jobs.c.ended_at,
                    attempts.c.opened_at,
                    attempts.c.closed_at,
                    schema.commits.c.committed_at,
                )
            ]
        return Recovered(
            jobs=[_record(row, JobRecord) for row in job_rows],
            open_attempts=[_record(row, AttemptRecord) for row in open_rows],
            keys=[_record(row, KeyRecord) for row in key_rows],
            notes={str(row.key).removeprefix(_NOTE): str(row.value) for row in note_rows},
            latest=max((time for time in latest if time is not None), default=0.0),
        )

    async def latest_attempt(self, job: JobId, round_number: int) -> AttemptRecord | None:
        table = schema.attempts
        query = (
            sa.select(table.c.record)
            .where(table.c.job == job, table.c.round == round_number)
            .order_by(table.c.number.desc())
            .limit(1)
        )
        return await self._first(query, AttemptRecord)

    async def commit(self, job: JobId, round_number: int) -> CommitRecord | None:
        table = schema.commits
        return await self._first(
            sa.select(table.c.record).where(table.c.job == job, table.c.round == round_number), CommitRecord
        )

    async def latest_commits(self, number: int) -> list[CommitRecord]:
        table = schema.commits
        last = sa.select(table.c.job, sa.func.max(table.c.round).label("round")).group_by(table.c.job).subquery()
        query = (
            sa.select(table.c.record).join(last, last.c.job == table.c.job).where(table.c.round > last.c.round - number)
        )
        async with self._transaction("read the ledger") as connection:
            rows = await connection.scalars(query)
        return [_record(row, CommitRecord) for row in rows]

    async def _first(self, query: sa.Select[Any], kind: type[Record]) -> Record | None:
        async with self._transaction("read the ledger") as connection:
            record: str | None = await connection.scalar(query)
        return None if record is None else _record(record, kind)

    async def _upsert(self, connection: AsyncConnection, table: sa.Table, records: Iterable[msgspec.Struct]) -> None:
        rows = [_row(record, table) for record in records]
        if not rows:
            return
        statement = self._insert(table)
        key = [column.name for column in table.primary_key]
        others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in key}
        await connection.execute(statement.on_conflict_do_update(index_elements=key, set_=others), rows)

    @asynccontextmanager
    async def _transaction(self, what: str) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (DatabaseError, OSError) as error:
            raise _storage_error(what, error, self._engine) from error


def _row(record: msgspec.Struct, table: sa.Table) -> dict[str, Any]:
    """The columns that the table searches by, and the whole record as JSON."""
    columns = {column.name: getattr(record, column.name) for column in table.c if column.name != "record"}
    return columns | {"record": msgspec.json.encode(record).decode()}


def _record(row: str, kind: type[Record]) -> Record:
    """The record that a row holds, which another program may have changed."""
    try:
        return msgspec.json.decode(row, type=kind)
    except msgspec.DecodeError as error:
        raise schema.senseless(f"it holds a {kind.__name__} that makes no sense: {error}", row) from error


def _tune_sqlite(engine: AsyncEngine) -> None:
    """WAL, and an fsync at every commit (``FULL``): what was promised survives a power loss, not only a crash."""

    def connect(connection: Any, _: object) -> None:
        # The driver must not begin transactions by itself: it would leave schema changes outside of them.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}", "journal_mode=WAL", "synchronous=FULL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    sa.event.listen(engine.sync_engine, "connect", connect)
    sa.event.listen(engine.sync_engine, "begin", begin)


_FIXES: Final = {
    sqlite3.SQLITE_FULL: "free space on the disk",
    sqlite3.SQLITE_READONLY: "make the data directory writable",
    sqlite3.SQLITE_CANTOPEN: "make the data directory readable and writable",
    sqlite3.SQLITE_PERM: "make the data directory writable",
    sqlite3.SQLITE_BUSY: "end the other program that holds the ledger's file",
    sqlite3.SQLITE_NOTADB: "this is no ledger: name another data directory, or restore a backup",
    sqlite3.SQLITE_CORRUPT: schema.RESTORE,
}


def _storage_error(what: str, error: DatabaseError | OSError, engine: AsyncEngine) -> StorageError:
    cause = error.orig if isinstance(error, DatabaseError) else error
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # extended codes keep the primary one in their low byte
    return StorageError(
        f"cannot {what}: {cause}",
        field="ledger",
        value=engine.url.render_as_string(hide_password=True),
        fix=_FIXES.get(code, "see the server's log, and check the disk"),
    )
