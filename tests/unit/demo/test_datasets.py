"""How data is dealt to devices: nothing twice, nothing empty, uneven as asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vennue.core.errors import InvalidInput
from vennue.demo.datasets import by_label, by_owner

seeds = st.integers(0, 2**32 - 1)


def skewed(labels, n_devices, rng, *, concentration=1.0, size_deviation=0.6):
    return by_label(labels, n_devices, rng, concentration=concentration, size_deviation=size_deviation)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.data(), seeds)
def test_by_owner_gives_every_device_some_examples_of_one_owner_and_none_twice(held, data, seed):
    owners = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(held)), held))
    n_devices = data.draw(st.integers(1, len(held) * min(held)))
    parts = by_owner(owners, n_devices, np.random.default_rng(seed))
    assert len(parts) == n_devices
    assert all(len(set(owners[part])) == 1 for part in parts)
    everything = np.concatenate(parts)
    assert len(set(everything)) == len(everything)


def test_by_owner_gives_different_owners_to_devices_while_there_are_enough():
    owners = np.repeat(np.arange(20), 3)
    parts = by_owner(owners, 12, np.random.default_rng(0))
    assert len({int(owners[part[0]]) for part in parts}) == 12
    assert [len(part) for part in parts] == [3] * 12


def test_by_owner_cuts_an_owner_in_consecutive_parts_when_devices_outnumber_owners():
    parts = by_owner(np.zeros(10, dtype=np.int64), 2, np.random.default_rng(0))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.data(),
    st.sampled_from([1e-3, 0.3, 1.0, 100.0]),
    st.sampled_from([0.0, 0.6, 3.0]),
    seeds,
)
def test_by_label_gives_every_device_some_examples_and_none_twice(labels, data, concentration, deviation, seed):
    n_devices = data.draw(st.integers(1, len(labels)))
    parts = skewed(
        np.array(labels, dtype=np.uint8),
        n_devices,
        np.random.default_rng(seed),
        concentration=concentration,
        size_deviation=deviation,
    )
    assert len(parts) == n_devices
    assert min(len(part) for part in parts) >= 1
    everything = np.concatenate(parts)
    assert len(set(everything)) == len(everything)


def test_by_label_leaves_less_than_one_example_per_device_undealt():
    labels = np.random.default_rng(0).integers(0, 10, 1000).astype(np.uint8)
    parts = skewed(labels, 30, np.random.default_rng(1))
    assert 970 < sum(len(part) for part in parts) <= 1000


@pytest.mark.parametrize(("concentration", "low", "high"), [(0.05, 0.75, 1.0), (1.0, 0.28, 0.42), (1000.0, 0.1, 0.2)])
def test_by_label_makes_devices_as_one_sided_as_the_concentration_says(concentration, low, high):
    # The expected largest of ten shares under a uniform Dirichlet (concentration 1) is H(10)/10 = 0.293; a sample
    # of some hundred examples, and labels that run out, add a little.
    labels = np.repeat(np.arange(10), 1000).astype(np.uint8)
    parts = skewed(labels, 100, np.random.default_rng(0), concentration=concentration, size_deviation=0.0)
    largest = [np.bincount(labels[part]).max() / len(part) for part in parts[:50]]
    assert low <= np.mean(largest) <= high


def test_by_label_makes_sizes_as_uneven_as_the_deviation_says():
    labels = np.zeros(100_000, dtype=np.uint8)
    sizes = [len(part) for part in skewed(labels, 400, np.random.default_rng(0), size_deviation=0.6)]
    assert np.std(np.log(sizes)) == pytest.approx(0.6, abs=0.05)


def test_one_seed_gives_one_split():
    labels = np.repeat(np.arange(5), 20).astype(np.uint8)
    first, second = (skewed(labels, 7, np.random.default_rng(9)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("n_devices", [0, -1, 11])
def test_more_devices_than_examples_or_none_are_refused_with_the_limit(n_devices):
    labels = np.zeros(10, dtype=np.uint8)
    for split in (
        lambda: skewed(labels, n_devices, np.random.default_rng(0)),
        lambda: by_owner(labels.astype(np.int64), n_devices, np.random.default_rng(0)),
    ):
        with pytest.raises(InvalidInput) as refusal:
            split()
        assert (refusal.value.field, refusal.value.limit) == ("n_devices", 10)
