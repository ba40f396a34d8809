"""Labelled examples, and how a dataset is dealt to devices.

Federated data is uneven in two ways: devices hold different amounts, and they hold different things. `by_owner` keeps
the unevenness that data has by nature (each device is one speaker); `by_label` makes it for data that has no owners.
Both hand out every example at most once, are reproducible from their generator, and know nothing of learning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vennue.core.errors import InvalidInput
from vennue.demo.network import Array

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs, one row per example, and their labels: a device's local data, or a held-out set."""

    inputs: Array
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> "Examples":
        """Those examples, in that order."""
        return Examples(self.inputs[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a task learns from.

    Args:
        train: the examples that devices hold between them.
        held_out: examples that no device holds.
        split: deals the training examples to a number of devices.
    """

    train: Examples
    held_out: Examples
    split: Callable[[int, np.random.Generator], list[Indices]]


def open_data(name: str) -> IO[bytes]:
    """Open a file that ships in ``vennue/demo/data``."""
    return (resources.files("vennue.demo") / "data" / name).open("rb")


def by_owner(owners: Indices, n_devices: int, rng: np.random.Generator) -> list[Indices]:
    """Give each device the examples of one owner, drawn without replacement.

    With more devices than owners, those that share an owner hold consecutive parts of what it has.

    Args:
        owners: the owner of each example, as a number from 0.
        n_devices: how many devices to deal to.
        rng: decides who gets which owner.

    Raises:
        InvalidInput: no devices, or so many that some would hold nothing.
    """
    held = np.bincount(owners)
    _check_devices(n_devices, limit=len(held) * int(held.min()))
    by_number = np.split(np.argsort(owners, kind="stable"), np.cumsum(held)[:-1])
    parts: list[Indices] = []
    for position, owner in enumerate(rng.permutation(len(held))[:n_devices]):
        sharers = len(range(position, n_devices, len(held)))
        parts.extend(np.array_split(by_number[owner], sharers))
    return parts


def by_label(
    labels: NDArray[np.uint8], n_devices: int, rng: np.random.Generator, *, concentration: float, size_deviation: float
) -> list[Indices]:
    """Deal examples so that devices differ in how many they hold and of which labels.

    A device's size is log-normal; its mix of labels is drawn from a symmetric Dirichlet distribution (Hsu, Qi and
    Brown 2019, section 3) and followed as long as examples of those labels are left.

    Args:
        labels: the label of each example.
        n_devices: how many devices to deal to; every one gets at least one example.
        rng: decides sizes, mixes and who gets what.
        concentration: of the Dirichlet distribution; near 0 a device holds one label, at infinity all alike.
        size_deviation: standard deviation of a size's logarithm.

    Raises:
        InvalidInput: no devices, or more devices than examples.
    """
    _check_devices(n_devices, limit=len(labels))
    classes = int(labels.max()) + 1
    shares = rng.lognormal(0.0, size_deviation, n_devices)
    sizes = 1 + np.floor((len(labels) - n_devices) * shares / shares.sum()).astype(np.int64)
    stock = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    dealt = np.zeros(classes, dtype=np.int64)
    held = np.array([len(pile) for pile in stock])
    parts = []
    for size in sizes:
        taken = _draw_counts(int(size), rng.dirichlet(np.full(classes, concentration)), held - dealt, rng)
        parts.append(np.concatenate([stock[c][dealt[c] : dealt[c] + taken[c]] for c in range(classes)]))
        dealt += taken
    return parts


def _draw_counts(size: int, mix: NDArray[np.float64], left: Indices, rng: np.random.Generator) -> Indices:
    """How many of each label to take: ``size`` in all, by ``mix`` where enough are ``left``, else from the rest."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        weights = mix * (taken < left)
        # The mix may favour, to the last digit, labels that have run out.
        if weights.sum() < 1e-9:
            weights = (left - taken).astype(np.float64)
        taken += np.minimum(rng.multinomial(missing, weights / weights.sum()), left - taken)
    return taken


def _check_devices(n_devices: int, *, limit: int) -> None:
    if not 1 <= n_devices <= limit:
        raise InvalidInput(
            f"{n_devices} devices cannot each hold a part of this data",
            field="n_devices",
            value=n_devices,
            limit=limit,
            fix=f"ask for 1 to {limit} devices",
        )
