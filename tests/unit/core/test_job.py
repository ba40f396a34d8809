"""A job's specification: what makes sense, and what is refused with the field, the value and the fix."""

import pytest

from vennue.core.errors import InvalidInput, UnknownAttribute
from vennue.core.job import JobSpec, share
from vennue.core.requirement import DEFAULT_SCHEMA


def spec(**fields: object) -> JobSpec:
    return JobSpec(**{"name": "j", "demand": 10, **fields})  # type: ignore[arg-type]  # fields vary by test


@pytest.mark.parametrize(
    ("field", "value", "fields"),
    [
        ("name", "", {}),
        ("name", "two\nlines", {}),
        ("demand", 0, {}),
        ("demand", -1, {}),
        ("demand", 10**9, {}),
        ("rounds", 0, {}),
        ("rounds", -3, {}),
        ("min_fraction", 0.0, {}),
        ("min_fraction", 1.01, {}),
        ("min_fraction", float("nan"), {}),
        ("overcommit", 0.9, {}),
        ("overcommit", float("inf"), {}),
        ("deadline_s", 0.2, {}),
        ("deadline_s", float("nan"), {}),
        ("deadline_s", 1e308, {}),
        ("lease_s", 4e9, {}),
        ("lease_s", 0.0, {}),
        ("round_limit_s", float("inf"), {}),
        ("max_attempts", 0, {}),
        ("weight", 0.0, {}),
        ("buffer_size", 3, {}),
        ("buffer_size", None, {"mode": "async"}),
        ("buffer_size", 0, {"mode": "async"}),
        ("max_staleness", -1, {"mode": "async", "buffer_size": 2}),
        ("deadline_s", 60.0, {"mode": "async", "buffer_size": 2}),
        ("requirement", "device.ram_gb >=", {}),
        ("private_requirement", "device.samples >", {}),
    ],
)
def test_a_field_that_makes_no_sense_is_named(field: str, value: object, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        spec(**{**fields, field: value}).check(DEFAULT_SCHEMA)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("min_fraction", {"min_fraction": 0.5}),
        ("min_fraction", {"min_fraction": 0.5, "mode": "async", "buffer_size": 2}),
        ("overcommit", {"overcommit": 1.3, "mode": "async", "buffer_size": 2}),
        ("overcommit", {"overcommit": "auto", "mode": "async", "buffer_size": 2}),
        ("round_limit_s", {"round_limit_s": 3600.0, "deadline_s": 60.0}),
    ],
)
def test_a_field_that_would_be_passed_over_is_named_with_what_to_do(field: str, fields: dict[str, object]) -> None:
    asked = spec(**fields)
    asked.check(DEFAULT_SCHEMA)  # a job that is there already goes on as it did
    with pytest.raises(InvalidInput) as caught:
        asked.check_idle_fields()
    assert (caught.value.field, caught.value.value) == (field, fields[field])
    assert caught.value.fix


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"min_fraction": 0.5, "overcommit": 1.3, "deadline_s": 60.0},
        {"overcommit": "auto", "min_reports": 5, "round_limit_s": 3600.0},
        {"mode": "async", "buffer_size": 2, "max_staleness": 3, "round_limit_s": 3600.0, "lease_s": 60.0},
    ],
)
def test_fields_that_say_something_together_are_taken(fields: dict[str, object]) -> None:
    spec(**fields).check_idle_fields()


def test_an_unknown_attribute_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownAttribute, match="ram_gb"):
        spec(requirement="device.ram_bg >= 4").check(DEFAULT_SCHEMA)


def test_a_private_requirement_may_use_any_attribute() -> None:
    _, private = spec(private_requirement="device.anything_at_all > 3").check(DEFAULT_SCHEMA)
    assert private is not None
    assert private.matches({"anything_at_all": 4})


@pytest.mark.parametrize(("demand", "overcommit", "wanted"), [(10, 1.0, 10), (10, 1.3, 13), (3, 1.1, 3), (1, 10, 10)])
def test_devices_wanted_are_the_demand_times_the_overcommit(demand: int, overcommit: float, wanted: int) -> None:
    assert spec(demand=demand, overcommit=overcommit).wanted == wanted


@pytest.mark.parametrize(
    ("fields", "goal"),
    [
        ({"min_fraction": 0.7}, 10),  # without a deadline a round waits for all
        ({"min_fraction": 0.7, "deadline_s": 60}, 7),
        ({"min_fraction": 0.75, "deadline_s": 60}, 8),
        ({"mode": "async", "buffer_size": 4}, 4),
    ],
)
def test_reports_that_commit_a_round_at_once(fields: dict[str, object], goal: int) -> None:
    assert spec(**fields).goal == goal


@pytest.mark.parametrize(("fraction", "of", "least"), [(0.7, 10, 7), (0.8, 1500, 1200), (0.1, 3, 1), (1.0, 7, 7)])
def test_a_share_is_rounded_up_but_not_by_a_rounding_error(fraction: float, of: int, least: int) -> None:
    assert share(fraction, of) == least


@pytest.mark.parametrize(("fields", "lease_s"), [({}, 600), ({"deadline_s": 90}, 90), ({"lease_s": 5}, 5)])
def test_the_lease_is_given_or_the_deadline_or_ten_minutes(fields: dict[str, object], lease_s: float) -> None:
    assert spec(**fields).effective_lease_s == lease_s
