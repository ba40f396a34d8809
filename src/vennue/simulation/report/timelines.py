"""The plots over time: how busy the pool is, and a Gantt of every job's rounds. They show the first seed's runs."""

import html
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vennue.simulation.experiment import Results
from vennue.simulation.report import svg
from vennue.simulation.report.comparisons import PHASES, Figure, class_names
from vennue.simulation.report.svg import Frame, Scale, box, clipped, label, legend, line, series, short, told
from vennue.simulation.result import ABORTED, COMMITTED, RunResult
from vennue.simulation.tables import categories, starved
from vennue.simulation.traces.model import FloatArray

_POINTS = 240
_BINS = 180
_MOST_JOBS = 200
_LABEL = 212.0


def utilisation(results: Results) -> Figure | None:
    """Devices online, and the share of them that is at work, over time."""
    runs = _first_seed(results)
    longest = max(runs, key=lambda run: len(run.usage["start_s"]), default=None)
    if longest is None or len(longest.usage["start_s"]) < 2:
        return None
    bin_s = float(longest.usage["start_s"][1])
    step = -(-len(longest.usage["start_s"]) // _POINTS)
    end_s = bin_s * len(longest.usage["start_s"])
    unit, unit_s = svg.time_unit(end_s)
    labels = results.experiment.labels
    keys, top = legend([(series(labels.index(run.policy)), run.policy) for run in runs])
    x = Scale(0, end_s / unit_s, 56, svg.WIDTH - 10)
    online = _averages(longest.usage["online_s"], step) / bin_s
    pool = Frame(x, Scale(0, svg.rounded_up(float(online.max()), 2), top + 108, top + 26))
    shares = [_averages(run.usage["busy_s"], step) / np.maximum(_averages(run.usage["online_s"], step), 1e-9)
              for run in runs]  # fmt: skip
    most = svg.rounded_up(max(float(share.max()) for share in shares) * 100, 4)
    busy = Frame(x, Scale(0, min(most, 100.0), top + 368, top + 158))
    width = bin_s * step / unit_s
    parts = [keys, pool.y_grid("devices online", 2), svg.path(_steps(pool, online, width), "curve c0")]
    parts += [busy.y_grid("of these, at work (%)"), busy.x_grid(f"time ({unit})", 10)]
    for run, share in zip(runs, shares, strict=True):
        kind = series(labels.index(run.policy))
        mean = float(run.usage["busy_s"].sum() / max(run.usage["online_s"].sum(), 1e-9))
        points = _steps(busy, share * 100, width)
        parts.append(svg.path(points, f"curve thin {kind}", told(f"{run.policy}: {mean:.1%} on average")))
    hours = short(bin_s * step / 3600)
    return Figure(
        "The pool over time", svg.figure(top + 410, "Devices online and the share at work, over time", *parts),
        f"Seed {runs[0].seed}; averages over {hours} h. A line ends when the last job of its policy does. Not every "
        "device that is online can serve: many check in once, or meet no requirement that is asked for.",
    )  # fmt: skip


def gantt(results: Results) -> Figure | None:
    """Every job's rounds, a panel per policy to choose from."""
    runs = [run for run in _first_seed(results) if len(run.jobs["id"])]
    end_s = max((run.end_s for run in runs), default=0.0)
    if end_s <= 0:
        return None
    inputs, panels = [], []
    for index, run in enumerate(runs):
        checked = " checked" if index == 0 else ""
        inputs.append(
            f'<label><input type="radio" name="gantt" id="gantt-{index}"{checked}><span>{html.escape(run.policy)}'
            "</span></label>"
        )
        panels.append(f'<div class="panel" id="panel-{index}">{_panel(run, end_s, class_names(results))}</div>')
    shown = "".join(
        f".tabs:has(#gantt-{index}:checked) ~ .panels #panel-{index}{{display:block}}" for index in range(len(runs))
    )
    drawing = (
        f'<style>{shown}</style><div class="tabs" role="radiogroup" aria-label="policy">{"".join(inputs)}</div>'
        f'<div class="panels">{"".join(panels)}</div>'
    )
    jobs = len(runs[0].jobs["id"])
    caption = (
        f"Seed {runs[0].seed}. A row per job, from its arrival to its end, labelled with its class and its devices × "
        f"rounds. A colour's height is the share of time spent so, in steps of {short(end_s / _BINS / 60)} min; "
        "in vain is the time of attempts that aborted."
    )
    if jobs > _MOST_JOBS:
        caption += f" The first {_MOST_JOBS} of {jobs} jobs."
    return Figure("Every job's rounds", drawing, caption)


def _panel(run: RunResult, end_s: float, classes: Sequence[str]) -> str:
    jobs = min(len(run.jobs["id"]), _MOST_JOBS)
    unit, unit_s = svg.time_unit(end_s)
    keys, top = legend(PHASES)
    row = 15.0 if jobs <= 60 else max(4.0, 900.0 / jobs)
    height = top + 6 + row * jobs
    frame = Frame(Scale(0, end_s / unit_s, _LABEL, svg.WIDTH - 10), Scale(0, jobs, top + 4, height))
    parts = [keys, frame.x_grid(f"time ({unit})", 10)]
    names = categories(run)
    order = np.lexsort((run.attempts["closed_s"], run.attempts["job"]))
    first = np.searchsorted(run.attempts["job"][order], np.arange(jobs + 1))
    edges_s = np.linspace(0, end_s, _BINS + 1)
    for job in range(jobs):
        y, tall = frame.y(job), row * 0.78
        arrival_s = float(run.jobs["arrival_s"][job])
        ended_s = float(run.jobs["ended_s"][job])
        left = np.isnan(ended_s)
        leaves_s = run.end_s if left else ended_s
        if arrival_s >= leaves_s:
            continue
        what = (
            f"{run.jobs['name'][job]} ({names[job]}): {run.jobs['demand'][job]} devices × {run.jobs['rounds'][job]} "
            f"rounds, {short((leaves_s - arrival_s) / unit_s)} {unit}{', unfinished' if left else ''}"
        )
        if row >= 8:
            colour = classes.index(str(names[job])) % svg.COLOURS + 1
            parts.append(box(2, y + tall / 2 - 3, 6, 6, f"key q{colour}"))
            parts.append(label(14, y + tall / 2 + 4, clipped(str(names[job]), 118), "tick left"))
            size = f"{run.jobs['demand'][job]} × {run.jobs['rounds'][job]}"
            parts.append(label(_LABEL - 8, y + tall / 2 + 4, size, "tick", anchor="end"))
        x1, x2 = frame.x(arrival_s / unit_s), frame.x(leaves_s / unit_s)
        parts.append(box(x1, y, max(x2 - x1, 1), tall, "wait", told(what)))
        mine = order[first[job] : first[job + 1]]
        spent = _spent_s(run, mine, edges_s)
        below = np.cumsum([seconds / edges_s[1] for seconds in spent.values()], axis=0)
        for kind, shares in reversed(list(zip(spent, below, strict=True))):  # the lowest is painted over the others
            parts.append(_area(frame, y + tall, tall, shares, kind, unit_s, edges_s))
        if left:
            parts.append(line(x2 + 2, y, x2 + 2, y + tall, "open"))
    return svg.figure(height + 40, f"Rounds of the jobs under {run.policy}", *parts)


def _spent_s(run: RunResult, rows: npt.NDArray[np.int64], edges_s: FloatArray) -> dict[str, FloatArray]:
    """Seconds of a job's attempts within each bin by phase; what is left of its time is an attempt that is open yet."""
    attempts = {name: column[rows] for name, column in run.attempts.items()}
    opened_s, closed_s = attempts["opened_s"], attempts["closed_s"]
    committed, aborted = (attempts["outcome"] == outcome for outcome in (COMMITTED, ABORTED))
    in_vain = starved(run)[rows]
    full_s = np.clip(opened_s + np.nan_to_num(attempts["scheduling_delay_s"]), opened_s, closed_s)
    return {
        "collect": _within(full_s[committed], closed_s[committed], edges_s),
        "wait": _within(opened_s[committed], full_s[committed], edges_s),
        "retry": _within(opened_s[aborted & ~in_vain], closed_s[aborted & ~in_vain], edges_s),
        "starve": _within(opened_s[in_vain], closed_s[in_vain], edges_s),
    }


def _within(begin_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """How much of each bin disjoint intervals, in order, cover."""
    if not len(begin_s):
        return np.zeros(len(edges_s) - 1)
    corners_s = np.column_stack((begin_s, end_s)).ravel()
    covered_s = np.concatenate(([0.0], np.cumsum(np.diff(corners_s) * (np.arange(len(corners_s) - 1) % 2 == 0))))
    parts: FloatArray = np.diff(np.interp(edges_s, corners_s, covered_s))
    return parts


def _area(
    frame: Frame, base: float, tall: float, shares: FloatArray, kind: str, unit_s: float, edges_s: FloatArray
) -> str:
    """Shares by bin as steps up from a base; equal neighbours are one step."""
    levels = np.round(np.clip(shares, 0, 1) * tall * 2) / 2
    if not levels.any():
        return ""
    changes = [0, *(np.flatnonzero(np.diff(levels)) + 1).tolist(), len(levels)]
    parts = []
    for begin, end in itertools.pairwise(changes):
        if levels[begin]:
            x1, x2 = (svg.number(frame.x(edges_s[edge] / unit_s)) for edge in (begin, end))
            parts.append(f"M{x1} {svg.number(base)}V{svg.number(base - levels[begin])}H{x2}V{svg.number(base)}")
    return svg.tag("path", d="".join(parts), class_=kind)


def _first_seed(results: Results) -> list[RunResult]:
    """The runs of the first seed that any policy has, by policy."""
    seeds = [run.seed for run in results.runs]
    seed = next((seed for seed in results.experiment.seeds if seed in seeds), None)
    return [run for run in results.runs if run.seed == seed]


def _averages(values: FloatArray, step: int) -> FloatArray:
    starts = np.arange(0, len(values), step)
    counts = np.diff(np.append(starts, len(values)))
    means: FloatArray = np.add.reduceat(values, starts) / counts
    return means


def _steps(frame: Frame, values: FloatArray, width: float) -> list[tuple[float, float]]:
    """A line through the middles of bins, the last of which may be cut off by the end of the axis."""
    return [frame.at(min((index + 0.5) * width, frame.x.high), float(value)) for index, value in enumerate(values)]
