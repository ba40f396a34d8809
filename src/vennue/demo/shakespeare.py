"""Two tasks on Shakespeare's plays, of which each device holds what one character says.

`next_characters` is what a keyboard learns to suggest the next letter; `missing_letters` what it learns to mend a
letter that was mistyped. Both see windows of a speech, with capitals folded. Speakers differ in how much they say and
how, so the data is uneven by nature. Every tenth speech of a speaker is held out.
"""

import gzip
import io
import json
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from vennue.demo.datasets import Dataset, Examples, by_owner, open_data

SYMBOLS = "\n !'(),-.:;?abcdefghijklmnopqrstuvwxyz"
"""What text is made of; anything else reads as a space. A line break also stands before and after a speech."""

LETTERS = SYMBOLS[-26:]

CONTEXT = 8
"""How many symbols a prediction sees: those before the next one, or half on each side of the missing one."""

_HELD_OUT_EVERY = 10
_HELD_OUT_EXAMPLES = 5000  # of some 100 000: the standard error of an accuracy is then below 0.01


@cache
def next_characters() -> Dataset:
    """Predict the symbol that follows the last `CONTEXT` ones; the labels index `SYMBOLS`."""

    def examples(speech: str) -> Examples:
        windows = _windows("\n" * CONTEXT + speech + "\n")
        return Examples(windows[:, :CONTEXT], windows[:, CONTEXT])

    return _dataset(examples)


@cache
def missing_letters() -> Dataset:
    """Predict a letter from the `CONTEXT` / 2 symbols on each side of it; the labels index `LETTERS`."""
    half = CONTEXT // 2
    first_letter = SYMBOLS.index(LETTERS[0])

    def examples(speech: str) -> Examples:
        windows = _windows("\n" * half + speech + "\n" * half)
        windows = windows[windows[:, half] >= first_letter]
        return Examples(np.delete(windows, half, axis=1), windows[:, half] - np.uint8(first_letter))

    return _dataset(examples)


def _dataset(examples: Callable[[str], Examples]) -> Dataset:
    train: list[Examples] = []
    held_out: list[Examples] = []
    owners: list[NDArray[np.int64]] = []
    for speaker, speeches in enumerate(_speeches_by_speaker()):
        for turn, speech in enumerate(speeches, start=1):
            found = examples(speech)
            if turn % _HELD_OUT_EVERY == 0:
                held_out.append(found)
            else:
                train.append(found)
                owners.append(np.full(len(found), speaker))
    pooled = _concatenate(held_out)
    evenly = np.linspace(0, len(pooled) - 1, _HELD_OUT_EXAMPLES).astype(np.int64)
    return Dataset(_concatenate(train), pooled.take(evenly), partial(by_owner, np.concatenate(owners)))


def _speeches_by_speaker() -> Iterator[list[str]]:
    with open_data("shakespeare.jsonl.gz") as packed, gzip.open(packed) as unpacked:
        for line in io.TextIOWrapper(unpacked, encoding="ascii"):
            yield json.loads(line)["turns"]


def _windows(text: str) -> NDArray[np.uint8]:
    """Every run of ``CONTEXT + 1`` symbols of a text, as indices of `SYMBOLS`."""
    symbols = _CODES[np.frombuffer(text.lower().encode("ascii"), dtype=np.uint8)]
    return np.lib.stride_tricks.sliding_window_view(symbols, CONTEXT + 1)


def _codes() -> NDArray[np.uint8]:
    codes = np.full(128, SYMBOLS.index(" "), dtype=np.uint8)
    for index, symbol in enumerate(SYMBOLS):
        codes[ord(symbol)] = index
    return codes


_CODES = _codes()


def _concatenate(parts: list[Examples]) -> Examples:
    return Examples(np.concatenate([part.inputs for part in parts]), np.concatenate([part.labels for part in parts]))
