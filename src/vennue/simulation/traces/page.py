"""A trace's summary as one HTML page that needs nothing else: no script, no font, no network."""

import html
from collections.abc import Iterable, Sequence

from vennue.core.job import DAY_S
from vennue.simulation.traces.summary import TraceSummary

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6b7280; --bar: #3b6fb6; --line: #d5d9e0; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa3af; --bar: #7aa7e0; --line: #3a4049; --page: #14171b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 46rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--line); }
td { font-variant-numeric: tabular-nums; text-align: right; } td:first-child { text-align: left; }
svg { width: 100%; height: auto; } rect { fill: var(--bar); } text { fill: var(--soft); font-size: 11px; }
"""


def render(summary: TraceSummary) -> str:
    """The page's HTML."""
    title = html.escape(f"Trace {summary.name}")
    facts = [
        ("devices", f"{summary.devices:,}"),
        ("sessions", f"{summary.sessions:,}"),
        ("period", f"{summary.period_s / DAY_S:g} days"),
        ("check-ins per second", f"{summary.check_ins_per_s:.4g}"),
        ("sessions per device and day", f"{summary.sessions_per_device_day:.3g}"),
        ("devices available, on average", f"{summary.available:.1%}"),
        ("mean session", f"{summary.mean_length_s:,.0f} s"),
    ]
    quantiles = [
        (
            f"{percent} %",
            f"{summary.length_s[percent]:,.0f}",
            f"{summary.device_available[percent]:.1%}",
            f"{summary.task_s[percent]:,.0f}",
        )
        for percent in summary.length_s
    ]
    regions = [
        (", ".join(region.classes) or "none", f"{region.share:.1%}", f"{region.check_ins_per_s:.4g}")
        for region in summary.regions
    ]
    hours = [f"{hour.clock_h:02}" for hour in summary.hours]
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
            f"<h1>{title}</h1>",
            _table((), facts),
            "<h2>Devices available by local hour</h2>",
            _bars(hours, [hour.available for hour in summary.hours], "{:.1%}"),
            "<h2>Check-ins per second by local hour</h2>",
            _bars(hours, [hour.check_ins_per_s for hour in summary.hours], "{:.3g}"),
            "<h2>Quantiles</h2>",
            _table(("", "session length, s", "time that a device is there", "task of 30 s, s"), quantiles),
            "<h2>Regions</h2>",
            _table(("devices that meet exactly", "share of check-ins", "check-ins per second"), regions),
            "</html>\n",
        ]
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>" if header else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _bars(labels: Sequence[str], values: Sequence[float], form: str) -> str:
    """A bar chart as inline SVG; each bar tells its value when pointed at."""
    top = max(values, default=0) or 1
    parts = [f'<text x="0" y="10">{form.format(top)}</text>']
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        height = 130 * value / top
        parts.append(
            f'<rect x="{index * 25 + 2}" y="{145 - height:.1f}" width="20" height="{height:.1f}">'
            f"<title>{label}:00 {form.format(value)}</title></rect>"
            f'<text x="{index * 25 + 12}" y="160" text-anchor="middle">{label}</text>'
        )
    return f'<svg viewBox="0 0 {len(labels) * 25} 165" role="img">{"".join(parts)}</svg>'
