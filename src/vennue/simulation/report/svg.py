"""A small plotting layer: numbers in, SVG text out, with scales, ticks, legends and a frame to draw in.

Colours are CSS classes (``c0`` for the baseline's grey, ``c1``, ``c2``, … for the rest; ``q0``, … for classes of jobs),
so the page decides what they look like on a light and on a dark ground. Whatever is drawn tells its value when pointed
at. Coordinates are SVG units, which are CSS pixels at the page's full width.
"""

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence

WIDTH = 880.0
"""Of every figure."""

COLOURS = 8
"""Distinct colours besides the baseline's; further series have the same ones, dashed."""

CHARACTER = 6.6
"""About the width of a character of the labels."""

_UNITS_S = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86_400.0))


def tag(name: str, *children: str, **attributes: object) -> str:
    """An element. Underscores in names of attributes stand for hyphens, ``class_`` for ``class``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(children)}</{name}>" if children else f"<{name}{given}/>"


def label(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", turn: float | None = None) -> str:
    """A piece of text: ``anchor`` is start, middle or end; ``turn`` its rotation in degrees."""
    transform = None if turn is None else f"rotate({turn:g} {number(x)} {number(y)})"
    return tag(
        "text", html.escape(text), x=x, y=y, class_=kind or None, transform=transform,
        text_anchor=None if anchor == "start" else anchor,
    )  # fmt: skip


def told(text: str) -> str:
    """What an element says when it is pointed at: a child for it."""
    return tag("title", html.escape(text))


def line(x1: float, y1: float, x2: float, y2: float, kind: str, *children: str) -> str:
    """A straight line."""
    return tag("line", *children, x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def box(x: float, y: float, width: float, height: float, kind: str, *children: str) -> str:
    """A rectangle."""
    return tag("rect", *children, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=kind)


def dot(x: float, y: float, radius: float, kind: str, *children: str) -> str:
    """A filled circle."""
    return tag("circle", *children, cx=x, cy=y, r=radius, class_=kind)


def path(points: Iterable[tuple[float, float]], kind: str, *children: str) -> str:
    """A line through points."""
    return tag("path", *children, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), class_=kind)


def figure(height: float, about: str, *children: str) -> str:
    """The whole drawing; ``about`` says what it shows to those who cannot see it."""
    view = f"0 0 {number(WIDTH)} {number(height)}"
    return tag("svg", *children, viewBox=view, role="img", aria_label=about)


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def short(value: float) -> str:
    """A figure for people: three digits, with thousands set apart."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 999.5:
        return f"{value:,.0f}".replace(",", "\u2009")
    return f"{value:.3g}" if abs(value) >= 0.0095 or value == 0 else f"{value:.1g}"


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit in which times up to this long read best, and its seconds."""
    unit = _UNITS_S[0]
    for candidate in _UNITS_S:
        if longest_s >= 2.5 * candidate[1]:
            unit = candidate
    return unit


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Values to coordinates, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """About so many round values."""
        return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high, count)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten, about ``count`` of them, within the bounds."""
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [tick * step for tick in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the bounds; if there are fewer than three, 2 and 5 times them too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1,), (1, 2, 5)):
        found = [f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001]
        if len(found) >= 3:
            break
    return found


def rounded_up(high: float, count: int = 6) -> float:
    """The next tick at or above a maximum, for the end of an axis."""
    if high <= 0:
        return 1.0
    ticks = nice_ticks(0.0, high, count)
    step = ticks[1] if len(ticks) > 1 else high
    return math.ceil(high / step - 1e-9) * step


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A rectangle with two scales, and what is drawn in it."""

    x: Scale
    y: Scale

    def grid(self, x_title: str = "", y_title: str = "", *, x_count: int = 6, y_count: int = 4) -> str:
        """Lines and labels at the ticks of both scales."""
        return self.x_grid(x_title, x_count) + self.y_grid(y_title, y_count)

    def x_grid(self, title: str = "", count: int = 6, *, form: str = "{}") -> str:
        """Lines up from the ticks of the x axis, their labels, and its title."""
        bottom = max(self.y.start, self.y.end)
        top = min(self.y.start, self.y.end)
        parts = []
        for tick in self.x.ticks(count):
            at = self.x(tick)
            parts.append(line(at, top, at, bottom, "grid"))
            parts.append(label(at, bottom + 16, form.format(short(tick)), "tick", anchor="middle"))
        if title:
            parts.append(label((self.x.start + self.x.end) / 2, bottom + 34, title, "axis", anchor="middle"))
        return "".join(parts)

    def y_grid(self, title: str = "", count: int = 4, *, form: str = "{}") -> str:
        """Lines across from the ticks of the y axis, their labels, and its title above them."""
        parts = []
        for tick in self.y.ticks(count):
            at = self.y(tick)
            parts.append(line(self.x.start, at, self.x.end, at, "grid"))
            parts.append(label(self.x.start - 8, at + 4, form.format(short(tick)), "tick", anchor="end"))
        if title:
            parts.append(label(self.x.start, min(self.y.start, self.y.end) - 10, title, "axis"))
        return "".join(parts)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a pair of values lies."""
        return self.x(x), self.y(y)


def series(index: int) -> str:
    """The class of the line or mark of the series with this number; 0 is the baseline."""
    if index == 0:
        return "c0"
    colour = (index - 1) % COLOURS + 1
    return f"c{colour}" if index <= COLOURS else f"c{colour} dashed"


def legend(names: Sequence[tuple[str, str]], *, x: float = 0.0, y: float = 12.0) -> tuple[str, float]:
    """Keys for classes, as (class, name), in rows; also the y below them."""
    parts = []
    left = x
    for kind, name in names:
        width = 22 + CHARACTER * len(name) + 18
        if left + width > WIDTH and left > x:
            left, y = x, y + 20
        parts.append(box(left, y - 9, 12, 10, f"key {kind}") + label(left + 18, y, name))
        left += width
    return "".join(parts), y + 12


def clipped(text: str, width: float) -> str:
    """A text that fits a width, with an ellipsis where it would not."""
    most = max(int(width / CHARACTER), 2)
    return text if len(text) <= most else text[: most - 1] + "…"


def _attribute(value: object) -> str:
    return number(value) if isinstance(value, float) else html.escape(str(value))
