"""Rates are right from the first minute to the second day, whatever the clock does and however many profiles come."""

import math
import random

import msgspec
import pytest

from vennue.core.errors import InvalidInput
from vennue.core.region import RequirementRegistry
from vennue.core.requirement import DEFAULT_SCHEMA, Profile, Requirement
from vennue.core.supply import RATE_FLOOR_PER_S, Supply

ANY = Requirement.parse("true")
BIG = Requirement.parse("device.ram_gb >= 8")
DAY_S = 86_400.0


def phone(gb: float) -> Profile:
    return DEFAULT_SCHEMA.check({"ram_gb": gb})


def started(now: float = 0.0, **settings) -> Supply:
    """A supply that has counted since ``now``."""
    supply = Supply(**settings)
    supply.observed_s(now)
    return supply


def observe_evenly(supply: Supply, profile: Profile, *, start: float, end: float, gap: float) -> None:
    """A check-in in the middle of each gap."""
    for number in range(round((end - start) / gap)):
        supply.observe(profile, start + (number + 0.5) * gap)


def test_the_floor_is_one_check_in_per_day():
    assert RATE_FLOOR_PER_S * DAY_S == 1.0


def test_a_pool_without_check_ins_has_no_supply():
    supply = Supply()

    assert supply.rate(ANY, 5.0) == 0.0
    assert supply.recent_rate(ANY, 5.0) == 0.0
    assert supply.region_rates(RequirementRegistry(), 5.0) == {}


def test_the_rate_of_a_requirement_never_registered_is_known_at_once():
    supply = started()
    observe_evenly(supply, phone(4), start=0, end=3600, gap=2)
    observe_evenly(supply, phone(8), start=3600, end=7200, gap=4)

    assert supply.rate(ANY, 7200.0) == pytest.approx((1800 + 900) / 7200)
    assert supply.rate(BIG, 7200.0) == pytest.approx(900 / 7200)
    assert supply.eligible(BIG, 7200.0) == ([phone(8)], supply.rate(BIG, 7200.0))


def test_after_five_minutes_the_rate_is_over_five_minutes():
    supply = started(100.0)
    observe_evenly(supply, phone(4), start=100, end=400, gap=3)

    assert supply.observed_s(400.0) == 300.0
    assert supply.rate(ANY, 400.0) == pytest.approx(1 / 3)


def test_in_the_first_minute_rates_are_over_the_time_so_far():
    registry = RequirementRegistry()
    registry.register(BIG)
    supply = started(100.0)
    observe_evenly(supply, phone(4), start=100, end=120, gap=0.1)
    observe_evenly(supply, phone(8), start=100, end=120, gap=2)

    assert supply.rate(ANY, 120.0) == supply.recent_rate(ANY, 120.0) == pytest.approx(210 / 20)
    assert supply.eligible(BIG, 120.0)[1] == pytest.approx(10 / 20)
    assert supply.observed_region_rates(registry, 120.0) == pytest.approx({0: 200 / 20, 1: 10 / 20})


def test_plans_are_made_with_rates_over_a_whole_minute_so_that_the_first_are_not_wild():
    registry = RequirementRegistry()
    registry.register(BIG)
    supply = Supply()
    supply.observe(phone(4), 0.0)
    supply.observe(phone(8), 0.0, count=2)

    assert supply.region_rates(registry, 0.001) == pytest.approx({0: 1 / 60, 1: 2 / 60})
    assert supply.region_rates(registry, 90.0) == pytest.approx({0: 1 / 90, 1: 2 / 90})
    assert supply.observed_region_rates(registry, 90.0) is supply.region_rates(registry, 90.0)


def test_no_rate_is_over_less_than_a_second():
    supply = Supply()
    supply.observe(phone(4), 0.0, count=3)

    assert supply.rate(ANY, 0.001) == pytest.approx(3.0)


def test_check_ins_older_than_the_window_do_not_count():
    supply = started()
    observe_evenly(supply, phone(8), start=0, end=DAY_S, gap=100)
    observe_evenly(supply, phone(4), start=DAY_S, end=2 * DAY_S, gap=100)

    assert supply.rate(BIG, 2 * DAY_S) == 0.0
    assert supply.rate(ANY, 2 * DAY_S) == pytest.approx(1 / 100)


def test_the_rate_covers_a_whole_day_of_ups_and_downs():
    supply = Supply()
    for day in range(2):
        observe_evenly(supply, phone(4), start=day * DAY_S, end=(day + 0.5) * DAY_S, gap=50)
        observe_evenly(supply, phone(4), start=(day + 0.5) * DAY_S, end=(day + 1) * DAY_S, gap=200)

    assert supply.rate(ANY, 2 * DAY_S - 1) == pytest.approx((1 / 50 + 1 / 200) / 2, rel=0.01)


def test_the_recent_rate_is_that_of_the_last_minutes():
    supply = started()
    observe_evenly(supply, phone(4), start=0, end=7200, gap=100)
    observe_evenly(supply, phone(4), start=7200, end=9000, gap=2)

    assert supply.recent_rate(ANY, 8999.0, span_s=900.0) == pytest.approx(1 / 2, rel=0.01)
    assert supply.recent_rate(BIG, 8999.0) == 0.0
    assert supply.rate(ANY, 8999.0) == pytest.approx((72 + 900) / 8999)


def test_regions_share_the_pools_rate():
    registry = RequirementRegistry()
    registry.register(BIG)
    registry.register(Requirement.parse("device.ram_gb >= 4"))
    supply = started()
    for gb, count in ((2, 100), (4, 50), (6, 50), (8, 20)):
        supply.observe(phone(gb), 0.0, count)

    assert supply.region_rates(registry, 1000.0) == pytest.approx({0b00: 0.1, 0b10: 0.1, 0b11: 0.02})


def test_region_rates_are_kept_while_little_changes():
    registry = RequirementRegistry()
    registry.register(BIG)
    supply = started()
    observe_evenly(supply, phone(8), start=0, end=450, gap=1)
    supply.observe(phone(8), 450.0)
    rates = supply.region_rates(registry, 450.0)
    supply.observe(phone(4), 450.0)
    version = supply.rates_version

    assert supply.region_rates(registry, 490.0) is rates
    assert supply.rates_version == version


@pytest.mark.parametrize("change", ["a tenth more time", "a new bucket", "a new requirement", "another registry"])
def test_region_rates_are_worked_out_anew_after(change):
    registry = RequirementRegistry()
    registry.register(BIG)
    supply = started()
    observe_evenly(supply, phone(8), start=0, end=850, gap=1)
    now = 450.0 if change == "a tenth more time" else 850.0
    before, version = supply.region_rates(registry, now), supply.rates_version
    supply.observe(phone(4), now)
    if change == "a tenth more time":
        now += 46.0
    elif change == "a new bucket":
        now = 900.0
    elif change == "a new requirement":
        registry.register(ANY)
    else:
        registry = RequirementRegistry()

    assert supply.region_rates(registry, now) != before
    assert supply.rates_version == version + 1


def test_a_step_backwards_loses_no_check_in_and_at_most_a_bucket_of_time():
    supply = started(1e6, bucket_s=60.0)
    observe_evenly(supply, phone(4), start=1e6, end=1e6 + 3600, gap=1)
    observe_evenly(supply, phone(4), start=0, end=3600, gap=1)

    assert sum(supply.profiles(3600.0).values()) == 7200
    assert 7139 <= supply.observed_s(3600.0) <= 7200
    assert 1.0 <= supply.rate(ANY, 3600.0) <= 7200 / 7139


def test_the_region_rates_stay_as_they_are_for_as_long_as_promised():
    supply, registry = started(), RequirementRegistry()
    observe_evenly(supply, phone(4), start=0, end=500, gap=5)
    rates = supply.region_rates(registry, 500.0)
    supply.observe(phone(8), 540.0)

    assert supply.rates_until == pytest.approx(550.0)
    assert supply.region_rates(registry, 549.0) is rates
    assert supply.region_rates(registry, 551.0) is not rates


def test_check_ins_may_be_counted_together_until_the_bucket_turns():
    one_by_one, together = started(), started()
    observe_evenly(one_by_one, phone(4), start=0, end=900, gap=10)
    assert together.turns_at == 900.0
    together.observe(phone(4), 899.0, count=90)

    assert together.rate(ANY, 1000.0) == one_by_one.rate(ANY, 1000.0)


def test_a_jump_beyond_the_window_leaves_an_empty_window():
    supply = started()
    observe_evenly(supply, phone(4), start=0, end=900, gap=1)
    supply.observe(phone(4), 9e11)

    assert supply.rate(ANY, 9e11) == pytest.approx(1 / (95 * 900))


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_number_counts_as_the_last_one(now):
    supply = started()
    observe_evenly(supply, phone(4), start=0, end=600, gap=1)
    supply.observe(phone(4), now, count=600)

    assert supply.rate(ANY, 600.0) == pytest.approx(2.0)


def test_heavy_profiles_are_exact_under_a_flood_of_light_ones():
    supply = Supply(max_profiles=64)
    heavy = [phone(gb) for gb in range(20)]
    for number in range(20_000):
        supply.observe(heavy[number % 20], number * 0.01)
        supply.observe(phone(1000 + number), number * 0.01)

    counts = supply.profiles(200.0)

    assert [counts[profile] for profile in heavy] == [1000.0] * 20
    assert sum(counts.values()) == pytest.approx(40_000)
    assert len(counts) <= 64


def test_light_profiles_are_estimated_without_bias():
    # A third of the 999 light check-ins came first, and was thinned most often. A sample of 48 has that share with a
    # standard error of about √(⅓·⅔/48) = 0.068, so the mean of 100 samples is within 0.02 (three standard errors).
    first = Requirement.parse("device.ram_gb < 333")
    shares = []
    for seed in range(100):
        supply = started(max_profiles=64, rng=random.Random(seed))
        for number in range(999):
            supply.observe(phone(number), number * 0.1)
        shares.append(supply.rate(first, 100.0) / supply.rate(ANY, 100.0))

    assert sum(shares) / len(shares) == pytest.approx(1 / 3, abs=0.02)


def test_profiles_that_left_the_window_make_room_for_new_ones():
    supply = Supply(max_profiles=8)
    for gb in range(8):
        supply.observe(phone(gb), 0.0)
    for gb in range(100, 108):
        supply.observe(phone(gb), 2 * DAY_S)

    assert supply.profiles(2 * DAY_S) == {phone(gb): 1.0 for gb in range(100, 108)}


def test_a_snapshot_goes_on_in_another_process_with_another_clock():
    supply = started()
    observe_evenly(supply, phone(4), start=0, end=4000, gap=2)
    observe_evenly(supply, DEFAULT_SCHEMA.check({"data": ["x", "y"]}), start=4000, end=5000, gap=5)
    snapshot = msgspec.msgpack.decode(msgspec.msgpack.encode(supply.snapshot(5000.0)))
    other = Supply()
    other.restore(snapshot, 77.0)

    assert other.profiles(77.0) == supply.profiles(5000.0)
    assert other.observed_s(77.0) == 5000.0
    for later_s in (0.0, 500.0, 0.5 * DAY_S, 0.99 * DAY_S, 3 * DAY_S):
        assert other.rate(ANY, 77.0 + later_s) == pytest.approx(supply.rate(ANY, 5000.0 + later_s))


def test_an_empty_supply_survives_its_snapshot():
    other = Supply()
    other.restore(Supply().snapshot(3.0), 9.0)
    other.observe(phone(4), 9.0)

    assert other.rate(ANY, 109.0) == pytest.approx(1 / 100)


@pytest.mark.parametrize(
    "damage",
    [
        {"bucket_s": 60.0},
        {"buckets": 4},
        {"counts": b""},
        {"counts": "no bytes"},
        {"profiles": [{"ram_gb": 4.0}, {"ram_gb": 4.0}]},
        {"profiles": [4.0, 8.0]},
        {"profiles": [{"a b": 4.0}, {"ram_gb": 8.0}]},
        {"observed_s": math.nan},
        {"observed_s": 10.0, "bucket_age_s": 20.0},
        {"bucket_age_s": 901.0},
        {"bucket_age_s": -1.0},
        {"bucket_age_s": None},
        {"counts": b"\xff" * 2 * 96 * 8},
    ],
)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(damage):
    supply = Supply()
    supply.observe(phone(4), 0.0)
    supply.observe(phone(8), 2000.0)
    snapshot = supply.snapshot(2000.0)

    with pytest.raises(InvalidInput, match="start without it"):
        supply.restore(snapshot | damage, 0.0)
    assert supply.profiles(2000.0) == {phone(4): 1.0, phone(8): 1.0}


def test_a_snapshot_that_lacks_a_part_or_holds_too_many_profiles_is_refused():
    supply = Supply()
    for gb in range(9):
        supply.observe(phone(gb), 0.0)

    with pytest.raises(InvalidInput, match="buckets"):
        supply.restore({"bucket_s": 900.0}, 0.0)
    with pytest.raises(InvalidInput, match="too many profiles"):
        Supply(max_profiles=8).restore(supply.snapshot(0.0), 0.0)


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"bucket_s": 0.0}, "bucket_s"),
        ({"bucket_s": 100.0, "window_s": 10.0}, "bucket_s"),
        ({"window_s": math.inf}, "bucket_s"),
        ({"bucket_s": math.nan}, "bucket_s"),
        ({"max_profiles": 3}, "max_profiles"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, at):
    with pytest.raises(InvalidInput) as caught:
        Supply(**fields)
    assert caught.value.field == at
