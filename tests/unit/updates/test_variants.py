"""Variants: what they hold, when there are none, and how they give way to each other."""

import hashlib
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from vennue._zstd import zstd
from vennue.core.errors import NotFound
from vennue.core.ids import Digest
from vennue.tensors.delta import DeltaReader
from vennue.tensors.model import load, save
from vennue.tensors.rounded import unrounded
from vennue.updates import variants as module
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.variants import ZSTD, Kind, Variants

ABSENT = Digest("0" * 64)
TEXT = b"all work and no play makes a dull device\n" * 1000


def weights(seed: int, size: int = 10_000) -> bytes:
    return save({"w": np.random.default_rng(seed).normal(size=size).astype(np.float32)})


@pytest.fixture
def blobs(tmp_path):
    return DirectoryBlobs(tmp_path / "blobs", durable=False)


@pytest.fixture
def make_variants(tmp_path, blobs):
    return lambda max_bytes=2**20: Variants(tmp_path / "variants", blobs, max_bytes=max_bytes)


@pytest.fixture
def variants(make_variants):
    return make_variants()


def test_a_compressed_blob_decompresses_to_the_blob_and_is_named_by_its_own_bytes(blobs, variants):
    made = variants.make(blobs.put(TEXT), ZSTD)
    data = made.path.read_bytes()
    assert zstd.decompress(data) == TEXT
    assert (made.size_bytes, made.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert made.encoding == "zstd"


def test_the_same_blob_makes_the_same_bytes_again(blobs, make_variants):
    blob = blobs.put(TEXT)
    assert make_variants().make(blob, ZSTD).sha256 == make_variants().make(blob, ZSTD).sha256


def test_a_delta_leads_from_its_base_to_the_blob(blobs, variants):
    base = weights(0)
    array = load(base)["w"].copy()
    array[::10] += 1
    model = save({"w": array})
    made = variants.make(blobs.put(model), Kind("delta", blobs.put(base)))
    assert DeltaReader(base).feed(zstd.decompress(made.path.read_bytes())) == model
    assert made.size_bytes < 0.5 * len(model)


def test_a_rounded_blob_is_near_the_blob(blobs, variants):
    model = weights(0)
    made = variants.make(blobs.put(model), Kind("float16"))
    assert made.encoding is None
    np.testing.assert_allclose(load(unrounded(made.path.read_bytes()))["w"], load(model)["w"], rtol=1e-3, atol=1e-6)


def test_what_was_made_is_found_and_nothing_else(blobs, variants):
    blob = blobs.put(TEXT)
    assert variants.find(blob, ZSTD) is None
    made = variants.make(blob, ZSTD)
    assert variants.find(blob, ZSTD) == made
    assert variants.find(blob, Kind("float16")) is None


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (np.random.default_rng(0).bytes(10_000), ZSTD),
        (weights(0), Kind("delta", ABSENT)),
        (TEXT, Kind("float16")),
        (save({"w": np.zeros(100, np.float16)}), Kind("float16")),
        (save({"w": np.full(1000, 1e30, np.float32)}), Kind("float16")),
    ],
    ids=["noise", "a base that is gone", "no model", "half precision already", "too large to round"],
)
def test_what_saves_nothing_or_cannot_be_made_is_not_made_and_not_tried_again(blobs, variants, model, kind):
    blob = blobs.put(model)
    assert not variants.is_refused(blob, kind)
    assert variants.make(blob, kind) is None
    assert variants.is_refused(blob, kind)
    assert variants.used_bytes == 0


def test_a_delta_between_unlike_models_is_not_made(blobs, variants):
    model, base = blobs.put(weights(0)), blobs.put(weights(0, 20_000))
    assert variants.make(model, Kind("delta", base)) is None


def test_a_delta_that_is_larger_than_the_blob_is_not_kept(blobs, variants):
    base, model = (save({"w": np.frombuffer(np.random.default_rng(s).bytes(40_000), np.uint32)}) for s in (0, 1))
    assert variants.make(blobs.put(model), Kind("delta", blobs.put(base))) is None


def test_a_variant_of_nothing_is_not_found(variants):
    with pytest.raises(NotFound):
        variants.make(ABSENT, ZSTD)


def test_those_not_used_for_the_longest_give_way(blobs, make_variants, monkeypatch):
    monkeypatch.setattr(module, "IN_USE_S", -1.0)
    models = [blobs.put(weights(seed)) for seed in range(3)]
    variants = make_variants(50_000)  # 20 kB each
    first, second = (variants.make(blob, Kind("float16")) for blob in models[:2])
    assert variants.find(models[0], Kind("float16")) == first
    variants.make(models[2], Kind("float16"))
    assert variants.find(models[1], Kind("float16")) is None
    assert not second.path.exists()
    assert variants.find(models[0], Kind("float16")) == first
    assert variants.used_bytes <= 50_000


def test_what_may_be_on_its_way_to_somebody_stays_and_the_next_one_is_tried_later(blobs, make_variants, monkeypatch):
    models = [blobs.put(weights(seed)) for seed in range(2)]
    variants = make_variants(30_000)
    first = variants.make(models[0], Kind("float16"))
    assert variants.make(models[1], Kind("float16")) is None
    assert first.path.exists()
    assert variants.is_refused(models[1], Kind("float16"))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + module.NO_ROOM_S)
    assert not variants.is_refused(models[1], Kind("float16"))
    assert variants.make(models[1], Kind("float16")) is not None


class Disk:
    """What is free on the disk beside the variants, of what all of it has."""

    def __init__(self, variants: Variants, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room_bytes = 2**30
        self._variants = variants
        monkeypatch.setattr("vennue.updates.variants.free_bytes", lambda path: self.room_bytes - self.taken(path))
        monkeypatch.setattr("vennue.updates.variants.IN_USE_S", -1.0)

    @staticmethod
    def taken(path: Path) -> int:
        return sum(file.stat().st_size for file in path.iterdir())


def test_variants_take_no_more_of_a_disk_than_they_leave_free_and_give_it_back(blobs, variants, monkeypatch):
    disk = Disk(variants, monkeypatch)
    digests = [blobs.put(bytes(100_000) + bytes([number])) for number in range(4)]
    made = [variants.make(digest, ZSTD) for digest in digests]
    assert made[0] is not None
    size = made[0].size_bytes
    disk.room_bytes = 5 * size  # half of it is room for two
    variants.prune(blobs.exists)
    assert [variants.find(digest, ZSTD) is not None for digest in digests] == [False, False, True, True]
    assert variants.used_bytes == disk.taken(made[0].path.parent)


def test_a_variant_that_the_disk_may_have_no_room_for_is_not_begun_and_tried_later(blobs, variants, monkeypatch):
    disk = Disk(variants, monkeypatch)
    digest = blobs.put(bytes(100_000))
    disk.room_bytes = 150_000
    monkeypatch.setattr("vennue.updates.variants.NO_ROOM_S", 0.0)
    monkeypatch.setattr(Variants, "_write", lambda *_: pytest.fail("it was begun"))
    assert variants.make(digest, ZSTD) is None
    monkeypatch.undo()
    assert not variants.is_refused(digest, ZSTD)
    assert variants.make(digest, ZSTD) is not None


def test_variants_of_blobs_that_are_gone_are_removed(blobs, variants):
    blob, other = blobs.put(TEXT), blobs.put(weights(0))
    made = variants.make(blob, ZSTD)
    kept = variants.make(other, Kind("int8"))
    blobs.delete(blob)
    variants.prune(blobs.exists)
    assert not made.path.exists()
    assert variants.find(blob, ZSTD) is None
    assert variants.used_bytes == kept.size_bytes


def test_a_new_server_begins_with_an_empty_cache(blobs, make_variants, tmp_path):
    make_variants().make(blobs.put(TEXT), ZSTD)
    assert make_variants().used_bytes == 0
    assert list((tmp_path / "variants").iterdir()) == []


def test_threads_that_make_one_variant_leave_one(blobs, variants, tmp_path):
    blob = blobs.put(TEXT)
    threads = [threading.Thread(target=variants.make, args=(blob, ZSTD)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list((tmp_path / "variants").iterdir())) == 1
    assert variants.used_bytes == variants.find(blob, ZSTD).size_bytes
