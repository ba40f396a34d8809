"""Each failure in `ids.csv` has a test that names its id, or a line in the design notes that says why it has none.

A test names an id in its own name (``test_q9_…``) or in a docstring or comment: ``Case Q9.``
"""

import csv
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NOTES = TESTS.parent / "docs" / "design-notes.md"


def case_ids() -> list[str]:
    lines = (Path(__file__).parent / "ids.csv").read_text(encoding="utf-8").splitlines()
    return [row["id"] for row in csv.DictReader(line for line in lines if not line.startswith("#"))]


@cache
def named_by_tests() -> set[str]:
    named: set[str] = set()
    for path in TESTS.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"\b[Cc]ase ([A-Z]\d+)\b", source))
        for ids in re.findall(r"\bdef test_((?:[a-z]\d+_)+)", source):
            named |= {id.upper() for id in ids.strip("_").split("_")}
    return named


def excused_in_the_notes() -> set[str]:
    return set(re.findall(r"^- \*\*Case ([A-Z]\d+)\*\*", NOTES.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("case", case_ids())
def test_a_case_has_a_test_or_a_reason_why_it_needs_none(case):
    assert case in named_by_tests() | excused_in_the_notes()


def test_only_cases_that_there_are_have_tests_and_excuses():
    assert named_by_tests() | excused_in_the_notes() <= set(case_ids())
