"""What a demonstration looks like: a live view on a terminal, plain lines elsewhere, tables at the end."""

import asyncio

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vennue.demo.demo import DemoResult, RunResult, Scene, Watch
from vennue.demo.jobs import JobProgress
from vennue.protocol import JobView
from vennue.testing.fleet import State

REFRESH_S = 0.25
LINE_S = 5.0
BAR_CELLS = 12


def watch_on(console: Console) -> Watch:
    """A live view on a terminal, a line every few seconds where it is none."""
    return _live(console) if console.is_terminal else _lines(console)


def _live(console: Console) -> Watch:
    async def show(scene: Scene) -> None:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(picture(scene), refresh=True)
                await asyncio.sleep(REFRESH_S)

    return show


def _lines(console: Console) -> Watch:
    async def show(scene: Scene) -> None:
        while True:
            console.print(line(scene), markup=False, soft_wrap=True)
            await asyncio.sleep(LINE_S)

    return show


def line(scene: Scene) -> str:
    """The run in one line: how far each job is, and what the phones do."""
    busy = scene.fleet.states()[State.BUSY]
    jobs = ", ".join(
        f"{progress.job.job.name} {'done' if progress.final else _rounds(progress, scene)}"
        for progress in scene.progress
    )
    return f"{scene.policy} {scene.elapsed_s:3.0f} s: {jobs}; {busy} phone{'' if busy == 1 else 's'} at work"


def picture(scene: Scene) -> RenderableType:
    """The run as it stands: jobs and what they wait for, phones by the jobs that they may serve."""
    states = scene.fleet.states()
    online = sum(states.values()) - states[State.AWAY]
    head = Text.from_markup(
        f"[bold]{escape(scene.policy)}[/]  {scene.elapsed_s:.0f} s   {online} of {len(scene.fleet.phones)} phones "
        f"online: {states[State.BUSY]} at work, {states[State.RESTING]} resting, {states[State.IDLE]} waiting   "
        f"{scene.fleet.summary.check_ins} check-ins"
    )
    return Group(head, Text(), _jobs(scene), Text(), _regions(scene))


def _jobs(scene: Scene) -> Table:
    table = _table("job", "rounds", "this round", "held-out loss", "why")
    for progress in scene.progress:
        view = scene.views.get(progress.id or "")
        table.add_row(
            escape(progress.job.job.name), _rounds(progress, scene), _bar(view), _loss(progress), _why(progress, view)
        )
    return table


def _rounds(progress: JobProgress, scene: Scene) -> str:
    view = progress.final or scene.views.get(progress.id or "")
    return f"{view.committed_rounds if view else 0}/{progress.job.job.rounds}"


def _bar(view: JobView | None) -> Text:
    """Phones of the open round: those that have reported, those at work, those still missing."""
    if view is None or view.open_round is None:
        return Text("")
    turn = view.open_round
    reported = round(BAR_CELLS * min(1.0, turn.reported / turn.demand))
    bound = round(BAR_CELLS * min(1.0, turn.bound / turn.demand))
    return Text.assemble(
        ("█" * reported, "green"), ("█" * (bound - reported), "yellow"), ("░" * (BAR_CELLS - bound), "dim"),
        f" {turn.bound}/{turn.demand}",
    )  # fmt: skip


def _loss(progress: JobProgress) -> str:
    if not progress.scores:
        return ""
    first, last = progress.scores[0].loss, progress.scores[-1].loss
    return f"{first:.2f} → {last:.2f}" if len(progress.scores) > 1 else f"{first:.2f}"


def _why(progress: JobProgress, view: JobView | None) -> str:
    if progress.final is not None:
        return f"[green]{progress.final.state}[/]"
    return escape(view.reason.text) if view else "not submitted yet"


def _regions(scene: Scene) -> Table:
    table = _table("phones", "online", "at work", "resting", "may serve", numbers=4)
    for region in scene.regions:
        online = region.count(State.IDLE, State.BUSY, State.RESTING)
        table.add_row(
            str(len(region.phones)), str(online), str(region.count(State.BUSY)), str(region.count(State.RESTING)),
            escape(", ".join(region.jobs) or "no job"),
        )  # fmt: skip
    return table


def report(result: DemoResult, console: Console) -> None:
    """Print both runs as tables, and what they amount to in the last line."""
    for run in result.runs:
        console.print(_run_table(run))
        console.print()
    console.print(_verdict(result), soft_wrap=True)


def _run_table(run: RunResult) -> Table:
    table = Table(
        title=f"{run.policy}: {run.average_jct_s:.1f} s per job on average", title_justify="left", title_style="bold",
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim",
    )  # fmt: skip
    table.add_column("job")
    for name in ("phones", "rounds", "completion s", "waited s", "collected s", "held-out loss", "accuracy"):
        table.add_column(name, justify="right")
    for job in run.jobs:
        mark = "" if job.succeeded else f" [red]({job.state})[/]"
        table.add_row(
            escape(job.name) + mark, str(job.demand), str(job.rounds), f"{job.jct_s:.1f}",
            f"{job.scheduling_delay_s:.1f}", f"{job.collection_s:.1f}",
            f"{job.loss_before:.2f} → {job.loss_after:.2f}", f"{job.accuracy_before:.0%} → {job.accuracy_after:.0%}",
        )  # fmt: skip
    fleet = run.fleet
    table.caption = (
        f"{fleet.check_ins} check-ins, {fleet.tasks} tasks, {fleet.reports} reports counted, {fleet.late} too late, "
        f"{fleet.drop_outs} phones lost at work, {(fleet.sent_bytes + fleet.received_bytes) / 1e6:.0f} MB"
    )
    table.caption_justify = "left"
    return table


def _verdict(result: DemoResult) -> Text:
    if not result.succeeded:
        failed = sorted({job.name for run in result.runs for job in run.jobs if not job.succeeded})
        return Text(f"not every job completed with a lower held-out loss: {', '.join(failed)}", style="bold red")
    if result.speedup is None:
        return Text(f"every job completed under {result.runs[0].policy}, each with a lower held-out loss", style="bold")
    shown, baseline = result.runs
    return Text.from_markup(
        f"[bold]{escape(shown.policy)} completed the average job in {shown.average_jct_s:.1f} s, "
        f"{escape(baseline.policy)} in {baseline.average_jct_s:.1f} s: a speedup of {result.speedup:.2f}[/] "
        f"(one small run of {len(shown.jobs)} jobs; other seeds give somewhat more or less)"
    )


def _table(*columns: str, numbers: int = 0) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place < numbers else "left", no_wrap=place < len(columns) - 1)
    return table
