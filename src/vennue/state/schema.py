"""The ledger's tables and how they came to be: one schema for SQLite and PostgreSQL, moved on by numbered migrations.

A database carries its version in ``meta``. Opening an older one runs the migrations it has not seen, each in the same
transaction as its version, so a crash leaves the old schema or the new, never half of one. A newer one is refused:
this program cannot know what it would break.

A row holds its record as JSON, whole, and beside it only what the ledger searches and sorts by. So a record may gain
a field with a default without a migration.
"""

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from vennue.core.errors import StorageError

tables: Final = sa.MetaData()

meta: Final = sa.Table(
    "meta",
    tables,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
jobs: Final = sa.Table(
    "jobs",
    tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("arrival", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("submitted_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.Column("record", sa.Text, nullable=False),
)
attempts: Final = sa.Table(
    "attempts",
    tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("round", sa.BigInteger, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("opened_at", sa.Double, nullable=False),
    sa.Column("closed_at", sa.Double),
    sa.Column("record", sa.Text, nullable=False),
    sa.Index("attempts_of_round", "job", "round", "number"),
    sa.Index("attempts_by_state", "state"),
)
commits: Final = sa.Table(
    "commits",
    tables,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("round", sa.BigInteger, primary_key=True),
    sa.Column("committed_at", sa.Double, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
)
idempotency: Final = sa.Table(
    "idempotency",
    tables,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
)

Migration = Callable[[sa.Connection], None]

MIGRATIONS: Final[tuple[Migration, ...]] = (tables.create_all,)
"""Migration *n* (from 0) takes the schema from version *n* to *n* + 1; the first one makes the tables."""

_VERSION: Final = "schema_version"
RESTORE: Final = "restore the data directory from a backup"


def senseless(what: str, found: str = "") -> StorageError:
    """The error for a ledger that another program, or a failing disk, has changed."""
    return StorageError(f"cannot read the ledger: {what}", field="ledger", value=found[:200] or None, fix=RESTORE)


def migrate(connection: sa.Connection, migrations: tuple[Migration, ...] = MIGRATIONS) -> int:
    """Bring a database up to date; the version it had before.

    Raises:
        StorageError: it was written by a newer version of Vennue. Nothing was changed.
    """
    found = _version(connection)
    newest = len(migrations)
    if found > newest:
        raise StorageError(
            f"the ledger has schema version {found}, this version of Vennue knows versions up to {newest}",
            field="schema_version",
            value=found,
            limit=newest,
            fix="upgrade Vennue, or point it at another data directory",
        )
    for migration in migrations[found:]:
        migration(connection)
    if found < newest:
        connection.execute(sa.delete(meta).where(meta.c.key == _VERSION))
        connection.execute(sa.insert(meta).values(key=_VERSION, value=str(newest)))
    return found


def _version(connection: sa.Connection) -> int:
    if not sa.inspect(connection).has_table(meta.name):
        return 0
    value = connection.execute(sa.select(meta.c.value).where(meta.c.key == _VERSION)).scalar_one_or_none()
    try:
        return 0 if value is None else int(value)
    except ValueError as error:
        raise senseless("its schema version is no number", str(value)) from error
