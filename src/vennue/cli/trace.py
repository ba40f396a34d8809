"""``vennue trace``: make synthetic traces, convert recorded ones, look at any.

Long steps show their progress on a terminal's standard error; an interrupted command leaves no half-written file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter
from rich.progress import Progress as ProgressBar

from vennue.cli import terminal
from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S
from vennue.core.requirement import Requirement
from vennue.simulation import authors_workload
from vennue.simulation.traces import (
    CLASSES,
    Capacity,
    DeviceTable,
    PaperCheckIns,
    Trace,
    open_check_ins,
    open_population,
    page,
    read_recording,
    synthesise,
    write_trace,
)
from vennue.simulation.traces.columns import Progress, replacing, table_suffix, write_table
from vennue.simulation.traces.model import IntArray, record
from vennue.simulation.traces.summary import TraceSummary, summarise

trace_app = cyclopts.App(
    name="trace",
    help="When devices are there: make, convert and inspect traces.",
    help_epilogue=terminal.lines(
        "Examples:",
        "$ vennue trace synth sessions.csv --devices 1000 --days 2",
        "$ vennue trace inspect sessions.csv",
        "$ vennue trace convert client_behave_trace sessions.parquet --merge-gap 60",
    ),
)

_BAR_WIDTH = 40


@trace_app.command
def synth(
    out: Path,
    /,
    *,
    devices: int = 10_000,
    days: int = 5,
    seed: int = 0,
    rate: float = 1.0,
    clock: float = 0.0,
    habit: bool = False,
    flapping: bool = False,
    calibration: Literal["phones", "paper"] = "phones",
) -> None:
    """Write synthetic sessions.

    Args:
        out: File to write: .csv, .csv.gz or .parquet.
        devices: How many (phones only).
        days: Length of the trace, in days.
        seed: Same seed, same trace.
        rate: Factor on how often devices plug in, or check in.
        clock: Local hour at the trace's start, 0 to 24 (phones only).
        habit: Devices keep hours of their own (phones only).
        flapping: Sessions break for up to a minute now and then (phones only).
        calibration: What it is like: phones, fitted to recorded ones; paper, 4.65 short sessions a second, each of
            another device.
    """
    table_suffix(out)  # a wrong name is better said before the work than after it
    with _progress("drawing sessions") as progress:
        if calibration == "paper":
            if days < 1:
                raise InvalidInput(f"must be at least 1, got {days}", field="days", value=days, limit=1)
            trace = record(PaperCheckIns(rate_per_s=4.65 * rate, seed=seed), days)
        else:
            trace = synthesise(
                devices, days,
                seed=seed, rate=rate, clock_h=clock, habit=habit, flapping=flapping, progress=progress,
            )  # fmt: skip
    write_trace(out, trace)
    _say_written(out, trace)


@trace_app.command
def convert(
    source: Path,
    out: Path,
    /,
    *,
    merge_gap: float | None = None,
    period_days: float | None = None,
    jobs: Path | None = None,
) -> None:
    """Turn a recording into Vennue's formats, checking every row.

    Reads FedScale's client_behave_trace and client_device_capacity, the Venn authors' session CSV, eligibility list
    and workload files, and Vennue's own tables. Pickles are read as plain data: nothing in them runs.

    Args:
        source: What to convert.
        out: File to write: .csv, .csv.gz or .parquet, or .yaml for a workload.
        merge_gap: Join sessions of a device that overlap or lie at most so many seconds apart.
        period_days: Keep the sessions that start within so many days.
        jobs: The job file of a workload, if it is not where the workload says.
    """
    period_s = None if period_days is None else period_days * DAY_S
    if source.suffix.lower() in (".yaml", ".yml"):
        text = authors_workload.dump(authors_workload.convert(source, jobs))
        with replacing(out) as file:
            file.write(text.encode())
        terminal.output().print(f"{out}: workload", soft_wrap=True)
        return
    table_suffix(out)
    with _progress(f"reading {source.name}") as progress:
        recording = read_recording(source, period_s=period_s, merge_gap_s=merge_gap, progress=progress)
    match recording:
        case Trace():
            write_trace(out, recording)
            _say_written(out, recording)
        case Capacity():
            _write_capacity(out, recording)
        case table, rows:
            _write_devices(out, table, rows)


@trace_app.command
def inspect(
    trace: str,
    /,
    *,
    devices: str | None = None,
    capacity: str | None = None,
    seed: int = 0,
    json: bool = False,
    html: Path | None = None,
    classes: Annotated[dict[str, str] | None, Parameter(name="--class")] = None,
) -> None:
    """Describe a trace: devices, sessions, the day's curve, lengths, regions and their rates, task times.

    Args:
        trace: A file, or paper, phones, synth, synth:DEVICES or synth:DEVICESxDAYS.
        devices: A table of devices or an eligibility list; the shipped phone models by default.
        capacity: How fast devices are: fedscale, paper, first-199, model, or a file.
        seed: Of what is left to chance.
        json: Print one JSON document instead.
        html: Write a page to this file.
        classes: Requirement classes, as --class.NAME EXPRESSION; the Venn paper's four by default.
    """
    with _progress(f"reading {trace}") as progress:
        check_ins = open_check_ins(trace, seed=seed, progress=progress)
    population = open_population(devices, capacity, seed=seed)
    requirements = {
        name: Requirement.parse(text, population.table.schema) for name, text in (classes or CLASSES).items()
    }
    summary = summarise(check_ins, population, requirements)
    if html is not None:
        with replacing(html) as file:
            file.write(page.render(summary).encode())
    if json:
        terminal.print_json(summary)
    else:
        _show(summary)


def _write_capacity(out: Path, capacity: Capacity) -> None:
    columns = {"computation_ms": capacity.computation_ms, "communication_kbps": capacity.communication_kbps}
    write_table(out, {name: column for name, column in columns.items() if column is not None})
    terminal.output().print(f"{out}: {len(capacity.communication_kbps):,} capacities", soft_wrap=True)


def _write_devices(out: Path, table: DeviceTable, rows: IntArray) -> None:
    columns = {name: [column[row] for row in rows] for name, column in table.columns.items()}
    write_table(out, {"device": range(len(rows)), **columns})
    terminal.output().print(f"{out}: {len(rows):,} devices", soft_wrap=True)


def _say_written(out: Path, trace: Trace) -> None:
    terminal.output().print(
        f"{out}: {len(trace):,} sessions of {trace.devices:,} devices over {trace.period_s / DAY_S:g} days",
        soft_wrap=True,
    )


def _show(summary: TraceSummary) -> None:
    console = terminal.output()
    console.print(
        f"[bold]{summary.name}[/bold]: {summary.sessions:,} sessions of {summary.devices:,} devices over "
        f"{summary.period_s / DAY_S:g} days, {summary.check_ins_per_s:.4g} check-ins/s, "
        f"{summary.sessions_per_device_day:.3g} sessions per device and day, {summary.mean_length_s:,.0f} s long, "
        f"{summary.available:.1%} available"
    )
    day = terminal.table(
        "hour", "available", "", "check-ins/s", numbers=("available", "check-ins/s"), title="by local clock hour"
    )
    top = max(hour.available for hour in summary.hours) or 1.0
    for hour in summary.hours:
        bar = "█" * round(_BAR_WIDTH * hour.available / top)
        day.add_row(f"{hour.clock_h:02}", f"{hour.available:.1%}", bar, f"{hour.check_ins_per_s:.3g}")
    console.print(day)
    headings = ("session, s", "time a device is there", "task of 30 s, s")
    quantiles = terminal.table("quantile", *headings, numbers=headings, title="quantiles")
    for percent, length_s in summary.length_s.items():
        there, task_s = summary.device_available[percent], summary.task_s[percent]
        quantiles.add_row(f"{percent} %", f"{length_s:,.0f}", f"{there:.1%}", f"{task_s:,.0f}")
    console.print(quantiles)
    regions = terminal.table("devices that meet exactly", "share", "check-ins/s", title="regions")
    for region in summary.regions:
        regions.add_row(", ".join(region.classes) or "none", f"{region.share:.1%}", f"{region.check_ins_per_s:.3g}")
    console.print(regions)


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """A progress bar on a terminal's standard error; elsewhere nothing."""
    console = terminal.notes()
    with ProgressBar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)
