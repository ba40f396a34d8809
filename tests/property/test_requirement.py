"""Whatever is typed is either refused with a reason or means what CEL says it means."""

from hypothesis import given
from hypothesis import strategies as st

from vennue.core.errors import InvalidRequirement
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema, Requirement

WORDS = st.sampled_from(
    [
        *"()[].,?:!-+*/%<>=&|{}'\"\\", "&&", "||", "==", "!=", "<=", ">=", "in", "true", "null", "device", ".ram_gb",
        "device.ram_gb", "device.data", "device.os", "device.charging", "has(", "size(", ".size()", ".exists(x,", "x",
        ".matches(", '"a"', "'b'", 'r"\\d"', "4", "4.5", ".5", "0x1f", "1e3", "2u", " ", "\n", "// ", "é", "\0",
        "\ud800",
    ]
)  # fmt: skip

# Pairs of an expression and the same in Python, over ram_gb, android and charging.
numbers = st.recursive(
    st.one_of(
        st.integers(0, 9).map(lambda n: (str(n), repr(float(n)))),
        st.floats(0, 9).map(lambda x: (repr(x), repr(x))),
        st.sampled_from([("device.ram_gb", "ram_gb"), ("device.android", "android"), ("size(device.data)", "2.0")]),
    ),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda t: (f"({t[0][0]}{t[1]}{t[2][0]})", f"({t[0][1]}{t[1]}{t[2][1]})")
    ),
    max_leaves=4,
)
comparisons = st.tuples(numbers, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers).map(
    lambda t: (f"{t[0][0]} {t[1]} {t[2][0]}", f"({t[0][1]} {t[1]} {t[2][1]})")
)
booleans = st.recursive(
    st.one_of(comparisons, st.just(("device.charging", "charging"))),
    lambda inner: st.one_of(
        inner.map(lambda e: (f"!({e[0]})", f"(not {e[1]})")),
        st.tuples(inner, inner).map(lambda t: (f"({t[0][0]}) && ({t[1][0]})", f"({t[0][1]} and {t[1][1]})")),
        st.tuples(inner, inner).map(lambda t: (f"({t[0][0]})||({t[1][0]})", f"({t[0][1]} or {t[1][1]})")),
    ),
    max_leaves=6,
)


@given(st.one_of(st.lists(WORDS, max_size=40).map("".join), st.text(max_size=100)), st.booleans())
def test_any_text_is_parsed_or_refused_and_what_is_parsed_can_be_evaluated(text, is_open):
    schema = AttributeSchema.open() if is_open else DEFAULT_SCHEMA
    try:
        requirement = Requirement.parse(text, schema)
    except InvalidRequirement:
        return
    device = {"ram_gb": 4, "data": ["a", "b"], "os": "a", "charging": True}
    again = Requirement.parse(requirement.text, schema)
    assert again == requirement
    assert again.matches(device) == requirement.matches(device) == requirement.matches(schema.check(device))


@given(booleans, st.floats(0, 16), st.integers(0, 16), st.booleans())
def test_an_expression_means_what_it_means_in_python(expression, ram_gb, android, charging):
    text, python = expression
    device = {"ram_gb": ram_gb, "android": android, "charging": charging, "data": ["a", "b"]}
    expected = eval(python, {}, {"ram_gb": ram_gb, "android": float(android), "charging": charging})

    assert Requirement.parse(text).matches(device) is expected
