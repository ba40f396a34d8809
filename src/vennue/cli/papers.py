"""``vennue papers``: the Venn and Propius papers' experiments, run and set beside what was published."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vennue.cli import terminal
from vennue.cli.simulate import cores, interruptible
from vennue.cli.terminal import ExitCode
from vennue.core.errors import InvalidInput, StorageError
from vennue.simulation.papers import STUDIES, get_study
from vennue.simulation.papers.records import FILE, Records
from vennue.simulation.papers.study import Findings, Table
from vennue.simulation.traces.columns import replacing


def papers(
    study: str | None = None,
    /,
    *,
    scale: float | None = None,
    seeds: int = 5,
    out: Path = Path("papers"),
    jobs: Annotated[int | None, Parameter(name=("--jobs", "-j"))] = None,
    json: bool = False,
) -> ExitCode:
    """Repeat an experiment of the Venn or the Propius paper.

    Args:
        study: Which one: speedups, ablation, fairness or sharing. Without it, they are listed.
        scale: Divide the jobs' rounds and arrival times by this; demand keeps its ratio to supply. [default: the
            study's]
        seeds: Number of seeds. From two on, there are confidence intervals.
        out: Folder for the table, the figures, and a line per run: what is there is not run again.
        jobs: Processes to run in. [default: one per core]
        json: Print the records of all runs as one JSON document instead of the tables.
    """
    if study is None:
        _list(as_json=json)
        return ExitCode.OK
    chosen = get_study(study)
    for field, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise InvalidInput(f"must be at least 1, got {value}", field=field, value=value, limit=1, fix="give more")
    if scale is not None and not 0 < scale < float("inf"):
        raise InvalidInput(f"must be above 0, got {scale:g}", field="scale", value=scale, limit=0, fix="give more")
    try:
        out.mkdir(parents=True, exist_ok=True)  # better said before the work than after it
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {out}: {error.strerror}", field="out", value=str(out), fix="choose another place"
        ) from error
    records = Records(out)
    size = chosen.scale if scale is None else scale
    experiments = chosen.experiments(size, seeds)
    with _bar() as told, interruptible() as stop:
        failures = records.complete(experiments, workers=jobs or cores(), told=told, stop=stop)
    found = _sized(chosen.findings(experiments, records), f"divided by {size:g}, {terminal.plural(seeds, 'seed')}")
    left = sum(len(part.runs()) for experiment in experiments for part in records.missing(experiment))
    _write(out, chosen.name, found)
    if json:
        terminal.print_json([record for experiment in experiments for record in records.of(experiment)])
    else:
        for table in found.tables:
            _show(table)
    for failure in failures:
        reason = f"{failure.policy}, seed {failure.seed}, failed: {failure.reason}"
        terminal.notes().print(f"[yellow]note:[/] {escape(reason)}", soft_wrap=True)
    files = [f"{chosen.name}.md", *(f"{name}.svg" for name in found.figures), FILE]
    terminal.notes().print(f"written to {escape(str(out))}: {', '.join(files)}", soft_wrap=True)
    if failures:
        return ExitCode.FAILED
    if left:
        terminal.notes().print(f"[yellow]note:[/] {terminal.plural(left, 'run')} missing; the same command goes on")
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _list(*, as_json: bool) -> None:
    if as_json:
        terminal.print_json([{"name": s.name, "about": s.about, "scale": s.scale} for s in STUDIES.values()])
        return
    table = terminal.table("study", "what it finds out")
    for study in STUDIES.values():
        table.add_row(study.name, study.about)
    terminal.output().print(table)


def _sized(found: Findings, size: str) -> Findings:
    """The same, with the size in the tables' titles: small runs must not be taken for the papers'."""
    tables = (dataclasses.replace(table, title=f"{table.title} ({size})") for table in found.tables)
    return dataclasses.replace(found, tables=tuple(tables))


def _show(table: Table) -> None:
    shown = terminal.table(*table.head, numbers=table.head[1:], title=escape(table.title))
    for row in table.rows:
        shown.add_row(*map(escape, row))
    terminal.output().print(shown)


def _write(out: Path, name: str, found: Findings) -> None:
    text = "\n\n".join(f"### {table.title}\n\n{table.markdown()}" for table in found.tables)
    for file, content in ((f"{name}.md", text + "\n"), *((f"{key}.svg", svg) for key, svg in found.figures.items())):
        with replacing(out / file) as writing:
            writing.write(content.encode())


def _lines(console: Console) -> Callable[[float, str], None]:
    last = ""

    def told(part: float, what: str) -> None:
        nonlocal last
        if what != last:
            console.print(f"{100 * part:.0f} % done; now {what}", markup=False, soft_wrap=True)
            last = what

    return told


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[float, str], None]]:
    """A progress bar with an estimate on a terminal's standard error; elsewhere a line per workload."""
    console = terminal.notes()
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("checking", total=1.0)
        yield lambda part, what: progress.update(task, completed=part, description=what)
