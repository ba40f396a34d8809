"""Two tasks on small images: articles of clothing, and handwritten digits.

The images have no owners, so `datasets.by_label` deals them: a device holds few or many, and more of some labels than
of others. Inputs are rows of pixels between 0 and 1.
"""

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from vennue.demo.datasets import Dataset, Examples, by_label, open_data

CLOTHES_CLASSES = (
    "t-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

# At a concentration of 1 a device's most frequent label makes up about 0.3 of what it holds, against 0.1 if all were
# alike; at a size deviation of 0.6 the largest of a hundred devices holds some ten times as much as the smallest.
_split = partial(by_label, concentration=1.0, size_deviation=0.6)

_HELD_OUT_EVERY = 5


@cache
def clothes() -> Dataset:
    """Fashion-MNIST at 14x14 pixels: 6 000 training and 1 000 test images, as many of each of the ten classes."""
    with open_data("fashion_mnist.npz") as file, np.load(file, allow_pickle=False) as arrays:
        train = _examples(arrays["train_images"], arrays["train_labels"], brightest=31)
        held_out = _examples(arrays["held_out_images"], arrays["held_out_labels"], brightest=31)
    return Dataset(train, held_out, partial(_split, train.labels))


@cache
def digits() -> Dataset:
    """Handwritten digits at 8x8 pixels, 1 797 images; every fifth is held out."""
    with open_data("digits.npz") as file, np.load(file, allow_pickle=False) as arrays:
        every = _examples(arrays["images"], arrays["labels"], brightest=16)
    indices = np.arange(len(every))
    last = indices % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    train = every.take(indices[~last])
    return Dataset(train, every.take(indices[last]), partial(_split, train.labels))


def _examples(images: NDArray[np.uint8], labels: NDArray[np.uint8], *, brightest: int) -> Examples:
    return Examples(images.reshape(len(images), -1).astype(np.float32) / np.float32(brightest), labels)
