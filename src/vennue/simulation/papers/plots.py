"""The plots of the studies, each an SVG file that stands by itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vennue.simulation.report import svg
from vennue.simulation.report.picture import picture
from vennue.simulation.report.svg import Frame, Scale, label, legend, line, told
from vennue.simulation.tables import Estimate

_LEFT = 56.0


class Series(NamedTuple):
    """Points that belong together."""

    name: str
    kind: str
    """Its colour: a class of `svg.series`."""
    points: Sequence[tuple[float, Estimate]]


class Panel(NamedTuple):
    """One of the frames of a figure that stand side by side."""

    title: str
    series: Sequence[Series]
    published: Sequence[tuple[float, float]] = ()
    """What the paper prints, as diamonds."""


def lines(
    about: str,
    panels: Sequence[Panel],
    x_title: str,
    y_title: str,
    *,
    form: Callable[[float], str],
    log_x: bool = False,
) -> str:
    """Series of points over a common axis, with their confidence intervals; a panel beside the other."""
    keys, top = legend([(series.kind, series.name) for series in panels[0].series])
    if any(panel.published for panel in panels):
        keys += _published_key(svg.WIDTH - 110)
    gap = 56.0
    wide = (svg.WIDTH - _LEFT - 8 - gap * (len(panels) - 1)) / len(panels)
    tall = 250.0
    parts = [keys]
    for number, panel in enumerate(panels):
        begins, above = _LEFT + number * (wide + gap), top + 46
        xs = [x for series in panel.series for x, _ in series.points]
        highest = max([_top(e) for series in panel.series for _, e in series.points] + [y for _, y in panel.published])
        room = 0.06 * (max(xs) - min(xs)) or 0.5
        ends = (min(xs) / 1.4, max(xs) * 1.4) if log_x else (min(xs) - room, max(xs) + room)
        frame = Frame(
            Scale(*ends, begins, begins + wide, log=log_x), Scale(0.0, svg.rounded_up(highest, 4), above + tall, above)
        )
        parts.append(label(begins, above - 26, panel.title, "name"))
        parts.append(frame.y_grid(y_title))
        ticks = (label(frame.x(x), above + tall + 16, svg.short(x), "tick", anchor="middle") for x in sorted(set(xs)))
        parts += ticks
        parts.append(label(begins + wide / 2, above + tall + 34, x_title, "axis", anchor="middle"))
        for series in panel.series:
            parts.append(svg.path([frame.at(x, e.mean) for x, e in series.points], f"curve {series.kind}"))
            for x, estimate in series.points:
                parts.append(_whisker(frame, x, estimate, series.kind))
                what = told(f"{series.name}, {svg.short(x)}: {form(estimate.mean)}")
                parts.append(svg.dot(*frame.at(x, estimate.mean), 4.5, f"mark {series.kind}", what))
        parts += [_diamond(*frame.at(x, y), f"published: {form(y)}") for x, y in panel.published]
    return picture(top + 46 + tall + 44, about, *parts)


def ratios(
    about: str,
    groups: Mapping[str, Sequence[tuple[str, str, Estimate, float | None]]],
    x_title: str,
    keys: Sequence[tuple[str, str]],
) -> str:
    """Rows of ratios around 1 in named groups: (name, colour, estimate, published) each."""
    drawn, top = legend(keys)
    drawn += _published_key(svg.WIDTH - 110)
    row, gap, left, right = 17.0, 14.0, 130.0, svg.WIDTH - 90
    every = [row for rows in groups.values() for row in rows]
    low = min(0.9, *(max(estimate.low or estimate.mean, 0.1) for _, _, estimate, _ in every))
    high = max(max(_top(estimate), paper or 1.0) for _, _, estimate, paper in every)
    height = top + 10 + sum(row * len(rows) + gap for rows in groups.values())
    frame = Frame(Scale(low - 0.03, high + 0.05, left, right), Scale(0, 1, top + 4, height))
    parts = [drawn, frame.x_grid(x_title, 8), line(frame.x(1), top + 4, frame.x(1), height, "unity")]
    y = top + 4 + gap / 2
    for name, rows in groups.items():
        parts.append(label(0, y + row * len(rows) / 2 + 4, name, "name"))
        for policy, kind, estimate, paper in rows:
            middle = y + row / 2
            parts.append(_across(frame, middle, estimate, kind))
            what = told(f"{name}, {policy}: {estimate.mean:.2f}")
            parts.append(svg.dot(frame.x(estimate.mean), middle, 5, f"mark {kind}", what))
            parts.append(label(right + 12, middle + 4, f"{estimate.mean:.2f}", "value small"))
            if paper is not None:
                parts.append(_diamond(frame.x(paper), middle, f"published: {paper:.2f}"))
            y += row
        parts.append(line(0, y + gap / 2, right, y + gap / 2, "rule"))
        y += gap
    return picture(height + 44, about, *parts)


def _top(estimate: Estimate) -> float:
    return estimate.mean if estimate.high is None else estimate.high


def _whisker(frame: Frame, x: float, estimate: Estimate, kind: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    low = max(estimate.low, frame.y.low)
    return line(frame.x(x), frame.y(low), frame.x(x), frame.y(min(estimate.high, frame.y.high)), f"whisker {kind}")


def _across(frame: Frame, y: float, estimate: Estimate, kind: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = max(estimate.low, frame.x.low), min(estimate.high, frame.x.high)
    return line(frame.x(low), y, frame.x(high), y, f"whisker {kind}")


def _diamond(x: float, y: float, what: str) -> str:
    shape = f"M{svg.number(x)} {svg.number(y - 5.5)}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"
    return svg.tag("path", told(what), d=shape, class_="diamond")


def _published_key(x: float) -> str:
    return _diamond(x, 8, "published") + label(x + 12, 12, "as published")
