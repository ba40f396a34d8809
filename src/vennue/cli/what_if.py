"""``vennue what-if``: the pool's jobs with and without a new one, simulated from the pool as it is."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from rich.markup import escape

from vennue import protocol
from vennue.cli import terminal
from vennue.cli.jobfile import JobFile
from vennue.cli.remote import REMOTE, Remote, operator
from vennue.cli.terminal import ExitCode, duration, plural, rate
from vennue.core.errors import InvalidInput
from vennue.core.job import DAY_S
from vennue.simulation.what_if import Forecast, WhatIf
from vennue.simulation.what_if import what_if as foresee


def what_if(
    file: Path,
    /,
    *,
    policy: str | None = None,
    seeds: int = 3,
    days: float = 7.0,
    patience: float = 60.0,
    engine: Literal["auto", "reference", "kernel"] = "auto",
    remote: Remote = REMOTE,
) -> ExitCode:
    """Show when every job of the pool would be done, with and without one more.

    Args:
        file: The new job's specification.
        policy: Under this policy instead of the pool's own.
        seeds: How many draws of devices to average over.
        days: How many days to look ahead.
        patience: Seconds to simulate for at most; what is not done by then is given as a lower bound.
        engine: The reference drives the real core; the kernel gives the same results much sooner.
    """
    for field, value in (("seeds", seeds), ("days", days), ("patience", patience)):
        if not 0 < value < float("inf"):
            raise InvalidInput(f"must be above 0, got {value:g}", field=field, value=value, limit=0, fix="give more")
    job_file = JobFile(file)
    with operator(remote) as server:
        snapshot = server.get("/v1/pool/snapshot", protocol.PoolSnapshot)
    with terminal.notes().status("simulating"):
        try:
            found = foresee(
                snapshot, job_file.spec, policy=policy, seeds=seeds, horizon_s=days * DAY_S, engine=engine,
                stop=_after(patience),
            )  # fmt: skip
        except InvalidInput as error:
            raise job_file.locate(error) from None
    if remote.json:
        terminal.print_json(found)
    else:
        _show(found)
    return ExitCode.OK


def _after(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds have passed since it was first asked: by then, the simulator is compiled."""
    until: float | None = None

    def passed() -> bool:
        nonlocal until
        if until is None:
            until = time.monotonic() + seconds
        return time.monotonic() > until

    return passed


def _show(found: WhatIf) -> None:
    console = terminal.output()
    console.print(
        f"under [bold]{escape(found.policy)}[/], {plural(found.seeds, 'draw')} of devices like the last day's; "
        "times from now to the end of the job"
    )
    shown = terminal.table(
        "job",
        "rounds",
        "supply",
        "without",
        "with",
        "change",
        numbers=("rounds", "supply", "without", "with", "change"),
    )
    for job in found.jobs:
        name = f"[bold]{escape(job.name)} (new)[/]" if job.is_new else escape(job.job)
        rounds = f"next {job.rounds}" if job.open_ended else str(job.rounds)
        without = "–" if job.is_new else _end(job, job.without_s, found)
        shown.add_row(name, rounds, rate(job.eligible_per_s), without, _end(job, job.with_s, found), _change(job))
    console.print(shown)
    if found.stopped:
        terminal.notes().print("the simulations were ended early: --patience gives them longer")


def _end(job: Forecast, at_s: float | None, found: WhatIf) -> str:
    if at_s is not None:
        return duration(at_s)
    return "never: no device" if job.eligible_per_s <= 0 else f"> {duration(found.simulated_s)}"


def _change(job: Forecast) -> str:
    if job.without_s is None or job.with_s is None:
        return "–"
    sign = "+" if job.with_s >= job.without_s else "-"
    return f"{sign}{duration(abs(job.with_s - job.without_s))}"
