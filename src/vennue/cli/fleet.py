"""``vennue fleet``: simulated phones for a server that runs already."""

import asyncio
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table

from vennue import protocol
from vennue.cli import terminal
from vennue.cli.remote import REMOTE, Remote, operator
from vennue.cli.running import run_until_interrupted
from vennue.cli.terminal import ExitCode, duration
from vennue.core.errors import InvalidInput
from vennue.demo.learner import PhoneData
from vennue.simulation.traces import Trace, open_check_ins, phone_population, synthesise
from vennue.testing.fleet import Fleet, FleetRun, FleetSummary, State

_REFRESH_S = 0.5
_LINE_S = 10.0


def fleet(
    *,
    devices: int = 200,
    speedup: float = 500.0,
    sessions: str = "phones",
    seed: int = 1,
    rest: float = 1200.0,
    workload: float = 30.0,
    duration_s: Annotated[float | None, Parameter(name="--for")] = None,
    remote: Remote = REMOTE,
) -> ExitCode:
    """Run simulated phones against a server until Ctrl-C, or for so many seconds.

    Args:
        devices: How many phones.
        speedup: Simulated seconds per second.
        sessions: When they are there: `phones`, as 300 recorded ones were; `synth`, drawn; or a trace file.
        seed: Of what is left to chance: who is which phone, and the data that each holds.
        rest: After a task, how many simulated seconds a phone takes no other.
        workload: Training time of the mean phone, in simulated seconds.
        duration_s: Stop after so many seconds.
    """
    phones = Fleet(
        devices=devices, trace=_trace(sessions, devices, seed), population=phone_population(seed=seed), speedup=speedup,
        seed=seed, workload_s=workload, rest_s=rest,
    )  # fmt: skip
    if duration_s is not None and not 0 < duration_s < float("inf"):
        raise InvalidInput(f"must be above 0 s, got {duration_s}", field="for", value=duration_s, limit=0)
    with operator(remote) as server:
        server.get("/healthz", protocol.Health)
    data = PhoneData(devices, seed)
    with terminal.notes().status("dealing data to the phones"):
        data.load()
    run = FleetRun(phones, remote.server, data)
    try:
        run_until_interrupted(_run(run, terminal.notes(), duration_s))
    except KeyboardInterrupt:
        if duration_s is not None:  # it was to last longer
            _show(run.summary, as_json=remote.json)
            raise
    _show(run.summary, as_json=remote.json)
    return ExitCode.OK


def _trace(sessions: str, devices: int, seed: int) -> Trace:
    if sessions == "synth":
        return synthesise(devices, seed=seed)
    trace = open_check_ins(sessions, seed=seed)
    if not isinstance(trace, Trace):
        raise InvalidInput(
            f"{sessions} is a stream of check-ins without devices", field="sessions", value=sessions,
            fix="give phones, synth, or a trace file",
        )  # fmt: skip
    return trace


async def _run(run: FleetRun, console: Console, duration_s: float | None) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(run.run(stop))
        watching = group.create_task(_watch(run, console))
        try:
            await asyncio.sleep(duration_s if duration_s is not None else float("inf"))
        finally:
            watching.cancel()
            stop.set()


async def _watch(run: FleetRun, console: Console) -> None:
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_S)
            console.print(_line(run), markup=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(_table(run.summary, run), refresh=True)
            await asyncio.sleep(_REFRESH_S)


def _line(run: FleetRun) -> str:
    states, done = run.states(), run.summary
    return (
        f"{duration(run.elapsed_s)}: {states[State.BUSY]} phones at work, {states[State.RESTING]} resting, "
        f"{states[State.IDLE]} waiting, {states[State.AWAY]} away; {done.check_ins} check-ins, {done.tasks} tasks, "
        f"{done.reports} reports, {done.drop_outs} lost, {done.failures} failures"
    )


def _table(summary: FleetSummary, run: FleetRun | None = None) -> Table:
    rows = [("phones", f"{summary.devices}"), ("time", duration(run.elapsed_s if run else summary.elapsed_s))]
    if run is not None:
        states = run.states()
        rows.append(("now", ", ".join(f"{states[state]} {name}" for state, name in _SAID.items())))
    rows += [
        ("sessions", f"{summary.sessions}"),
        ("check-ins", f"{summary.check_ins}"),
        ("tasks", f"{summary.tasks} taken, {summary.declined} declined"),
        ("reports", f"{summary.reports} counted, {summary.late} too late"),
        ("lost at work", f"{summary.drop_outs}"),
        ("failures", f"{summary.failures}"),
        ("traffic", f"{summary.sent_bytes / 1e6:.1f} MB up, {summary.received_bytes / 1e6:.1f} MB down"),
    ]
    table = terminal.table("", "")
    table.show_header = False
    for name, value in rows:
        table.add_row(f"[bold]{name}[/]", value)
    return table


_SAID = {State.BUSY: "at work", State.RESTING: "resting", State.IDLE: "waiting", State.AWAY: "away"}


def _show(summary: FleetSummary, *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(summary)
    else:
        terminal.output().print(_table(summary))
