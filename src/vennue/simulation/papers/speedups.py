"""Study 1: how much sooner jobs end under each policy, on the nine workloads of the Venn paper."""

from collections.abc import Sequence

from vennue.simulation.experiment import Experiment
from vennue.simulation.options import PRESETS
from vennue.simulation.papers import plots, published
from vennue.simulation.papers.records import Record, Records, speedup
from vennue.simulation.papers.study import Findings, Study, Table, policies, said
from vennue.simulation.report.svg import series
from vennue.simulation.tables import Estimate
from vennue.simulation.workload import load

POLICIES = policies("random-order", "fifo", "srsf", "srsf-job", "venn-sched", "venn")
_CLASSES = {"general": "general", "compute": "compute", "memory": "memory", "high_performance": "high-performance"}


def experiments(scale: float, seeds: int) -> list[Experiment]:
    """Every workload under every policy, as the paper's simulator has it."""
    return [
        Experiment(
            workload=load(name).scaled(scale), policies=POLICIES, seeds=tuple(range(seeds)), options=PRESETS["faithful"]
        )
        for name in published.SPEEDUPS
    ]


def findings(made: Sequence[Experiment], records: Records) -> Findings:
    """Speedups by workload and by class of jobs, beside those that were published."""
    labels = made[0].labels
    by_workload: list[tuple[str, ...]] = []
    by_class: list[tuple[str, ...]] = []
    groups = {}
    for experiment in made:
        found = records.by_policy(experiment)
        base = found[labels[0]]
        name = experiment.workload.name
        paper = published.SPEEDUPS[name]
        cells = [name]
        rows = []
        for index, policy in enumerate(labels[1:], start=1):
            estimate = speedup(base, found[policy])
            cells += [said(estimate), *([f"{paper[policy]:.2f}"] if policy in paper else [])]
            if estimate is not None:
                rows.append((policy, series(index), estimate, paper.get(policy)))
        by_workload.append(tuple(cells))
        if rows:
            groups[name] = rows
        by_class.append((name, *(said(_of_class(base, found["venn"], kind)) for kind in _CLASSES)))
    by_class.append(("even, published", *(f"{published.OF_CLASS[kind]:.1f}" for kind in _CLASSES)))
    head = ["workload"]
    for policy in labels[1:]:
        head += [policy, *(["published"] if policy in published.SPEEDUPS["even"] else [])]
    keys = [(series(index), policy) for index, policy in enumerate(labels[1:], start=1)]
    figures = {}
    if groups:
        title = f"speedup of the average JCT over {labels[0]} (×)"
        figures["speedups"] = plots.ratios("Speedups by workload and policy", groups, title, keys)
    return Findings(
        (
            Table(f"speedup of the average JCT over {labels[0]}, ×", tuple(head), tuple(by_workload)),
            Table("venn's speedup by class of jobs, ×", ("workload", *_CLASSES.values()), tuple(by_class)),
        ),
        figures,
    )


def _of_class(base: Sequence[Record], records: Sequence[Record], name: str) -> Estimate | None:
    return speedup(base, records, lambda record: record.jct_of_class_s.get(name))


SPEEDUPS = Study(
    "speedups",
    "The Venn paper's main table: nine workloads, the average JCT of each policy against a random order.",
    64.0,
    experiments,
    findings,
)
