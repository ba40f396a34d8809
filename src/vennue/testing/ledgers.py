"""Ledgers for tests: one in memory, and one around another that fails, dawdles and has its server die on purpose.

They keep the contract of `vennue.state.ledger.Ledger`. A ledger in memory outlives the servers that use it, as a disk
does, and a killed server reaches it no more.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NoReturn, TypeVar

import msgspec

from vennue.core.effects import AttemptRecord, JobRecord
from vennue.core.errors import InvalidInput, StorageError
from vennue.core.ids import AttemptId, JobId
from vennue.state.ledger import SECRET_BYTES, Batch, CommitRecord, KeyRecord, Ledger, Recovered
from vennue.testing.virtual import check_alive

Record = TypeVar("Record", bound=msgspec.Struct)

Fault = Literal["crash before", "crash after", "fail before", "fail after"]
"""What happens at a write, and whether the write has become durable by then."""
WRITE_FAULTS: Final[tuple[Fault, ...]] = ("crash before", "crash after", "fail before", "fail after")


class MemoryLedger:
    """A ledger in memory. Records are kept as they would be on a disk, encoded.

    Args:
        secret: the pool's secret; by default always the same one.
    """

    def __init__(self, secret: bytes = bytes(SECRET_BYTES)) -> None:
        self._secret = secret
        self._jobs: dict[JobId, bytes] = {}
        self._attempts: dict[AttemptId, bytes] = {}
        self._commits: dict[tuple[JobId, int], bytes] = {}
        self._keys: dict[str, bytes] = {}
        self._notes: dict[str, str] = {}

    async def open(self) -> None:
        check_alive()

    async def close(self) -> None:
        check_alive()

    async def secret(self) -> bytes:
        check_alive()
        return self._secret

    async def save(self, batch: Batch) -> None:
        check_alive()
        jobs = {id: _encoded(record) for id, record in batch.jobs.items()}
        attempts = {id: _encoded(record) for id, record in batch.attempts.items()}
        commits = {(record.job, record.round): _encoded(record) for record in batch.commits}
        keys = {record.key: _encoded(record) for record in batch.keys}
        # Nothing can fail from here on, so a batch is saved whole or not at all.
        self._jobs |= jobs
        self._attempts |= attempts
        self._commits |= commits
        self._keys |= keys
        self._notes |= batch.notes

    async def load(self) -> Recovered:
        check_alive()
        jobs, attempts, commits = self.jobs(), self.attempts(), self.commits()
        times = [
            *(time for job in jobs for time in (job.submitted_at, job.ended_at)),
            *(time for attempt in attempts for time in (attempt.opened_at, attempt.closed_at)),
            *(commit.committed_at for commit in commits),
        ]
        return Recovered(
            jobs=jobs,
            open_attempts=sorted((one for one in attempts if not one.state.closed), key=lambda one: one.opened_at),
            keys=[msgspec.json.decode(data, type=KeyRecord) for data in self._keys.values()],
            notes=dict(self._notes),
            latest=max((time for time in times if time is not None), default=0.0),
        )

    async def latest_attempt(self, job: JobId, round_number: int) -> AttemptRecord | None:
        check_alive()
        attempts = (one for one in self.attempts() if (one.job, one.round) == (job, round_number))
        return max(attempts, key=lambda one: one.number, default=None)

    async def commit(self, job: JobId, round_number: int) -> CommitRecord | None:
        check_alive()
        data = self._commits.get((job, round_number))
        return None if data is None else msgspec.json.decode(data, type=CommitRecord)

    async def latest_commits(self, number: int) -> list[CommitRecord]:
        check_alive()
        commits = self.commits()
        last = {one.job: max(other.round for other in commits if other.job == one.job) for one in commits}
        return [one for one in commits if one.round > last[one.job] - number]

    # -- for tests --------------------------------------------------------------------------------------------------

    def jobs(self) -> list[JobRecord]:
        """Every job, in the order of arrival."""
        records = [msgspec.json.decode(data, type=JobRecord) for data in self._jobs.values()]
        return sorted(records, key=lambda job: job.arrival)

    def attempts(self) -> list[AttemptRecord]:
        """Every attempt, in the order in which they were first saved."""
        return [msgspec.json.decode(data, type=AttemptRecord) for data in self._attempts.values()]

    def commits(self) -> list[CommitRecord]:
        """Every commit, in the order in which they were saved."""
        return [msgspec.json.decode(data, type=CommitRecord) for data in self._commits.values()]


class FaultyLedger:
    """A ledger around another one, at which things go wrong.

    Args:
        ledger: where what is not spoiled goes.
        crash: called to kill the server at once (`LocalPool.kill`); without it, no write crashes.
        crash_rate: probability that the server dies at a write, before or after it became durable, alike.
        fail_rate: probability that a call raises `StorageError`; a write may have become durable nevertheless.
        delay_s: bounds of the time that a call takes, drawn uniformly, in seconds.
        seed: of the faults.

    Attributes:
        writes: how many there were.
        injected: how often each fault has happened, by name.
        plan: faults at given writes (counted from 1), besides those by chance.

    Raises:
        InvalidInput: a probability outside 0 to 1.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        crash: Callable[[], object] | None = None,
        crash_rate: float = 0.0,
        fail_rate: float = 0.0,
        delay_s: tuple[float, float] = (0.0, 0.0),
        seed: int = 0,
    ) -> None:
        for field, value in (("crash_rate", crash_rate), ("fail_rate", fail_rate)):
            if not 0 <= value <= 1:
                raise InvalidInput(f"must be 0 to 1, got {value}", field=field, value=value, fix="give a probability")
        self.crash = crash
        self.crash_rate = crash_rate
        self.fail_rate = fail_rate
        self.writes = 0
        self.injected: Counter[Fault] = Counter()
        self.plan: dict[int, Fault] = {}
        self._ledger = ledger
        self._delay_s = delay_s
        self._rng = random.Random(seed)

    def heal(self) -> None:
        """Let all further calls pass, in no time."""
        self.crash_rate = self.fail_rate = 0.0
        self._delay_s = (0.0, 0.0)
        self.plan.clear()

    async def open(self) -> None:
        await self._pass("open")
        await self._ledger.open()

    async def close(self) -> None:
        check_alive()
        await self._ledger.close()

    async def secret(self) -> bytes:
        await self._pass("read")
        return await self._ledger.secret()

    async def save(self, batch: Batch) -> None:
        self.writes += 1
        fault = self.plan.pop(self.writes, None) or self._write_fault()
        await self._delay()
        if fault is not None and fault.endswith("before"):
            await self._happen(fault)
        await self._ledger.save(batch)
        if fault is not None:
            await self._happen(fault)

    async def load(self) -> Recovered:
        await self._pass("read")
        return await self._ledger.load()

    async def latest_attempt(self, job: JobId, round_number: int) -> AttemptRecord | None:
        await self._pass("read")
        return await self._ledger.latest_attempt(job, round_number)

    async def commit(self, job: JobId, round_number: int) -> CommitRecord | None:
        await self._pass("read")
        return await self._ledger.commit(job, round_number)

    async def latest_commits(self, number: int) -> list[CommitRecord]:
        await self._pass("read")
        return await self._ledger.latest_commits(number)

    def _write_fault(self) -> Fault | None:
        # As many draws for every write, so that one fault more does not change all that follow.
        crashes, fails = self._rng.random() < self.crash_rate, self._rng.random() < self.fail_rate
        after = self._rng.random() < 0.5
        if crashes and self.crash is not None:
            return "crash after" if after else "crash before"
        if fails:
            return "fail after" if after else "fail before"
        return None

    async def _pass(self, what: str) -> None:
        fails = self._rng.random() < self.fail_rate
        await self._delay()
        if fails:
            self.injected["fail before"] += 1
            raise StorageError(f"cannot {what} the ledger: on purpose", field="ledger", fix="try again")

    async def _delay(self) -> None:
        check_alive()
        delay_s = self._rng.uniform(*self._delay_s)
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    async def _happen(self, fault: Fault) -> NoReturn:
        self.injected[fault] += 1
        if fault.startswith("fail"):
            raise StorageError("cannot save to the ledger: on purpose", field="ledger", fix="try again")
        assert self.crash is not None, "a crash needs somebody to kill"
        self.crash()
        await asyncio.get_running_loop().create_future()  # nobody comes back from here
        raise AssertionError("the killed server went on")


def _encoded(record: msgspec.Struct) -> bytes:
    """The record as JSON; `StorageError` unless it comes back from it as it is."""
    data = msgspec.json.encode(record)
    try:
        msgspec.json.decode(data, type=type(record))
    except msgspec.ValidationError as error:
        raise StorageError(f"cannot save to the ledger: {error}", field="ledger") from error
    return data
