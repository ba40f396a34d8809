"""The faulty ledger: each fault does what its name says, at the write that it is planned for or at its rate."""

import asyncio
from typing import Any

import pytest

from vennue.core.errors import InvalidInput, StorageError
from vennue.state.ledger import Batch
from vennue.testing.ledgers import WRITE_FAULTS, FaultyLedger, MemoryLedger
from vennue.testing.virtual import Process, in_virtual_time


def note(text):
    return Batch(notes={"note": text})


async def kept(ledger):
    return (await ledger.load()).notes.get("note")


@in_virtual_time
async def test_a_write_that_fails_before_it_is_durable_leaves_nothing():
    ledger = FaultyLedger(MemoryLedger())
    ledger.plan[2] = "fail before"
    await ledger.save(note("first"))
    with pytest.raises(StorageError, match="on purpose"):
        await ledger.save(note("second"))
    assert await kept(ledger) == "first"


@in_virtual_time
async def test_a_write_that_fails_after_it_is_durable_is_there_nevertheless():
    ledger = FaultyLedger(MemoryLedger())
    ledger.plan[1] = "fail after"
    with pytest.raises(StorageError):
        await ledger.save(note("first"))
    assert await kept(ledger) == "first"


@pytest.mark.parametrize(("fault", "expected"), [("crash before", None), ("crash after", "first")])
@in_virtual_time
async def test_nobody_comes_back_from_a_write_that_crashes(fault, expected):
    disk, server = MemoryLedger(), Process("server")
    ledger = FaultyLedger(disk, crash=server.kill)
    ledger.plan[1] = fault
    writing = server.spawn(ledger.save(note("first")))
    await asyncio.sleep(1)
    await server.gone()
    assert writing.cancelled()
    assert await kept(disk) == expected


@in_virtual_time
async def test_a_killed_server_reaches_its_ledger_no_more():
    disk, server = MemoryLedger(), Process("server")

    async def program():
        try:
            await asyncio.sleep(5)
        finally:
            await disk.save(note("from the grave"))

    server.spawn(program())
    await asyncio.sleep(1)
    server.kill()
    await server.gone()
    assert await kept(disk) is None


@in_virtual_time
async def test_faults_come_at_their_rates_and_the_same_ones_for_the_same_seed():
    async def faults(seed):
        ledger = FaultyLedger(MemoryLedger(), crash=lambda: None, fail_rate=0.3, seed=seed)
        outcomes = []
        for number in range(300):
            try:
                await ledger.save(note(str(number)))
            except StorageError:
                outcomes.append(number)
        assert ledger.writes == 300
        assert 60 < sum(ledger.injected.values()) < 120
        assert set(ledger.injected) == {fault for fault in WRITE_FAULTS if fault.startswith("fail")}
        return outcomes

    assert await faults(1) == await faults(1) != await faults(2)


@in_virtual_time
async def test_calls_take_their_time():
    ledger = FaultyLedger(MemoryLedger(), delay_s=(2.0, 3.0))
    await ledger.save(note("first"))
    assert 2.0 <= asyncio.get_running_loop().time() <= 3.0


@in_virtual_time
async def test_a_healed_ledger_lets_every_call_pass_at_once():
    ledger = FaultyLedger(MemoryLedger(), fail_rate=1.0, delay_s=(2.0, 3.0))
    with pytest.raises(StorageError):
        await ledger.load()
    ledger.heal()
    began = asyncio.get_running_loop().time()
    await ledger.save(note("first"))
    assert await kept(ledger) == "first"
    assert asyncio.get_running_loop().time() == began


@pytest.mark.parametrize("field", ["crash_rate", "fail_rate"])
def test_a_probability_that_is_none_is_refused_by_name(field):
    rates: dict[str, Any] = {field: 1.5}
    with pytest.raises(InvalidInput) as caught:
        FaultyLedger(MemoryLedger(), **rates)
    assert caught.value.field == field
