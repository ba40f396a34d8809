"""``vennue pool | plan``: what an operator sees of a server's devices, and of how it shares them."""

from rich.markup import escape

from vennue import protocol
from vennue.cli import terminal
from vennue.cli.remote import REMOTE, Remote, operator
from vennue.cli.terminal import ExitCode, duration, plural, rate


def pool(*, remote: Remote = REMOTE) -> ExitCode:
    """Show the pool: its policy, check-ins, requirements with their supply and demand, regions, tenants with quotas."""
    with operator(remote) as server:
        view = server.get("/v1/pool", protocol.PoolView)
    if remote.json:
        terminal.print_json(view)
        return ExitCode.OK
    console = terminal.output()
    states = ", ".join(f"{count} {state}" for state, count in view.jobs.items() if count) or "none"
    console.print(f"[bold]policy[/] {escape(view.policy)}, up for {duration(view.uptime_s)}")
    console.print(
        f"[bold]check-ins[/] {view.check_ins}, now {rate(view.check_ins_per_s)}; "
        f"{plural(view.live_assignments, 'device')} at work"
    )
    console.print(f"[bold]jobs[/] {states}")
    if view.requirements:
        requirements = terminal.table(
            "bit", "requirement", "supply", "needs", "jobs", numbers=("bit", "supply", "needs"), title="\nrequirements"
        )
        for requirement in view.requirements:
            requirements.add_row(
                str(requirement.bit), escape(requirement.text), rate(requirement.supply_per_s), str(requirement.needs),
                " ".join(requirement.jobs),
            )  # fmt: skip
        console.print(requirements)
    if view.regions:
        bits = {requirement.text: requirement.bit for requirement in view.requirements}
        regions = terminal.table("region", "meets", "supply", numbers=("supply",), title="\nregions")
        for region in view.regions:
            regions.add_row(region.signature, _meets(region.requirements, bits), rate(region.supply_per_s))
        console.print(regions)
    if view.tenants:
        tenants = terminal.table(
            "tenant", "at work", "in 24 h", "needs", "beyond its quota",
            numbers=("at work", "in 24 h", "needs"), title="\ntenants with a quota, in devices",
        )  # fmt: skip
        for tenant in view.tenants:
            tenants.add_row(
                escape(tenant.name), _used(tenant.devices, tenant.quota.devices),
                _used(tenant.devices_in_a_day, tenant.quota.devices_per_day), str(tenant.needs),
                "borrows" if tenant.quota.borrow else "waits",
            )  # fmt: skip
        console.print(tenants)
    return ExitCode.OK


def plan(*, remote: Remote = REMOTE) -> ExitCode:
    """Show the plan in force: for each region of the Venn diagram, the jobs that its devices serve, first to last."""
    with operator(remote) as server:
        view = server.get("/v1/plan", protocol.PlanView)
        names = {job.id: job.spec.name for job in server.jobs()}
    if remote.json:
        terminal.print_json(view)
        return ExitCode.OK
    console = terminal.output()
    console.print(f"[bold]policy[/] {escape(view.policy)}, {plural(view.plans, 'plan')} made")
    if not view.regions:
        console.print("no device has checked in yet, so there is no region to plan for")
        return ExitCode.OK
    regions = terminal.table("region", "supply", "devices go to, in this order", numbers=("supply",))
    for region in view.regions:
        offers = " → ".join(
            f"{names.get(offer.job, offer.job)} ({offer.needs} more{_tier(offer)})" for offer in region.offers
        )
        regions.add_row(region.signature, rate(region.supply_per_s), escape(offers or "nobody: no request is open"))
    console.print(regions)
    return ExitCode.OK


def _meets(requirements: list[str], bits: dict[str, int]) -> str:
    return " ".join(str(bits[text]) for text in requirements if text in bits) or "nothing"


def _used(number: int, quota: int | None) -> str:
    return str(number) if quota is None else f"{number}/{quota}"


def _tier(offer: protocol.OfferView) -> str:
    return "" if offer.tier_s is None else f", answering within {offer.tier_s[0]:.3g} to {offer.tier_s[1]:.3g} s"
