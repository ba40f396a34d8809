"""The seam to the CEL library: reads a requirement's text, checks it, and makes it cheap to evaluate.

The library is ``cel-expr-python``, Google's C++ runtime: it checks types before anything runs, bounds nesting and
iterations by itself, and evaluates in 4 µs. ``common-expression-language`` (Rust) was the other candidate: it checks
no types, took 27 µs for the same expression, and ran four nested macros over 64 items for minutes.

Requirements are a subset of CEL with one kind of number: ``device.ram_gb >= 4`` means the same whether a device sent
``6`` or ``6.0``. So the text is rewritten before the library sees it: number literals become doubles, and ``size`` is
converted to one. It is compiled twice, once with a typed variable per attribute to find mistakes, and once with
``device`` as a map, where absent attributes are errors and ``has`` works. No expression can stall the caller: length,
tokens, nesting, regular expressions and macros are bounded here, iterations by the library. Inside a macro, where all
is done once for each of up to 64 items, nothing is put together, and attributes and functions are few: without these
two bounds, single expressions took 20 and 100 ms. The most costly ones found since take 2 ms.
"""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from cel_expr_python import cel

from vennue.core.errors import InvalidRequirement, UnknownAttribute

MAX_CHARS = 4096
MAX_TOKENS = 512
MAX_DEPTH = 32
"""Of brackets and operators; the library's own bound."""
MAX_PATTERN_CHARS = 128
MAX_PATTERNS = 4
MAX_IN_MACROS = 8
"""Attributes and functions that may be used inside of macros: each is read, searched or called once for each item."""

TYPES: Mapping[str, Any] = {
    "number": cel.Type.DOUBLE,
    "string": cel.Type.STRING,
    "bool": cel.Type.BOOL,
    "strings": cel.Type.List(cel.Type.STRING),
}
"""The kinds of attributes, as the checker knows them."""

_EVALUATOR = cel.NewEnv(variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})
_MACROS = ("all", "exists", "exists_one", "filter")
_METHODS = ("contains", "endsWith", "matches", "size", "startsWith", *_MACROS)
_LITERALS = ("true", "false", "null")
_INSTEAD = {"and": "&&", "or": "||", "not": "!", "True": "true", "False": "false", "&": "&&", "|": "||", "=": "=="}

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n\f]+|//[^\n]*)
    |(?P<string>[rR](?:"[^"\r\n]*"|'[^'\r\n]*')|"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]])""",
    re.VERBOSE,
)


class Expression(NamedTuple):
    """A requirement that has been read and checked."""

    text: str
    """Normalised: equal for sources that differ only in white space, comments, quotes or the way to write a number."""
    attributes: frozenset[str]
    program: Any


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def ends_value(self) -> bool:
        """Whether an operator, a call or an index may follow."""
        return self.text in (")", "]") or (self.kind in ("string", "number", "name") and self.text != "in")


class _Bracket(NamedTuple):
    at: int
    close: str
    call: str
    """The function that is called with what the bracket holds, or nothing."""
    variable: str
    """The name that a macro binds inside the bracket, or nothing."""
    start: int
    """Index of the piece where the value starts that this bracket belongs to."""


class _Piece:
    """A token as the library shall read it, when it evaluates and when it checks types."""

    __slots__ = ("at", "checked", "run")

    def __init__(self, text: str, at: int) -> None:
        self.run = self.checked = text
        self.at = at


def compile_expression(source: str, kinds: Mapping[str, str], *, is_open: bool) -> Expression:
    """Read, check and compile a requirement.

    Args:
        source: its text; blank means ``true``.
        kinds: the known attributes and their kinds, keys of `TYPES`.
        is_open: whether other attributes may be used too; they may hold anything.

    Raises:
        UnknownAttribute: it uses an attribute that is not known.
        InvalidRequirement: it is too long, does not parse, has wrong types or is not boolean.
    """
    return _Reader(source, kinds, is_open=is_open).expression()


def evaluate(program: Any, attributes: Mapping[str, object]) -> bool:
    """Whether the program is true of a device with these attributes: str, bool, float or list of str.

    False when that depends on an attribute that the device lacks.
    """
    try:
        return program.eval(data={"device": attributes}).value() is True
    except RuntimeError:  # the library's iteration budget
        return False


@lru_cache(maxsize=64)
def _checker(attributes: tuple[tuple[str, str], ...]) -> Any:
    """An environment with a variable per attribute. The first compilation in a new one takes 1 ms, the next 0.03 ms."""
    return cel.NewEnv(variables={f"device.{name}": TYPES.get(kind, cel.Type.DYN) for name, kind in attributes})


class _Reader:
    """One pass over the tokens, which knows what stands where and so can say what is wrong in the user's words."""

    def __init__(self, source: str, kinds: Mapping[str, str], *, is_open: bool) -> None:
        self._source = source
        self._kinds = kinds
        self._is_open = is_open
        self._attributes: set[str] = set()
        self._pieces: list[_Piece] = []
        self._brackets: list[_Bracket] = []
        self._start = 0
        self._patterns = 0
        self._in_macros = 0
        # Neighbours are looked at freely: blanks on both ends stand for "nothing there".
        blank = _Token("end", "", len(source))
        self._tokens = [blank, blank, *(self._read_tokens() or [_Token("name", "true", 0)]), *[blank] * 5]

    def expression(self) -> Expression:
        for i in range(2, len(self._tokens) - 5):
            token = self._tokens[i]
            piece = _Piece(token.text, token.at)
            self._pieces.append(piece)
            if token.kind == "number":
                self._start = len(self._pieces) - 1
                piece.run = piece.checked = repr(self._number(token))
            elif token.kind == "string":
                self._start = len(self._pieces) - 1
            elif token.kind == "name":
                self._name(i, piece)
            elif token.text in ("(", "["):
                self._open_bracket(i)
            elif token.text in (")", "]"):
                self._close_bracket(i, piece)
            elif token.text == "+" and self._is_in_macro():
                raise self._error(token.at, "`+` cannot stand inside a macro", "compare the parts one by one")
        if self._brackets:
            raise self._error(self._brackets[-1].at, "this bracket is never closed")
        self._check_types()
        program = self._compile(_EVALUATOR, [piece.run for piece in self._pieces])
        return Expression(self._normalised(), frozenset(self._attributes), program)

    def _read_tokens(self) -> list[_Token]:
        source = self._source
        if len(source) > MAX_CHARS:
            raise InvalidRequirement(
                f"a requirement has at most {MAX_CHARS} characters, this one has {len(source)}",
                field="requirement", value=source[:200], limit=MAX_CHARS, fix="shorten it",
            )  # fmt: skip
        lone = next((at for at, character in enumerate(source) if "\ud800" <= character <= "\udfff"), None)
        if lone is not None:
            raise self._error(lone, "this is no Unicode character but a lone surrogate")
        tokens: list[_Token] = []
        at = 0
        while at < len(source):
            match = _TOKEN.match(source, at)
            if match is None:
                raise self._error(at, *self._unexpected(source[at]))
            if match.lastgroup != "skip":
                tokens.append(_Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        if len(tokens) > MAX_TOKENS:
            raise InvalidRequirement(
                f"a requirement has at most {MAX_TOKENS} words, numbers and signs, this one has {len(tokens)}",
                field="requirement", value=source[:200], limit=MAX_TOKENS, fix="shorten it",
            )  # fmt: skip
        return tokens

    def _number(self, token: _Token) -> float:
        digits = token.text.rstrip("uU")
        try:
            value = float(int(digits, 16)) if digits[:2] in ("0x", "0X") else float(digits)
        except OverflowError:
            value = math.inf
        if value == math.inf:
            raise self._error(token.at, "this number is too large")
        return value

    def _name(self, i: int, piece: _Piece) -> None:
        name, after = self._tokens[i].text, self._tokens[i + 1].text
        if self._tokens[i - 1].text == ".":
            self._member(i)
            return
        self._start = len(self._pieces) - 1
        if name == "device":
            if after != "." or self._tokens[i + 2].kind != "name":
                raise self._error(self._tokens[i].at, "`device` needs an attribute", "write device.NAME")
        elif name == "has":
            if [t.text for t in self._tokens[i + 1 : i + 4]] != ["(", "device", "."] or self._tokens[i + 5].text != ")":
                raise self._error(self._tokens[i].at, "`has` takes one attribute", "write has(device.NAME)")
            piece.checked = ""
        elif name not in (*_LITERALS, "in") and not (name == "size" and after == "(") and not self._is_bound(name):
            raise self._error(self._tokens[i].at, *self._unexpected(name, is_call=after == "("))

    def _is_in_macro(self) -> bool:
        return any(bracket.variable for bracket in self._brackets)

    def _count_in_macro(self, at: int) -> None:
        """Bound what is done for each item, when an attribute or a function is used at ``at``."""
        self._in_macros += self._is_in_macro()
        if self._in_macros > MAX_IN_MACROS:
            raise self._error(at, f"macros can use attributes and functions {MAX_IN_MACROS} times in all", "use fewer")

    def _is_bound(self, name: str) -> bool:
        """Whether a macro around here binds the name."""
        return any(bracket.variable == name for bracket in self._brackets)

    def _member(self, i: int) -> None:
        """A name after a dot: an attribute of the device, or a method of a value."""
        token, is_call = self._tokens[i], self._tokens[i + 1].text == "("
        root = self._tokens[i - 2]
        if root.text == "device" and self._tokens[i - 3].text != ".":
            if is_call:
                raise self._error(root.at, f"`device.{token.text}` is an attribute, not a function")
            self._attribute(token.text, root.at)
        elif not is_call:
            raise self._error(token.at, f"an attribute has no field `{token.text}`")
        elif token.text not in _METHODS:
            raise self._error(token.at, *self._unexpected(token.text, is_call=True))
        elif token.text == "matches":
            self._check_pattern(i)

    def _attribute(self, name: str, at: int) -> None:
        self._count_in_macro(at)
        if name not in self._kinds and not self._is_open:
            near = get_close_matches(name, self._kinds, 1)
            known = ", ".join(sorted(self._kinds))
            raise UnknownAttribute(
                self._located(at, f"this pool knows no attribute `device.{name}`"), field="requirement",
                value=f"device.{name}", limit=sorted(self._kinds),
                fix=(f"did you mean device.{near[0]}? " if near else "") + f"Known attributes: {known}",
            )  # fmt: skip
        self._attributes.add(name)

    def _open_bracket(self, i: int) -> None:
        token, before = self._tokens[i], self._tokens[i - 1]
        if not before.ends_value:
            self._start = len(self._pieces) - 1
        call = before.text if before.kind == "name" and before.ends_value and token.text == "(" else ""
        variable = ""
        if call in _METHODS:
            self._count_in_macro(before.at)
        if call in _MACROS:
            if self._is_in_macro():
                raise self._error(before.at, f"`{call}` cannot stand inside another macro")
            declared = self._tokens[i + 1]
            if declared.kind != "name" or declared.text in (*_LITERALS, "in", "device", "has", "size"):
                raise self._error(declared.at, f"`{call}` needs a name for the item", f"write {call}(x, x == …)")
            variable = declared.text
        self._brackets.append(_Bracket(token.at, ")" if token.text == "(" else "]", call, variable, self._start))

    def _close_bracket(self, i: int, piece: _Piece) -> None:
        token = self._tokens[i]
        if not self._brackets or self._brackets[-1].close != token.text:
            raise self._error(token.at, f"no bracket is open that `{token.text}` could close")
        bracket = self._brackets.pop()
        self._start = bracket.start
        if bracket.call == "size":
            # The library counts in integers; every other number of a requirement is a double.
            first = self._pieces[bracket.start]
            first.run, first.checked = f"double({first.run}", f"double({first.checked}"
            piece.run = piece.checked = "))"
        elif bracket.call == "has":
            # The checker knows no maps, so it gets something else that is boolean and uses the attribute.
            piece.checked = f"== device.{self._tokens[i - 1].text})"

    def _check_pattern(self, i: int) -> None:
        """Bound a regular expression, which the library compiles anew each time it runs: 0.3 ms at worst.

        Counts and Unicode classes make long programs of short texts: thirty such classes took 37 ms.
        """
        bracket, pattern, close = self._tokens[i + 1 : i + 4]
        self._patterns += 1
        if pattern.kind != "string" or close.text != ")":
            raise self._error(bracket.at, "`matches` takes one quoted regular expression")
        if self._is_in_macro():
            raise self._error(self._tokens[i].at, "`matches` cannot stand inside a macro", "use startsWith or contains")
        if self._patterns > MAX_PATTERNS:
            raise self._error(pattern.at, f"a requirement has at most {MAX_PATTERNS} regular expressions")
        if len(pattern.text) > MAX_PATTERN_CHARS:
            raise self._error(pattern.at, f"a regular expression has at most {MAX_PATTERN_CHARS} characters")
        regex = pattern.text if pattern.text[0] in "rR" else pattern.text.replace("\\\\", "\0")
        if pattern.text[0] not in "rR" and "\\" in regex:
            raise self._error(pattern.at, "a regular expression has no string escapes", 'write r"…" to use backslashes')
        if re.search(r"\{|[\\\0][pP]", regex):
            raise self._error(pattern.at, "a regular expression has no counts {n} and no Unicode classes \\p")
        outcome = _EVALUATOR.compile(f'"".matches({pattern.text})').eval(_EVALUATOR.Activation({})).value()
        if not isinstance(outcome, bool):
            raise self._error(pattern.at, str(outcome).partition(": ")[2])

    def _check_types(self) -> None:
        checker = _checker(tuple((name, self._kinds.get(name, "")) for name in sorted(self._attributes)))
        program = self._compile(checker, [piece.checked for piece in self._pieces])
        kind = program.return_type().name()
        if kind not in ("BOOL", "DYN"):
            raise self._error(0, "a requirement must be true or false", "compare it with something")

    def _compile(self, env: Any, texts: list[str]) -> Any:
        try:
            return env.compile(" ".join(texts))
        except (RuntimeError, TypeError) as error:
            raise self._explained(str(error), texts) from None

    def _explained(self, complaint: str, texts: list[str]) -> InvalidRequirement:
        """The library's complaint about its text, as one about the user's."""
        found = re.search(r"<input>:1:(\d+): (.*)", complaint)
        if found is None:
            deep = "recursion" in complaint
            return InvalidRequirement(
                "it nests too deeply" if deep else complaint.partition(" [")[0],
                field="requirement", value=self._source[:200], limit=MAX_DEPTH if deep else None, fix="simplify it",
            )  # fmt: skip
        at, what = self._origin(int(found[1]) - 1, texts), found[2].removesuffix(" [INVALID_ARGUMENT]")
        if what.startswith("Syntax error: "):
            early = "<EOF>'" in what
            return self._error(len(self._source) if early else at, "it ends too early" if early else "out of place")
        undeclared = re.match(r"undeclared reference to '(.*?)'", what)
        if undeclared is not None:
            return self._error(at, f"`{undeclared[1]}` cannot be used like this")
        overload = re.match(r"found no matching overload for '(.*?)' applied to '\((.*)\)'", what)
        if overload is None:
            return self._error(at, what)
        sign = "in" if overload[1] == "@in" else overload[1].replace("_?_:_", "? :").replace("_", "")
        kinds = re.split(r", (?![^(]*\))", overload[2])
        fix = "use `in` or `exists`" if sign == "[]" else None
        if set(kinds) == {"double", "string"}:
            fix = "write numbers without quotes and strings with them"
        return self._error(at, f"`{sign}` cannot take {' and '.join(_kind_in_words(kind) for kind in kinds)}", fix)

    def _origin(self, column: int, texts: list[str]) -> int:
        """Where in the source the piece stands that has this column of the texts, joined by blanks."""
        for piece, text in zip(self._pieces, texts, strict=True):
            if column <= len(text):
                return piece.at
            column -= len(text) + 1
        return len(self._source)

    def _unexpected(self, text: str, *, is_call: bool = False) -> tuple[str, str | None]:
        if text in _INSTEAD:
            return f"`{text}` means nothing here", f"write {_INSTEAD[text]}"
        if text in ('"', "'"):
            return "this string is never closed", None
        if is_call:
            return f"there is no function `{text}`", f"there are {', '.join(sorted({*_METHODS, 'has', 'size'}))}"
        if text in self._kinds or (self._is_open and text.isidentifier()):
            return f"`{text}` means nothing here", f"write device.{text}"
        near = get_close_matches(text, self._kinds, 1)
        return f"`{text}` means nothing here", f"write device.{near[0]}" if near else None

    def _located(self, at: int, what: str) -> str:
        shown = self._source[at : at + 40].strip()
        return f"{what}, at position {at + 1}: {shown}" if shown else f"{what}, at its end"

    def _error(self, at: int, what: str, fix: str | None = None) -> InvalidRequirement:
        return InvalidRequirement(self._located(at, what), field="requirement", value=self._source[:200], fix=fix)

    def _normalised(self) -> str:
        text = ""
        before_last, last = self._tokens[0], self._tokens[1]
        for token in self._tokens[2:-5]:
            shown = token.text
            if token.kind == "number":
                value = self._number(token)
                shown = str(int(value)) if value.is_integer() and value < 1e15 else repr(value)
            elif token.kind == "string" and shown[0] == "'" and not set(shown) & {'"', "\\"}:
                shown = f'"{shown[1:-1]}"'
            is_unary = last.text in ("!", "-") and not before_last.ends_value
            is_postfix = token.text in ("(", "[") and last.ends_value
            glued = is_unary or is_postfix or last.text in (".", "(", "[", "") or token.text in (".", ")", "]", ",")
            text += shown if glued else f" {shown}"
            before_last, last = last, token
        return text


def _kind_in_words(kind: str) -> str:
    if kind.startswith("list("):
        return "a list of strings" if kind == "list(string)" else "a list"
    words = {"double": "a number", "string": "a string", "bool": "a boolean", "null_type": "null"}
    return words.get(kind, "this value")
