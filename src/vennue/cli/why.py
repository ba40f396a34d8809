"""``vennue why``: the whole explanation of a job, for people."""

from rich.markup import escape
from rich.table import Table

from vennue import protocol
from vennue.cli import terminal
from vennue.cli.jobs import setback_facts
from vennue.cli.remote import REMOTE, Remote, operator, path_of
from vennue.cli.terminal import ExitCode, duration, plural, rate

_BARS = "▁▂▃▄▅▆▇█"


def why(job: str, /, *, remote: Remote = REMOTE) -> ExitCode:
    """Explain why a job is where it is, in numbers, and what would change that.

    Args:
        job: The job's id.
    """
    with operator(remote) as server:
        told = server.get(f"{path_of(job)}/explain", protocol.Explanation)
    if remote.json:
        terminal.print_json(told)
        return ExitCode.OK
    console = terminal.output()
    console.print(f"[bold]{escape(told.job)}[/] is {escape(told.state)}: {escape(told.reason.text)}", soft_wrap=True)
    facts = terminal.table("", "")
    facts.show_header = False
    for name, value in _facts(told):
        facts.add_row(f"[bold]{name}[/]", escape(value))
    console.print(facts)
    if told.regions:
        console.print(_regions(told))
    if told.changes:
        changes = terminal.table("what would change it", "supply", "devices in", numbers=("supply", "devices in"))
        for change in told.changes:
            changes.add_row(escape(change.text), rate(change.supply_per_s), duration(change.eta_s))
        console.print()
        console.print(changes)
    return ExitCode.OK


def day(rates_per_s: list[float | None]) -> str:
    """The hours of a day as bars, the highest being full; a dot where nothing was observed."""
    most = max((one for one in rates_per_s if one is not None), default=0.0) or 1.0
    return "".join("·" if one is None else _BARS[round(one / most * (len(_BARS) - 1))] for one in rates_per_s)


def _facts(told: protocol.Explanation) -> list[tuple[str, str]]:
    hours = [one for one in told.supply_by_hour_per_s if one is not None]
    spread = f" (hours: {rate(min(hours))} to {rate(max(hours))})" if hours else ""
    facts = [
        ("supply", f"{rate(told.supply_per_s)} eligible check-ins over the day, {rate(told.supply_now_per_s)} now"),
        ("last 24 hours", day(told.supply_by_hour_per_s) + spread),
    ]
    if told.reason.needs:
        facts.append(("needs", plural(told.reason.needs, "device")))
    if told.shares_with:
        facts.append(("shares devices with", ", ".join(told.shares_with)))
    if told.round_eta_s is not None:
        facts.append(("the round may end in", duration(told.round_eta_s)))
    if told.job_eta_s is not None:
        facts.append(("the job may end in", duration(told.job_eta_s)))
    return facts + setback_facts(told.setbacks)


def _regions(told: protocol.Explanation) -> Table:
    shown = terminal.table(
        "region", "supply", "place", "ahead", "devices go to, in this order", numbers=("supply", "place", "ahead"),
        title="\nregions that it may use",
    )  # fmt: skip
    for region in told.regions:
        place = "–" if region.position is None else str(region.position)
        order = " → ".join(region.jobs) or "nobody: no round needs devices"
        shown.add_row(region.signature, rate(region.supply_per_s), place, str(region.ahead), escape(order))
    return shown
