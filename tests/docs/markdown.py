"""Reads the project's Markdown: the programs and commands in it that must work, the links in it that must resolve.

An author writes ordinary fenced blocks. Per document, in order, in one shell, in one empty folder, with ``vennue`` and
``python`` on the PATH:

* a ``console`` block's lines that begin with ``$ `` are run, and each must exit with 0. A line that ends in a backslash
  continues on the next one; here-documents are not understood. ``&`` at the end leaves a server running, which is
  stopped after the document's last command. All other lines are output, for the reader.
* a ``python`` block is a whole program: it is run, and must exit with 0.

A comment on the line before a block changes that:

* ``<!-- file: NAME -->`` writes the block, in any language, to that file before anything runs, and does not run it.
* ``<!-- checked -->`` compares the output of a ``console`` block with what it shows; ``...`` stands for any text.
* ``<!-- in-repository -->`` runs the block in the root of the checkout.
* ``<!-- no-run: REASON -->`` leaves it alone.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[2]

_DIRECTIVE = re.compile(r"<!--\s*([a-z-]+)(?::\s*(.*?))?\s*-->\s*")
_DIRECTIVES = {"file", "checked", "in-repository", "no-run"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, with what the comments before it ask for."""

    line: int
    """Of its first line of content, from 1."""
    language: str
    text: str
    directives: dict[str, str]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a ``console`` block, with the output that the block shows for it."""

    line: int
    text: str
    output: str


def documents() -> list[Path]:
    """Every Markdown file of the repository that is written by hand."""
    skipped = {"build", "dist", "node_modules"}
    found = (path for path in REPOSITORY.rglob("*.md") if path.is_file())
    return sorted(
        path
        for path in found
        if not any(part.startswith(".") or part in skipped for part in path.relative_to(REPOSITORY).parts[:-1])
    )


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document.

    Raises:
        ValueError: a comment before a block that asks for nothing known, or for something without its argument.
    """
    found: list[Block] = []
    directives: dict[str, str] = {}
    for token in MarkdownIt().parse(text):
        if token.type == "html_block":
            directives |= _directives(token)
        elif token.type == "fence":
            language = token.info.strip().split(" ")[0]
            found.append(Block(_line(token) + 1, language, token.content, directives))
            directives = {}
        elif token.type not in {"list_item_open", "blockquote_open"} and directives:
            raise ValueError(f"line {_line(token)}: {', '.join(directives)}: no fenced block follows")
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a ``console`` block.

    Raises:
        ValueError: output before the first command, so a command probably lacks its ``$ ``.
    """
    found: list[tuple[int, list[str], list[str]]] = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if continued:
            found[-1][1].append(line.removeprefix("> "))
        elif line.startswith("$ "):
            found.append((number, [line.removeprefix("$ ")], []))
        elif found:
            found[-1][2].append(line)
        else:
            raise ValueError(f"line {number}: {line!r} stands before any command; commands begin with '$ '")
        continued = bool(found) and not found[-1][2] and found[-1][1][-1].endswith("\\")
    return [Command(number, "\n".join(lines), "\n".join(output)) for number, lines, output in found]


def links(text: str) -> Iterator[tuple[int, str]]:
    """Every link and image of a document: the line of its paragraph, and its target as written."""
    for token in MarkdownIt().parse(text):
        for child in token.children or ():
            target = child.attrs.get("href") or child.attrs.get("src")
            if target is not None:
                yield _line(token), unquote(str(target))


def anchors(text: str) -> set[str]:
    """The names under which a document's headings can be linked to, as GitHub makes them."""
    tokens = MarkdownIt().parse(text)
    headings = [following for token, following in pairwise(tokens) if token.type == "heading_open"]
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in headings:
        plain = "".join(child.content for child in heading.children or () if child.type in {"text", "code_inline"})
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def _directives(token: Token) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, argument in _DIRECTIVE.findall(token.content):
        if name not in _DIRECTIVES:
            raise ValueError(f"line {_line(token)}: {name!r} is none of {', '.join(sorted(_DIRECTIVES))}")
        if name in {"file", "no-run"} and not argument:
            raise ValueError(f"line {_line(token)}: write <!-- {name}: ... -->")
        found[name] = argument
    return found


def _line(token: Token) -> int:
    return (token.map[0] if token.map else 0) + 1
