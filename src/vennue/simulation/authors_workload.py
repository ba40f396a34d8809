"""The Venn authors' workload files, read into a `Workload`.

Theirs come in two: a job file (``jobs``, each a ``config``, and ``job_requirement``), and a mixture that names a job
file and weighs its entries and its requirements. (Their simulator never reads the requirements' weights; ours does.)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from vennue.core.errors import InvalidInput
from vennue.simulation.traces.devices import CLASSES
from vennue.simulation.workload import Exponential, JobEntry, Mixture, Workload, parse

_JOBS = 50
_ARRIVALS = Exponential(mean_gap_s=1800, first_s=3600)
"""What their simulator runs: its command line gives 50 jobs; the arrivals are fixed in its code."""


def convert(path: Path, jobs: Path | None = None) -> Workload:
    """A workload from a mixture file, or, with every job once, from a job file alone.

    Args:
        path: the mixture or job file.
        jobs: the job file of the mixture, if it is not where the mixture says.

    Raises:
        InvalidInput: a file is missing or makes no sense, with the field and the fix.
    """
    content = _read(path)
    if "jobs" in content:
        entries, classes = _entries(path, content)
        workload = Workload(path.stem, classes=classes, arrivals=_ARRIVALS, jobs=tuple(entries))
    else:
        workload = _mixture(path, content, jobs or _job_file(path, content))
    return parse(dump(workload), path.name)


def dump(workload: Workload) -> str:
    """The workload as YAML text."""
    return yaml.safe_dump(msgspec.to_builtins(workload), sort_keys=False, width=120)


def _mixture(path: Path, content: Mapping[str, Any], job_file: Path) -> Workload:
    entries, classes = _entries(job_file, _read(job_file))
    weights = _weights(path, content, "job_id_prob", len(entries))
    bias = _weights(path, content, "eligiblility_prob", len(classes))
    configs = [number for number, weight in enumerate(weights or [1.0] * len(entries), start=1) if weight]
    drawn = [weight for weight in weights or () if weight]
    mixture = Mixture(
        _JOBS,
        tuple(msgspec.structs.replace(entry, category=None) for entry in entries),
        configs=tuple(configs) if len(configs) < len(entries) else None,
        config_weights=tuple(drawn) if len(set(drawn)) > 1 else None,
        class_weights=None if bias is None else dict(zip(classes, bias, strict=True)),
    )
    seed = content.get("RANDOMSEED", 0)
    if not isinstance(seed, int):
        raise _bad(path, "RANDOMSEED", seed, "must be a whole number")
    return Workload(path.stem, seed=seed, classes=classes, arrivals=_ARRIVALS, mixture=mixture)


def _entries(path: Path, content: Mapping[str, Any]) -> tuple[list[JobEntry], dict[str, str | dict[str, float]]]:
    classes: dict[str, str | dict[str, float]] = dict(CLASSES)
    if "job_requirement" in content:
        rules = [
            _inner(path, "job_requirement", item, "eligibility") for item in _list(path, content, "job_requirement")
        ]
        classes = {f"class-{number}": _thresholds(path, rule) for number, rule in enumerate(rules, start=1)}
    entries = [
        _entry(path, number, _inner(path, "jobs", item, "config"), list(classes))
        for number, item in enumerate(_list(path, content, "jobs"), start=1)
    ]
    return entries, classes


def _entry(path: Path, number: int, config: Mapping[str, Any], classes: list[str]) -> JobEntry:
    at = f"jobs[{number - 1}]"
    known = {"participants", "rounds", "concurrency", "job_type", "deadline", "workload", "eligibility"}
    missing = {"participants", "rounds"} - set(config)
    if missing or not set(config) <= known:
        odd = ", ".join(sorted(missing or set(config) - known))
        raise _bad(path, at, odd, f"{'lacks' if missing else 'has an unknown'} {odd}")
    fields: dict[str, Any] = {"name": f"job-{number}", "demand": config["participants"], "rounds": config["rounds"]}
    if config.get("job_type", "sync") == "async":
        # Their deadline is when a device that has not answered is given up: our lease.
        fields |= {"mode": "async", "buffer_size": config.get("concurrency"), "lease_s": config.get("deadline")}
    else:
        fields |= {"deadline_s": config.get("deadline")}
    if "workload" in config:
        fields["workload_s"] = config["workload"]
    if "eligibility" in config:
        index = config["eligibility"]
        if not isinstance(index, int) or not 0 <= index < len(classes):
            raise _bad(path, f"{at}.eligibility", index, f"must be 0 to {len(classes) - 1}")
        fields["class"] = classes[index]
    try:
        return msgspec.convert(fields, JobEntry)
    except msgspec.ValidationError as error:
        raise _bad(path, at, config, str(error)) from error


def _thresholds(path: Path, rule: Mapping[str, Any]) -> dict[str, float]:
    names = {"memory": "memory_score", "cpu": "cpu_score", "os": "android"}
    for key, value in rule.items():
        if key not in names or isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad(path, f"job_requirement.{key}", value, f"must be a number under one of {', '.join(names)}")
    return {names[key]: value for key, value in rule.items()}


def _weights(path: Path, content: Mapping[str, Any], field: str, count: int) -> list[float] | None:
    weights = content.get(field)
    if weights is None or weights == "None":
        return None
    if not isinstance(weights, list) or len(weights) != count or not all(isinstance(w, int | float) for w in weights):
        raise _bad(path, field, weights, f"must be a list of {count} numbers")
    return [float(weight) for weight in weights]


def _job_file(path: Path, content: Mapping[str, Any]) -> Path:
    """The job file that a mixture names, relative to it or to the folder above."""
    name = content.get("job_config_file")
    if not isinstance(name, str):
        raise _bad(path, "job_config_file", name, "must name the job file")
    candidates = [path.parent / name, path.parent.parent / name, path.parent / Path(name).name]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        raise InvalidInput(
            f"{path.name}: no such job file: {name}", field="job_config_file", value=name, fix="name it with --jobs"
        )
    return found


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InvalidInput(f"no such file: {path}", field="path", value=str(path), fix="check the name")
    try:
        content = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path.name} is not YAML: {error}", field="path", fix="correct the file") from error
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{path.name} holds neither jobs nor a mixture", field="path", fix="check the file")
    return content


def _list(path: Path, content: Mapping[str, Any], field: str) -> list[Any]:
    found = content.get(field)
    if not isinstance(found, list) or not found:
        raise _bad(path, field, found, "must be a list with at least one entry")
    return found


def _inner(path: Path, field: str, item: object, key: str) -> Mapping[str, Any]:
    inner = item.get(key) if isinstance(item, Mapping) else None
    if not isinstance(inner, Mapping):
        raise _bad(path, field, item, f"every entry must hold a {key}")
    return inner


def _bad(path: Path, field: str, value: object, message: str) -> InvalidInput:
    return InvalidInput(f"{path.name}: {message}", field=field, value=value, fix="correct the file")
