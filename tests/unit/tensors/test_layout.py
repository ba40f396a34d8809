"""The strict reader of safetensors headers: what it accepts, and every lie that it refuses."""

import json
from typing import Any

import pytest

from vennue.core.errors import InvalidModel, InvalidUpdate
from vennue.tensors.layout import MAX_HEADER_BYTES, HeaderReader, ModelLayout

TWICE = b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def header(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def entry(dtype: object = "F32", shape: object = (2, 3), offsets: object = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_layout_lists_tensors_by_their_place_in_the_file():
    layout = ModelLayout.parse(header({"b": entry(offsets=(24, 48)), "a": entry(), "n": entry("I64", (), (48, 56))}))
    assert [(t.name, t.dtype, t.shape, t.start, t.stop) for t in layout.tensors] == [
        ("a", "F32", (2, 3), 0, 24),
        ("b", "F32", (2, 3), 24, 48),
        ("n", "I64", (), 48, 56),
    ]
    assert [t.name for t in layout.floating] == ["a", "b"]
    assert [t.elements for t in layout.tensors] == [6, 6, 1]
    assert layout.data_bytes == 56
    assert layout.total_bytes == len(layout.header) + 56


def test_metadata_is_kept_apart_from_tensors():
    layout = ModelLayout.parse(header({"__metadata__": {"format": "pt"}, "a": entry()}))
    assert layout.metadata == {"format": "pt"}
    assert list(layout.by_name) == ["a"]


def test_a_tensor_may_be_empty():
    layout = ModelLayout.parse(header({"a": entry(shape=(0, 7), offsets=(0, 0)), "b": entry()}))
    assert [(t.name, t.elements) for t in layout.tensors] == [("a", 0), ("b", 6)]


def test_a_laid_out_model_parses_back():
    layout = ModelLayout.of([("z", "F16", (3,)), ("a", "F64", ()), ("é", "BOOL", (2, 2))], {"k": "v"})
    assert [(t.name, t.start, t.stop) for t in layout.tensors] == [("a", 0, 8), ("z", 8, 14), ("é", 14, 18)]
    assert ModelLayout.parse(layout.header) == layout
    assert len(layout.header) % 8 == 0


LIES = {
    "not JSON": b"{",
    "not UTF-8": b'{"\xff": 1}',
    "not an object": [],
    "nested too deep": b'{"a":' + b"[" * 100_000,
    "no tensor": {},
    "only metadata": {"__metadata__": {"format": "pt"}},
    "metadata that is not text": {"__metadata__": {"n": 1}, "a": entry()},
    "metadata that is not a mapping": {"__metadata__": "pt", "a": entry()},
    "a name twice": b"{" + TWICE + b"," + TWICE + b"}",
    "a key twice": b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
    "a name that is no text": b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    "a name with a line break": {"a\nb": entry()},
    "a name longer than a page": {"a" * 1025: entry()},
    "an entry that is no object": {"a": [0, 24]},
    "a missing key": {"a": {"dtype": "F32", "shape": [2, 3]}},
    "an extra key": {"a": {**entry(), "stride": 1}},
    "an unknown dtype": {"a": entry("F128")},
    "a dtype that numpy cannot compute with": {"a": entry("F8_E4M3", offsets=(0, 6))},
    "a dtype that is no text": {"a": entry(dtype=["F32"])},
    "a negative size": {"a": entry(shape=(-2, -3))},
    "a fractional size": {"a": entry(shape=(2.0, 3))},
    "a boolean size": {"a": entry(shape=(True, 6))},
    "a shape that is no list": {"a": entry(shape=6)},
    "a size beyond 64 bits": {"a": entry(shape=(2**64, 0), offsets=(0, 0))},
    "a number of five thousand digits": b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}',
    "more dimensions than numpy has": {"a": entry(shape=[1] * 33, offsets=(0, 4))},
    "a shape of 2^40 elements over 4 bytes": {"a": entry(shape=(2**20, 2**20), offsets=(0, 4))},
    "a shape whose size wraps around in 64 bits": {"a": entry(shape=(2**31, 2**31, 4), offsets=(0, 0))},
    "an empty shape that no array can have": {"a": entry(shape=(0, 2**61), offsets=(0, 0)), "b": entry()},
    "a span longer than the shape": {"a": entry(offsets=(0, 28))},
    "offsets backwards": {"a": entry(shape=(0,), offsets=(4, 0))},
    "three offsets": {"a": entry(offsets=(0, 12, 24))},
    "a hole before the first tensor": {"a": entry(offsets=(8, 32))},
    "a hole between tensors": {"a": entry(), "b": entry(offsets=(32, 56))},
    "tensors that overlap": {"a": entry(), "b": entry(offsets=(20, 44))},
    "two tensors in one place": {"a": entry(), "b": entry()},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_is_refused_for(lie):
    with pytest.raises(InvalidModel) as refusal:
        ModelLayout.parse(header(LIES[lie]))
    assert refusal.value.field


def test_one_name_twice_among_very_many_is_found_in_one_pass():
    # To count each name by itself would take minutes, in a thread that reports wait for.
    names = ",".join(f'"{number:x}":0' for number in range(200_000))
    with pytest.raises(InvalidModel) as refusal:
        ModelLayout.parse(header(f'{{{names},"30d3f":0}}'.encode()))
    assert refusal.value.field == "30d3f"


def test_a_refusal_is_of_the_class_that_the_caller_asks_for():
    with pytest.raises(InvalidUpdate, match="need 24 bytes, but it claims 28"):
        ModelLayout.parse(header({"a": entry(offsets=(0, 28))}), error=InvalidUpdate)


def test_a_refusal_does_not_repeat_numbers_of_hundreds_of_digits():
    with pytest.raises(InvalidModel, match="need more bytes, but it claims 4"):
        ModelLayout.parse(header({"a": entry(shape=[2**64 - 1] * 32, offsets=(0, 4))}))


def test_a_header_arrives_byte_by_byte():
    layout = ModelLayout.of([("a", "F32", (2,))])
    reader = HeaderReader()
    found = [reader.feed(bytes([byte])) for byte in layout.header]
    assert found[:-1] == [None] * (len(layout.header) - 1)
    assert found[-1] == layout


def test_a_header_is_found_in_a_chunk_that_goes_on_behind_it():
    layout = ModelLayout.of([("a", "F32", (2,))])
    assert HeaderReader().feed(layout.header + bytes(8)) == layout


def test_a_repeated_header_gives_the_known_layout_itself():
    layout = ModelLayout.of([("a", "F32", (2,))])
    assert HeaderReader(known=layout).feed(layout.header) is layout


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_that_claims_to_be_huge_is_refused_at_its_eighth_byte(length):
    with pytest.raises(InvalidModel, match="the header claims to be") as refusal:
        HeaderReader().feed(length.to_bytes(8, "little"))
    assert refusal.value.limit == MAX_HEADER_BYTES
