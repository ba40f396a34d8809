"""Real training through a real server: to what accuracy, in how many rounds, and who waits how long for it.

``python -m benchmarks.training curves`` trains a task with FedAvg and with FedAdam, by a driven job on a server and a
fleet of 300 simulated phones, each with a part of the data; and, beside them, centrally: the same network, from the
same beginning, by as many gradient steps' examples a round, drawn from all data at once. The *target* is a fixed
accuracy on data that nobody trains on.

``python -m benchmarks.training contention`` runs several jobs on one pool under different policies, in virtual time,
and asks when each job's model reaches an accuracy.

Both print tables in Markdown, draw figures, and write all that they have measured as JSON into the same folder.
"""

import argparse
import asyncio
import gzip
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks import figures
from benchmarks.figures import Curve, Panel
from vennue.control.pacing import Pacing
from vennue.core.errors import InvalidInput, VennueError
from vennue.demo.datasets import Dataset, Examples, by_label
from vennue.demo.demo import PACING, trace
from vennue.demo.jobs import DemoJob, load
from vennue.demo.learner import PhoneData
from vennue.demo.network import Network
from vennue.demo.server import serving
from vennue.demo.tasks import TASKS, Task, Training
from vennue.policies import get_policy
from vennue.sdk.device import AsyncTask
from vennue.sdk.job import AsyncJob
from vennue.simulation.report import svg
from vennue.simulation.traces import phone_population
from vennue.testing import LocalPool, run_virtual
from vennue.testing.fleet import Fleet, FleetRun, Trained
from vennue.testing.pool import URL

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist has its files."""
JOBS = Path(__file__).with_name("contention.yaml")
DEVICES = 300
SPEEDUP = 100.0
"""Simulated seconds per second: phones come and go, train and rest so many times faster than they would."""
LEASE_S = 15.0
OUTPUT = Path("build/training")


# -- what is trained ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a job trains: its strategy with options, and the learning rate of its devices."""

    strategy: str
    options: Mapping[str, float]
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task to train to a target.

    Args:
        task: what is learned.
        demand: phones per round; a round ends with four fifths of them.
        rounds: how many.
        target: the accuracy to reach.
        central: how it is trained centrally.
        ways: how jobs train it.
        parts: into how many parts the data is dealt; phones beyond that hold the same again.
    """

    task: Task
    demand: int
    rounds: int
    target: float
    central: Training
    ways: Sequence[Way]
    parts: int = DEVICES


@cache
def fashion_mnist() -> Dataset:
    """The whole of Fashion-MNIST, 60 000 images of 28x28 to train on and 10 000 held out, dealt as the demo's part is.

    Raises:
        InvalidInput: the files are not there.
    """

    def examples(part: str) -> Examples:
        pixels = _idx(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28 * 28)
        return Examples(pixels.astype(np.float32) / np.float32(255), _idx(f"{part}-labels-idx1-ubyte.gz", 8))

    train = examples("train")
    deal = partial(by_label, train.labels, concentration=1.0, size_deviation=0.6)
    return Dataset(train, examples("t10k"), deal)


def _idx(name: str, header_bytes: int) -> NDArray[np.uint8]:
    """The numbers of a file in the form of the MNIST data sets: a header, then bytes."""
    path = FASHION_MNIST / name
    if not path.exists():
        raise InvalidInput(
            "the whole of Fashion-MNIST is not installed", field="task", value=str(path),
            fix="on Debian and Ubuntu: apt-get install dataset-fashion-mnist",
        )  # fmt: skip
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header_bytes)


def _ways(learning_rate: float, adam_rate: float) -> list[Way]:
    return [
        Way(strategy="fedavg", options={}, learning_rate=learning_rate),
        Way(strategy="fedadam", options={"learning_rate": adam_rate}, learning_rate=learning_rate / 2),
    ]


SETTINGS: Mapping[str, Setting] = {
    setting.task.name: setting
    for setting in (
        Setting(
            task=TASKS["next-character"],
            demand=10,
            rounds=100,
            target=0.41,
            central=Training(learning_rate=0.1, batch_size=32, max_steps=sys.maxsize),
            ways=_ways(0.4, 0.03),
        ),
        Setting(
            task=Task(
                name="fashion-mnist",
                title="articles of clothing, Fashion-MNIST at 28x28",
                network=Network(28 * 28, (128,), 10),
                training=Training(learning_rate=0.2, batch_size=16, epochs=2),
                rounds=100,
                devices_per_round=20,
                load=fashion_mnist,
            ),
            demand=20,
            rounds=100,
            target=0.84,
            central=Training(learning_rate=0.05, batch_size=16, max_steps=sys.maxsize),
            ways=_ways(0.2, 0.01),
        ),
        Setting(
            task=TASKS["clothes"],
            demand=16,
            rounds=40,
            target=0.75,
            central=Training(learning_rate=0.1, batch_size=16, max_steps=sys.maxsize),
            ways=_ways(0.2, 0.02),
            parts=100,
        ),
    )
}


# -- training to a target -------------------------------------------------------------------------------------------


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A model on the way: after a round, so long after the start, how well it does on held-out data."""

    round: int
    elapsed_s: float
    loss: float
    accuracy: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training."""

    name: str
    points: list[Point]
    examples_per_round: float
    """About how many examples a round's gradient steps took, repeated ones included."""

    def reaches(self, target: float) -> Point | None:
        """The first model that is as accurate as that."""
        return next((point for point in self.points if point.accuracy >= target), None)


class Deal:
    """What the phones learn from: each has a part of one task's data."""

    def __init__(self, task: Task, parts: int, seed: int) -> None:
        self._task = task
        self._seed = seed
        self._parts = task.partition(parts, seed)

    def private(self, device: int) -> Mapping[str, Any]:
        return {}

    def train(self, device: int, task: AsyncTask) -> Trained:
        rng = np.random.default_rng((self._seed, device, task.round))
        how = replace(self._task.training, learning_rate=float(task.config["learning_rate"]))
        result = self._task.train(task.model, self._parts[device % len(self._parts)], rng, training=how)
        return Trained(result.model, result.examples, result.metrics)


async def federated(setting: Setting, way: Way, folder: Path, seed: int) -> Run:
    """Train by a job on a server with a fleet, all in processes and threads of their own.

    Raises:
        VennueError: the server does not start, or the job does not end.
    """
    data = await asyncio.to_thread(Deal, setting.task, setting.parts, seed)
    fleet = Fleet(
        devices=DEVICES, trace=trace(), population=phone_population(seed=seed), speedup=SPEEDUP, seed=seed,
        rest_s=900.0,
    )  # fmt: skip
    async with serving(folder, {"POLICY": "fifo", "SEED": seed, "DURABLE_BLOBS": 0, **PACING}) as server:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(FleetRun(fleet, server, data).run(stop))
            run = await _drive(server, setting, way, seed)
            stop.set()
    return run


async def _drive(server: str, setting: Setting, way: Way, seed: int) -> Run:
    task = setting.task
    points, used = [], 0.0
    job = AsyncJob(
        server, name=task.name, demand=setting.demand, rounds=setting.rounds, min_reports=round(0.8 * setting.demand),
        lease_s=LEASE_S, strategy=way.strategy, strategy_options=dict(way.options),
    )  # fmt: skip
    async with job:
        async for point, steps in _learn(task, job, {"learning_rate": way.learning_rate}, seed):
            points.append(point)
            used += steps * task.training.batch_size
    return Run(name=way.strategy, points=points, examples_per_round=used / setting.rounds)


async def _learn(task: Task, job: AsyncJob, config: Mapping[str, Any], seed: int) -> AsyncIterator[tuple[Point, float]]:
    """Run a job's rounds: each model on the way, the first one included, and how many steps its devices took."""
    loop = asyncio.get_running_loop()
    model: Mapping[str, Any] = task.initial_model(seed)
    started_at = loop.time()
    yield _point(task, model, 0, 0.0), 0.0
    async for turn in job.rounds(config):
        model = await turn.run(model)
        elapsed_s = loop.time() - started_at
        yield (
            await asyncio.to_thread(_point, task, model, turn.number, elapsed_s),
            turn.metrics["steps"] * turn.reported,
        )


def central(setting: Setting, examples_per_round: float, seed: int) -> Run:
    """Train the same network from the same beginning on all data, with as many examples a round."""
    task, data = setting.task, setting.task.load().train
    model: Mapping[str, Any] = task.initial_model(seed)
    rng = np.random.default_rng(seed)
    points = [_point(task, model, 0, 0.0)]
    order: NDArray[np.int64] = np.empty(0, np.int64)
    for turn in range(1, setting.rounds + 1):
        while len(order) < examples_per_round:
            order = np.concatenate([order, rng.permutation(len(data))])
        chosen, order = np.split(order, [int(examples_per_round)])
        model = task.train(model, data.take(chosen), rng, training=setting.central).model
        points.append(_point(task, model, turn, 0.0))
    return Run(name="central", points=points, examples_per_round=examples_per_round)


def _point(task: Task, model: Mapping[str, Any], number: int, elapsed_s: float) -> Point:
    score = task.evaluate(model)
    return Point(round=number, elapsed_s=elapsed_s, loss=score.loss, accuracy=score.accuracy)


async def curves(setting: Setting, folder: Path, seed: int) -> list[Run]:
    """The setting's trainings: central first."""
    runs = [await federated(setting, way, folder / way.strategy, seed) for way in setting.ways]
    work = sum(run.examples_per_round for run in runs) / len(runs)
    return [await asyncio.to_thread(central, setting, work, seed), *runs]


def curves_table(setting: Setting, runs: Sequence[Run]) -> str:
    """The runs as a table in Markdown."""
    asked = f"rounds to {setting.target:.0%} | time to it"
    lines = [
        f"| {setting.task.name} | accuracy after {setting.rounds} rounds | loss | {asked} |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        reached, last = run.reaches(setting.target), run.points[-1]
        rounds = "not reached" if reached is None else str(reached.round)
        time = "" if reached is None or not reached.elapsed_s else f"{reached.elapsed_s:.0f} s"
        lines.append(f"| {run.name} | {last.accuracy:.1%} | {last.loss:.3f} | {rounds} | {time} |")
    return "\n".join(lines)


def draw_curves(path: Path, setting: Setting, runs: Sequence[Run]) -> None:
    """Accuracy and loss by round, the target across."""

    def lines(figure: Callable[[Point], float]) -> list[Curve]:
        return [
            Curve(run.name, svg.series(at), [(point.round, figure(point)) for point in run.points])
            for at, run in enumerate(runs)
        ]

    panels = [
        Panel("accuracy on held-out data", "rounds", lines(lambda point: point.accuracy), setting.target),
        Panel("loss on held-out data, nats", "rounds", lines(lambda point: point.loss)),
    ]
    figures.write(path, f"{setting.task.title}: accuracy and loss by round", panels, columns=2)


# -- several jobs on one pool -----------------------------------------------------------------------------------------


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Several jobs on one pool under one policy: each job's models, by its name."""

    policy: str
    jobs: dict[str, list[Point]]

    @property
    def last_round_s(self) -> float:
        """When the average job had run its last round."""
        return sum(points[-1].elapsed_s for points in self.jobs.values()) / len(self.jobs)


def contention(policy: str, jobs: Sequence[DemoJob], seed: int) -> Contention:
    """Run jobs that contend for the fleet, each to its last round, in virtual time.

    Phones, owners and the whole server are the real ones, but in this process and on a clock that jumps: a task takes
    its phone as long as it would take it, and no time passes while this machine computes. So the run is the same
    whatever else the machine does.
    """
    return run_virtual(_contention(policy, jobs, PhoneData(DEVICES, seed), seed))


async def _contention(policy: str, jobs: Sequence[DemoJob], data: PhoneData, seed: int) -> Contention:
    fleet = Fleet(
        devices=DEVICES, trace=trace(), population=phone_population(seed=seed), speedup=1.0, seed=seed, rest_s=900.0
    )
    pacing = Pacing(short_s=150.0, busy_s=300.0, idle_s=500.0)
    async with LocalPool(seed=seed, policy=policy, pacing=pacing, validate=False) as pool:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(FleetRun(fleet, URL, data, network=pool.transport()).run(stop))
            learned = await asyncio.gather(*(_contender(pool, job, seed) for job in jobs))
            stop.set()
    return Contention(policy=policy, jobs=dict(zip((job.job.name for job in jobs), learned, strict=True)))


async def _contender(pool: LocalPool, job: DemoJob, seed: int) -> list[Point]:
    async with pool.job(spec=job.job) as handle:
        return [point async for point, _ in _learn(TASKS[job.task], handle, {"task": job.task, **job.config}, seed)]


def target_of(name: str, runs: Sequence[Contention]) -> float:
    """What a job is asked for: 98 % of the accuracy that it reaches in every run."""
    return 0.98 * min(max(point.accuracy for point in run.jobs[name]) for run in runs)


def time_to_s(points: Sequence[Point], accuracy: float) -> float:
    """When a model was as accurate as that."""
    return next(point.elapsed_s for point in points if point.accuracy >= accuracy)


def contention_table(runs: Sequence[Contention]) -> str:
    """Time to accuracy, job by job, as a table in Markdown; the last run is the one to compare with."""
    names = [*runs[0].jobs]
    lines = [
        "| job | accuracy asked for | " + " | ".join(run.policy for run in runs) + " |",
        "|---" * (len(runs) + 2) + "|",
    ]
    hours = np.zeros((len(names), len(runs)))
    for row, name in zip(hours, names, strict=True):
        target = target_of(name, runs)
        row[:] = [time_to_s(run.jobs[name], target) / 3600 for run in runs]
        lines.append(f"| {name} | {target:.1%} | " + " | ".join(f"{hour:.1f} h" for hour in row) + " |")
    means = hours.mean(axis=0)
    lines.append("| mean | | " + " | ".join(f"{mean:.1f} h" for mean in means) + " |")
    lines.append("| speedup | | " + " | ".join(f"{means[-1] / mean:.2f}" for mean in means) + " |")
    lasts = [run.last_round_s / 3600 for run in runs]
    lines.append("| last round, mean | | " + " | ".join(f"{last:.1f} h" for last in lasts) + " |")
    return "\n".join(lines)


def draw_contention(path: Path, runs: Sequence[Contention]) -> None:
    """Accuracy by time, a panel per job."""
    panels = []
    for name in runs[0].jobs:
        lines = [
            Curve(
                run.policy,
                svg.series(len(runs) - 1 - at),
                [(point.elapsed_s / 3600, point.accuracy) for point in run.jobs[name]],
            )
            for at, run in enumerate(runs)
        ]
        panels.append(Panel(f"{name}: accuracy", "hours", lines, target_of(name, runs)))
    about = "The accuracy of each job's model by time, under " + ", ".join(run.policy for run in runs)
    figures.write(path, about, panels, columns=3)


# -- the command ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit code: 2 if it makes no sense, 1 if what was run failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)  # better said before the work than after it
    except OSError as error:
        parser.error(f"argument --output: cannot make {options.output}: {error.strerror}")
    try:
        with tempfile.TemporaryDirectory(prefix="vennue-training-") as folder:
            if options.what == "curves":
                _run_curves(options, Path(folder))
            else:
                _run_contention(options)
    except InvalidInput as error:
        parser.error(str(error))
    except VennueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--seed", type=int, default=1, help="of phones, data and models (default: 1)")
    both.add_argument("--output", type=Path, default=OUTPUT, help=f"the folder of figures and JSON (default: {OUTPUT})")
    parser = argparse.ArgumentParser(prog="benchmarks.training", description=(__doc__ or "").partition("\n")[0])
    ways = parser.add_subparsers(dest="what", required=True)
    one = ways.add_parser("curves", parents=[both], help="accuracy by rounds, beside central training")
    one.add_argument("--task", choices=[*SETTINGS], action="append", help="all when none is given")
    one.add_argument("--rounds", type=_count, help="fewer or more than the task's own")
    other = ways.add_parser("contention", parents=[both], help="time to an accuracy under policies, in virtual time")
    other.add_argument(
        "--policies", nargs="+", default=["venn", "random-order"],
        help="the baseline last (default: venn random-order)",
    )  # fmt: skip
    other.add_argument("--jobs", type=Path, default=JOBS, help="a file of jobs, as of `vennue demo`")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {count}")
    return count


def _run_curves(options: argparse.Namespace, folder: Path) -> None:
    for name in options.task or SETTINGS:
        setting = SETTINGS[name]
        if options.rounds is not None:
            setting = replace(setting, rounds=options.rounds)
        runs = asyncio.run(curves(setting, folder / name, options.seed))
        print(curves_table(setting, runs), end="\n\n", flush=True)
        draw_curves(options.output / f"training-{name}.svg", setting, runs)
        _keep(options.output / f"training-{name}.json", runs)


def _run_contention(options: argparse.Namespace) -> None:
    jobs = load(options.jobs)
    for policy in options.policies:
        get_policy(policy)
    runs = [contention(policy, jobs, options.seed) for policy in options.policies]
    print(contention_table(runs))
    draw_contention(options.output / "contention.svg", runs)
    _keep(options.output / "contention.json", runs)


def _keep(path: Path, measured: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")


if __name__ == "__main__":
    logging.getLogger("vennue").setLevel(logging.ERROR)  # phones that lose a race, or vanish, are part of it
    sys.exit(main())
