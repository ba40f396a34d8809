"""The plots that compare policies: speedups with their intervals, completion times, delay against collection, waste.

Each is a function from an experiment's results to a `Figure`, or to None where there is nothing to show.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from vennue.simulation.experiment import Results
from vennue.simulation.report import svg
from vennue.simulation.report.svg import Frame, Scale, clipped, label, legend, line, series, short, told
from vennue.simulation.result import FATES
from vennue.simulation.tables import Estimate, Summary, categories, jct_s, speedup, unfinished

RIGHT = svg.WIDTH - 150
_ROW = 30.0
_MOST_POINTS = 400
_DOTS = 600


PHASES = (
    ("wait", "waiting for devices"), ("starve", "waiting in vain"), ("collect", "collecting reports"),
    ("retry", "collecting in vain"),
)  # fmt: skip
"""What a job's time is spent on: the class of each, and its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its heading and what to know about it (plain text)."""

    title: str
    drawing: str
    caption: str


def speedups(results: Results, summaries: Sequence[Summary]) -> Figure | None:
    """How much sooner jobs end than under the first policy, by policy, with intervals."""
    rows = [(index, summary.policy, summary.speedup) for index, summary in _indexed(results, summaries)]
    found = [(index, policy, estimate) for index, policy, estimate in rows if estimate is not None]
    if len(found) < 2:
        return None
    base = results.experiment.labels[0]
    height = 30 + _ROW * len(found)
    left = beside(policy for _, policy, _ in found)
    frame = Frame(_ratio_scale([estimate for _, _, estimate in found], left), Scale(0, len(found), 20, height - 10))
    parts = [frame.x_grid(f"speedup of the average JCT over {base} (×)"), _unity(frame)]
    for row, (index, policy, estimate) in enumerate(found):
        y = frame.y(row + 0.5)
        parts.append(label(0, y + 4, clipped(policy, left - 12), "name"))
        parts.append(_interval(frame, y, index, policy, estimate, seeds=True))
        parts.append(label(RIGHT + 16, y + 4, said(estimate) if index else "1 (reference)", "value"))
    seeds = len(results.experiment.seeds)
    intervals = (
        f"Large dots are means over {seeds} seeds, small ones single seeds; bars are 95 % confidence intervals of the "
        f"mean (Student's t). Each policy is compared with {base} under the same seed: same jobs, devices and chance."
        if seeds > 1
        else f"A single seed, so there are no intervals. {base} met the same jobs, devices and chance."
    )
    return Figure("How much sooner jobs end", svg.figure(height + 40, "Speedups by policy", *parts), intervals)


def by_class(results: Results, summaries: Sequence[Summary]) -> Figure | None:
    """The speedups of each class of jobs by itself."""
    base = results.of(results.experiment.labels[0])
    names = class_names(results)
    compared = [(index, summary) for index, summary in _indexed(results, summaries) if index]
    if len(names) < 2 or not compared or not base:
        return None
    groups = [[(index, s.policy, speedup(base, results.of(s.policy), name)) for index, s in compared] for name in names]
    row, gap = 17.0, 12.0
    estimates = [estimate for group in groups for _, _, estimate in group if estimate is not None]
    if not estimates:
        return None
    keys, top = legend([(series(index), summary.policy) for index, summary in compared])
    height = top + 6 + len(names) * (row * len(compared) + gap)
    left = beside(names)
    frame = Frame(_ratio_scale(estimates, left), Scale(0, 1, top + 4, height))
    parts = [keys, frame.x_grid(f"speedup of the class's average JCT over {results.experiment.labels[0]} (×)")]
    parts.append(_unity(frame))
    for number, (name, group) in enumerate(zip(names, groups, strict=True)):
        begins = top + 4 + gap / 2 + number * (row * len(compared) + gap)
        middle = begins + row * len(compared) / 2
        if number:
            parts.append(line(0, begins - gap / 2, RIGHT, begins - gap / 2, "rule"))
        parts.append(label(0, middle + 4, clipped(name, left - 12), "name"))
        for place, (index, policy, estimate) in enumerate(group):
            if estimate is not None:
                y = begins + row * (place + 0.5)
                parts.append(_interval(frame, y, index, f"{name}, {policy}", estimate, seeds=False))
                parts.append(label(RIGHT + 16, y + 4, said(estimate), "value small"))
    return Figure(
        "By class of jobs", svg.figure(height + 44, "Speedups by class of jobs and policy", *parts),
        "As above, over the jobs of one requirement class. A policy may win on average and still make a class wait.",
    )  # fmt: skip


def completion_times(results: Results, summaries: Sequence[Summary]) -> Figure:
    """The distribution of completion times by policy."""
    times_s = {s.policy: np.sort(np.concatenate([jct_s(run) for run in results.of(s.policy)])) for s in summaries}
    unit, unit_s = svg.time_unit(max(float(column[-1]) for column in times_s.values()))
    keys, top = legend([(series(index), summary.policy) for index, summary in _indexed(results, summaries)])
    most = svg.rounded_up(max(float(column[-1]) for column in times_s.values()) / unit_s)
    frame = Frame(Scale(0, most, 46, svg.WIDTH - 16), Scale(0, 100, top + 300, top + 24))
    parts = [keys, frame.grid(f"job completion time ({unit})", "jobs completed (%)")]
    for index, summary in _indexed(results, summaries):
        column = times_s[summary.policy]
        open_ends = np.sort(
            np.concatenate([jct_s(run)[unfinished(run)] for run in results.of(summary.policy)])
        )  # these never end within the run, so the curve stays below 100 %
        ended = np.setdiff1d(column, open_ends) if len(open_ends) else column
        count = min(len(ended), _MOST_POINTS)
        kept = np.unique(np.linspace(0, max(len(ended) - 1, 0), count).astype(np.int64))
        points = [(0.0, 0.0)]
        for place in kept:
            at = float(ended[place]) / unit_s
            points += [(at, points[-1][1]), (at, 100.0 * (place + 1) / len(column))]
        mean = summary.jct_mean_s / unit_s
        parts.append(svg.path([frame.at(*point) for point in points], f"curve {series(index)}", told(summary.policy)))
        x = frame.x(mean)
        what = told(f"{summary.policy}: average {'≥ ' if summary.lower_bound else ''}{short(mean)} {unit}")
        parts.append(svg.tag("path", what, d=f"M{svg.number(x)} {svg.number(frame.y(0))}l-5 9h10z",
                             class_=f"mark {series(index)}"))  # fmt: skip
    caption = "All jobs of all seeds. Triangles below the axis mark the averages."
    if any(summary.lower_bound for summary in summaries):
        caption += " Curves that stay below 100 % belong to policies with unfinished jobs."
    return Figure(
        "Job completion times", svg.figure(top + 348, "Distribution of job completion times", *parts), caption
    )


def breakdown(summaries: Sequence[Summary]) -> Figure | None:
    """What a round's time is spent on, by policy."""
    rows = [(s, (s.scheduling_delay_s, s.starved_s, s.collection_s, s.retried_s)) for s in summaries]
    longest_s = max(sum(times_s) for _, times_s in rows)
    if longest_s <= 0:
        return None
    unit, unit_s = svg.time_unit(longest_s)
    keys, top = legend(PHASES)
    left = beside(summary.policy for summary in summaries)
    height = top + _ROW * len(rows) + 6
    frame = Frame(Scale(0, svg.rounded_up(longest_s / unit_s), left, RIGHT), Scale(0, len(rows), top + 4, height))
    parts = [keys, frame.x_grid(f"time per committed round ({unit})")]
    for row, (summary, times_s) in enumerate(rows):
        y = frame.y(row) + 6
        parts.append(label(0, y + 13, clipped(summary.policy, left - 12), "name"))
        ends = list(itertools.accumulate((seconds / unit_s for seconds in times_s), initial=0.0))
        for (kind, name), (begin, end) in zip(PHASES, itertools.pairwise(ends), strict=True):
            what = told(f"{summary.policy}: {name} {short(end - begin)} {unit}")
            parts.append(svg.box(frame.x(begin), y, frame.x(end) - frame.x(begin), _ROW - 12, kind, what))
        mark = "≥ " if summary.lower_bound else ""
        parts.append(label(frame.x(ends[-1]) + 8, y + 13, f"{mark}{short(ends[-1])} {unit}", "value"))
    return Figure(
        "Where a round's time goes", svg.figure(height + 40, "Time per round by phase and policy", *parts),
        "Averages over the committed rounds of synchronous jobs. An attempt that aborts is tried again; all its "
        "time was in vain, for want of devices if it had not got them all by its deadline, else for want of reports.",
    )  # fmt: skip


def delay_against_collection(results: Results, summaries: Sequence[Summary]) -> Figure | None:
    """Each job's scheduling delay against its collection time, a panel per policy."""
    panels = []
    for index, summary in _indexed(results, summaries):
        points = []
        for run in results.of(summary.policy):
            jobs = run.jobs
            rounds = np.maximum(jobs["committed"], 1)
            delay_s, collection_s = jobs["scheduling_delay_s"] / rounds, jobs["collection_s"] / rounds
            names = zip(jobs["name"], categories(run), delay_s, collection_s, jobs["mode"], strict=True)
            points += [entry[:4] for entry in names if entry[2] > 0 and entry[3] > 0 and entry[4] == "sync"]
        panels.append((index, summary.policy, points[:: max(1, len(points) // _DOTS)]))
    every = [point for _, _, points in panels for point in points]
    if not every:
        return None
    columns = min(len(panels), 4)
    gap, left, top = 24.0, 52.0, 26.0
    side = (svg.WIDTH - left - gap * (columns - 1) - 8) / max(columns, 3)
    x_low, x_high = _decades([point[2] for point in every])
    y_low, y_high = _decades([point[3] for point in every])
    tall = side * 0.9
    parts = []
    for number, (index, policy, points) in enumerate(panels):
        begins = left + (number % columns) * (side + gap)
        above = top + (number // columns) * (tall + 74)
        last_row = number + columns >= len(panels)
        frame = Frame(
            Scale(x_low, x_high, begins, begins + side, log=True), Scale(y_low, y_high, above + tall, above, log=True)
        )
        parts.append(label(begins, above - 9, clipped(policy, side), "name"))
        parts.append(frame.x_grid("scheduling delay (s)" if last_row else ""))
        parts.append(frame.y_grid() if number % columns == 0 else _lines_across(frame))
        low, high = max(x_low, y_low), min(x_high, y_high)
        if low < high:
            parts.append(line(*frame.at(low, low), *frame.at(high, high), "unity"))
        for name, category, delay_s, collection_s in points:
            what = told(f"{name} ({category}): delay {short(delay_s)} s, collection {short(collection_s)} s")
            parts.append(svg.dot(*frame.at(delay_s, collection_s), 3, f"cloud {series(index)}", what))
    rows = -(-len(panels) // columns)
    height = top + rows * (tall + 74) - 30
    parts.append(label(12, top + tall / 2, "collection time (s)", "axis", anchor="middle", turn=-90))
    return Figure(
        "Delay against collection", svg.figure(height, "Scheduling delay against collection time", *parts),
        "A dot per job: averages over its committed rounds. Right of the broken line, rounds wait longer for devices "
        "than for reports; that part is the scheduler's.",
    )  # fmt: skip


def waste(summaries: Sequence[Summary]) -> Figure:
    """What became of the devices that were bound, by policy."""
    names = dict(zip(FATES, ("in a commit", "report of an aborted attempt", "too late", "session ended"), strict=True))
    keys, top = legend([(f"fate-{fate}", name) for fate, name in names.items()])
    height = top + _ROW * len(summaries) + 6
    left = beside(summary.policy for summary in summaries)
    frame = Frame(Scale(0, 100, left, RIGHT), Scale(0, len(summaries), top + 4, height))
    parts = [keys, frame.x_grid("device-rounds (%)")]
    for row, summary in enumerate(summaries):
        y = frame.y(row) + 6
        parts.append(label(0, y + 13, clipped(summary.policy, left - 12), "name"))
        shares = (summary.used, summary.aborted, summary.straggling, summary.lost)
        ends = list(itertools.accumulate((100 * share for share in shares), initial=0.0))
        for (fate, name), (begin, end) in zip(names.items(), itertools.pairwise(ends), strict=True):
            what = told(f"{summary.policy}: {name} {end - begin:.1f} %")
            parts.append(svg.box(frame.x(begin), y, frame.x(end) - frame.x(begin), _ROW - 12, f"fate-{fate}", what))
        parts.append(label(RIGHT + 16, y + 13, f"{100 - ends[1]:.1f} % wasted", "value"))
    return Figure(
        "What became of device-rounds", svg.figure(height + 40, "Fate of device-rounds by policy", *parts),
        "Every device that was bound counts once. Devices that were still at work when the run ended are left out.",
    )  # fmt: skip


def beside(names: Iterable[str]) -> float:
    """Where a plot begins that has these names at its left."""
    return min(max(svg.CHARACTER * max(map(len, names)) * 1.1 + 24, 90.0), 260.0)


def class_names(results: Results) -> list[str]:
    """What jobs are grouped by: the workload's classes in its order, then requirements without a class."""
    found = {str(name) for run in results.runs for name in categories(run)}
    return [name for name in results.experiment.workload.classes if name in found] + sorted(
        found - results.experiment.workload.classes.keys()
    )


def said(estimate: Estimate) -> str:
    """An estimate as text, with its interval."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} ({estimate.low:.2f}–{estimate.high:.2f})"


def _indexed(results: Results, summaries: Sequence[Summary]) -> list[tuple[int, Summary]]:
    """Summaries with the number of their policy in the experiment, which decides its colour."""
    labels = results.experiment.labels
    return [(labels.index(summary.policy), summary) for summary in summaries]


def _ratio_scale(estimates: Sequence[Estimate], left: float) -> Scale:
    values = [1.0]
    for estimate in estimates:
        values += [estimate.mean, *estimate.each]
        # An interval over two or three seeds may be wider than anything else; it runs out of the frame then.
        bound = 0.6 * abs(estimate.mean)
        values += [max(estimate.low, estimate.mean - bound)] if estimate.low is not None else []
        values += [min(estimate.high, estimate.mean + bound)] if estimate.high is not None else []
    room = 0.06 * (max(values) - min(values)) or 0.1
    return Scale(max(min(values) - room, 0.0), max(values) + room, left, RIGHT)


def _unity(frame: Frame) -> str:
    x = frame.x(1.0)
    return line(x, min(frame.y.start, frame.y.end), x, max(frame.y.start, frame.y.end), "unity")


def _interval(frame: Frame, y: float, index: int, name: str, estimate: Estimate, *, seeds: bool) -> str:
    kind = series(index)
    parts = []
    if estimate.low is not None and estimate.high is not None and estimate.high > estimate.low:
        low, high = (min(max(frame.x(x), frame.x.start), RIGHT) for x in (estimate.low, estimate.high))
        parts.append(line(low, y, high, y, f"whisker {kind}"))
    if seeds and len(estimate.each) > 1 and index:
        parts += [svg.dot(frame.x(value), y, 2.2, f"seed {kind}") for value in estimate.each]
    parts.append(svg.dot(frame.x(estimate.mean), y, 5, f"mark {kind}", told(f"{name}: {said(estimate)}")))
    return "".join(parts)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of a logarithmic axis: at least a decade."""
    low, high = min(values) / 1.3, max(values) * 1.3
    if high / low < 10:
        middle = (low * high) ** 0.5
        low, high = middle / 10**0.5, middle * 10**0.5
    return low, high


def _lines_across(frame: Frame) -> str:
    return "".join(line(frame.x.start, frame.y(tick), frame.x.end, frame.y(tick), "grid") for tick in frame.y.ticks())
