"""What a study is: experiments, and what to make of their records: tables, and figures that stand by themselves."""

import dataclasses
from collections.abc import Callable, Sequence

from vennue.simulation.experiment import Experiment, PolicyChoice
from vennue.simulation.papers.records import Records
from vennue.simulation.tables import Estimate


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table for people: a row of names, and rows of text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table in Markdown; all columns but the first stand to the right."""
        lines = [self.head, ("---", *("---:",) * (len(self.head) - 1)), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """What a study's records amount to: tables, and figures (SVG) by the name of their file without its ending."""

    tables: tuple[Table, ...]
    figures: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Study:
    """An experiment of the papers.

    Attributes:
        name: what users call it.
        about: what it finds out, in a sentence.
        scale: what rounds and arrival times are divided by, unless the user says otherwise.
        experiments: its experiments at a scale, with so many seeds.
        findings: what the records of these experiments amount to.
    """

    name: str
    about: str
    scale: float
    experiments: Callable[[float, int], Sequence[Experiment]]
    findings: Callable[[Sequence[Experiment], Records], Findings]


def policies(*texts: str) -> tuple[PolicyChoice, ...]:
    """Policies as the command line names them."""
    return tuple(PolicyChoice.parse(text) for text in texts)


def said(estimate: Estimate | None, form: str = "{:.2f}") -> str:
    """An estimate as text: its mean, and half of its 95 % confidence interval where there is one."""
    if estimate is None:
        return "–"
    mean = form.format(estimate.mean)
    return mean if estimate.high is None else f"{mean} ± {form.format(estimate.high - estimate.mean)}"
