"""What studies keep of every run: a line of figures in a file, known by all that decides them.

A study of hundreds of runs takes an hour, so each run's figures are written down when it ends, and a run that is there
is not made again. Change what a run means, and the file has to go (`Records.path`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from vennue.core.errors import InvalidInput
from vennue.simulation.experiment import Experiment, Failure, Results, Told, run_experiment
from vennue.simulation.metrics import met_fair_share, shares_taken
from vennue.simulation.options import PRESETS, Options
from vennue.simulation.result import RunResult
from vennue.simulation.tables import Estimate, categories, jct_s, unfinished
from vennue.simulation.traces.model import FloatArray

FILE = "runs.jsonl"

Key = tuple[str, float, str, str, str, int]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are in seconds, shares of 1; what has no unit is a number of things."""

    workload: str
    scale: float
    trace: str
    conditions: str
    """See `conditions`."""
    policy: str
    """Its name, with the parameters that are not the defaults."""
    seed: int
    ended: str
    jobs: int
    unfinished: int
    jct_mean_s: float
    """Over all jobs; of unfinished ones, their time so far."""
    jct_of_class_s: dict[str, float]
    """Likewise, over the jobs of each requirement class."""
    scheduling_delay_s: float
    """Per committed round."""
    collection_s: float
    """Per committed round."""
    fair: float
    """Share of the jobs that completed within their fair share."""
    slowest: float
    """The largest completion time of a job, as a multiple of its fair share."""
    end_s: float
    online_s: float
    """Device-time."""
    busy_s: float
    """Device-time on tasks."""
    bound: int
    """Device-rounds."""
    used: int
    """Device-rounds that entered a commit."""
    check_ins: int
    engine: str
    wall_s: float

    @property
    def key(self) -> Key:
        """All that decides the figures."""
        return self.workload, self.scale, self.trace, self.conditions, self.policy, self.seed

    @classmethod
    def of(cls, experiment: Experiment, run: RunResult, alone_s: FloatArray) -> "Record":
        """The record of an experiment's run; ``alone_s`` is each job's time alone (`vennue.simulation.metrics`)."""
        times_s, classes = jct_s(run), categories(run)
        rounds = max(int(run.jobs["committed"].sum()), 1)
        workload, scale, trace, assumed, policy, seed = key(experiment, run.policy, run.seed)
        return cls(
            workload=workload,
            scale=scale,
            trace=trace,
            conditions=assumed,
            policy=policy,
            seed=seed,
            ended=run.ended,
            jobs=len(times_s),
            unfinished=int(unfinished(run).sum()),
            jct_mean_s=float(times_s.mean()),
            jct_of_class_s={str(name): float(times_s[classes == name].mean()) for name in sorted(set(classes))},
            scheduling_delay_s=float(run.jobs["scheduling_delay_s"].sum()) / rounds,
            collection_s=float(run.jobs["collection_s"].sum()) / rounds,
            fair=float(met_fair_share(run, alone_s).mean()),
            slowest=float(shares_taken(run, alone_s).max()),
            end_s=run.end_s,
            online_s=float(run.usage["online_s"].sum()),
            busy_s=float(run.usage["busy_s"].sum()),
            bound=run.counters["bound"],
            used=run.counters["used"],
            check_ins=run.counters["check_ins"],
            engine=run.engine,
            wall_s=run.wall_s,
        )


def key(experiment: Experiment, policy: str, seed: int) -> Key:
    """What a run is known by; ``policy`` is its label."""
    workload = experiment.workload
    return workload.name, workload.scale, experiment.trace, conditions(experiment.options), policy, seed


def conditions(options: Options) -> str:
    """What a run assumes, in short: the nearest preset, and what differs from it."""
    chosen = msgspec.structs.asdict(options)
    changes: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        usual = msgspec.structs.asdict(preset)
        changes[name] = [f"{field}={value}" for field, value in chosen.items() if value != usual[field]]
    nearest = min(changes, key=lambda name: len(changes[name]))
    return " ".join([nearest, *changes[nearest]])


class Records:
    """The records of a folder, and what adds to them.

    Args:
        folder: where the file is or will be; None keeps records in memory only.

    Raises:
        InvalidInput: a line of the file that is no record.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = None if folder is None else folder / FILE
        self._of: dict[Key, Record] = {}
        if self.path is not None and self.path.exists():
            for record in _read(self.path):
                self._of[record.key] = record

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._of.values())

    def add(self, record: Record) -> None:
        """Keep a record, in place of one with the same key."""
        self._of[record.key] = record
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")

    def of(self, experiment: Experiment) -> list[Record]:
        """Those of an experiment, by policy and seed in its order; those that are missing are left out."""
        keys = (key(experiment, policy, seed) for policy in experiment.labels for seed in experiment.seeds)
        return [self._of[wanted] for wanted in keys if wanted in self._of]

    def by_policy(self, experiment: Experiment) -> dict[str, list[Record]]:
        """The same by policy: a list for each, however many are missing."""
        found: dict[str, list[Record]] = {label: [] for label in experiment.labels}
        for record in self.of(experiment):
            found[record.policy].append(record)
        return found

    def missing(self, experiment: Experiment) -> list[Experiment]:
        """The experiments whose runs are those of ``experiment`` that have no record."""
        labels = experiment.labels
        seeds_of: dict[tuple[int, ...], list[int]] = {}
        for seed in experiment.seeds:
            left = tuple(i for i, label in enumerate(labels) if key(experiment, label, seed) not in self._of)
            if left:
                seeds_of.setdefault(left, []).append(seed)
        return [
            dataclasses.replace(
                experiment, policies=tuple(experiment.policies[index] for index in left), seeds=tuple(seeds)
            )
            for left, seeds in seeds_of.items()
        ]

    def complete(
        self,
        experiments: Sequence[Experiment],
        *,
        workers: int = 1,
        told: Callable[[float, str], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[Failure]:
        """Make every run of the experiments that has no record; returns those that failed.

        Args:
            experiments: each is checked before its runs.
            workers: processes to run in.
            told: how far it is, as a share of the work, and the workload under way.
            stop: asked some times a second whether to stop; runs that have not ended by then are left out.

        Raises:
            InvalidInput: an experiment cannot be run.
        """
        parts = [part for experiment in experiments for part in self.missing(experiment)]
        total = sum(len(part.runs()) for part in parts)
        done = 0.0
        failures: list[Failure] = []
        for part in parts:
            size = len(part.runs()) / total
            share = None if told is None else _share(told, part.workload.name, done, size)
            results = run_experiment(part, workers=workers, told=share, stop=stop)
            for record in _complete(results):
                self.add(record)
            failures += results.failures
            done += size
            if results.stopped:
                break
        return failures


def speedup(
    base: Iterable[Record], records: Iterable[Record], value: Callable[[Record], float | None] | None = None
) -> Estimate | None:
    """How many times as large a figure is in the base as in other records: a mean over the seeds that both have.

    The figure is the average JCT by default; where it is None, the pair is left out.
    """
    read = value or (lambda record: record.jct_mean_s)
    of_seed = {record.seed: read(record) for record in base}
    pairs = ((of_seed.get(record.seed), read(record)) for record in records)
    return Estimate.of([first / second for first, second in pairs if first and second])


def _share(told: Callable[[float, str], None], what: str, done: float, size: float) -> Told:
    """What is told of an experiment that is a part of the study, as told of the study."""
    return lambda fraction, _ended: told(done + size * fraction, what)


def _complete(results: Results) -> Iterator[Record]:
    for run in results.runs:
        if run.ended != "stopped":
            yield Record.of(results.experiment, run, results.alone_s[run.seed])


def _read(path: Path) -> Iterator[Record]:
    decoder = msgspec.json.Decoder(Record)
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"{path}, line {number}, is no record of a run: {error}", field="out", value=str(path),
                fix="remove the line, or name another folder",
            ) from error  # fmt: skip
