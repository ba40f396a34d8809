"""Study 4: what a pool gains by sharing its devices, bound one by one or in small batches (the Propius paper).

The paper's testbed is not to be had, so the ten jobs and the devices are ours (``sharing.yaml``, sessions like those of
recorded phones): what is compared is the factor by which a resource manager improves on pools that do not share.
"""

import importlib.resources
from collections.abc import Callable, Sequence

from vennue.simulation.experiment import Experiment
from vennue.simulation.options import options
from vennue.simulation.papers import plots, published
from vennue.simulation.papers.plots import Panel, Series
from vennue.simulation.papers.records import Record, Records
from vennue.simulation.papers.study import Findings, Study, Table, policies, said
from vennue.simulation.report.svg import series
from vennue.simulation.tables import Estimate
from vennue.simulation.workload import parse

POLICIES = policies("static-partition", "client-random", "random", "fifo", "srsf", "venn")
UNSHARED = 2
"""The first of these policies do not share."""
DEVICES = (500, 1000, 2000)
BATCH_WINDOW_S = 30.0
_MODES = {"online": 0.0, "small-batch": BATCH_WINDOW_S}

Measure = Callable[[Record], float]
MEASURES: dict[str, tuple[str, Measure, str]] = {
    "utilisation": ("devices at work, %", lambda record: 100 * record.busy_s / record.online_s, "{:.1f}"),
    "throughput": ("device-rounds per hour", lambda record: 3600 * record.used / record.end_s, "{:.0f}"),
    "JCT": ("average JCT, h", lambda record: record.jct_mean_s / 3600, "{:.2f}"),
}
"""Name, unit, from a run's record, form."""


def experiments(scale: float, seeds: int) -> list[Experiment]:
    """The ten jobs on so many devices, in both modes."""
    text = importlib.resources.files(__package__).joinpath("sharing.yaml").read_bytes()
    workload = parse(text, "sharing.yaml").scaled(scale)
    return [
        Experiment(
            workload=workload, policies=POLICIES, seeds=tuple(range(seeds)), trace=f"synth:{devices}",
            options=options(batch_window_s=window_s),
        )
        for devices in DEVICES
        for window_s in _MODES.values()
    ]  # fmt: skip


def findings(made: Sequence[Experiment], records: Records) -> Findings:
    """Utilisation, throughput and JCT side by side, and the factors between pools that share and those that do not."""
    cells = [(devices, mode) for devices in DEVICES for mode in _MODES]
    found = {
        (devices, mode, policy): runs
        for (devices, mode), experiment in zip(cells, made, strict=True)
        for policy, runs in records.by_policy(experiment).items()
    }
    labels = made[0].labels
    rows = [
        (
            f"{devices}", policy,
            *(
                said(_estimate(found[devices, mode, policy], measure), form)
                for _, measure, form in MEASURES.values()
                for mode in _MODES
            ),
        )
        for devices in DEVICES
        for policy in labels
    ]  # fmt: skip
    head = ("devices", "policy", *(f"{what}, {mode}" for what, _, _ in MEASURES.values() for mode in _MODES))
    figures = {}
    series_of = {policy: series(index) for index, policy in enumerate(labels)}
    for mode in _MODES:
        panels = [
            Panel(what, [c for policy in labels if (c := _curve(found, mode, policy, measure, series_of[policy]))])
            for what, measure, _ in MEASURES.values()
        ]
        if all(panel.series for panel in panels):
            about = f"Sharing devices, {mode}"
            figures[f"sharing-{mode}"] = plots.lines(about, panels, "devices", "", form="{:.3g}".format)
    gains = Table(
        "the most that sharing gains", ("figure", "online, ×", "small-batch, ×", "published, ×"),
        tuple(
            (name, *(_gain(found, labels, mode, name) for mode in _MODES), f"{published.SHARING[name]:.2f}")
            for name in MEASURES
        ),
    )  # fmt: skip
    return Findings((Table("sharing devices", head, tuple(rows)), gains), figures)


def _curve(
    found: dict[tuple[int, str, str], list[Record]], mode: str, policy: str, measure: Measure, kind: str
) -> Series | None:
    points = [(float(devices), _estimate(found[devices, mode, policy], measure)) for devices in DEVICES]
    drawn = [(x, estimate) for x, estimate in points if estimate is not None]
    return Series(policy, kind, drawn) if drawn else None


def _gain(found: dict[tuple[int, str, str], list[Record]], labels: Sequence[str], mode: str, name: str) -> str:
    """The largest factor between a policy that shares and one that does not, and which two these are."""
    _, measure, _ = MEASURES[name]
    best, where = 0.0, "–"
    for devices in DEVICES:
        means = {
            policy: estimate.mean
            for policy in labels
            if (estimate := _estimate(found[devices, mode, policy], measure)) is not None
        }
        for policy in labels[UNSHARED:]:
            for unshared in labels[:UNSHARED]:
                if policy in means and unshared in means:
                    first, second = means[policy], means[unshared]
                    factor = second / first if name == "JCT" else first / second
                    if factor > best:
                        best, where = factor, f"{factor:.2f} ({policy} over {unshared}, {devices} devices)"
    return where


def _estimate(records: Sequence[Record], measure: Measure) -> Estimate | None:
    return Estimate.of([measure(record) for record in records])


SHARING = Study(
    "sharing",
    "The Propius paper's experiment: utilisation, throughput and JCT with and without sharing, online and in batches.",
    1.0,
    experiments,
    findings,
)
