"""Updates side by side: every number of every update, in little memory and with few open files."""

import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from vennue.tensors.codecs import CODECS, CONTENT_KEY, INT8_GROUP
from vennue.tensors.model import Array, MappedModel, layout_of, save
from vennue.updates.strategies import Median
from vennue.updates.update_set import Combined, SpooledSet, SpooledUpdate

CHANGE = {CONTENT_KEY: "change"}


def mapped(path: Path, body: bytes) -> MappedModel:
    path.write_bytes(body)
    return MappedModel(path)


@pytest.fixture
def make(tmp_path):
    def updates(base, *bodies, **options) -> SpooledSet:
        spooled = []
        for number, body in enumerate(bodies):
            path = tmp_path / f"u{number}"
            path.write_bytes(body + b"whatever the spool keeps behind it")
            spooled.append(SpooledUpdate(path, len(body)))
        return SpooledSet(mapped(tmp_path / "base", save(base)), spooled, **options)

    return updates


def test_models_and_changes_in_any_codec_are_seen_as_changes(make):
    base: dict[str, Array] = {
        "w": np.full(600, 10.0, np.float32),
        "steps": np.array([1], np.int64),
        "b": np.array(2.0, np.float16),
    }
    after: dict[str, Array] = {
        "w": np.full(600, 12.0, np.float32),
        "steps": np.array([9], np.int64),
        "b": np.array(5.0, np.float16),
    }
    change: dict[str, Array] = {
        "w": np.full(600, 127.0, np.float32),
        "steps": np.array([9], np.int64),
        "b": np.array(127.0, np.float16),
    }
    updates = make(
        base,
        save(after),
        CODECS["float16"].encode(after),
        CODECS["int8"].encode(change, metadata=CHANGE),
        CODECS["top-k"].encode(change, metadata=CHANGE),
    )
    seen = np.concatenate(list(updates.blocks()), axis=1)
    assert seen.shape == (4, 601)
    assert [sorted(set(row.tolist())) for row in seen] == [[2.0, 3.0], [2.0, 3.0], [127.0], [0.0, 127.0]]


def test_a_block_holds_some_numbers_of_every_update_within_the_budget(make):
    base = {"w": np.zeros(10_000, np.float32)}
    bodies = [save({"w": np.full(10_000, number, np.float32)}) for number in range(20)]
    updates = make(base, *bodies, budget_bytes=20 * 8 * 1000)
    blocks = list(updates.blocks())
    assert {block.shape[1] for block in blocks[:-1]} == {updates.step} == {1000 // INT8_GROUP * INT8_GROUP}
    assert sum(block.shape[1] for block in blocks) == 10_000
    assert all((block == np.arange(20)[:, None]).all() for block in blocks)


def test_more_updates_than_files_may_be_open_are_read(make):
    base = {"w": np.zeros(1000, np.float32)}
    bodies = [save({"w": np.full(1000, number, np.float32)}) for number in range(400)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        block = next(make(base, *bodies).blocks())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (block[:, 0] == np.arange(400)).all()


def test_a_median_takes_the_memory_of_a_block_and_not_of_the_updates(make):
    """M1: forty updates of 4 MB, in a budget of 1 MB."""
    base = {"w": np.zeros(1_000_000, np.float32)}
    bodies = [save({"w": np.full(1_000_000, number, np.float32)}) for number in range(41)]
    updates = make(base, *bodies, budget_bytes=2**20)
    tensor = layout_of(base).tensors[0]
    tracemalloc.start()
    combined = Combined(Median(), updates)
    for start in range(0, 1_000_000, 65_536):
        stop = min(start + 65_536, 1_000_000)
        block = combined.block(tensor, start, stop, np.zeros(stop - start, np.float32), 1)
        assert (block.change == 20).all()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * 2**20
