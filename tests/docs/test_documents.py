"""What the documents say is true: links resolve, the changelog has its form, commands and programs work."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import REPOSITORY, anchors, blocks, documents, links
from tests.docs.session import run_document

DOCUMENTS = documents()
RUNNABLE = [path for path in DOCUMENTS if path.parent == REPOSITORY or path.is_relative_to(REPOSITORY / "docs")]


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_relative_link_resolves(path):
    broken = []
    for line, target in links(path.read_text()):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file) if file else path
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text())):
            broken.append(f"{name(path)}:{line}: {target}")
    assert not broken


@pytest.mark.parametrize("path", RUNNABLE, ids=name)
def test_every_fenced_block_is_well_formed(path):
    unnamed = [block.line for block in blocks(path.read_text()) if not block.language]
    assert not unnamed, "a fence without a language: write ```text where it is not to run"


@pytest.mark.slow_suite
@pytest.mark.timeout(960)
@pytest.mark.parametrize("path", RUNNABLE, ids=name)
def test_every_command_and_program_works(path, tmp_path):
    if run_document(blocks(path.read_text()), tmp_path) == 0:
        pytest.skip("nothing to run in it")


def test_the_changelog_has_an_unreleased_section():
    headings = re.findall(r"^## \[?([^\]\n]+)\]?", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_every_optional_part_that_the_readme_names_is_an_extra():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    table = (REPOSITORY / "README.md").read_text().partition("| extra | adds |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z]+)`", table))
    assert named >= {"sim", "torch"}
    assert named <= project["optional-dependencies"].keys()
