"""Workloads: which jobs arrive, when, and what they ask for. A YAML file, or one of the nine of the Venn paper by name.

A workload lists its jobs, or draws them from a catalogue; arrivals are exponential, evenly spaced or listed; every job
asks for a requirement class, in turn or by weight. `draw` turns it into jobs, the same ones for the same seed for ever:
with numpy's legacy generator ``RandomState(seed)``, first all gaps between exponential arrivals, then the catalogue
entry of every job, then, where classes have weights, the class of every job.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import yaml

from vennue import data
from vennue.core.errors import Infeasible, InvalidInput, did_you_mean
from vennue.core.ids import Signature
from vennue.core.job import JobSpec
from vennue.core.requirement import AttributeSchema, Requirement
from vennue.simulation.traces.devices import NOMINAL_WORKLOAD_S, DevicePopulation
from vennue.simulation.traces.model import checked_seed

_MAX_FILE_BYTES = 4 << 20

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class JobEntry(JobSpec, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job of a workload or of a catalogue: the fields of `JobSpec`, and what only a simulation needs to know."""

    name: str = "job"
    category: str | None = msgspec.field(default=None, name="class")
    """The requirement class that it asks for, instead of ``requirement``."""
    arrival_s: NotNegative | None = None
    """When it arrives, instead of by the workload's arrivals."""
    workload_s: Positive = NOMINAL_WORKLOAD_S
    """Training time of a task on the mean device."""
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    """So many jobs like this one."""


class Exponential(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="exponential"):
    """Poisson arrivals: the first at a given time, then exponential gaps."""

    mean_gap_s: Positive
    first_s: NotNegative = 0.0


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fixed"):
    """Evenly spaced arrivals; all at once by default."""

    gap_s: NotNegative = 0.0
    first_s: NotNegative = 0.0


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="list"):
    """The arrival of each job."""

    at_s: tuple[NotNegative, ...]


class Mixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs drawn with replacement from a catalogue."""

    jobs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    """How many to draw."""
    catalogue: str | tuple[JobEntry, ...] = "venn-33"
    """The entries, numbered from 1, or the name of a catalogue that ships with Vennue."""
    configs: tuple[int, ...] | None = None
    """Numbers of the entries to draw from; all by default."""
    config_weights: tuple[NotNegative, ...] | None = None
    """Weight of each of ``configs``; equal by default."""
    class_weights: dict[str, NotNegative] | None = None
    """Weight of each class; without weights, jobs take the classes in turn."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A workload's YAML form. See ``vennue/data/workloads`` for nine of them."""

    name: str
    description: str = ""
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    scale: Positive = 1.0
    """Rounds and arrival times are divided by it, so demand keeps its ratio to supply in a shorter run."""
    classes: dict[str, str | dict[str, float]] = {}
    """Requirement classes: a CEL expression, or least values of device attributes."""
    arrivals: Exponential | Fixed | Listed = Fixed()
    mixture: Mixture | None = None
    jobs: tuple[JobEntry, ...] = ()

    def scaled(self, factor: float) -> "Workload":
        """The same workload with its rounds and arrival times divided by ``factor``, on top of its own scale."""
        return msgspec.structs.replace(self, scale=self.scale * factor)

    def requirements(self) -> dict[str, str]:
        """The CEL text of every class."""
        return {name: _cel(rule) for name, rule in self.classes.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class JobTemplate:
    """A job of a drawn workload, as an engine submits it.

    Attributes:
        spec: what the job asks for; its rounds are declared.
        arrival_s: when it arrives.
        workload_s: training time of one task on the mean device.
        category: its requirement class, if it has one.
        config: its number in the catalogue, if it was drawn from one.
    """

    spec: JobSpec
    arrival_s: float
    workload_s: float
    category: str | None = None
    config: int | None = None

    @property
    def device_rounds(self) -> int:
        """Devices that the whole job takes: demand × rounds (for an asynchronous job, reports)."""
        rounds = self.spec.rounds or 0
        return rounds * (self.spec.buffer_size or 1 if self.spec.mode == "async" else self.spec.demand)


def names() -> list[str]:
    """The workloads that ship with Vennue."""
    return data.names("workloads", ".yaml")


def load(name: str) -> Workload:
    """A workload by name or from a YAML file, checked.

    Raises:
        InvalidInput: an unknown name (with the nearest), or a file that makes no sense (with the field and the fix).
    """
    if name in names():
        return parse(data.read_bytes(f"workloads/{name}.yaml"), name)
    path = Path(name)
    if not path.is_file():
        raise InvalidInput(
            f"{name!r} is neither a file nor one of {', '.join(names())}", field="workload", value=name, limit=names(),
            fix=did_you_mean(name, names(), "check the file's name"),
        )  # fmt: skip
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise InvalidInput(
            f"{path.name} is larger than {_MAX_FILE_BYTES >> 20} MiB", field="workload", limit=_MAX_FILE_BYTES,
            value=path.stat().st_size, fix="use a mixture or count instead of listing every job",
        )  # fmt: skip
    return parse(path.read_bytes(), path.name)


def parse(text: bytes | str, source: str = "workload") -> Workload:
    """A workload from YAML text, checked.

    Raises:
        InvalidInput: with the field and the fix; ``source`` names the text.
    """
    try:
        workload = msgspec.convert(yaml.safe_load(text), Workload)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{source} is not YAML: {error}", field="workload", fix="correct the file") from error
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        field = path.strip(".`") or "workload"
        raise InvalidInput(
            f"{source}: {what}",
            field=field,
            fix="compare it with a shipped one, such as vennue/data/workloads/even.yaml",
        ) from error
    _check(workload, source)
    return workload


def draw(workload: Workload, seed: int | None = None) -> list[JobTemplate]:
    """The workload's jobs, in the order in which they are numbered (listed arrivals need not be in order of time).

    Args:
        workload: a workload that `load` or `parse` returned.
        seed: of the draw; the workload's own by default.

    Raises:
        InvalidInput: the seed is not a whole number from 0 to 2³² − 1.
    """
    rng = np.random.RandomState(checked_seed(workload.seed if seed is None else seed))
    mixture = workload.mixture
    count = mixture.jobs if mixture else sum(entry.count for entry in workload.jobs)
    arrivals_s = _arrivals_s(workload.arrivals, count, rng)
    classes = workload.requirements()
    if mixture:
        catalogue = _catalogue(mixture)
        configs, weights = _configs(mixture, catalogue)
        drawn = [configs[index] for index in rng.choice(len(configs), count, p=weights)]
        entries = [catalogue[config - 1] for config in drawn]
        categories = _categories(mixture, list(classes), entries, rng)
    else:
        entries = [entry for entry in workload.jobs for _ in range(entry.count)]
        drawn = [None] * count
        categories = [entry.category for entry in entries]
    width = len(str(count))
    templates = []
    for number, (entry, arrival_s, config, category) in enumerate(
        zip(entries, arrivals_s, drawn, categories, strict=True), start=1
    ):
        fields = {field: getattr(entry, field) for field in JobSpec.__struct_fields__}
        fields["name"] = f"{entry.name}-{number:0{width}}"
        fields["rounds"] = max(1, round((entry.rounds or 1) / workload.scale))
        if category is not None:
            fields["requirement"] = classes[category]
        at_s = (arrival_s if entry.arrival_s is None else entry.arrival_s) / workload.scale
        templates.append(JobTemplate(JobSpec(**fields), at_s, entry.workload_s, category, config))
    return templates


def check(workload: Workload, population: DevicePopulation) -> None:
    """Make sure that every job of the workload can find devices, before hours of simulation.

    Raises:
        InvalidRequirement: a requirement does not fit the population's attributes.
        Infeasible: a requirement that no device meets.
    """
    for field, text in _every_requirement(workload).items():
        try:
            requirement = Requirement.parse(text, population.table.schema)
        except InvalidInput as error:
            error.field = field
            raise
        if not population.region_shares([requirement]).get(Signature(1)):
            raise Infeasible(
                f"no device meets {text!r}", field=field, value=text, limit=len(population.table),
                fix="relax the requirement, or simulate other devices",
            )  # fmt: skip


def _check(workload: Workload, source: str) -> None:
    """Check what types cannot say. Which attributes there are is the devices' affair: `check` looks at that."""

    def bad(field: str, message: str, fix: str, value: object = None) -> InvalidInput:
        return InvalidInput(f"{source}: {message}", field=field, value=value, fix=fix)

    mixture = workload.mixture
    if bool(mixture) == bool(workload.jobs):
        raise bad("jobs", "needs either jobs or a mixture", "list the jobs, or draw them from a mixture")
    entries: Sequence[JobEntry] = workload.jobs
    where = "jobs"
    count = sum(entry.count for entry in entries)
    if mixture:
        entries, where, count = _catalogue(mixture), "mixture.catalogue", mixture.jobs
        _check_mixture(mixture, len(entries), workload.classes, bad)
    if isinstance(workload.arrivals, Listed) and len(workload.arrivals.at_s) != count:
        listed = len(workload.arrivals.at_s)
        raise bad("arrivals.at_s", f"{listed} arrivals for {count} jobs", "give one for each job", listed)
    for index, entry in enumerate(entries):
        at = f"{where}[{index}]"
        if entry.rounds is None:
            raise bad(f"{at}.rounds", "a simulated job must end", "say how many rounds it runs")
        if entry.category is not None and entry.category not in workload.classes:
            raise bad(f"{at}.class", _unknown("class", entry.category, workload.classes), "define it", entry.category)
        if entry.category is not None and entry.requirement != "true":
            raise bad(f"{at}.requirement", "the job has a class already", "leave out one of them", entry.requirement)
        try:
            entry.check(AttributeSchema.open())
            entry.check_idle_fields()
        except InvalidInput as error:
            error.message, error.field = f"{source}: {error.message}", f"{at}.{error.field}"
            raise
    for field, text in _every_requirement(workload).items():
        try:
            Requirement.parse(text, AttributeSchema.open())
        except InvalidInput as error:
            error.message, error.field = f"{source}: {error.message}", field
            raise


def _check_mixture(mixture: Mixture, size: int, classes: Mapping[str, Any], bad: Any) -> None:
    configs = mixture.configs
    if configs is not None:
        unknown = [config for config in configs if not 1 <= config <= size]
        if unknown or not configs:
            raise bad("mixture.configs", f"{unknown or 'nothing'} is not among the entries 1 to {size}", "correct it")
    weights = mixture.config_weights
    if weights is not None and (
        len(weights) != (size if configs is None else len(configs)) or not 0 < sum(weights) < math.inf
    ):
        raise bad("mixture.config_weights", "needs a weight for each of the configs, not all 0", "correct it", weights)
    if mixture.class_weights is not None:
        for name in mixture.class_weights:
            if name not in classes:
                raise bad("mixture.class_weights", _unknown("class", name, classes), "define it under classes", name)
        if not 0 < sum(mixture.class_weights.values()) < math.inf:
            raise bad("mixture.class_weights", "needs a weight above 0", "correct it", mixture.class_weights)


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> str:
    return f"unknown {what} {name!r}; " + did_you_mean(name, known, "there are " + ", ".join(known))


def _every_requirement(workload: Workload) -> dict[str, str]:
    """Field → CEL text of all that jobs may ask for."""
    found = {f"classes.{name}": text for name, text in workload.requirements().items()}
    entries = _catalogue(workload.mixture) if workload.mixture else workload.jobs
    for index, entry in enumerate(entries):
        if entry.category is None and not (workload.mixture and found):
            found[f"jobs[{index}].requirement"] = entry.requirement
    return found


def _cel(rule: str | Mapping[str, float]) -> str:
    if isinstance(rule, str):
        return rule
    return " && ".join(f"device.{name} >= {least:.15g}" for name, least in rule.items()) or "true"


def _catalogue(mixture: Mixture) -> Sequence[JobEntry]:
    if not isinstance(mixture.catalogue, str):
        return mixture.catalogue
    if mixture.catalogue != "venn-33":
        raise InvalidInput(
            f"unknown catalogue {mixture.catalogue!r}", field="mixture.catalogue", value=mixture.catalogue,
            limit=("venn-33",), fix="use 'venn-33', or list the entries",
        )  # fmt: skip
    table = data.read_csv("venn_jobs.csv")
    return [
        JobEntry(demand=int(demand), rounds=int(rounds), deadline_s=float(deadline), workload_s=float(workload))
        for demand, rounds, deadline, workload in zip(
            table["demand"], table["rounds"], table["deadline_s"], table["workload_s"], strict=True
        )
    ]


def _configs(mixture: Mixture, catalogue: Sequence[JobEntry]) -> tuple[Sequence[int], np.ndarray[Any, Any]]:
    configs = range(1, len(catalogue) + 1) if mixture.configs is None else mixture.configs
    weights = np.ones(len(configs)) if mixture.config_weights is None else np.array(mixture.config_weights)
    return configs, weights / weights.sum()


def _arrivals_s(arrivals: Exponential | Fixed | Listed, count: int, rng: np.random.RandomState) -> Sequence[float]:
    if isinstance(arrivals, Listed):
        return arrivals.at_s
    if isinstance(arrivals, Fixed):
        return [arrivals.first_s + k * arrivals.gap_s for k in range(count)]
    gaps = rng.exponential(arrivals.mean_gap_s, count - 1)
    return list(itertools.accumulate(gaps.tolist(), initial=arrivals.first_s))


def _categories(
    mixture: Mixture, classes: Sequence[str], entries: Sequence[JobEntry], rng: np.random.RandomState
) -> list[str | None]:
    """An entry's own class, else one by weight, else the next in turn."""
    if mixture.class_weights is not None:
        weights = np.array([mixture.class_weights.get(name, 0.0) for name in classes])
        chosen = [classes[index] for index in rng.choice(len(classes), len(entries), p=weights / weights.sum())]
        return [entry.category or name for entry, name in zip(entries, chosen, strict=True)]
    if not classes:
        return [None] * len(entries)
    return [entry.category or classes[k % len(classes)] for k, entry in enumerate(entries)]
