"""Study 2: what Venn's scheduling and its matching contribute, and when how many tiers pay."""

from collections.abc import Sequence

import msgspec

from vennue.simulation.experiment import Experiment
from vennue.simulation.options import PRESETS
from vennue.simulation.papers import plots, published
from vennue.simulation.papers.plots import Panel, Series
from vennue.simulation.papers.records import Records, speedup
from vennue.simulation.papers.study import Findings, Study, Table, policies, said
from vennue.simulation.report.svg import series
from vennue.simulation.tables import Estimate
from vennue.simulation.workload import load

TIERS = (1, 2, 3, 4)
_BASE = "random-order"
_FAMILIES = {"fifo-match": "fifo with matching", "venn": "venn"}


def experiments(scale: float, seeds: int) -> list[Experiment]:
    """Three workloads under FIFO and Venn's scheduling, each with 1 (no matching) to 4 tiers.

    The third is `low` with a fifth of its jobs, so that rounds wait less for devices than for reports.
    """
    low, high = load("low"), load("high")
    assert low.mixture is not None
    light = msgspec.structs.replace(low, name="low, 10 jobs", mixture=msgspec.structs.replace(low.mixture, jobs=10))
    chosen = policies(_BASE, *(f"{name}:tiers={tiers}" for name in _FAMILIES for tiers in TIERS))
    return [
        Experiment(
            workload=workload.scaled(scale), policies=chosen, seeds=tuple(range(seeds)), options=PRESETS["faithful"]
        )
        for workload in (low, high, light)
    ]


def findings(made: Sequence[Experiment], records: Records) -> Findings:
    """Speedups, and where rounds spend their time, by the number of tiers."""
    rows: list[tuple[str, ...]] = []
    panels = []
    for experiment in made:
        name = experiment.workload.name
        found = records.by_policy(experiment)
        labels = dict(zip([(f, t) for f in _FAMILIES for t in TIERS], experiment.labels[1:], strict=True))
        curves = []
        for index, (family, said_family) in enumerate(_FAMILIES.items(), start=1):
            points = []
            for tiers in TIERS:
                runs = found[labels[family, tiers]]
                estimate = speedup(found[_BASE], runs)
                paper = published.ABLATION.get(name, {}).get(_part(family, tiers))
                rows.append(
                    (
                        name, said_family if tiers > 1 else said_family.partition(" ")[0], str(tiers), said(estimate),
                        "" if paper is None else f"{paper:.2f}",
                        said(Estimate.of([run.scheduling_delay_s for run in runs]), "{:.0f}"),
                        said(Estimate.of([run.collection_s for run in runs]), "{:.0f}"),
                    )
                )  # fmt: skip
                if estimate is not None:
                    points.append((float(tiers), estimate))
            if points:
                curves.append(Series(said_family, series(index), points))
        if curves:
            panels.append(Panel(name, curves))
    head = (
        "workload", "policy", "tiers", f"speedup over {_BASE}, ×", "published", "scheduling delay, s", "collection, s",
    )  # fmt: skip
    figures = {}
    if panels:
        figures["ablation"] = plots.lines(
            "Speedup by number of tiers", panels, "tiers V (1: no matching)", f"speedup over {_BASE} (×)",
            form="{:.2f}".format,
        )  # fmt: skip
    return Findings((Table("Venn's parts and its number of tiers", head, tuple(rows)),), figures)


def _part(family: str, tiers: int) -> str:
    """What of Venn this is, in the paper's words. The paper does not say how many tiers it used; 3 is the default."""
    if family == "fifo-match":
        return "matching" if tiers == 3 else ""
    return {1: "scheduling", 3: "both"}.get(tiers, "")


ABLATION = Study(
    "ablation",
    "The Venn paper's ablation: matching alone, scheduling alone, both; one to four tiers.",
    64.0,
    experiments,
    findings,
)
