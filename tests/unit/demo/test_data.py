"""The data that ships: what its README promises, and how it becomes examples."""

import gzip
import hashlib
import json
import re
from importlib import resources

import numpy as np
import pytest

from vennue.demo import images, shakespeare

DATA = resources.files("vennue.demo") / "data"


def decoded(indices, alphabet=shakespeare.SYMBOLS):
    return "".join(alphabet[index] for index in indices)


def test_every_file_has_the_digest_that_the_readme_states():
    rows = re.findall(r"^\| `(\S+)` \| `([0-9a-f]{64})` \|", (DATA / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {name for name, _ in rows} == {file.name for file in DATA.iterdir()} - {"README.md"}
    for name, digest in rows:
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest


def test_the_first_example_predicts_the_first_letter_of_the_first_speech():
    # The first speaker of the file is Bertram: "And I in going, madam, ..."
    train = shakespeare.next_characters().train
    assert decoded(train.inputs[0]) == "\n" * 8
    assert decoded(train.labels[:23]) == "and i in going, madam, "
    assert decoded(train.inputs[23]) == " madam, "


def test_a_missing_letter_is_asked_from_both_sides_and_is_always_a_letter():
    train = shakespeare.missing_letters().train
    assert decoded(train.inputs[0]) == "\n\n\n\nnd i"
    assert decoded(train.labels[:17], shakespeare.LETTERS) == "andiingoingmadamw"


def test_symbols_that_the_model_does_not_know_read_as_spaces():
    assert decoded(shakespeare._windows('A "B" [3]')[0]) == "a  b     "


def test_nine_speeches_in_ten_are_trained_on_and_the_tenth_is_held_out():
    with (DATA / "shakespeare.jsonl.gz").open("rb") as file, gzip.open(file) as lines:
        speakers = [json.loads(line)["turns"] for line in lines]
    # Every character of a speech is predicted once, and then its end.
    trained = sum(len(speech) + 1 for turns in speakers for n, speech in enumerate(turns) if n % 10 != 9)
    dataset = shakespeare.next_characters()
    assert len(speakers) == 502
    assert len(dataset.train) == trained
    assert len(dataset.held_out) == 5000


def test_clothes_are_as_many_of_each_class_in_pixels_from_0_to_1():
    dataset = images.clothes()
    assert np.bincount(dataset.train.labels).tolist() == [600] * 10
    assert np.bincount(dataset.held_out.labels).tolist() == [100] * 10
    assert dataset.train.inputs.shape == (6000, 196)
    assert (dataset.train.inputs.min(), dataset.train.inputs.max()) == (0.0, 1.0)


def test_trousers_are_bright_in_the_middle_column_and_dark_at_the_sides():
    dataset = images.clothes()
    trousers = dataset.train.inputs[dataset.train.labels == images.CLOTHES_CLASSES.index("trousers")].reshape(
        -1, 14, 14
    )
    assert trousers[:, 1, 6:8].mean() > 0.5
    assert trousers[:, :, (0, 13)].mean() < 0.01


def test_every_fifth_digit_is_held_out():
    dataset = images.digits()
    assert (len(dataset.train), len(dataset.held_out)) == (1438, 359)
    # The source begins 0, 1, 2, ..., 9, 0, 1, ...
    assert dataset.train.labels[:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert dataset.held_out.labels[:4].tolist() == [4, 9, 4, 9]


@pytest.mark.parametrize(
    "load", [shakespeare.next_characters, shakespeare.missing_letters, images.clothes, images.digits]
)
def test_no_held_out_example_is_dealt_to_a_device(load):
    dataset = load()
    parts = dataset.split(50, np.random.default_rng(0))
    assert max(int(part.max()) for part in parts) < len(dataset.train)
    assert not np.shares_memory(dataset.train.inputs, dataset.held_out.inputs)
