"""What devices say about themselves, and what jobs ask of them.

An `AttributeSchema` names the attributes a pool knows; it checks what a device sends into a `Profile`, the canonical
form that supply and regions are counted by. A `Requirement` is a boolean expression over them in CEL, the Common
Expression Language: ``device.ram_gb >= 4 && "keyboard" in device.data``. Public requirements are evaluated here over
profiles; private ones are the same class, evaluated on the device over an open schema. A requirement is checked when
it is parsed, so evaluating one never fails: a device that lacks an attribute does not meet what needs it. The CEL
library and the bounds on hostile expressions are in ``_cel.py``.
"""

import math
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast, get_args
from weakref import WeakValueDictionary

from vennue.core import _cel
from vennue.core.errors import InvalidInput, InvalidRequirement

Kind = Literal["number", "string", "bool", "strings"]
Value = float | str | bool | tuple[str, ...]

MAX_ATTRIBUTES = 64
MAX_STRING_CHARS = 256
MAX_STRINGS = 64
MAX_ANSWERS = 1024
"""How many a requirement remembers."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,63}")


class Requirement:
    """Who may serve a job: a boolean expression over device attributes.

    Equal when the normalised texts are equal: white space, comments, quotes and ways to write a number do not matter.
    Make one with `Requirement.parse`.
    """

    __slots__ = ("_answers", "_foreseen", "_kinds", "_names", "_program", "attributes", "text")

    def __init__(self, expression: _cel.Expression, kinds: Mapping[str, Kind]) -> None:
        self.text: str = expression.text
        self.attributes: frozenset[str] = expression.attributes
        """The names of the attributes that it uses."""
        self._program = expression.program
        self._kinds = kinds
        self._names = tuple(sorted(self.attributes))
        self._answers: dict[tuple[Value | None, ...], bool] = {}
        self._foreseen: dict[Profile, bool] = {}

    @classmethod
    def parse(cls, text: str, schema: "AttributeSchema | None" = None) -> "Requirement":
        """Read and check a requirement. About 0.1 ms.

        Args:
            text: up to 4096 characters; blank or ``true`` asks for nothing.
            schema: the attributes that may be used; `DEFAULT_SCHEMA` if left out.

        Raises:
            UnknownAttribute: it uses an attribute that the schema does not know; the error names the nearest one.
            InvalidRequirement: it does not parse, has wrong types, is not boolean or is too costly; the error says
                where.
        """
        if not isinstance(text, str):
            raise InvalidRequirement(
                f"a requirement is text, not {type(text).__name__}",
                field="requirement", value=repr(text)[:200], fix='write it as a string: "device.ram_gb >= 4"',
            )  # fmt: skip
        schema = DEFAULT_SCHEMA if schema is None else schema
        kinds = {name: attribute.kind for name, attribute in schema.items()}
        expression = _cel.compile_expression(text, kinds, is_open=schema.is_open)
        return cls(expression, {name: kinds[name] for name in expression.attributes if name in kinds})

    def matches(self, device: "Profile | Mapping[str, object]") -> bool:
        """Whether the device meets the requirement. Never raises.

        False when it needs an attribute that is absent or, in a mapping, not of its kind. ``a || b`` needs only one
        of the two; ``has(device.x)`` tells whether ``x`` is there. A profile should come from the schema that the
        requirement was parsed with: answers are remembered for the values that the requirement uses, so that devices
        which differ in other attributes cost 0.3 µs instead of 5 µs.
        """
        if self.text == "true":
            return True
        if not isinstance(device, Profile):
            return self._evaluate(self._usable(device))
        if self._foreseen and (foreseen := self._foreseen.get(device)) is not None:
            return foreseen
        values = tuple(map(device.attributes.get, self._names))
        if len(self._kinds) < len(self._names):  # equal values of unknown kind may differ: 1.0 and true
            return self._evaluate(values)
        answer = self._answers.get(values)
        if answer is None:
            answer = self._evaluate(values)
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[values] = answer
        return answer

    def foresee(self, profile: "Profile") -> None:
        """Evaluate it for a profile now, so that `matches` is a look-up until `forget`."""
        self._foreseen[profile] = self.matches(profile)

    def forget(self) -> None:
        """Forget what was foreseen."""
        self._foreseen.clear()

    def _usable(self, attributes: Mapping[str, object]) -> Iterator[Value | None]:
        """The values of the attributes that are used, where they are what they should be."""
        for name in self._names:
            try:
                yield _canonical(attributes.get(name), self._kinds.get(name))
            except ValueError:
                yield None

    def _evaluate(self, values: Iterable[Value | None]) -> bool:
        usable = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in zip(self._names, values, strict=True)
            if value is not None
        }
        return _cel.evaluate(self._program, usable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Requirement) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Requirement({self.text!r})"


class Profile:
    """A device's public attributes in canonical form: sorted by name, numbers as floats, lists as sorted tuples.

    Interned: equal attributes are one object, so a profile is compared and hashed by identity, which is what makes
    looking up its region cheap. Make one with `AttributeSchema.check`, or `Profile.of` from canonical pairs.
    """

    __slots__ = ("__weakref__", "attributes")

    attributes: Mapping[str, Value]
    """What is known of the device, sorted by name."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Value]]) -> "Profile":
        """The one profile with these attributes, which must be canonical but may come in any order."""
        attributes = dict(sorted(pairs))
        # True and 1.0 are equal in Python, but not to a requirement: the key tells them apart.
        key = tuple((name, type(value).__name__, value) for name, value in attributes.items())
        profile = _interned.get(key)
        if profile is None:
            profile = cls()
            profile.attributes = attributes
            _interned[key] = profile
        return profile

    @property
    def pairs(self) -> tuple[tuple[str, Value], ...]:
        """The attributes as pairs, sorted by name."""
        return tuple(self.attributes.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return Profile.of, (self.pairs,)

    def __repr__(self) -> str:
        return f"Profile({', '.join(f'{name}={value!r}' for name, value in self.attributes.items())})"


_interned: WeakValueDictionary[tuple[tuple[str, str, Value], ...], Profile] = WeakValueDictionary()
"""Profiles live as long as something else holds them."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One thing that devices may say about themselves."""

    kind: Kind
    """``strings`` is a set of strings: order and repetition do not count."""
    description: str = ""
    unit: str = ""
    step: float = 0.0
    """Numbers are rounded down to a multiple of this, so that a reading that changes all the time does not make each
    check-in a kind of device by itself. Thresholds ``>=`` and ``<`` at multiples are exact. 0 keeps them as sent."""


class AttributeSchema(Mapping[str, Attribute]):
    """The attributes a pool knows, by name.

    Args:
        attributes: name → an `Attribute`, a kind (``"number"``), or a mapping of `Attribute`'s fields, as in a
            configuration file.
        is_open: whether other attributes may be used and sent too; they may hold any kind.

    Raises:
        InvalidInput: a name that an expression could not use, or a kind or field that does not exist.
    """

    __slots__ = ("_attributes", "is_open")

    def __init__(self, attributes: Mapping[str, object], *, is_open: bool = False) -> None:
        self._attributes = MappingProxyType({name: _attribute(name, given) for name, given in attributes.items()})
        self.is_open = is_open

    @classmethod
    def open(cls) -> "AttributeSchema":
        """A schema that accepts any attribute: for private requirements, whose attributes only devices know."""
        return cls({}, is_open=True)

    def extend(self, attributes: Mapping[str, object]) -> "AttributeSchema":
        """This schema with more attributes, or with other definitions of the same ones."""
        return AttributeSchema({**self, **attributes}, is_open=self.is_open)

    def __getitem__(self, name: str) -> Attribute:
        return self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes)

    def __len__(self) -> int:
        return len(self._attributes)

    def check(self, attributes: Mapping[str, object]) -> Profile:
        """The profile of a device that sent these attributes.

        Null counts as absent. Attributes that the schema does not know are left out (unless it is open), so that an
        older server serves newer devices.

        Raises:
            InvalidInput: more than 64 attributes, a value that is not of its kind or not finite, a string above 256
                characters or a list above 64 strings.
        """
        if len(attributes) > MAX_ATTRIBUTES:
            raise InvalidInput(
                f"a device has at most {MAX_ATTRIBUTES} attributes, this one sent {len(attributes)}",
                field="attributes", value=len(attributes), limit=MAX_ATTRIBUTES, fix="send those that jobs ask for",
            )  # fmt: skip
        pairs: list[tuple[str, Value]] = []
        for name, given in attributes.items():
            known = self._attributes.get(name)
            if given is None or (known is None and not self.is_open):
                continue
            try:
                if known is None:
                    _check_name(name)
                value = _canonical(given, None if known is None else known.kind)
            except ValueError as error:
                raise InvalidInput(
                    str(error), field=f"attributes.{str(name)[:64]}", value=repr(given)[:200],
                    fix=None if known is None else f"send {_FORMS[known.kind]}",
                ) from None  # fmt: skip
            if known is not None and known.step and isinstance(value, float):
                value = _round_down(value, known.step)
            pairs.append((name, value))
        return Profile.of(pairs)


_FORMS: Mapping[str, str] = {
    "number": "a finite number",
    "string": f"a string of at most {MAX_STRING_CHARS} characters",
    "bool": "true or false",
    "strings": f"a list of at most {MAX_STRINGS} strings",
}


def _attribute(name: str, given: object) -> Attribute:
    try:
        _check_name(name)
        if isinstance(given, Attribute):
            attribute = given
        elif isinstance(given, Mapping):
            attribute = Attribute(**given)
        else:
            attribute = Attribute(kind=cast("Kind", given))
        if attribute.kind not in get_args(Kind):
            raise ValueError(f"there is no kind of attribute {attribute.kind!r}")
        if not 0 <= attribute.step < math.inf:
            raise ValueError(f"the step {attribute.step!r} is not a finite number from 0")
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            str(error), field=f"attributes.{name}", value=repr(given)[:200], limit=get_args(Kind),
            fix=f"give a kind ({', '.join(get_args(Kind))}) and perhaps a description, a unit and a step",
        ) from None  # fmt: skip
    return attribute


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in ("in", "true", "false", "null"):
        raise ValueError("a name is a word of CEL: 1 to 64 letters, digits and underscores, no digit first")


def _canonical(value: object, kind: Kind | None) -> Value:
    """The value as a profile holds it. Without a kind, the value's own decides.

    Raises:
        ValueError: it is not of the kind, or too large.
    """
    if isinstance(value, bool):
        found: Value = value
        seen: Kind = "bool"
    elif isinstance(value, numbers.Real):
        found, seen = _finite(value), "number"
    elif isinstance(value, str):
        found, seen = _short(value), "string"
    elif isinstance(value, list | tuple | set | frozenset):
        if len(value) > MAX_STRINGS:
            raise ValueError(f"a list has at most {MAX_STRINGS} strings, this one has {len(value)}")
        found, seen = tuple(sorted({_short(item) for item in value})), "strings"
    else:
        raise ValueError(f"an attribute cannot be {type(value).__name__}")  # noqa: TRY004 - callers handle one error
    if kind is not None and kind != seen:
        raise ValueError(f"expected {_FORMS[kind]}, got a {seen}")
    return found


def _finite(value: numbers.Real) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a number must be finite")
    return number


def _short(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a list holds strings, not {type(value).__name__}")  # noqa: TRY004 - callers handle one error
    if len(value) > MAX_STRING_CHARS:
        raise ValueError(f"a string has at most {MAX_STRING_CHARS} characters, this one has {len(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("a string must be Unicode text, without lone surrogates")
    return value


def _round_down(value: float, step: float) -> float:
    # The inner rounding keeps 0.3 / 0.1 from falling below 3, the outer one makes 3 · 0.1 the 0.3 that users write.
    steps = math.floor(round(value / step, 9)) if abs(value / step) < 1e15 else value / step
    return round(steps * step, 9)


DEFAULT_SCHEMA = AttributeSchema(
    {
        "ram_gb": Attribute("number", "working memory", "GB"),
        "storage_gb": Attribute("number", "free storage", "GB", step=1.0),
        "cpu_score": Attribute("number", "AI-Benchmark CPU-F score"),
        "memory_score": Attribute("number", "AI-Benchmark FP16 memory score"),
        "latency_ms": Attribute("number", "one inference of the benchmark model", "ms", step=1.0),
        "android": Attribute("number", "major version of Android"),
        "os": Attribute("string", "operating system, in lower case: android, ios, linux, …"),
        "model": Attribute("string", "product name of the device"),
        "country": Attribute("string", "ISO 3166 code, in upper case"),
        "language": Attribute("string", "BCP 47 tag of the user's language"),
        "network": Attribute("string", "wifi, ethernet or cellular"),
        "metered": Attribute("bool", "whether traffic costs the user"),
        "charging": Attribute("bool", "whether it is plugged in"),
        "idle": Attribute("bool", "whether nobody is using it"),
        "battery": Attribute("number", "charge", "%", step=5.0),
        "data": Attribute("strings", "kinds of local data that it can train on"),
    }
)
"""What a pool knows unless it is told otherwise. `AttributeSchema.extend` adds to it."""
