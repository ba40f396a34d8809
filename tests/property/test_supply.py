"""The supply agrees with a plain list of check-ins, and stays within its bounds when there are too many profiles."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vennue.core.region import RequirementRegistry
from vennue.core.requirement import DEFAULT_SCHEMA, Profile, Requirement
from vennue.core.supply import Supply

BUCKET_S = 10.0
BUCKETS = 6
ANY = Requirement.parse("true")
PROFILES = [DEFAULT_SCHEMA.check({"ram_gb": gb}) for gb in range(200)]

gaps = st.one_of(st.floats(0, 5), st.floats(0, 100), st.just(0.0))


@given(st.lists(st.tuples(gaps, st.integers(0, 5)), min_size=1, max_size=60))
def test_counts_are_those_of_the_buckets_in_the_window(steps):
    supply = Supply(BUCKET_S, BUCKET_S * BUCKETS, max_profiles=6)
    now, history = 0.0, []
    supply.observed_s(0.0)
    for gap, number in steps:
        now += gap
        supply.observe(PROFILES[number], now)
        history.append((now // BUCKET_S, number))

    oldest = now // BUCKET_S - BUCKETS + 1
    expected: dict[Profile, float] = {}
    for bucket, number in history:
        if bucket >= oldest:
            expected[PROFILES[number]] = expected.get(PROFILES[number], 0) + 1
    assert supply.profiles(now) == expected
    span_s = max(min(now, now - oldest * BUCKET_S), 1.0)
    assert supply.rate(ANY, now) == pytest.approx(sum(expected.values()) / span_s)


@given(
    st.lists(st.tuples(gaps, st.integers(0, 199), st.integers(1, 20)), min_size=1, max_size=300),
    st.lists(st.sampled_from(["device.ram_gb >= 100", "device.ram_gb < 30", "device.ram_gb > 150", "true"])),
    st.integers(0, 2**32),
)
def test_region_rates_add_up_and_memory_is_bounded_however_many_profiles_come(steps, texts, seed):
    registry = RequirementRegistry()
    for text in texts:
        registry.register(Requirement.parse(text))
    supply = Supply(BUCKET_S, BUCKET_S * BUCKETS, max_profiles=8, rng=random.Random(seed))
    now = 0.0
    for gap, number, count in steps:
        now += gap
        supply.observe(PROFILES[number], now, count)
        assert len(supply._rows) <= 8

    rates = supply.observed_region_rates(registry, now)
    assert sum(rates.values()) == pytest.approx(supply.rate(ANY, now))
    for bit in registry.bits():
        covered = sum(rate for signature, rate in rates.items() if signature >> bit & 1)
        assert covered == pytest.approx(supply.rate(registry.requirement(bit), now))


@given(st.lists(st.integers(1, 1000), min_size=9, max_size=150), st.integers(0, 2**32))
def test_thinning_keeps_the_sum_and_the_counts_of_the_heavy(counts, seed):
    """With 8 profiles kept, 6 places: what has a sixth of all check-ins at the time of thinning is exact."""
    supply = Supply(max_profiles=8, rng=random.Random(seed))
    exact = dict(zip(PROFILES, counts, strict=False))
    seen = 0
    light = set()
    for profile, count in exact.items():
        if len(supply._rows) == 8:
            light |= {known for known in supply._rows if exact[known] < seen / 6}
        supply.observe(profile, 0.0, count)
        seen += count

    estimated = supply.profiles(0.0)
    assert sum(estimated.values()) == pytest.approx(seen)
    for profile in exact.keys() - light:
        assert estimated[profile] == exact[profile]


@given(st.lists(st.tuples(st.floats(-200, 200), st.integers(0, 5)), min_size=1, max_size=60))
def test_no_history_of_clock_steps_makes_a_rate_negative_or_infinite(steps):
    supply = Supply(BUCKET_S, BUCKET_S * BUCKETS, max_profiles=6)
    now = 0.0
    for step, number in steps:
        now += step
        supply.observe(PROFILES[number], now)
        assert supply.profiles(now)[PROFILES[number]] >= 1
        assert 0 < supply.rate(ANY, now) <= len(steps)  # a second at least
        assert 0 < supply.recent_rate(ANY, now, 20.0) <= len(steps)


@given(st.lists(st.tuples(gaps, st.integers(0, 199)), max_size=60), st.floats(0, 1e6), st.floats(0, 100))
def test_a_restored_supply_answers_as_the_original_does(steps, elsewhere, later_s):
    supply = Supply(BUCKET_S, BUCKET_S * BUCKETS, max_profiles=8)
    now = 0.0
    for gap, number in steps:
        now += gap
        supply.observe(PROFILES[number], now)
    restored = Supply(BUCKET_S, BUCKET_S * BUCKETS, max_profiles=8)
    restored.restore(supply.snapshot(now), elsewhere)

    assert restored.profiles(elsewhere) == pytest.approx(supply.profiles(now))
    assert restored.rate(ANY, elsewhere) == pytest.approx(supply.rate(ANY, now))
