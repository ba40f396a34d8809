"""A drawing as a file of its own, with its style, its ground, and a margin around it.

Programs that show SVG files know less of CSS than browsers do: many know no variables and none of the preferences of
who is reading. So each colour is written out, for a light ground; for a dark one the rules stand again, in a block that
only browsers read.
"""

import importlib.resources
import re
from collections.abc import Mapping

from vennue.simulation.report import svg

_MARGIN = 16.0
_COLOURS = re.compile(r":root \{(.*?)\}", re.DOTALL)
_COLOUR = re.compile(r"(--[\w-]+): (#\w+);")
_USE = re.compile(r"var\((--[\w-]+)\)")


def picture(height: float, about: str, *children: str) -> str:
    """A drawing as the text of a file.

    Args:
        height: of what is drawn; it is `svg.WIDTH` wide.
        about: what it shows, for those who cannot see it.
        children: its elements.
    """
    width, height = svg.WIDTH + 2 * _MARGIN, height + 2 * _MARGIN
    moved = svg.tag("g", *children, transform=f"translate({svg.number(_MARGIN)} {svg.number(_MARGIN)})")
    return svg.tag(
        "svg",
        svg.tag("title", about),
        svg.tag("style", _style()),
        svg.tag("rect", width=width, height=height, class_="ground"),
        moved,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {svg.number(width)} {svg.number(height)}",
        width=svg.number(width),
        height=svg.number(height),
        role="img",
    )


def _style() -> str:
    sheet = (importlib.resources.files(__package__) / "drawing.css").read_text(encoding="utf-8")
    light, dark = (dict(_COLOUR.findall(block)) for block in _COLOURS.findall(sheet))
    rules = sheet[sheet.index("text {") :].replace("\n\n", "\n")
    coloured = "\n".join(rule for rule in rules.splitlines() if _USE.search(rule))
    return f"{_with(light, rules)}@media (prefers-color-scheme: dark) {{\n{_with(dark, coloured)}\n}}"


def _with(colours: Mapping[str, str], rules: str) -> str:
    return _USE.sub(lambda use: colours[use[1]], rules)
