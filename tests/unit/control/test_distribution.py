"""Which form of a blob a caller gets: made once however many ask, and the blob itself where there is no better one."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from vennue._zstd import zstd
from vennue.control import distribution as module
from vennue.control.distribution import Distribution
from vennue.core.errors import InvalidInput, NotFound
from vennue.core.ids import Digest
from vennue.tensors.model import save
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.variants import Variants

TEXT = b"the same line again\n" * 1000


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


@pytest.fixture
def variants(tmp_path, blobs):
    return Variants(tmp_path / "variants", blobs, max_bytes=2**20)


@pytest.fixture
def distribution(blobs, variants):
    return Distribution(blobs, variants)


class Gate:
    """Holds up the making of variants."""

    def __init__(self, variants: Variants, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        make = variants.make

        def held(*arguments):
            assert self.open.wait(30)
            return make(*arguments)

        monkeypatch.setattr(variants, "make", held)


async def test_a_form_is_made_once_however_many_ask_for_it(blobs, variants, distribution):
    digest = blobs.put(TEXT)
    chosen = await asyncio.gather(*(distribution.choose(digest, zstd=True) for _ in range(100)))
    assert len({one.path for one in chosen}) == 1
    assert chosen[0].encoding == "zstd"
    assert variants.made == 1


async def test_a_caller_who_waits_too_long_gets_the_blob_and_later_ones_the_form(
    blobs, variants, distribution, monkeypatch
):
    gate = Gate(variants, monkeypatch)
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    digest = blobs.put(TEXT)
    assert (await distribution.choose(digest, zstd=True)).path == blobs.path(digest)
    gate.open.set()
    monkeypatch.setattr(module, "WAIT_S", 30.0)
    assert (await distribution.choose(digest, zstd=True)).encoding == "zstd"


async def test_while_too_many_forms_are_being_made_callers_get_blobs(blobs, variants, distribution, monkeypatch):
    gate = Gate(variants, monkeypatch)
    digests = [blobs.put(TEXT + bytes([number])) for number in range(module.QUEUE + 1)]
    waiting = [asyncio.create_task(distribution.choose(digest, zstd=True)) for digest in digests[:-1]]
    await asyncio.sleep(0)
    assert (await distribution.choose(digests[-1], zstd=True)).encoding is None
    gate.open.set()
    assert {one.encoding for one in await asyncio.gather(*waiting)} == {"zstd"}


async def test_a_form_that_cannot_be_made_for_whatever_reason_is_the_blob(blobs, variants, distribution, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("a defect")

    monkeypatch.setattr(variants, "make", fail)
    digest = blobs.put(TEXT)
    chosen = await distribution.choose(digest, zstd=True)
    assert (chosen.path, chosen.sha256, chosen.size_bytes) == (blobs.path(digest), digest, len(TEXT))


async def test_who_asks_for_a_delta_that_does_not_exist_gets_the_blob_compressed(blobs, distribution):
    digest = blobs.put(save({"w": np.zeros(1000, np.float32)}))
    for base in ("0" * 64, digest, blobs.put(save({"w": np.ones(10, np.float32)}))):
        chosen = await distribution.choose(digest, zstd=True, base=base)
        assert (chosen.variant, chosen.encoding) == (None, "zstd")
        assert (await distribution.choose(digest, base=base)).path == blobs.path(digest)


async def test_without_a_place_for_forms_there_are_none(blobs):
    digest = blobs.put(TEXT)
    distribution = Distribution(blobs)
    assert (await distribution.choose(digest, zstd=True)).path == blobs.path(digest)
    distribution.prune()


async def test_what_does_not_exist_is_refused(blobs, distribution):
    digest = blobs.put(TEXT)
    with pytest.raises(NotFound):
        await distribution.choose("0" * 64, zstd=True)
    with pytest.raises(InvalidInput, match="no such rounding"):
        await distribution.choose(digest, rounding="top-k")
    with pytest.raises(InvalidInput, match="a delta is exact"):
        await distribution.choose(digest, rounding="int8", base=digest)


@pytest.fixture
def damaged(blobs, tmp_path):
    """The digest of a blob of an earlier process, of which a bit has changed since."""
    digest = blobs.put(TEXT)
    path = blobs.path(digest)
    path.write_bytes(b"T" + TEXT[1:])
    return digest


async def test_a_blob_that_was_damaged_is_sent_to_nobody_and_can_be_stored_anew(tmp_path, damaged, caplog):
    blobs = DirectoryBlobs(tmp_path / "blobs", durable=False)
    distribution = Distribution(blobs)
    asked = await asyncio.gather(*(distribution.choose(damaged) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(answer, NotFound) and "damaged on the disk" in answer.message for answer in asked)
    assert caplog.text.count("is put aside") == 1
    assert not await distribution.holds(damaged)
    assert blobs.put(TEXT) == damaged
    assert await distribution.holds(damaged)
    assert (await distribution.choose(damaged)).path.read_bytes() == TEXT


async def test_a_blob_of_an_earlier_process_is_read_once_however_many_ask_for_it(tmp_path, blobs, monkeypatch):
    digest = blobs.put(TEXT)
    later = DirectoryBlobs(tmp_path / "blobs", durable=False)
    read: list[Digest] = []
    verify = later.verify

    def counted(one: Digest) -> Path | None:
        read.append(one)
        return verify(one)

    monkeypatch.setattr(later, "verify", counted)
    distribution = Distribution(later)
    await asyncio.gather(*(distribution.choose(digest) for _ in range(20)))
    await distribution.choose(digest)
    assert read == [digest]


@pytest.fixture
def late(tmp_path, blobs, monkeypatch):
    """The store of a later process, which is slow to check its blobs, and what lets it."""
    later = DirectoryBlobs(tmp_path / "blobs", durable=False)
    gate, verify = threading.Event(), later.verify

    def slow(one: Digest) -> Path | None:
        assert gate.wait(30)
        return verify(one)

    monkeypatch.setattr(later, "verify", slow)
    monkeypatch.setattr(module, "CHECK_WAIT_S", 0.01)
    return later, gate


async def test_a_download_does_not_wait_for_ever_until_its_blob_is_checked(blobs, late):
    digest = blobs.put(TEXT)
    later, gate = late
    distribution = Distribution(later)
    chosen = await distribution.choose(digest)
    assert chosen.path.read_bytes() == TEXT
    assert not chosen.is_checked
    gate.set()
    await distribution.check(digest)
    assert (await distribution.choose(digest)).is_checked


async def test_of_a_blob_that_is_not_checked_yet_no_form_is_made_which_would_outlive_its_damage(
    tmp_path, damaged, late
):
    later, gate = late
    distribution = Distribution(later, Variants(tmp_path / "variants", later, max_bytes=2**20))
    assert (await distribution.choose(damaged, zstd=True)).encoding is None
    gate.set()
    assert not await distribution.holds(damaged)
    later.put(TEXT)
    chosen = await distribution.choose(damaged, zstd=True)
    assert zstd.decompress(chosen.path.read_bytes()) == TEXT


async def test_no_delta_is_made_from_a_blob_that_was_damaged(tmp_path, blobs):
    old, new = (save({"w": np.arange(1000, dtype=np.float32) + step}) for step in (0, 1e-3))
    base, digest = blobs.put(old), blobs.put(new)
    blobs.path(base).write_bytes(old[:-1] + b"x")
    later = DirectoryBlobs(tmp_path / "blobs", durable=False)
    distribution = Distribution(later, Variants(tmp_path / "variants", later, max_bytes=2**20))
    assert (await distribution.choose(digest, zstd=True, base=base)).variant is None
    assert not later.exists(base)
    later.put(old)
    assert (await distribution.choose(digest, zstd=True, base=base)).variant == "delta"


async def test_a_small_blob_is_checked_while_large_ones_wait_for_each_other(tmp_path, blobs, monkeypatch):
    monkeypatch.setattr(module, "LARGE_BYTES", len(TEXT))
    large = [blobs.put(TEXT + bytes([number])) for number in range(2)]
    small = blobs.put(TEXT)
    later = DirectoryBlobs(tmp_path / "blobs", durable=False)
    gate, verify = threading.Event(), later.verify
    begun: list[Digest] = []

    def slow(one: Digest) -> Path | None:
        begun.append(one)
        assert one == small or gate.wait(30)
        return verify(one)

    monkeypatch.setattr(later, "verify", slow)
    distribution = Distribution(later)
    checks = [asyncio.create_task(distribution.check(digest)) for digest in large]
    await asyncio.sleep(0)
    await distribution.check(small)
    assert large[1] not in begun
    gate.set()
    await asyncio.gather(*checks)
    assert sorted(begun) == sorted([*large, small])
