"""Requirements read what users write, refuse what they mistype, and never fail on a device."""

import copy
import weakref

import numpy as np
import pytest

from vennue.core.errors import InvalidInput, InvalidRequirement, UnknownAttribute
from vennue.core.requirement import DEFAULT_SCHEMA, Attribute, AttributeSchema, Profile, Requirement

PHONE = {
    "ram_gb": 6,
    "android": 12.0,
    "os": "android",
    "model": "Pixel 7",
    "charging": True,
    "data": ["photos", "keyboard"],
}
OPEN = AttributeSchema.open()


def refused(text: str, schema: AttributeSchema = DEFAULT_SCHEMA) -> InvalidRequirement:
    with pytest.raises(InvalidRequirement) as caught:
        Requirement.parse(text, schema)
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true // any device",
        'device.ram_gb >= 4 && device.android >= 11 && "keyboard" in device.data',
        "device.ram_gb == 6",
        "device.ram_gb >= 5.5 && device.ram_gb < 6.1",
        "device.android in [11, 12]",
        "device.ram_gb * 1024 >= 6144",
        "(device.ram_gb + 2) / 4 == 2",
        "-device.ram_gb < -1",
        "size(device.data) == 2",
        "device.data.size() >= 2 && [device.os].size() == 1",
        "-size(device.data) == -2",
        'device.data.exists(kind, kind.startsWith("key"))',
        "device.data.all(kind, size(kind) > 5)",
        '["x", "photos"].exists_one(kind, kind in device.data)',
        'device.data.filter(kind, kind != "photos").size() == 1',
        "has(device.ram_gb) && !has(device.battery)",
        "has(device.ram_gb) == true",
        "device.charging",
        "device.charging ? device.ram_gb > 4 : device.ram_gb > 8",
        "device.os == 'android'",
        'device.model.matches("^Pixel [6-9]$")',
        r'device.model.matches(r"\d")',
        r'device.model.matches("\\d")',
        r'"a\"b)" != device.os',
        "device.battery > 20 || device.charging",
    ],
)
def test_a_phone_meets_what_is_true_of_it(text):
    requirement = Requirement.parse(text)

    assert requirement.matches(PHONE)
    assert requirement.matches(DEFAULT_SCHEMA.check(PHONE))


@pytest.mark.parametrize(
    "text",
    [
        "device.ram_gb >= 6.5",
        "device.ram_gb != 6",
        "!device.charging",
        '"health" in device.data',
        "device.android in [10, 11]",
        'device.model.matches("^pixel")',
    ],
)
def test_a_phone_does_not_meet_what_is_false_of_it(text):
    requirement = Requirement.parse(text)

    assert not requirement.matches(PHONE)
    assert not requirement.matches(DEFAULT_SCHEMA.check(PHONE))


@pytest.mark.parametrize("text", ["device.battery > 20", "!(device.battery > 20)", "!device.idle"])
def test_a_device_without_an_attribute_does_not_meet_what_needs_it(text):
    assert not Requirement.parse(text).matches(PHONE)
    assert not Requirement.parse(text).matches(DEFAULT_SCHEMA.check(PHONE))


@pytest.mark.parametrize("odd", ["6", None, True, float("nan"), float("inf"), 10**400, [6], {}, "\ud800", object()])
def test_an_attribute_of_the_wrong_kind_counts_as_absent(odd):
    assert not Requirement.parse("device.ram_gb >= 4").matches({"ram_gb": odd})


def test_an_evaluation_that_divides_by_zero_or_finds_no_overload_is_false():
    assert not Requirement.parse("device.a / device.b > device.c", OPEN).matches({"a": 0, "b": 0, "c": 1})
    assert not Requirement.parse("device.a < device.b", OPEN).matches({"a": 1, "b": "x"})


@pytest.mark.parametrize("number", [4, 4.0, np.float64(4), np.int64(4)])
def test_numbers_compare_alike_whatever_type_they_were_sent_as(number):
    assert Requirement.parse("device.ram_gb == 4").matches({"ram_gb": number})
    assert DEFAULT_SCHEMA.check({"ram_gb": number}) is DEFAULT_SCHEMA.check({"ram_gb": 4})


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("  ", "true"),
        ("device . ram_gb>=4.0", "device.ram_gb >= 4"),
        ("device.ram_gb >= 0x4 // hexadecimal", "device.ram_gb >= 4"),
        ("device.ram_gb >= 40e-1", "device.ram_gb >= 4"),
        ("device.cpu_score >= 7.50", "device.cpu_score >= 7.5"),
        ("'a  b'==device.os", '"a  b" == device.os'),
        ("""'a"b' == device.os""", """'a"b' == device.os"""),
        ('device.os=="4.0"', 'device.os == "4.0"'),
        ("! device.charging&&- 1<device.ram_gb", "!device.charging && -1 < device.ram_gb"),
        ("device.android in[ 11,12 ]", "device.android in [11, 12]"),
        ("device.data.exists ( d , d in ['x'] )", 'device.data.exists(d, d in ["x"])'),
        ("device.charging?true:(false)", "device.charging ? true : (false)"),
    ],
)
def test_the_text_is_normalised_and_strings_are_left_alone(text, normalised):
    assert Requirement.parse(text).text == normalised
    assert Requirement.parse(normalised).text == normalised


def test_requirements_are_equal_when_their_normalised_texts_are():
    one, same, other = (Requirement.parse(f"device.ram_gb >= {number}") for number in ("4", "4.0", "5"))

    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_the_attributes_that_are_used_are_known_even_inside_has():
    assert Requirement.parse('has(device.ram_gb) || device.os == "device.model"').attributes == {"ram_gb", "os"}


def test_an_unknown_attribute_is_named_with_its_place_and_the_nearest_known_one():
    error = refused("true\n  && device.ram_gbs >= 4")

    assert isinstance(error, UnknownAttribute)
    assert error.value == "device.ram_gbs"
    assert "at position 11: device.ram_gbs >= 4" in str(error)
    assert "did you mean device.ram_gb?" in str(error)
    assert "storage_gb" in error.limit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'device.ram_gb >= "4"',
            '`>=` cannot take a number and a string, at position 15: >= "4" (write numbers without',
        ),
        ('"é😀" == device.ram_gb', "`==` cannot take a string and a number, at position 6"),
        ("device.os == null", "`==` cannot take a string and null"),
        ("device.os in device.os", "`in` cannot take a string and a string"),
        ("!device.ram_gb", "`!` cannot take a number"),
        ("device.data.exists(d, d > 1)", "`>` cannot take a string and a number, at position 25"),
        ('device.data[0] == "x"', "`[]` cannot take a list of strings and a number, at position 12"),
        ("device.ram_gb >= ", "it ends too early, at its end"),
        ("true device.charging", "out of place, at position 6"),
        ("(true", "this bracket is never closed, at position 1"),
        ("(true]", "no bracket is open that `]` could close, at position 6"),
        ('device.os == "x', 'this string is never closed, at position 14: "x'),
        ('device.os = "x"', "`=` means nothing here, at position 11"),
        ("device.charging and true", "(write &&)"),
        ("ram_gb >= 4", "at position 1: ram_gb >= 4 (write device.ram_gb)"),
        ("ram >= 4", "`ram` means nothing here"),
        ("4GB < device.ram_gb", "`GB` means nothing here, at position 2"),
        ("device.ram_gb", "a requirement must be true or false"),
        ("1", "a requirement must be true or false"),
        ("device", "`device` needs an attribute"),
        ('device["os"] == "x"', "`device` needs an attribute"),
        ("device.os.length > 1", "an attribute has no field `length`"),
        ("device.os()", "`device.os` is an attribute, not a function"),
        ("device.os.lower()", "there is no function `lower`"),
        ("has(device)", "`has` takes one attribute"),
        ("device.data.exists(1, true)", "`exists` needs a name for the item"),
        ("device.data.exists(x)", "`x` cannot be used like this"),
        ("1e999 < device.ram_gb", "this number is too large"),
        (f"0x{'f' * 400} < device.ram_gb", "this number is too large"),
        ('device.os == "\ud800"', "lone surrogate, at position 15"),
        ("é == 1", "`é` means nothing here"),
    ],
)
def test_a_mistake_is_explained_where_it_was_made(text, said):
    error = refused(text)

    assert said in str(error)
    assert error.field == "requirement"
    assert error.value == text[:200]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x" * 5000, "at most 4096 characters, this one has 5000"),
        ("true && " * 300 + "true", "at most 512 words, numbers and signs, this one has 601"),
        ("(" * 200 + "true" + ")" * 200, "it nests too deeply"),
        ("1" + "+1" * 200 + " > 0", "it nests too deeply"),
        ("device.data.all(a, device.data.all(b, a == b))", "`all` cannot stand inside another macro"),
        ('device.os.matches("(a{100}){100}")', "no counts"),
        (r'device.os.matches("(a\x7b100})")', "no string escapes"),
        (r'device.os.matches("\\pL")', "no Unicode classes"),
        (r'device.os.matches(r"\PL")', "no Unicode classes"),
        (f'device.os.matches("{"a?" * 100}")', "at most 128 characters"),
        ('device.os.matches("(")', "invalid regular expression: missing )"),
        ('device.data.exists(d, d.matches("a"))', "`matches` cannot stand inside a macro"),
        ('device.data.all(x, x + x != "a")', "`+` cannot stand inside a macro, at position 22"),
        (
            f"device.data.all(x, {' && '.join(['x in device.data'] * 9)})",
            "macros can use attributes and functions 8 times",
        ),
        (" && ".join(['device.data.all(x, !x.contains("a"))'] * 9), "macros can use attributes and functions 8 times"),
        (f"device.data.all(x, {' && '.join(['size(x) > 1'] * 9)})", "macros can use attributes and functions 8 times"),
        ("device.os.matches(device.model)", "`matches` takes one quoted regular expression"),
        (" || ".join(['device.os.matches("a")'] * 5), "at most 4 regular expressions"),
    ],
)
def test_a_requirement_that_could_stall_the_server_is_refused(text, said):
    assert said in str(refused(text))


def test_the_largest_lists_are_evaluated_within_the_iteration_budget():
    device = {"data": [f"{n:0256}" for n in range(64)]}
    words = ", ".join(f'"{n:05}"' for n in range(120))

    assert Requirement.parse(f"device.data.all(kind, !(kind in [{words}]))").matches(device)


def test_a_requirement_must_be_text():
    with pytest.raises(InvalidRequirement, match="text, not int"):
        Requirement.parse(4)  # type: ignore[arg-type]


def test_an_open_schema_takes_any_attribute_of_any_kind():
    requirement = Requirement.parse('device.samples >= 100 && device.language == "de" && device.opted_in', OPEN)

    assert requirement.matches({"samples": 200, "language": "de", "opted_in": True})
    assert not requirement.matches({"samples": 200, "language": "de", "opted_in": 1})
    assert not requirement.matches({"samples": 200})


def test_an_open_schema_tells_true_from_one():
    requirement = Requirement.parse("device.x == 1", OPEN)

    assert [requirement.matches(OPEN.check({"x": value})) for value in (1, True, 1.0)] == [True, False, True]


def test_answers_are_right_beyond_what_is_remembered():
    requirement = Requirement.parse("device.ram_gb >= 1000")
    profiles = [DEFAULT_SCHEMA.check({"ram_gb": number}) for number in range(1200)]

    for _ in range(2):
        assert sum(requirement.matches(profile) for profile in profiles) == 200


def test_a_profile_is_one_object_for_equal_attributes():
    one = DEFAULT_SCHEMA.check({"ram_gb": 4, "data": ["b", "a", "b"]})
    same = DEFAULT_SCHEMA.check({"data": ("a", "b"), "ram_gb": 4.0})

    assert one is same
    assert one.pairs == (("data", ("a", "b")), ("ram_gb", 4.0))
    assert copy.deepcopy(one) is one


def test_a_profile_leaves_out_nulls_and_attributes_that_the_pool_does_not_know():
    assert DEFAULT_SCHEMA.check({"ram_gb": 4, "os": None, "quantum_cores": 2}).pairs == (("ram_gb", 4.0),)


@pytest.mark.parametrize(
    ("attributes", "field", "said"),
    [
        ({"ram_gb": "4"}, "attributes.ram_gb", "expected a finite number, got a string"),
        ({"ram_gb": True}, "attributes.ram_gb", "expected a finite number, got a bool"),
        ({"ram_gb": float("nan")}, "attributes.ram_gb", "a number must be finite"),
        ({"ram_gb": 10**400}, "attributes.ram_gb", "a number must be finite"),
        ({"charging": 1}, "attributes.charging", "expected true or false, got a number"),
        ({"os": "x" * 257}, "attributes.os", "at most 256 characters, this one has 257"),
        ({"os": "\ud800"}, "attributes.os", "lone surrogates"),
        ({"data": ["x"] * 65}, "attributes.data", "at most 64 strings, this one has 65"),
        ({"data": [1]}, "attributes.data", "a list holds strings, not int"),
        ({"data": "keyboard"}, "attributes.data", "expected a list of at most 64 strings, got a string"),
        ({"os": {}}, "attributes.os", "an attribute cannot be dict"),
        ({f"x{n}": 1 for n in range(65)}, "attributes", "at most 64 attributes, this one sent 65"),
    ],
)
def test_a_device_that_sends_nonsense_is_refused_with_the_reason(attributes, field, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        DEFAULT_SCHEMA.check(attributes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("sent", "kept"), [(0.3, 0.3), (0.35, 0.3), (0.39999, 0.3), (0.7, 0.7), (-0.05, -0.1), (1e300, 1e300)]
)
def test_a_number_with_a_step_is_rounded_down_to_the_decimal_that_users_write(sent, kept):
    schema = AttributeSchema({"x": Attribute("number", step=0.1)})

    assert schema.check({"x": sent}).attributes == {"x": kept}


def test_a_schema_is_made_from_plain_configuration():
    schema = DEFAULT_SCHEMA.extend({"gpu": "bool", "reach": {"kind": "number", "unit": "m", "step": 10}})

    assert schema["reach"] == Attribute("number", "", "m", 10)
    assert Requirement.parse("device.gpu && device.reach >= 20", schema).matches({"gpu": True, "reach": 20})
    assert "gpu" not in DEFAULT_SCHEMA


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"gpu": "boolean"}, "there is no kind of attribute 'boolean'"),
        ({"gpu": {"kind": "bool", "size": 3}}, "unexpected keyword argument 'size'"),
        ({"gpu": {"kind": "number", "step": -1}}, "the step -1"),
        ({"gpu": ["bool"]}, "there is no kind of attribute"),
        ({"a-b": "bool"}, "a name is a word of CEL"),
        ({"in": "bool"}, "a name is a word of CEL"),
        ({"x" * 65: "bool"}, "1 to 64 letters"),
    ],
)
def test_a_schema_with_a_mistake_is_refused(attributes, said):
    with pytest.raises(InvalidInput, match=said):
        AttributeSchema(attributes)


def test_an_open_schema_refuses_names_that_no_requirement_could_use():
    with pytest.raises(InvalidInput, match="a name is a word of CEL"):
        OPEN.check({"free text": 1})


def test_a_profile_is_forgotten_when_nothing_holds_it():
    profile = weakref.ref(Profile.of([("only_here", 1.0)]))

    assert profile() is None
