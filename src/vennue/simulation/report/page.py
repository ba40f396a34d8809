"""The report of an experiment: one HTML file that needs nothing else, neither a network nor a script.

It says first what was found, then how sure that is, then shows it, and ends with every parameter, so that whoever reads
it can repeat it. It follows the reader's light or dark ground, and prints.
"""

import html
import importlib.resources
from collections.abc import Callable, Iterable, Sequence

import msgspec
import yaml

import vennue
from vennue.policies import get_policy
from vennue.simulation.experiment import Results
from vennue.simulation.options import PRESETS, Options
from vennue.simulation.report import svg
from vennue.simulation.report.comparisons import (
    Figure,
    breakdown,
    by_class,
    completion_times,
    delay_against_collection,
    said,
    speedups,
    waste,
)
from vennue.simulation.report.supply import supply_and_demand
from vennue.simulation.report.svg import series, short
from vennue.simulation.report.timelines import gantt, utilisation
from vennue.simulation.tables import Summary, categories, jct_s, summarise, unfinished

_MOST_JOBS = 500


def render(results: Results, *, command: str | None = None) -> str:
    """The page.

    Args:
        results: of an experiment; there must be at least one run.
        command: the command line that made it, to be shown.
    """
    summaries = summarise(results)
    title = f"{results.experiment.workload.name}: " + ", ".join(results.experiment.labels)
    figures: list[Figure | None] = [
        speedups(results, summaries),
        completion_times(results, summaries),
        by_class(results, summaries),
        breakdown(summaries),
        delay_against_collection(results, summaries),
        utilisation(results),
        waste(summaries),
        supply_and_demand(results),
        gantt(results),
    ]
    folder = importlib.resources.files(__package__)
    style = "".join((folder / name).read_text(encoding="utf-8") for name in ("drawing.css", "style.css"))
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>",
        f"<header><h1>{html.escape(results.experiment.workload.name)}</h1>",
        f'<p class="soft">{html.escape(_conditions(results))}</p></header>',
        f'<p class="headline">{_headline(results, summaries)}</p>',
        *(f'<p class="notice" role="note">{html.escape(notice)}</p>' for notice in notices(results, summaries)),
        _summary(results, summaries),
        *(_numbered(number, found) for number, found in enumerate((f for f in figures if f is not None), start=1)),
        _jobs(results),
        _parameters(results, command),
        f"<footer>Made by Vennue {html.escape(vennue.__version__)}.</footer></body></html>\n",
    ]
    return "\n".join(parts)


def notices(results: Results, summaries: Sequence[Summary]) -> list[str]:
    """What a reader of the figures must know first: what is partial, failed or a lower bound."""
    found = []
    if results.stopped:
        stopped = sum(run.ended == "stopped" for run in results.runs)
        found.append(
            f"This experiment was interrupted: {stopped} of its {len(results.experiment.runs())} runs are partial, and "
            f"{results.missing} have no result. Figures are of what there is."
        )
    found += [
        f"{failure.policy}, seed {failure.seed}, failed and is left out: {failure.reason}"
        for failure in results.failures
    ]
    left = [f"{summary.policy} {summary.unfinished} of {summary.jobs}" for summary in summaries if summary.lower_bound]
    if left:
        found.append(
            f"Jobs had not ended when their run did ({', '.join(left)}): these times are lower bounds, and speedups "
            "that compare them are not to be trusted."
        )
    failed = [f"{summary.policy} {summary.failed} of {summary.jobs}" for summary in summaries if summary.failed]
    if failed:
        found.append(f"Jobs gave up: {', '.join(failed)}.")
    seeds = {summary.policy: summary.runs for summary in summaries}
    if len(set(seeds.values())) > 1:
        counts = ", ".join(f"{policy} {runs}" for policy, runs in seeds.items())
        found.append(f"Policies have different numbers of runs ({counts}); only shared seeds are compared.")
    return found


def _conditions(results: Results) -> str:
    experiment = results.experiment
    workload = experiment.workload
    scale = "" if workload.scale == 1 else f", rounds and arrivals divided by {workload.scale:g}"
    jobs = len(results.runs[0].jobs["id"]) if results.runs else 0
    preset = next((name for name, options in PRESETS.items() if options == experiment.options), "own options")
    seeds = f"{len(experiment.seeds)} seeds" if len(experiment.seeds) > 1 else f"seed {experiment.seeds[0]}"
    return f"{jobs} jobs{scale} · trace {experiment.trace} · {preset} · {seeds}"


def _headline(results: Results, summaries: Sequence[Summary]) -> str:
    base = results.experiment.labels[0]
    others = [(s.speedup, s.policy) for s in summaries if s.speedup is not None and s.policy != base]
    if not others:
        if not summaries:
            return "Nothing was run."
        mean_s = summaries[0].jct_mean_s
        unit, unit_s = svg.time_unit(mean_s)
        return (
            f"Under <b>{html.escape(summaries[0].policy)}</b>, a job takes {short(mean_s / unit_s)} {unit} on average."
        )
    best, policy = max(others, key=lambda item: item[0].mean)
    seeds = f"{len(best.each)} seeds" if len(best.each) > 1 else "a single seed"
    if best.mean <= 1:
        return f"No policy beats <b>{html.escape(base)}</b>, over {seeds}."
    if best.low is not None and best.low <= 1:
        return (
            f"<b>{html.escape(policy)}</b> is ahead of {html.escape(base)} on average, {said(best)} ×, but {seeds} "
            "cannot tell that from chance."
        )
    interval = f" (95 % confidence: {best.low:.2f}–{best.high:.2f})" if best.low is not None else ""
    return (
        f"Under <b>{html.escape(policy)}</b>, jobs complete <b>{best.mean:.2f} times</b> as soon as under "
        f"{html.escape(base)}, on average over {seeds}{interval}."
    )


Column = tuple[str, Callable[[Summary], str], Callable[[Summary], float] | None]
"""A heading, what stands below it, and what decides which policy is best, if any should be shown as such."""


def _summary(results: Results, summaries: Sequence[Summary]) -> str:
    if not summaries:
        return ""
    unit, unit_s = svg.time_unit(max(summary.jct_p95_s for summary in summaries))
    labels = results.experiment.labels
    times: list[Column] = [
        ("average", lambda s: _marked(s, s.jct_mean_s / unit_s), lambda s: s.jct_mean_s),
        ("median", lambda s: _marked(s, s.jct_p50_s / unit_s), lambda s: s.jct_p50_s),
        ("p95", lambda s: _marked(s, s.jct_p95_s / unit_s), lambda s: s.jct_p95_s),
        ("speedup, × (95 % confidence)", lambda s: _speedup(s, labels[0]), None),
        ("within fair share, %", lambda s: f"{100 * s.fair:.0f}", None),
        ("unfinished", lambda s: str(s.unfinished), None),
    ]
    devices: list[Column] = [
        ("scheduling delay", lambda s: short(s.scheduling_delay_s), None),
        ("collection", lambda s: short(s.collection_s), None),
        ("devices at work, %", lambda s: f"{100 * s.utilisation:.1f}", None),
        ("aborted", lambda s: f"{100 * s.aborted:.1f}", None),
        ("too late", lambda s: f"{100 * s.straggling:.1f}", None),
        ("session ended", lambda s: f"{100 * s.lost:.1f}", None),
    ]
    spans = (("", 1), (f"job completion time, {unit}", 3), ("", 1), ("jobs", 2))
    more = (("", 1), ("per round, s", 2), ("", 1), ("device-rounds wasted, %", 3))
    return (
        _figures(labels, summaries, times, spans)
        + _figures(labels, summaries, devices, more)
        + '<p class="soft small">A job\'s fair share is to be done within M times what it takes alone, M being the '
        "average number of jobs in the pool while it is.</p>"
    )


def _figures(
    labels: Sequence[str], summaries: Sequence[Summary], columns: Sequence[Column], groups: Sequence[tuple[str, int]]
) -> str:
    """A table with a row per policy."""
    head = "".join(f'<th colspan="{span}"{"" if name else " class=none"}>{name}</th>' for name, span in groups)
    best = [min(map(key, summaries)) if key and len(summaries) > 1 else None for _, _, key in columns]
    rows = []
    for summary in summaries:
        cells = [
            f"<td{' class=best' if key and key(summary) == least else ''}>{html.escape(form(summary))}</td>"
            for (_, form, key), least in zip(columns, best, strict=True)
        ]
        swatch = f'<span class="swatch {series(labels.index(summary.policy))}"></span>'
        rows.append(f"<tr><td>{swatch}{html.escape(summary.policy)}</td>{''.join(cells)}</tr>")
    names = "".join(f"<th>{name}</th>" for name in ("policy", *(name for name, _, _ in columns)))
    return (
        f'<div class="scroll"><table><thead><tr class="group">{head}</tr><tr>{names}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _numbered(number: int, figure: Figure) -> str:
    return (
        f"<figure><h2>{html.escape(figure.title)}</h2>{figure.drawing}"
        f"<figcaption><b>Figure {number}.</b> {html.escape(figure.caption)}</figcaption></figure>"
    )


def _jobs(results: Results) -> str:
    """Each job's completion time under each policy, for the first seed."""
    seed = results.runs[0].seed if results.runs else None
    runs = [run for run in results.runs if run.seed == seed]
    if not runs:
        return ""
    unit, unit_s = svg.time_unit(max(float(jct_s(run).max()) for run in runs))
    jobs = runs[0].jobs
    head = ("job", "class", "demand", "rounds", f"arrival, {unit}", *(f"{run.policy}, {unit}" for run in runs))
    times = [jct_s(run) / unit_s for run in runs]
    left = [unfinished(run) for run in runs]
    names = categories(runs[0])
    rows = [
        (
            str(jobs["name"][job]), str(names[job]), str(jobs["demand"][job]), str(jobs["rounds"][job]),
            short(float(jobs["arrival_s"][job]) / unit_s),
            *(("≥ " if more[job] else "") + short(float(time[job])) for time, more in zip(times, left, strict=True)),
        )
        for job in range(min(len(names), _MOST_JOBS))
    ]  # fmt: skip
    more = "" if len(names) <= _MOST_JOBS else f" (the first {_MOST_JOBS} of {len(names)})"
    return (
        f"<h2>Jobs</h2><details><summary>Completion time of every job, seed {seed}{more}</summary>"
        f'<div class="scroll">{_table(head, rows)}</div></details>'
    )


def _parameters(results: Results, command: str | None) -> str:
    experiment = results.experiment
    parts = ["<h2>Every parameter</h2>"]
    if command:
        parts.append(f"<pre>{html.escape(command)}</pre>")
    facts = [
        ("seeds", ", ".join(map(str, experiment.seeds))),
        ("trace", experiment.trace),
        ("devices", experiment.devices or "the phone models that ship with Vennue"),
        ("capacity", experiment.capacity or "that of the trace"),
        ("engine", ", ".join(dict.fromkeys(run.engine for run in results.runs)) or experiment.engine),
        ("invariants", "checked" if experiment.validate else "not checked"),
    ]
    for choice in experiment.policies:
        parameters = msgspec.structs.asdict(get_policy(choice.name, **choice.parameters).parameters)
        said_parameters = ", ".join(f"{name} = {_plain(value)}" for name, value in parameters.items())
        facts.append((f"policy {choice.label}", said_parameters or "has no parameters"))
    parts.append(_table((), facts, kind="text"))
    parts.append("<h3>Options</h3>")
    chosen, usual = (msgspec.structs.asdict(options) for options in (experiment.options, Options()))
    faithful = msgspec.structs.asdict(PRESETS["faithful"])
    rows = [(name, _plain(value), _plain(usual[name]), _plain(faithful[name])) for name, value in chosen.items()]
    parts.append(_table(("option", "here", "default", "faithful"), rows, kind="text"))
    workload = yaml.safe_dump(msgspec.to_builtins(experiment.workload), sort_keys=False, allow_unicode=True, width=100)
    parts.append(f"<h3>Workload</h3><pre>{html.escape(workload)}</pre>")
    runs = [
        (
            run.policy, str(run.seed), run.ended, f"{run.end_s:,.0f}", f"{run.counters['check_ins']:,}",
            f"{run.counters['bound']:,}", f"{run.counters['plans']:,}", f"{run.wall_s:.1f}",
        )
        for run in results.runs
    ]  # fmt: skip
    head = ("policy", "seed", "ended", "at, s", "check-ins", "device-rounds", "plans", "took, s")
    parts.append(
        f'<h3>Runs</h3><details><summary>{len(runs)} runs</summary><div class="scroll">{_table(head, runs)}</div>'
        "</details>"
    )
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    names = "<thead><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr></thead>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}">{names}<tbody>{body}</tbody></table>'


def _marked(summary: Summary, value: float) -> str:
    return ("≥ " if summary.lower_bound else "") + short(value)


def _speedup(summary: Summary, base: str) -> str:
    if summary.speedup is None:
        return "–"
    return "1" if summary.policy == base else said(summary.speedup)


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.12g}" if isinstance(value, float) else str(value)
