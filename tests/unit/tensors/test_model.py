"""Models and their numbers: files, blocks, exact checks and half-precision formats."""

import math
import os

import numpy as np
import pytest
import safetensors.numpy

from vennue.core.errors import FileDamaged, InvalidModel, StorageError
from vennue.tensors.layout import ModelLayout
from vennue.tensors.model import BLOCK_BYTES, Array, MappedModel, check_model, load, narrowed, peak, save, widened

MODEL: dict[str, Array] = {
    "weight": np.array([[1.5, -2.0, 3.25], [0.0, 4.5, -6.0]], np.float32),
    "bias": np.array([0.5], np.float64),
    "half": np.array([1.0, -0.25], np.float16),
    "steps": np.array(7, np.int64),
    "mask": np.array([True, False]),
    "none": np.empty((0, 4), np.float32),
}


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and (a[name] == b[name]).all() for name in a
    )


def test_what_is_saved_loads_the_same():
    assert same(load(save(MODEL)), MODEL)


def test_the_safetensors_library_reads_what_is_saved():
    assert same(safetensors.numpy.load(save(MODEL)), MODEL)


def test_what_the_safetensors_library_saves_loads_the_same():
    assert same(load(safetensors.numpy.save(MODEL)), MODEL)


def test_a_model_is_saved_in_the_very_bytes_of_the_safetensors_library():
    assert save(MODEL, {"a": "é"}) == safetensors.numpy.save(MODEL, {"a": "é"})


def test_equal_models_are_saved_equally_whatever_their_order_and_memory_layout():
    shuffled = {name: MODEL[name] for name in reversed(MODEL)}
    shuffled["weight"] = np.asfortranarray(MODEL["weight"]).astype(">f4")
    assert save(shuffled, {"b": "2", "a": "1"}) == save(MODEL, {"a": "1", "b": "2"})


def test_a_loaded_array_may_be_changed():
    model = load(save(MODEL))
    model["weight"] += 1
    assert model["weight"][0, 0] == 2.5


@pytest.mark.parametrize("dtype", [complex, object, "U4", np.longdouble, "M8[s]"])
def test_a_dtype_that_the_format_lacks_is_refused_by_name(dtype):
    with pytest.raises(InvalidModel, match="cannot hold") as refusal:
        save({"odd": np.zeros(2, dtype)})
    assert refusal.value.field == "odd"


def test_a_model_without_tensors_is_refused():
    with pytest.raises(InvalidModel, match="holds no tensor"):
        save({})


def test_bfloat16_loads_as_float32():
    layout = ModelLayout.of([("a", "BF16", (2,))])
    (values,) = load(layout.header + bytes.fromhex("c03f20c0")).values()  # 0x3fc0, 0xc020
    assert values.dtype == np.float32
    assert values.tolist() == [1.5, -2.5]


@pytest.mark.parametrize("size", [0, 5, 8, 20, -1])
def test_a_file_that_is_cut_off_is_refused_with_both_sizes(size, tmp_path):
    whole = save(MODEL)
    path = tmp_path / "model"
    path.write_bytes(whole[:size])
    for read in (lambda: load(whole[:size]), lambda: load(path), lambda: check_model(path)):
        with pytest.raises(InvalidModel, match="cut off") as refusal:
            read()
        assert refusal.value.value == len(whole[:size])


def test_bytes_behind_the_last_tensor_are_refused(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(save(MODEL) + b"extra")
    with pytest.raises(InvalidModel, match="5 bytes follow the last tensor"):
        check_model(path)


@pytest.mark.parametrize("step", ["check_whole", "release"])
def test_a_file_that_is_cut_off_while_it_is_mapped_is_told_before_it_is_touched(tmp_path, step):
    path = tmp_path / "model"
    path.write_bytes(save(MODEL))
    model = MappedModel(path)
    getattr(model, step)()
    os.truncate(path, 100)
    with pytest.raises(FileDamaged, match="the file model was cut off by somebody: it has 100 bytes") as refusal:
        getattr(model, step)()
    assert (refusal.value.value, refusal.value.limit) == (str(path), len(save(MODEL)))


def test_a_file_that_is_shorter_than_what_is_known_of_it_is_damaged(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(save(MODEL)[:-1])
    with pytest.raises(FileDamaged, match="cut off by somebody"):
        MappedModel(path, size_bytes=len(save(MODEL)))


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        check_model(tmp_path / "none")


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("index", [0, BLOCK_BYTES // 2, 299_999])
def test_a_single_number_that_is_not_finite_is_found(value, dtype, index, tmp_path):
    layout = ModelLayout.of([("first", "U8", (3,)), ("w", dtype, (300_000,))])
    values = np.full(300_000, -1.0)
    values[index] = value
    path = tmp_path / "model"
    path.write_bytes(layout.header + narrowed(values, dtype).tobytes() + bytes(3))
    with pytest.raises(InvalidModel, match=f"w: element {index} is {value}"):
        check_model(path)


def test_a_peak_is_the_largest_magnitude_of_either_sign():
    assert peak(np.array([1.0, -8.0, 3.0], np.float32), "F32") == 8.0
    assert peak(np.array([-1.0, -2.0], np.float64), "F64") == 2.0
    assert peak(np.array([0.5, 4.0], np.float16), "F16") == 4.0
    assert peak(np.array([-0.0, 0.0], np.float32), "F32") == 0.0
    assert peak(np.empty(0, np.float32), "F32") == 0.0


def test_the_largest_and_smallest_finite_numbers_are_finite():
    assert peak(np.array([np.finfo(np.float32).max, -1], np.float32), "F32") == float(np.finfo(np.float32).max)
    assert peak(np.array([-65504, 2.0**-24], np.float16), "F16") == 65504.0


def test_every_half_precision_number_widens_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    finite = halves[np.isfinite(halves)]
    for out in (None, np.empty(len(finite), np.float32), np.empty(len(finite), np.float64)):
        wide = widened(finite, "F16", out)
        assert (wide == finite.astype(np.float64)).all()
        assert (np.signbit(wide) == np.signbit(finite)).all()


def test_every_bfloat16_survives_widening_and_narrowing():
    bits = np.arange(2**16, dtype=np.uint16)
    wide = widened(bits, "BF16")
    finite = np.isfinite(wide)
    assert finite.sum() == 2**16 - 2 * 2**7
    assert (narrowed(wide[finite], "BF16") == bits[finite]).all()


@pytest.mark.parametrize(
    ("value", "rounded"),
    # Between two neighbours of BF16 (spacing 2^-7 at 1): ties go to the even one.
    [(1.0, 1.0), (1 + 2.0**-8, 1.0), (1 + 3 * 2.0**-8, 1 + 2.0**-6), (1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-7), (-3.0, -3)],
)
def test_bfloat16_rounds_to_nearest_even(value, rounded):
    assert widened(narrowed(np.array([value]), "BF16"), "BF16")[0] == rounded


def test_a_number_too_large_for_the_narrow_format_becomes_infinite():
    assert peak(narrowed(np.array([1e6]), "F16"), "F16") == math.inf
    assert peak(narrowed(np.array([3.4e38]), "BF16"), "BF16") == math.inf


def test_a_tensor_is_walked_in_blocks_that_cover_it_once(tmp_path):
    values = np.arange(5_000_000, dtype=np.float32)  # 20 MB: pages are given back on the way
    path = tmp_path / "model"
    path.write_bytes(save({"w": values}))
    model = MappedModel(path)
    (tensor,) = model.layout.tensors
    blocks = [model.read(tensor, start, stop).copy() for start, stop in model.blocks(tensor)]
    assert {block.nbytes for block in blocks[:-1]} == {BLOCK_BYTES}
    assert (np.concatenate(blocks) == values).all()
    assert (model.read(tensor, 4_999_998) == [4_999_998, 4_999_999]).all()
