"""The contract of ``Ledger``, which every implementation keeps. A new one is added to ``LEDGERS``."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.postgres import Postgres, postgres
from vennue.core.effects import AttemptRecord, JobRecord
from vennue.core.errors import StorageError
from vennue.core.ids import AttemptId, Digest, JobId
from vennue.core.job import JobSpec, JobState
from vennue.core.round import AttemptState
from vennue.state.ledger import Batch, CommitRecord, KeyRecord, Ledger, SqlLedger
from vennue.testing.ledgers import FaultyLedger, MemoryLedger

_IN_MEMORY: dict[Path, MemoryLedger] = {}
"""A ledger in memory lives as long as its object; "reopening" it is having the object again."""

_POSTGRES: list[Postgres] = []


def _in_postgres(root: Path) -> SqlLedger:
    """The ledger in the database that belongs to this directory."""
    database = hashlib.sha256(bytes(root)).hexdigest()[:16]
    if not (root / database).exists():
        _POSTGRES[0].create(database)
        (root / database).touch()
    return SqlLedger(_POSTGRES[0].url(database))


LEDGERS: dict[str, Callable[[Path], Ledger]] = {
    "sqlite": lambda root: SqlLedger.at(root / "ledger.sqlite"),
    "memory": lambda root: _IN_MEMORY.setdefault(root, MemoryLedger()),
    "faulty, healed": lambda root: FaultyLedger(_IN_MEMORY.setdefault(root, MemoryLedger())),
    "postgresql": _in_postgres,
}
KINDS = [
    pytest.param(kind, marks=pytest.mark.services("postgres")) if kind == "postgresql" else kind for kind in LEDGERS
]

JOB = JobRecord(
    id=JobId("keyboard-1"),
    spec=JobSpec(name="Keyboard ⌨", demand=3, rounds=2, requirement='"kb" in device.data', deadline_s=60.5),
    state=JobState.ACTIVE,
    arrival=0,
    submitted_at=1000.25,
    ended_at=None,
    committed=0,
    model=None,
    attained=0,
    scheduling_delay_s=0.0,
    collection_s=0.0,
    reason=None,
)
ATTEMPT = AttemptRecord(
    id=AttemptId("keyboard-1.1.1"),
    job=JOB.id,
    round=1,
    number=1,
    state=AttemptState.OPEN,
    model=Digest("a" * 64),
    config={"lr": 0.1, "epochs": 2, "name": "x", "nesterov": True},
    opened_at=1001.5,
    closed_at=None,
    bound=0,
    reported=0,
    scheduling_delay_s=0.0,
    result=None,
    reason=None,
)
COMMIT = CommitRecord(
    job=JOB.id,
    round=1,
    attempt=ATTEMPT.id,
    result=Digest("b" * 64),
    reports=3,
    weight=120.5,
    metrics={"loss": 0.25},
    committed_at=1010.0,
)
KEY = KeyRecord(key="k-1", fingerprint="f" * 64, job=JOB.id)


@pytest.fixture(scope="module", autouse=True)
def _postgres(request) -> Iterator[None]:
    """A PostgreSQL server, where a test was chosen that needs one."""
    if not any(item.get_closest_marker("services") for item in request.session.items if item.path == request.path):
        yield
        return
    with postgres() as server:
        _POSTGRES[:] = [server]
        yield


@pytest.fixture(params=KINDS)
def make_ledger(request, tmp_path):
    return lambda: LEDGERS[request.param](tmp_path)


@pytest.fixture
async def ledger(make_ledger) -> AsyncIterator[Ledger]:
    opened = make_ledger()
    await opened.open()
    yield opened
    await opened.close()


async def test_a_note_is_there_under_its_name_and_the_last_one_counts(ledger, make_ledger):
    await ledger.save(Batch(notes={"usage": "{}", "policy": "fifo"}))
    await ledger.save(Batch(notes={"policy": "srsf"}))
    assert (await ledger.load()).notes == {"usage": "{}", "policy": "srsf"}


async def test_a_new_ledger_is_empty(ledger):
    recovered = await ledger.load()
    assert (recovered.jobs, recovered.open_attempts, recovered.keys, recovered.latest) == ([], [], [], 0.0)


async def test_what_was_saved_is_there_after_a_reopening(make_ledger, ledger):
    await ledger.save(
        Batch(jobs={JOB.id: JOB}, attempts={ATTEMPT.id: ATTEMPT}, commits=[COMMIT], keys=[KEY]),
    )
    await ledger.close()
    again = make_ledger()
    await again.open()
    recovered = await again.load()
    assert recovered.jobs == [JOB]
    assert recovered.open_attempts == [ATTEMPT]
    assert recovered.keys == [KEY]
    assert recovered.latest == 1010.0
    assert await again.commit(JOB.id, 1) == COMMIT
    assert await again.latest_attempt(JOB.id, 1) == ATTEMPT
    await again.close()


async def test_the_latest_commits_of_each_job_are_found(ledger):
    other = JobId("weather-1")
    commits = [replace(COMMIT, round=number) for number in range(1, 12)]
    commits += [replace(COMMIT, job=other, round=1)]
    await ledger.save(Batch(commits=commits))
    latest = sorted((one.job, one.round) for one in await ledger.latest_commits(2))
    assert latest == [(JOB.id, 10), (JOB.id, 11), (other, 1)]


async def test_a_later_record_supersedes_an_earlier_one(ledger):
    await ledger.save(Batch(jobs={JOB.id: JOB}, attempts={ATTEMPT.id: ATTEMPT}))
    cancelled = replace(JOB, state=JobState.CANCELLED, ended_at=1005.0, reason="enough")
    closed = replace(ATTEMPT, state=AttemptState.CANCELLED, closed_at=1005.0)
    await ledger.save(Batch(jobs={JOB.id: cancelled}, attempts={ATTEMPT.id: closed}))
    recovered = await ledger.load()
    assert recovered.jobs == [cancelled]
    assert recovered.open_attempts == []
    assert await ledger.latest_attempt(JOB.id, 1) == closed


async def test_the_latest_attempt_of_a_round_is_the_one_with_the_highest_number(ledger):
    attempts = [replace(ATTEMPT, id=AttemptId(f"keyboard-1.1.{n}"), number=n) for n in (1, 10, 2)]
    other = replace(ATTEMPT, id=AttemptId("keyboard-1.2.11"), round=2, number=11)
    await ledger.save(Batch(attempts={attempt.id: attempt for attempt in [*attempts, other]}))
    latest = await ledger.latest_attempt(JOB.id, 1)
    assert latest is not None
    assert latest.number == 10


async def test_there_is_no_attempt_and_no_commit_of_what_was_never_saved(ledger):
    assert await ledger.latest_attempt(JOB.id, 1) is None
    assert await ledger.commit(JOB.id, 1) is None


async def test_jobs_load_in_the_order_of_their_arrival(ledger):
    jobs = [replace(JOB, id=JobId(f"j-{arrival}"), arrival=arrival) for arrival in (2, 0, 10, 1)]
    await ledger.save(Batch(jobs={job.id: job for job in jobs}))
    assert [job.arrival for job in (await ledger.load()).jobs] == [0, 1, 2, 10]


async def test_a_batch_that_cannot_be_saved_whole_is_not_saved_at_all(ledger):
    impossible = replace(COMMIT, committed_at=None)
    with pytest.raises(StorageError):
        await ledger.save(Batch(jobs={JOB.id: JOB}, commits=[impossible], keys=[KEY]))
    recovered = await ledger.load()
    assert (recovered.jobs, recovered.keys) == ([], [])


async def test_the_secret_is_drawn_once(make_ledger, ledger):
    secret = await ledger.secret()
    assert len(secret) == 32
    assert await ledger.secret() == secret
    await ledger.close()
    again = make_ledger()
    await again.open()
    assert await again.secret() == secret
    await again.close()


async def test_hostile_text_is_stored_as_it_is(ledger):
    hostile = replace(JOB, spec=replace(JOB.spec, name="Robert'); DROP TABLE jobs;--"), reason="\x00'\"%s{}")
    await ledger.save(Batch(jobs={JOB.id: hostile}))
    assert (await ledger.load()).jobs == [hostile]


_JOBS = st.builds(
    lambda n, state, committed, at: replace(
        JOB,
        id=JobId(f"j-{n}"),
        arrival=n,
        state=state,
        committed=committed,
        submitted_at=at,
        ended_at=at if state.terminal else None,
    ),
    st.integers(0, 3),
    st.sampled_from(JobState),
    st.integers(0, 9),
    st.floats(0, 2e9),
)
_ATTEMPTS = st.builds(
    lambda n, state, at: replace(
        ATTEMPT, id=AttemptId(f"j-0.1.{n}"), number=n, state=state, opened_at=at, closed_at=at if state.closed else None
    ),
    st.integers(1, 4),
    st.sampled_from(AttemptState),
    st.floats(0, 2e9),
)
_BATCHES = st.builds(
    lambda jobs, attempts: Batch(jobs={job.id: job for job in jobs}, attempts={a.id: a for a in attempts}),
    st.lists(_JOBS, max_size=3),
    st.lists(_ATTEMPTS, max_size=3),
)


@given(history=st.lists(_BATCHES, max_size=5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.parametrize("kind", KINDS)
def test_after_any_history_the_ledger_holds_the_last_record_of_each_id(kind, history, tmp_path_factory):
    async def scenario() -> None:
        ledger = LEDGERS[kind](tmp_path_factory.mktemp("ledger"))
        await ledger.open()
        jobs: dict[JobId, JobRecord] = {}
        attempts: dict[AttemptId, AttemptRecord] = {}
        for batch in history:
            await ledger.save(batch)
            jobs |= batch.jobs
            attempts |= batch.attempts
        recovered = await ledger.load()
        await ledger.close()
        assert recovered.jobs == sorted(jobs.values(), key=lambda job: job.arrival)
        still_open = [attempt for attempt in attempts.values() if not attempt.state.closed]
        assert sorted(recovered.open_attempts, key=lambda a: a.number) == sorted(still_open, key=lambda a: a.number)

    asyncio.run(scenario())
