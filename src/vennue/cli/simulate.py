"""``vennue simulate``: a workload under several policies, and what is to be said about them.

Whatever is wrong with what was asked for is said before the work begins. Ctrl-C and SIGTERM end the runs early, and
what there is by then is shown, and marked as partial.
"""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vennue.cli import terminal
from vennue.cli.terminal import ExitCode
from vennue.core.errors import InvalidInput, StorageError
from vennue.simulation.experiment import Experiment, PolicyChoice, Results, Told, run_experiment, settings
from vennue.simulation.options import PresetName, options
from vennue.simulation.perfetto import write_perfetto
from vennue.simulation.report import notices, render
from vennue.simulation.report.comparisons import said
from vennue.simulation.report.svg import short, time_unit
from vennue.simulation.tables import Summary, check_parquet, document, summarise, write_parquet
from vennue.simulation.traces.columns import replacing
from vennue.simulation.workload import load


def simulate(
    workload: str,
    /,
    *,
    policy: str = "random-order,fifo,srsf,venn",
    policy_file: list[Path] | None = None,
    seeds: int = 1,
    seed: int = 0,
    preset: PresetName = "default",
    option: Annotated[list[str] | None, Parameter(name=("--set", "-s"))] = None,
    trace: str = "paper",
    devices: str | None = None,
    capacity: str | None = None,
    replay: Path | None = None,
    scale: float = 1.0,
    jobs: Annotated[int | None, Parameter(name=("--jobs", "-j"))] = None,
    ray: bool = False,
    engine: Literal["auto", "reference", "kernel"] = "auto",
    validate: bool = False,
    report: Path | None = None,
    parquet: Path | None = None,
    perfetto: Path | None = None,
    json: bool = False,
) -> ExitCode:
    """Simulate a workload under policies, and compare them.

    Args:
        workload: One of the nine of the Venn paper (even, small, large, low, high, general, compute, memory,
            resource), or a YAML file.
        policy: Names, separated by commas; the first is what the others are compared with. Parameters follow a name,
            as in venn:tiers=2:epsilon=1.
        policy_file: A Python file that defines a policy of your own, for --policy to name; may be repeated.
        seeds: Number of seeds. From two on, there are confidence intervals.
        seed: The first of them.
        preset: What the run assumes: default is how Vennue behaves, faithful how the Venn paper's simulator does.
        option: Change one of the preset's options, NAME=VALUE; may be repeated.
        trace: When devices check in: a file, or paper, phones, synth, synth:DEVICES or synth:DEVICESxDAYS.
        devices: What they are: a table of devices or an eligibility list. [default: the shipped phone models]
        capacity: How fast they are: fedscale, paper, first-199, model, or a file. [default: that of the trace]
        replay: A file or folder that `vennue serve --record` wrote, instead of --trace and --devices. Each check-in in
            it stands for a device that does one task.
        scale: Divide the jobs' rounds and arrival times by this; demand keeps its ratio to supply.
        jobs: Processes to run in. [default: one per core]
        ray: Run on a Ray cluster instead: the one that RAY_ADDRESS names, or this machine.
        engine: The reference drives the real core event by event; the kernel gives the same results much sooner.
        validate: Check every invariant of the core after every event (reference engine, slow); with --engine kernel,
            those that its memory can show, every 10 000 events.
        report: Write a page with plots to this file, such as out.html.
        parquet: Write all rounds, jobs and runs as tables to this folder.
        perfetto: Write the first seed's rounds as a timeline for ui.perfetto.dev, to out.json or out.json.gz.
        json: Print one JSON document instead of the table.
    """
    if seeds < 1:
        raise InvalidInput(f"must be at least 1, got {seeds}", field="seeds", value=seeds, limit=1, fix="give more")
    if jobs is not None and jobs < 1:
        raise InvalidInput(f"must be at least 1, got {jobs}", field="jobs", value=jobs, limit=1, fix="give more")
    if not 0 < scale < float("inf"):
        raise InvalidInput(f"must be above 0, got {scale:g}", field="scale", value=scale, limit=0, fix="give more")
    assumed = settings(option or [])
    if replay is not None:
        trace = devices = str(replay)
        assumed = {"poll_interval_s": 0.0, "tasks_per_session": 1, "anonymous_sessions": True} | assumed
    experiment = Experiment(
        workload=load(workload) if scale == 1 else load(workload).scaled(scale),
        policies=tuple(PolicyChoice.parse(text) for text in policy.split(",") if text.strip()),
        seeds=tuple(range(seed, seed + seeds)),
        trace=trace,
        devices=devices,
        capacity=capacity,
        options=options(preset, **assumed),
        engine=engine,
        validate=validate,
        policy_files=tuple(str(path) for path in policy_file or ()),
    )
    _check_outputs(report, parquet, perfetto)
    _warn(experiment)
    with _bar(experiment) as told, interruptible() as stop:
        results = run_experiment(experiment, workers=jobs or cores(), cluster=ray, told=told, stop=stop)
    if not results.runs:
        report = perfetto = None  # there is nothing to show
    if report is not None:
        with replacing(report) as file:
            file.write(render(results, command=shlex.join(["vennue", *sys.argv[1:]])).encode())
    if parquet is not None:
        write_parquet(parquet, results)
    if perfetto is not None:
        write_perfetto(perfetto, [run for run in results.runs if run.seed == results.runs[0].seed])
    if json:
        terminal.print_json(document(results))
    else:
        _show(results)
    if results.stopped:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if results.failures else ExitCode.OK


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_outputs(report: Path | None, parquet: Path | None, perfetto: Path | None) -> None:
    """What cannot be written is better known before the work than after it."""
    for field, path in (("report", report), ("perfetto", perfetto)):
        if path is None:
            continue
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            why = "it is a folder" if path.is_dir() else f"no folder {path.parent} that can be written to"
            raise StorageError(f"cannot write {path}: {why}", field=field, value=str(path), fix="choose another place")
    if parquet is not None:
        check_parquet(parquet)


def _warn(experiment: Experiment) -> None:
    """What one would rather know before the work than after it, though it is no error."""
    for label, reason in experiment.slow().items():
        terminal.notes().print(
            f"[yellow]note:[/] {escape(label)} is simulated at about twenty thousand check-ins a second, "
            f"a hundredth of the speed, because {escape(reason)}",
            soft_wrap=True,
        )
    scarcity = experiment.scarcity()
    if scarcity is not None:
        terminal.notes().print(f"[yellow]note:[/] not every job can end: {escape(scarcity)}", soft_wrap=True)


@contextlib.contextmanager
def _bar(experiment: Experiment) -> Iterator[Told]:
    """A progress bar with an estimate on a terminal's standard error; elsewhere nothing."""
    console = terminal.notes()
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.fields[ended]} of {task.fields[runs]} runs done,"), TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    runs = len(experiment.runs())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(experiment.workload.name, total=1.0, ended=0, runs=runs)
        yield lambda fraction, ended: bar.update(task, completed=fraction, ended=ended)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM was heard. The first asks for an early end; one more Ctrl-C ends everything at once."""
    heard: list[int] = []

    def hear(number: int, _frame: object) -> None:
        if heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        heard.append(number)
        terminal.notes().print("stopping: the runs under way end here (Ctrl-C again gives them up)")

    former = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(heard)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _show(results: Results) -> None:
    summaries = summarise(results)
    if summaries:
        _show_times(summaries, results.experiment.labels[0])
        _show_devices(summaries)
    for notice in notices(results, summaries):
        terminal.notes().print(f"[yellow]note:[/] {escape(notice)}", soft_wrap=True)


def _show_times(summaries: Sequence[Summary], base: str) -> None:
    """Completion times: two tables of a dozen figures would not fit a terminal side by side."""
    unit, unit_s = time_unit(max(summary.jct_p95_s for summary in summaries))
    headings = (f"avg, {unit}", f"median, {unit}", f"p95, {unit}", "speedup, ×", "fair, %", "open")
    table = terminal.table(
        "policy", *headings, numbers=headings, title="job completion times; speedup with its 95 % confidence interval"
    )
    for summary in summaries:
        mark = "≥ " if summary.lower_bound else ""
        times_s = (summary.jct_mean_s, summary.jct_p50_s, summary.jct_p95_s)
        speedup = "–" if summary.speedup is None else "1" if summary.policy == base else said(summary.speedup)
        times = (mark + short(seconds / unit_s) for seconds in times_s)
        table.add_row(escape(summary.policy), *times, speedup, f"{100 * summary.fair:.0f}", str(summary.unfinished))
    terminal.output().print(table)


def _show_devices(summaries: Sequence[Summary]) -> None:
    """What rounds waited for, and what became of the devices that were bound."""
    headings = ("delay, s", "collection, s", "at work, %", "aborted, %", "late, %", "lost, %")
    table = terminal.table("policy", *headings, numbers=headings, title="rounds, devices, wasted device-rounds")
    for summary in summaries:
        shares = (summary.utilisation, summary.aborted, summary.straggling, summary.lost)
        times = (short(summary.scheduling_delay_s), short(summary.collection_s))
        table.add_row(escape(summary.policy), *times, *(f"{100 * share:.1f}" for share in shares))
    terminal.output().print(table)
