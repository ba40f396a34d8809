"""The world of a simulated run: everything that chance decides, and nothing that a policy could change.

Which jobs arrive and when, which devices check in, how fast they are, how long a dispatch takes and how a draw falls
come from one random stream per purpose and depend on the seed alone: two policies under the same seed meet the same
jobs, devices, failures and delays. Both engines read the world through `World.batches`, so they agree on it by
construction, and nothing here grows with the length of the run.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from vennue.core.errors import Infeasible, InvalidInput
from vennue.core.ids import JobId, Signature
from vennue.core.job import DAY_S, JobSpec
from vennue.core.requirement import Profile, Requirement
from vennue.core.supply import Supply
from vennue.simulation.options import Options
from vennue.simulation.traces import CheckIns, DevicePopulation, Trace
from vennue.simulation.traces.devices import MEAN_COMMUNICATION_KBPS, MEAN_COMPUTATION_MS, NOMINAL_LINK_S
from vennue.simulation.traces.model import YEAR_S, FloatArray, IntArray
from vennue.simulation.workload import JobTemplate

STEP = 0.6180339887498949
"""The *k*-th uniform number of a session is the first plus *k* times this, modulo 1: the golden ratio spreads them."""

MAX_SEED = 2**32 - 1
_LEAST_HORIZON_S = 30 * DAY_S
_HORIZON_PER_DEMAND = 10.0
"""On the workloads of the Venn paper, the slowest policy that ends, `random-order`, takes 2.3 times as long as this."""
_LONGEST_HORIZON_S = 10 * YEAR_S
_DISPATCH, _CHOICE = range(2)


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the run: a template under the run's options."""

    id: JobId
    spec: JobSpec
    arrival_s: float
    workload_s: float
    """Training time of a task on the mean device."""
    nominal_s: float
    """The whole task on the mean device with the mean link."""
    requirement: int
    """Index in `World.requirements`."""
    category: str | None
    config: int | None


class Batch(NamedTuple):
    """Consecutive sessions as they begin, in time order: equally long columns."""

    time_s: FloatArray
    device: IntArray
    end_s: FloatArray
    kind: IntArray
    """Index in `World.kinds`."""
    slowness: FloatArray
    """Training time relative to the mean device."""
    link_s: FloatArray
    """Time of both transfers of the model."""
    dispatch: FloatArray
    """A uniform number in [0, 1) for the dispatch delay."""
    choice: FloatArray
    """A uniform number in [0, 1) for plans that choose at random."""


class World:
    """Jobs, devices and chance of one run.

    Devices that meet the same requirements of this workload are of one *kind*, and stand before the pool with one
    attribute profile: nothing that the run decides could tell them apart.

    Args:
        jobs: in any order; they are numbered by arrival.
        check_ins: when devices check in.
        population: what they are.
        seed: of dispatch delays, draws and lotteries; `jobs`, ``check_ins`` and ``population`` have been drawn already.
        options: what the run assumes.

    Raises:
        InvalidInput: no jobs, a job that cannot be simulated, or a horizon before any job could finish.
        Infeasible: a job whose requirement no device meets.
    """

    def __init__(
        self,
        jobs: Sequence[JobTemplate],
        check_ins: CheckIns,
        population: DevicePopulation,
        *,
        seed: int,
        options: Options,
    ) -> None:
        if not jobs:
            raise InvalidInput("there is no job to run", field="workload", value=0, limit=1, fix="give a workload")
        if not 0 <= seed <= MAX_SEED:
            raise InvalidInput(f"must be 0 to {MAX_SEED}, got {seed}", field="seed", value=seed, limit=MAX_SEED)
        options.check()
        self.check_ins = check_ins
        self.population = population
        self.schema = population.table.schema
        self.seed = seed
        self.options = options
        self.requirements: list[Requirement] = []
        """The distinct requirements of the jobs."""
        self.jobs = self._number(jobs)
        regions = population.regions(self.requirements)
        self.signatures: list[Signature] = regions.signatures
        """For each kind, the requirements that it meets: bit *q* stands for ``requirements[q]``."""
        self._kind_of_row = regions.of_row
        rows = [int(np.flatnonzero(regions.of_row == kind)[0]) for kind in range(len(regions.signatures))]
        self.kinds: list[Profile] = [population.table.profiles[row] for row in rows]
        """For each kind, the profile that its devices check in with."""
        self.shares: FloatArray = np.bincount(regions.of_row, population.shares, len(self.kinds)).astype(np.float64)
        """For each kind, its expected share of devices."""
        self.horizon_s = self._default_horizon_s() if options.horizon_s is None else options.horizon_s
        """When the run ends at the latest."""
        self._check_feasible()
        self.expected_workload_s = float(np.median([job.workload_s for job in self.jobs]))
        """What a device's expected response time is given for."""

    def meets(self) -> npt.NDArray[np.bool_]:
        """Whether the devices of each kind (rows) meet each requirement (columns)."""
        bits = range(len(self.requirements))
        return np.array([[bool(signature >> bit & 1) for bit in bits] for signature in self.signatures])

    def supply(self) -> Supply:
        """An empty supply that keeps every kind exactly."""
        return Supply(max_profiles=max(4096, len(self.kinds)))

    def batches(self) -> Iterator[Batch]:
        """All sessions up to the horizon."""
        options = self.options
        dispatch, choice = (np.random.default_rng((self.seed, purpose)) for purpose in (_DISPATCH, _CHOICE))
        first = 0
        for block in self.check_ins.blocks(self.horizon_s, extend_s=options.extend_s):
            count = len(block.time_s)
            devices = self.population(block.device)
            yield Batch(
                block.time_s,
                np.arange(first, first + count) if options.anonymous_sessions else block.device,
                block.end_s,
                self._kind_of_row[devices.row],
                devices.computation_ms / MEAN_COMPUTATION_MS,
                2 * NOMINAL_LINK_S * MEAN_COMMUNICATION_KBPS / devices.communication_kbps,
                dispatch.random(count),
                choice.random(count),
            )
            first += count

    def _number(self, jobs: Sequence[JobTemplate]) -> list[SimulatedJob]:
        order = sorted(range(len(jobs)), key=lambda index: (jobs[index].arrival_s, index))
        width = len(str(len(jobs)))
        bits: dict[Requirement, int] = {}
        numbered = []
        for number, index in enumerate(order, start=1):
            template = jobs[index]
            spec = self.options.apply(template.spec)
            requirement, _ = spec.check(self.schema)
            for field, value in (("rounds", spec.rounds), ("arrival_s", template.arrival_s)):
                if value is None or value < 0:
                    raise InvalidInput(
                        f"job {spec.name}: a simulated job needs its {field}", field=field, value=value, limit=0
                    )
            if spec.after:
                raise InvalidInput(
                    f"job {spec.name}: a simulated job arrives at its own time, whatever others do", field="after",
                    value=len(spec.after), limit=0, fix="give it an arrival_s instead",
                )  # fmt: skip
            if spec.private_requirement is not None:
                raise InvalidInput(
                    f"job {spec.name}: simulated devices have no private attributes", field="private_requirement",
                    value=spec.private_requirement, fix="simulate the job without it",
                )  # fmt: skip
            numbered.append(
                SimulatedJob(
                    id=JobId(f"job-{number:0{width}}"),
                    spec=spec,
                    arrival_s=template.arrival_s,
                    workload_s=template.workload_s,
                    nominal_s=template.workload_s + 2 * NOMINAL_LINK_S,
                    requirement=bits.setdefault(requirement, len(bits)),
                    category=template.category,
                    config=template.config,
                )
            )
        self.requirements = list(bits)
        return numbered

    def _check_feasible(self) -> None:
        check_ins = self.check_ins
        unbounded = self.options.horizon_s is None and not self.options.extend_s
        if unbounded and isinstance(check_ins, Trace) and not check_ins.online_s:
            raise InvalidInput(
                f"every session of {check_ins.name} ends as it starts, so no device is there to serve a job",
                field="trace", value=check_ins.name, limit=0, fix="give sessions that last",
            )  # fmt: skip
        earliest_s = float("inf")
        covered = self.shares @ self.meets()
        scarce = self.scarcity()
        for job in self.jobs:
            share = float(covered[job.requirement])
            if not share:
                text = self.requirements[job.requirement].text
                raise Infeasible(
                    f"job {job.spec.name}: no device meets {text!r}", field="requirement", value=text, limit=0,
                    fix="relax the requirement, or simulate other devices",
                )  # fmt: skip
            earliest_s = min(earliest_s, job.arrival_s + self._least_s(job, share))
        if self.horizon_s <= earliest_s:
            raise InvalidInput(
                f"no job can finish within {_said(self.horizon_s)}; the first would after {_said(earliest_s)}"
                + (f": {scarce}" if scarce else ""),
                field="horizon_s", value=self.horizon_s, limit=round(earliest_s),
                fix="scale the workload down, or give a trace with more devices"
                + ("" if self.options.horizon_s is None else ", or a longer horizon"),
            )  # fmt: skip

    def _default_horizon_s(self) -> float:
        """See `Options.horizon_s`. Of the demand under one requirement, and of all of it, the longer one counts."""
        supplies = self.shares @ self.meets() * self.check_ins.rate_per_s
        demands = np.zeros(len(self.requirements))
        for job in self.jobs:
            demands[job.requirement] += (job.spec.rounds or 0) * job.spec.goal
        served = supplies > 0
        least_s = max([demands.sum() / self.check_ins.rate_per_s, *(demands[served] / supplies[served])])
        needed_s = min(max(_LEAST_HORIZON_S, _HORIZON_PER_DEMAND * float(least_s)), _LONGEST_HORIZON_S)
        return self.jobs[-1].arrival_s + needed_s

    def scarcity(self) -> str | None:
        """That the jobs ask for more than the trace can bring up to the horizon, in figures, if that is so."""
        most_per_s = self._most_tasks_per_s()
        if most_per_s is None:
            return None
        wanted = sum((job.spec.rounds or 0) * job.spec.goal for job in self.jobs if job.spec.mode != "async")
        if wanted <= 2 * most_per_s * self.horizon_s:
            return None
        years = wanted / most_per_s / YEAR_S
        return (
            f"the devices of {self.check_ins.name} can do at most {most_per_s * DAY_S:,.0f} tasks a day, "
            f"and the jobs ask for {wanted:,}, which takes {years:,.{0 if years >= 10 else 1}f} years or more"
        )

    def _most_tasks_per_s(self) -> float | None:
        """No more tasks than this can be handed out, averaged over a period of the trace; None where nobody knows."""
        options, check_ins = self.options, self.check_ins
        if not options.poll_interval_s:
            return check_ins.rate_per_s
        if not isinstance(check_ins, Trace):
            return None
        most_per_s = check_ins.asks_per_s(options.poll_interval_s, options.extend_s)
        if options.tasks_per_session:
            most_per_s = min(most_per_s, options.tasks_per_session * check_ins.rate_per_s)
        return most_per_s

    def _least_s(self, job: SimulatedJob, share: float) -> float:
        """A job takes at least this long, even alone and when devices come at twice their average rate.

        Nothing is said about jobs that a day's devices could serve: those may all come at once.
        """
        if job.spec.mode == "async":
            return 0.0
        demand = (job.spec.rounds or 0) * job.spec.goal
        if not self.options.poll_interval_s:
            least_s = demand / (2 * share * self.check_ins.rate_per_s)
            return least_s if least_s > DAY_S else 0.0
        most_per_s = self._most_tasks_per_s()
        if self.options.horizon_s is not None or most_per_s is None or not isinstance(self.check_ins, Trace):
            return 0.0  # a run to a horizon that was asked for ends by itself
        least_s = demand / (2 * most_per_s)  # whatever share of a few devices may be eligible
        return least_s if least_s > self.check_ins.period_s else 0.0


def _said(seconds: float) -> str:
    return f"{seconds / DAY_S:,.0f} days" if seconds >= 10 * DAY_S else f"{seconds:.0f} s"
