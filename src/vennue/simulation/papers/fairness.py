"""Study 3: what fairness costs, and what it brings: the sweep of ε."""

from collections.abc import Sequence

from vennue.simulation.experiment import Experiment
from vennue.simulation.options import PRESETS
from vennue.simulation.papers import plots, published
from vennue.simulation.papers.plots import Panel, Series
from vennue.simulation.papers.records import Record, Records, speedup
from vennue.simulation.papers.study import Findings, Study, Table, policies, said
from vennue.simulation.report.svg import series
from vennue.simulation.tables import Estimate
from vennue.simulation.workload import load

EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
WORKLOADS = ("even", "low", "high")
_BASE = "random-order"


def experiments(scale: float, seeds: int) -> list[Experiment]:
    """Workloads under Venn with growing ε."""
    chosen = policies(_BASE, *(f"venn:epsilon={epsilon:g}" for epsilon in EPSILONS))
    return [
        Experiment(
            workload=load(name).scaled(scale), policies=chosen, seeds=tuple(range(seeds)), options=PRESETS["faithful"]
        )
        for name in WORKLOADS
    ]


def findings(made: Sequence[Experiment], records: Records) -> Findings:
    """The speedup, and the share of jobs that meet their fair-share JCT, by ε."""
    rows: list[tuple[str, ...]] = []
    faster, fairer = [], []
    for index, experiment in enumerate(made, start=1):
        found: dict[str, list[Record]] = {}
        for record in records.of(experiment):
            found.setdefault(record.policy, []).append(record)
        name = experiment.workload.name
        base = found.get(_BASE, [])
        rows.append((name, _BASE, said(speedup(base, base)), said(_fair(base), "{:.0f}")))
        points = []
        for epsilon, policy in zip(EPSILONS, experiment.labels[1:], strict=True):
            runs = found.get(policy, [])
            gain, share = speedup(base, runs), _fair(runs)
            rows.append((name, f"venn, ε = {epsilon:g}", said(gain), said(share, "{:.0f}")))
            if gain is not None and share is not None:
                points.append((epsilon, gain, share))
        if points:
            kind = series(index)
            faster.append(Series(name, kind, [(epsilon, gain) for epsilon, gain, _ in points]))
            fairer.append(Series(name, kind, [(epsilon, share) for epsilon, _, share in points]))
    for epsilon, factor in published.FAIR_SPEEDUPS.items():
        met = published.FAIR_SHARES.get(epsilon)
        rows.append(("published", f"venn, ε = {epsilon:g}", f"{factor:.2f}", "" if met is None else f"{100 * met:.0f}"))
    figures = {}
    if faster:
        shares = [(epsilon, 100 * met) for epsilon, met in published.FAIR_SHARES.items()]
        panels = [
            Panel(f"speedup of the average JCT over {_BASE} (×)", faster, list(published.FAIR_SPEEDUPS.items())),
            Panel("jobs that meet their fair-share JCT (%)", fairer, shares),
        ]
        figures["fairness"] = plots.lines(
            "What fairness costs and brings", panels, "ε (0: the average alone counts)", "", form="{:.2f}".format
        )
    head = ("workload", "policy", f"speedup over {_BASE}, ×", "jobs within their fair share, %")
    return Findings((Table("fairness", head, tuple(rows)),), figures)


def _fair(records: Sequence[Record]) -> Estimate | None:
    return Estimate.of([100 * record.fair for record in records])


FAIRNESS = Study(
    "fairness",
    "The Venn paper's fairness: average JCT, and jobs that meet their fair share, as ε grows.",
    4.0,
    experiments,
    findings,
)
