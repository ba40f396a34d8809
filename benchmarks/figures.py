"""Curves as SVG files of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vennue.simulation.report import svg
from vennue.simulation.report.picture import picture

GAP = 48.0
MARGIN = 16.0
HEIGHT = 170.0
ROW_HEIGHT = HEIGHT + 86.0


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
    drawing = picture(top + rows * ROW_HEIGHT, about, *parts)
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
