"""What is learned of response times: quantiles per tier, the collection ratio, bounded memory."""

import math

import pytest

from tests.unit.policies.worlds import region
from vennue.core.profile import MAX_CHECK_INS, MAX_REPORTS, CapabilitySample, ResponseProfile


def learned(*reports: tuple[float, float]) -> ResponseProfile:
    profile = ResponseProfile()
    for expected_s, took_s in reports:
        profile.observe_report(expected_s, took_s)
    return profile


def test_quantiles_are_of_the_time_that_reports_took_within_each_tier():
    # Devices expected below 50 s take 1 to 128 s, the others 129 to 256 s. 0.95 · 128 = 121.6 and 0.95 · 256 = 243.2.
    reports = [(10.0, float(n)) for n in range(1, 129)] + [(90.0, float(n)) for n in range(129, 257)]
    assert learned(*reports).p95_s([50.0]) == ([122.0, 250.0], 244.0)


def test_every_tier_counts_the_same_overall_however_many_of_its_devices_reported():
    # 448 reports of 10 s from one tier and 64 of 100 s from the other: half of all devices take 100 s.
    _, overall_s = learned(*[(1.0, 10.0)] * 448, *[(9.0, 100.0)] * 64).p95_s([5.0]) or ([], 0.0)
    assert overall_s == 100.0


def test_a_tier_with_fewer_than_twenty_reports_says_nothing():
    assert learned(*[(1.0, 10.0)] * 109, *[(9.0, 100.0)] * 19).p95_s([5.0]) is None
    assert learned(*[(1.0, 10.0)] * 108, *[(9.0, 100.0)] * 20).p95_s([5.0]) == ([10.0, 100.0], 100.0)


def test_new_reports_count_when_their_number_has_doubled():
    profile = learned(*[(1.0, 10.0)] * 64)
    for _ in range(63):
        profile.observe_report(1.0, 500.0)
    assert profile.p95_s([]) == ([10.0], 10.0)
    profile.observe_report(1.0, 500.0)
    assert profile.p95_s([]) == ([500.0], 500.0)


def test_new_reports_of_a_job_with_many_count_every_256():
    profile = learned(*[(1.0, 10.0)] * MAX_REPORTS, *[(1.0, 500.0)] * 255)
    assert profile.p95_s([]) == ([10.0], 10.0)
    profile.observe_report(1.0, 500.0)
    assert profile.p95_s([]) == ([500.0], 500.0)


def test_old_reports_are_forgotten():
    profile = learned(*[(1.0, 10.0)] * MAX_REPORTS, *[(1.0, 20.0)] * MAX_REPORTS)
    assert profile.p95_s([]) == ([20.0], 20.0)
    assert len(profile.snapshot().took_s) == MAX_REPORTS


def test_the_collection_ratio_is_over_the_recent_rounds_together():
    profile = ResponseProfile()
    profile.observe_round(10.0, 100.0)
    profile.observe_round(30.0, 20.0)
    assert profile.collection_ratio == 3.0
    assert profile.collection_s == 60.0


def test_before_the_first_round_there_is_no_collection_ratio():
    assert ResponseProfile().collection_ratio is None
    assert ResponseProfile().collection_s == 0.0


def test_when_devices_are_there_at_once_the_collection_ratio_is_infinite():
    profile = ResponseProfile()
    profile.observe_round(0.0, 100.0)
    assert profile.collection_ratio == math.inf


def test_a_snapshot_restores_what_was_learned():
    profile = learned(*[(float(n), float(n)) for n in range(MAX_REPORTS + 100)])
    profile.observe_round(10.0, 50.0)
    restored = ResponseProfile.restore(profile.snapshot())
    assert restored.snapshot() == profile.snapshot()
    assert restored.collection_ratio == 5.0
    # Of the numbers 100 to 1123, 95 % lie at or below 1072.
    assert restored.p95_s([]) == ([1072.0], 1072.0)


def test_the_capability_sample_lists_the_latest_check_ins_fastest_first():
    sample: CapabilitySample[str] = CapabilitySample()
    for number in range(256):
        sample.observe("slow" if number % 2 else "fast", 90.0 if number % 2 else 10.0)
    regions = {"slow": region(0), "fast": region(1)}
    listed = sample.by_capability(regions.__getitem__)
    assert listed == ((10.0, region(1)),) * 128 + ((90.0, region(0)),) * 128


def test_the_capability_sample_follows_the_registered_requirements():
    sample: CapabilitySample[str] = CapabilitySample()
    for _ in range(256):
        sample.observe("fast", 10.0)
    assert sample.by_capability(lambda _: region(0), version=1)[0] == (10.0, region(0))
    assert sample.by_capability(lambda _: region(7), version=2)[0] == (10.0, region(7))


@pytest.mark.parametrize("check_ins", [MAX_CHECK_INS, 5 * MAX_CHECK_INS])
def test_the_capability_sample_is_bounded_and_recent(check_ins: int):
    sample: CapabilitySample[str] = CapabilitySample()
    for number in range(check_ins):
        sample.observe("any", float(number))
    listed = sample.by_capability(lambda _: region(0))
    assert len(listed) == MAX_CHECK_INS
    assert listed[0] == (float(check_ins - MAX_CHECK_INS), region(0))
