"""Curves as SVG files of their own, for pages that are read on a light and on a dark ground."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from vennue.simulation.report import svg

GAP = 48.0
MARGIN = 16.0
HEIGHT = 170.0
ROW_HEIGHT = HEIGHT + 86.0
_NEEDED = re.compile(r":root|@media \(prefers|text|line\.|rect,|\.c\d|\.key|\.curve")


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a panel.

    Args:
        name: what the legend calls it.
        kind: its CSS class, as of `svg.series`.
        points: x and y.
    """

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A rectangle with axes.

    Args:
        title: above it.
        x: what the x axis shows, with its unit.
        curves: what to draw.
        target: a value of y to be reached, drawn across.
    """

    title: str
    x: str
    curves: Sequence[Curve]
    target: float | None = None


def write(path: Path, about: str, panels: Sequence[Panel], *, columns: int) -> None:
    """Draw panels side by side, under one legend of all their curves, to a file.

    Args:
        path: the file, whose folder is made.
        about: what the figure shows, for those who cannot see it.
        panels: at least one.
        columns: how many stand in a row.
    """
    keys = {curve.name: curve.kind for panel in panels for curve in panel.curves}
    legend, top = svg.legend([(kind, name) for name, kind in keys.items()])
    width = (svg.WIDTH - (GAP + MARGIN) * columns) / columns
    parts = [legend]
    for at, panel in enumerate(panels):
        row, column = divmod(at, columns)
        left = GAP + column * (width + GAP + MARGIN)
        parts.append(_panel(panel, left, top + 34 + row * ROW_HEIGHT, width))
    rows = -(-len(panels) // columns)
    drawing = svg.figure(top + rows * ROW_HEIGHT, about, *parts)
    style = (resources.files("vennue.simulation.report") / "style.css").read_text(encoding="utf-8")
    size = f'width="{svg.WIDTH:g}" height="{top + rows * ROW_HEIGHT:g}"'
    drawing = drawing.replace("<svg", f'<svg xmlns="http://www.w3.org/2000/svg" {size}', 1)
    drawing = drawing.replace(">", f"><style>{_used(style)}</style>", 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawing + "\n", encoding="utf-8")


def _panel(panel: Panel, left: float, top: float, width: float) -> str:
    values = [y for curve in panel.curves for _, y in curve.points]
    if panel.target is not None:
        values.append(panel.target)
    low, high = min(values), max(values)
    margin = 0.05 * (high - low or 1.0)
    farthest = max(x for curve in panel.curves for x, _ in curve.points)
    frame = svg.Frame(
        svg.Scale(0.0, farthest, left, left + width), svg.Scale(low - margin, high + margin, top + HEIGHT, top)
    )
    parts = [frame.grid(panel.x, panel.title, x_count=5, y_count=5)]
    if panel.target is not None:
        y = frame.y(panel.target)
        parts.append(svg.line(left, y, left + width, y, "unity", svg.told(f"target: {svg.short(panel.target)}")))
    for curve in panel.curves:
        kind = f"{curve.kind} curve"
        parts.append(svg.path((frame.at(*point) for point in curve.points), kind, svg.told(curve.name)))
    return "".join(parts)


def _used(style: str) -> str:
    """The rules of the report's style that its drawings need: colours, texts, lines."""
    kept = [rule for rule in _rules(style) if _NEEDED.match(rule)]
    # A picture has no page around it: on a dark one it brings a ground of its own.
    return "".join(kept) + "svg{background:var(--page)}"


def _rules(style: str) -> Iterator[str]:
    """The style's outermost rules, in order."""
    depth, start = 0, 0
    for at, character in enumerate(style):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "}" and depth == 0:
            yield style[start : at + 1].strip()
            start = at + 1
