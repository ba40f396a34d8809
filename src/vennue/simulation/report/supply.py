"""The plot of supply and demand: the Venn diagram of the devices' regions, and what jobs ask for beside it."""

from collections.abc import Sequence

from vennue.simulation.experiment import Results
from vennue.simulation.report import svg
from vennue.simulation.report.comparisons import Figure
from vennue.simulation.report.euler import Layout, lay_out
from vennue.simulation.report.svg import Frame, Scale, box, clipped, dot, label, short, told
from vennue.simulation.result import RunResult

_DIAGRAM = 360.0
_LEFT = 410.0
_ROW = 62.0
_MOST_ROWS = 24
_GOOD_ENOUGH = 0.15
"""Where circles misplace more of the area than this, regions are listed instead of drawn."""


def supply_and_demand(results: Results) -> Figure | None:
    """Regions with their check-ins, requirements with their supply and demand. Of the first run that is there."""
    if not results.runs:
        return None
    run = max(results.runs, key=lambda run: run.end_s)
    check_ins = run.regions["check_ins"].astype(float)
    if run.end_s <= 0 or not check_ins.sum():
        return None
    rates_per_s = {
        int(signature): float(count) / run.end_s
        for signature, count in zip(run.regions["signature"], check_ins, strict=True)
        if count
    }
    names = _names(run)
    layout = lay_out({region: rate for region, rate in rates_per_s.items() if region}, len(names))
    drawn = layout is not None and layout.error <= _GOOD_ENOUGH
    parts = []
    if layout is not None and drawn:
        parts.append(_diagram(layout, rates_per_s, names))
    demand, height = _demand(run, rates_per_s, names, layout if drawn else None, _LEFT if drawn else 0.0)
    parts.append(demand)
    outside = rates_per_s.get(0, 0.0) / sum(rates_per_s.values())
    caption = f"Check-ins of {run.policy}, seed {run.seed}: {short(sum(rates_per_s.values()))} per second in all. "
    if layout is not None and drawn:
        caption += (
            "Areas and the numbers in them are check-ins per second, the areas to within "
            f"{max(layout.error, 0.001):.1%} of the whole."
        )
        caption += f" {outside:.1%} of the check-ins meet no requirement, and lie outside." if outside else ""
    else:
        parts.append(_listed(rates_per_s, names, height + 20))
        height += 20 + 20 * (min(len(rates_per_s), _MOST_ROWS) + 1)
        caption += "Regions are the devices that meet exactly the requirements named."
    caption += (
        " Demand is the device-rounds of all jobs that ask for it; its bar says how long they would take if every "
        "check-in that meets the requirement went to them alone."
    )
    return Figure(
        "Supply and demand", svg.figure(max(height, _DIAGRAM + 10 if drawn else 0), _about(rates_per_s, names), *parts),
        caption,
    )  # fmt: skip


def _names(run: RunResult) -> list[str]:
    """What to call each requirement: its class in the workload, or its text."""
    names = []
    for text in run.requirements:
        asked = run.jobs["requirement"] == text
        categories = [name for name in dict.fromkeys(run.jobs["category"][asked].tolist()) if name]
        names.append(categories[0] if categories else text)
    return names


def _diagram(layout: Layout, rates_per_s: dict[int, float], names: Sequence[str]) -> str:
    low_x = min(circle.x - circle.radius for circle in layout.circles)
    high_x = max(circle.x + circle.radius for circle in layout.circles)
    low_y = min(circle.y - circle.radius for circle in layout.circles)
    high_y = max(circle.y + circle.radius for circle in layout.circles)
    unit = (_DIAGRAM - 8) / max(high_x - low_x, high_y - low_y)

    def at(x: float, y: float) -> tuple[float, float]:
        return 4 + (x - low_x) * unit, 5 + (y - low_y) * unit

    parts = []
    for circle in layout.circles:
        what = ", ".join(names[bit] for bit in circle.sets)
        kind = f"set q{circle.sets[0] % svg.COLOURS + 1}"
        parts.append(dot(*at(circle.x, circle.y), circle.radius * unit, kind, told(what)))
    for region, centre in layout.centres.items():
        x, y = at(*centre)
        meets = ", ".join(name for bit, name in enumerate(names) if region >> bit & 1)
        what = told(f"only {meets}: {rates_per_s[region]:.3g} check-ins per second")
        parts.append(svg.tag("g", what, label(x, y + 4, f"{rates_per_s[region]:.2g}", "region", anchor="middle")))
    return "".join(parts)


def _demand(
    run: RunResult, rates_per_s: dict[int, float], names: Sequence[str], layout: Layout | None, left: float
) -> tuple[str, float]:
    """A row per requirement: its colour, supply and demand; also the height."""
    supply_per_s = [sum(rate for region, rate in rates_per_s.items() if region >> bit & 1) for bit in range(len(names))]
    rounds = run.jobs["rounds"] * run.jobs["demand"]
    asked = [float(rounds[run.jobs["requirement"] == text].sum()) for text in run.requirements]
    alone_s = [want / rate if rate else 0.0 for want, rate in zip(asked, supply_per_s, strict=True)]
    unit, unit_s = svg.time_unit(max(alone_s))
    shown = min(len(names), _MOST_ROWS)
    frame = Frame(
        Scale(0, svg.rounded_up(max(alone_s) / unit_s, 4), left, svg.WIDTH - 16),
        Scale(0, shown, 26, 26 + _ROW * shown),
    )
    parts = [label(left, 12, f"demand ÷ supply ({unit})", "axis"), frame.x_grid("", 4)]
    for bit in range(shown):
        y = frame.y(bit)
        parts.append(box(left, y + 4, 11, 11, f"key q{bit % svg.COLOURS + 1}"))
        name = names[bit]
        if layout is not None and bit in layout.derived:
            name += " = " + " ∩ ".join(names[parent] for parent in layout.derived[bit])
        parts.append(label(left + 18, y + 14, clipped(name, svg.WIDTH - left - 18), "name"))
        jobs = int((run.jobs["requirement"] == run.requirements[bit]).sum())
        figures = f"{short(asked[bit])} device-rounds of {jobs} jobs ÷ {short(supply_per_s[bit])} check-ins/s"
        parts.append(label(left, y + 51, figures, "tick left"))
        wide = frame.x(alone_s[bit] / unit_s) - left
        what = told(f"{names[bit]}: {short(alone_s[bit] / unit_s)} {unit} alone")
        parts.append(box(left, y + 22, wide, 14, f"bar q{bit % svg.COLOURS + 1}", what))
    return "".join(parts), 26 + _ROW * shown + 30


def _listed(rates_per_s: dict[int, float], names: Sequence[str], top: float) -> str:
    """Regions by size, when circles cannot show them."""
    largest = sorted(rates_per_s.items(), key=lambda item: -item[1])[:_MOST_ROWS]
    most = largest[0][1]
    parts = [label(0, top, "check-ins per second by region", "axis")]
    for row, (region, rate) in enumerate(largest):
        y = top + 12 + 20 * row
        meets = " ∩ ".join(name for bit, name in enumerate(names) if region >> bit & 1) or "none of them"
        parts.append(label(_LEFT - 60, y + 11, clipped(meets, _LEFT - 70), "tick", anchor="end"))
        parts.append(box(_LEFT - 50, y, (svg.WIDTH - _LEFT - 20) * rate / most, 14, "bar c0"))
        parts.append(label(_LEFT - 44 + (svg.WIDTH - _LEFT - 20) * rate / most, y + 11, short(rate), "tick left"))
    return "".join(parts)


def _about(rates_per_s: dict[int, float], names: Sequence[str]) -> str:
    total = sum(rates_per_s.values())
    found = []
    for region, rate in sorted(rates_per_s.items(), key=lambda item: -item[1])[:8]:
        meets = " and ".join(name for bit, name in enumerate(names) if region >> bit & 1) or "nothing"
        found.append(f"{rate / total:.0%} of check-ins meet only {meets}")
    return "Supply by region: " + "; ".join(found)
