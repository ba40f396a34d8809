"""Deltas: the model comes out to the bit, whatever the chunks, and what changed little compresses well."""

import itertools

import numpy as np
import pytest

from vennue._zstd import zstd
from vennue.core.errors import InvalidModel
from vennue.tensors.delta import DELTA_BLOCK_BYTES, DeltaReader, delta
from vennue.tensors.model import HeldModel, save


def applied(base: bytes, parts: list[bytes]) -> bytes:
    reader = DeltaReader(base)
    return b"".join(reader.feed(part) for part in parts)


def blocks(base: bytes, model: bytes) -> list[bytes]:
    return list(delta(HeldModel(base), HeldModel(model)))


def test_one_number_that_grows_by_one_step_is_a_two_in_the_last_place():
    base = save({"w": np.array([1.0], np.float32)})
    model = save({"w": np.nextafter(np.array([1.0], np.float32), np.float32(2))})
    assert blocks(base, model) == [b"\x02\x00\x00\x00"]


def test_bytes_are_sorted_by_their_significance():
    base = save({"w": np.array([0, 0], np.uint16)})
    model = save({"w": np.array([0x0101, 0x0203], np.uint16)})  # doubled: 0x0202 and 0x0406
    assert blocks(base, model) == [b"\x02\x06\x02\x04"]


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "i1", "<u8", "u1", "?"])
def test_a_model_comes_out_to_the_bit_in_every_type(dtype):
    random = np.random.default_rng(0)
    itemsize = np.dtype(dtype).itemsize
    old, new = (
        (random.integers(0, 2, 1000, np.uint8) if dtype == "?" else random.integers(0, 256, 1000 * itemsize, np.uint8))
        .view(dtype)
        .reshape(10, 100)
        for _ in range(2)
    )
    base, model = (save({"a": one, "b": one[:0], "c": one[0, 0]}) for one in (old, new))
    assert applied(base, blocks(base, model)) == model


def test_the_chunks_in_which_a_delta_arrives_do_not_matter():
    random = np.random.default_rng(0)
    size = DELTA_BLOCK_BYTES // 4 + 1000
    base, model = (
        save({"w": random.normal(size=size).astype(np.float32), "v": random.normal(size=3).astype(np.float16)})
        for _ in range(2)
    )
    whole = b"".join(blocks(base, model))
    cuts = [0, 0, 1, 17, 4096, DELTA_BLOCK_BYTES - 1, DELTA_BLOCK_BYTES + 5, len(whole)]
    assert applied(base, [whole[start:stop] for start, stop in itertools.pairwise(cuts)]) == model


def test_what_training_changed_little_takes_half_the_bytes_and_what_it_left_alone_none():
    random = np.random.default_rng(0)
    weights = random.normal(size=200_000).astype(np.float32)
    trained = weights * np.float32(1 + 1e-3 * random.normal(size=200_000)).astype(np.float32)
    base = save({"w": weights})
    assert len(zstd.compress(b"".join(blocks(base, save({"w": trained}))))) < 0.52 * len(base)
    assert len(zstd.compress(b"".join(blocks(base, base)))) < 200


def test_models_of_different_headers_have_no_delta():
    with pytest.raises(InvalidModel, match="different headers"):
        blocks(save({"w": np.zeros(3, np.float32)}), save({"w": np.zeros(4, np.float32)}))


def test_a_delta_that_is_too_long_is_refused():
    base = save({"w": np.zeros(3, np.float32)})
    with pytest.raises(InvalidModel, match="longer than its base"):
        applied(base, [*blocks(base, base), b"\x00"])


@pytest.mark.parametrize("base", [b"", b"not a model", save({"w": np.zeros(3, np.float32)})[:-1]])
def test_a_base_that_is_no_model_is_refused(base):
    with pytest.raises(InvalidModel):
        DeltaReader(base)
