"""The experiments of the Venn and Propius papers: what was simulated, what the papers print, and both side by side.

A *study* is a list of experiments and what to make of their records: tables and figures. `vennue papers` runs them.
Records of runs are kept in a file, so that a study goes on where it was stopped.
"""

from vennue.core.errors import InvalidInput, did_you_mean
from vennue.simulation.papers.ablation import ABLATION
from vennue.simulation.papers.fairness import FAIRNESS
from vennue.simulation.papers.sharing import SHARING
from vennue.simulation.papers.speedups import SPEEDUPS
from vennue.simulation.papers.study import Study

STUDIES = {study.name: study for study in (SPEEDUPS, ABLATION, FAIRNESS, SHARING)}


def get_study(name: str) -> Study:
    """The study with this name.

    Raises:
        InvalidInput: there is none; the error suggests the nearest.
    """
    found = STUDIES.get(name)
    if found is None:
        raise InvalidInput(
            f"there is no study {name!r}", field="study", value=name, limit=tuple(STUDIES),
            fix=did_you_mean(name, STUDIES, "choose one of " + ", ".join(STUDIES)),
        )  # fmt: skip
    return found
