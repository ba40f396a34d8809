"""Signatures follow the requirements as they come and go, and looking one up costs next to nothing."""

import pytest

from vennue.core.errors import InvalidInput, InvariantViolated
from vennue.core.region import MAX_RAW_BYTES, RequirementRegistry
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema, Requirement


def ram(gb: float) -> Requirement:
    return Requirement.parse(f"device.ram_gb >= {gb}")


def phone(gb: float):
    return DEFAULT_SCHEMA.check({"ram_gb": gb})


def test_a_signature_has_a_bit_for_each_requirement_that_is_met():
    registry = RequirementRegistry()
    bits = [registry.register(ram(gb)) for gb in (2, 4, 8)]

    assert bits == [0, 1, 2]
    assert registry.signature(phone(6)) == 0b011
    assert registry.signature(phone(1)) == 0
    assert [registry.signature(phone(6)) >> bit & 1 for bit in bits] == [1, 1, 0]


def test_equal_requirements_share_a_bit_until_the_last_user_is_gone():
    registry = RequirementRegistry()
    bit = registry.register(ram(4))

    assert registry.register(Requirement.parse("device.ram_gb>=4.0")) == bit
    registry.release(bit)
    assert registry.requirement(bit) == ram(4)
    registry.release(bit)
    assert registry.bits() == ()


def test_the_lowest_free_bit_is_used_again():
    registry = RequirementRegistry()
    for gb in (1, 2, 3):
        registry.register(ram(gb))
    registry.release(1)
    registry.release(0)

    assert [registry.register(ram(gb)) for gb in (4, 5, 6)] == [0, 1, 3]
    assert registry.bits() == (0, 1, 2, 3)
    assert registry.requirement(1) == ram(5)


def test_a_recycled_bit_never_shows_the_old_requirements_answer():
    registry = RequirementRegistry()
    bit = registry.register(ram(4))
    assert registry.signature(phone(6)) == 1
    registry.release(bit)
    registry.register(ram(8))

    assert registry.signature(phone(6)) == 0


def test_a_signature_loses_the_bit_of_a_requirement_that_is_gone():
    registry = RequirementRegistry()
    bit = registry.register(ram(4))
    registry.signature(phone(6))
    registry.release(bit)

    assert registry.signature(phone(6)) == 0


def test_a_new_requirement_is_the_only_one_evaluated_for_a_profile_seen_before(monkeypatch):
    registry = RequirementRegistry()
    for gb in range(1, 9):
        registry.register(ram(gb))
    registry.signature(phone(6))
    evaluated = []
    matches = Requirement.matches

    def noted(self, profile):
        evaluated.append(self)
        return matches(self, profile)

    monkeypatch.setattr(Requirement, "matches", noted)
    registry.register(ram(5.5))

    assert registry.signature(phone(6)) == 0b1_0011_1111
    assert registry.signature(phone(6)) == 0b1_0011_1111
    assert evaluated == [ram(5.5)]


def test_the_version_changes_only_when_signatures_may():
    registry = RequirementRegistry()
    versions = [registry.version]
    for change in (
        lambda: registry.register(ram(4)),
        lambda: registry.register(ram(4)),
        lambda: registry.signature(phone(6)),
        lambda: registry.release(0),
        lambda: registry.release(0),
    ):
        change()
        versions.append(registry.version)

    assert versions == [0, 1, 1, 1, 1, 2]


def test_there_may_be_any_number_of_requirements():
    registry = RequirementRegistry()
    for gb in range(300):
        registry.register(ram(gb))

    assert registry.signature(phone(299)) == 2**300 - 1


def test_a_bit_that_nobody_has_is_a_defect():
    registry = RequirementRegistry()
    bit = registry.register(ram(4))
    registry.release(bit)

    for call in (registry.release, registry.requirement):
        with pytest.raises(InvariantViolated, match="no requirement is registered under bit 0"):
            call(bit)


def test_attributes_as_a_dict_and_as_json_give_the_same_profile():
    registry = RequirementRegistry()

    for _ in range(2):
        assert registry.profile({"ram_gb": 6, "data": ["b", "a"]}) is registry.profile_of_raw(
            b'{ "data": ["a", "b"], "ram_gb": 6.0, "unknown": null }'
        )


def test_attributes_are_checked_against_the_registrys_schema():
    registry = RequirementRegistry(AttributeSchema({"gpu": "bool"}))

    assert registry.profile({"gpu": True, "ram_gb": 4}).attributes == {"gpu": True}


def test_true_is_never_taken_for_the_number_one():
    registry = RequirementRegistry()
    registry.profile({"ram_gb": 1})

    with pytest.raises(InvalidInput, match="got a bool"):
        registry.profile({"ram_gb": True})


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b'{"a": }', b"\xff", b"[" * 100_000, b'{"ram_gb": "4"}'])
def test_text_that_is_not_a_devices_attributes_is_refused(raw):
    with pytest.raises(InvalidInput) as caught:
        RequirementRegistry().profile_of_raw(raw)
    assert caught.value.field in ("attributes", "attributes.ram_gb")


def test_attributes_that_json_cannot_carry_are_refused_with_the_reason():
    with pytest.raises(InvalidInput, match="cannot be object"):
        RequirementRegistry().profile({"ram_gb": object()})


def test_what_is_remembered_is_bounded_and_stays_right():
    registry = RequirementRegistry(max_profiles=10)
    registry.register(ram(50))

    for _ in range(2):
        for gb in range(100):
            assert registry.signature(registry.profile({"ram_gb": gb})) == int(gb >= 50)
    assert max(len(registry._signatures), len(registry._evaluated), len(registry._profiles)) <= 10


def test_long_texts_of_attributes_are_not_remembered():
    registry = RequirementRegistry()
    padding = b" " * MAX_RAW_BYTES

    assert registry.profile_of_raw(b'{"ram_gb": 4}' + padding) is phone(4)
    assert registry._profiles == {}
