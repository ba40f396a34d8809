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
        found = records.by_policy(experiment)
        name = experiment.workload.name
        base = found[_BASE]
        rows.append((name, _BASE, "1", said(_fair(base), "{:.0f}"), said(_slowest(base))))
        points = []
        for epsilon, policy in zip(EPSILONS, experiment.labels[1:], strict=True):
            runs = found[policy]
            gain, slowest = speedup(base, runs), _slowest(runs)
            rows.append((name, f"venn, ε = {epsilon:g}", said(gain), said(_fair(runs), "{:.0f}"), said(slowest)))
            if gain is not None and slowest is not None:
                points.append((epsilon, gain, slowest))
        if points:
            kind = series(index)
            faster.append(Series(name, kind, [(epsilon, gain) for epsilon, gain, _ in points]))
            fairer.append(Series(name, kind, [(epsilon, slowest) for epsilon, _, slowest in points]))
    for epsilon, factor in published.FAIR_SPEEDUPS.items():
        met = published.FAIR_SHARES.get(epsilon)
        share = "" if met is None else f"{100 * met:.0f}"
        rows.append(("published", f"venn, ε = {epsilon:g}", f"{factor:.2f}", share, ""))
    figures = {}
    if faster:
        panels = [
            Panel(f"speedup of the average JCT over {_BASE} (×)", faster, list(published.FAIR_SPEEDUPS.items())),
            Panel("slowest job's JCT over its fair-share JCT (×)", fairer),
        ]
        figures["fairness"] = plots.lines(
            "What fairness costs and brings", panels, "ε (0: the average alone counts)", "", form="{:.2f}".format
        )
    head = (
        "workload", "policy", f"speedup over {_BASE}, ×", "jobs within their fair share, %",
        "slowest job, × its fair share",
    )  # fmt: skip
    return Findings((Table("fairness", head, tuple(rows)),), figures)


def _fair(records: Sequence[Record]) -> Estimate | None:
    return Estimate.of([100 * record.fair for record in records])


def _slowest(records: Sequence[Record]) -> Estimate | None:
    return Estimate.of([record.slowest for record in records])


FAIRNESS = Study(
    "fairness",
    "The Venn paper's fairness: average JCT, and jobs that meet their fair share, as ε grows.",
    64.0,
    experiments,
    findings,
)
