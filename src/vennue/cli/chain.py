"""Several job files submitted at once: whom each waits for, by the names in the files, and so their order."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from vennue.cli.jobfile import JobFile
from vennue.core.errors import InvalidInput
from vennue.core.ids import JobId
from vennue.core.job import After, JobSpec


def in_order(files: Sequence[JobFile]) -> list[JobFile]:
    """The files in an order in which each job comes after those that it waits for, else as they were given.

    Raises:
        InvalidInput: the jobs would wait for each other in a circle, or one waits for a name that two of them have.
    """
    places: dict[str, int] = {}
    for place, file in enumerate(files):
        places.setdefault(file.spec.name, place)
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for place, file in enumerate(files):
        first = [name for name in file.spec.predecessors if name in places]
        for name in first:
            if sum(other.spec.name == name for other in files) > 1:
                raise file.locate(
                    InvalidInput(f"two of the jobs are named {name!r}", field="after", value=name, fix="rename one")
                )
        sorter.add(place, *(places[name] for name in first))
    try:
        sorter.prepare()
    except CycleError as error:
        circle = [files[place].spec.name for place in error.args[1]]
        raise files[error.args[1][0]].locate(
            InvalidInput(
                f"the jobs would wait for each other in a circle: {' → '.join(circle)}",
                field="after",
                value=circle[0],
                fix="leave one of these out",
            )
        ) from None
    ordered: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        ordered += ready
        sorter.done(*ready)
    return [files[place] for place in ordered]


def with_ids(spec: JobSpec, ids: Mapping[str, JobId]) -> JobSpec:
    """The specification with the ids of the jobs in the place of their names."""
    after = tuple(After(job=ids.get(name, name), when=when) for name, when in spec.predecessors.items())
    return msgspec.structs.replace(spec, after=after) if after else spec
