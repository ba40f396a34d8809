"""`simulate`: one run of a workload under a policy, from what a user names to a `RunResult`.

It draws the world, picks the engine, reports progress, and turns an interrupt into a partial, marked result.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import msgspec

from vennue.core.errors import InvalidInput
from vennue.core.plan import Planner
from vennue.policies import Policy, get_policy
from vennue.policies.matching import FifoMatch
from vennue.policies.partition import ClientRandom, StaticPartition
from vennue.policies.venn import Venn
from vennue.simulation.engine import ReferenceEngine
from vennue.simulation.options import Options
from vennue.simulation.options import options as options_of
from vennue.simulation.result import FATES, End, RunResult
from vennue.simulation.traces import Capacity, CheckIns, DevicePopulation, open_check_ins, phone_population
from vennue.simulation.workload import JobTemplate, Workload, draw, load
from vennue.simulation.world import World

if TYPE_CHECKING:
    from vennue.simulation.kernel.driver import KernelEngine

Engine = Literal["auto", "reference", "kernel"]


def simulate(
    workload: str | Workload | Sequence[JobTemplate],
    policy: str | Planner,
    *,
    parameters: Mapping[str, object] | None = None,
    seed: int = 0,
    trace: str | CheckIns = "paper",
    population: DevicePopulation | None = None,
    options: str | Options = "default",
    engine: Engine = "auto",
    validate: bool = False,
    keep_assignments: bool = False,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Run a workload once, to the end of its last job.

    Args:
        workload: a name or file, a loaded workload, or drawn jobs.
        policy: a name, or anything that plans.
        parameters: of the policy, when it is named.
        seed: of everything that chance decides. Seed 0 draws the jobs that a workload of the Venn paper is known by;
            the same seed gives the same jobs, devices, failures and delays under every policy.
        trace: when devices check in; a name is opened with ``seed``.
        population: what the devices are; the shipped phone models by default, with the capacities that go with the
            trace ``paper`` if it is that one, else FedScale's.
        options: what the run assumes, or the name of a preset.
        engine: the results are the same. ``kernel`` is a hundred times as fast and needs the extra ``sim``; ``auto``
            takes it where it is installed and can do the run, unless ``validate`` is set.
        validate: check invariants: those of the core after every event (reference engine), or, when the engine is
            ``kernel``, those that its memory can show every 10 000 events.
        keep_assignments: keep a row for every device bound.
        progress: told the fraction of device-rounds done, now and then.
        stop: asked now and then whether to stop; then, as on Ctrl-C, the result so far is returned, marked.

    Raises:
        InvalidInput: what is named does not exist or makes no sense, before anything runs; or the policy raised.
        Infeasible: a job whose requirement no device meets.
    """
    started_at = time.perf_counter()
    planner = get_policy(policy, **(parameters or {})) if isinstance(policy, str) else policy
    chosen = options_of(options) if isinstance(options, str) else options
    name, jobs = _jobs(workload, seed)
    check_ins = open_check_ins(trace, seed=seed) if isinstance(trace, str) else trace
    if population is None:
        population = phone_population(Capacity.paper() if check_ins.name == "paper" else None, seed=seed)
    world = World(jobs, check_ins, population, seed=seed, options=chosen)
    running = _engine(engine, world, planner, validate=validate, keep_assignments=keep_assignments)
    total = sum(template.device_rounds for template in jobs)

    def look() -> bool:
        if progress is not None:
            progress(min(running.done / total, 1.0))
        return stop is not None and stop()

    try:
        ended: End = running.run(look)
    except KeyboardInterrupt:
        ended = "stopped"
    found = running.columns()
    counted = {column: int(found["jobs"][column].sum()) for column in ("bound", *FATES)}
    check_ins_made = int(found["regions"]["check_ins"].sum())
    return RunResult(
        workload=name,
        policy=describe(planner),
        seed=seed,
        engine=running.name,
        options=chosen,
        ended=ended,
        end_s=running.now,
        jobs=found["jobs"],
        attempts=found["attempts"],
        usage=running.usage.columns(running.now),
        regions=found["regions"],
        requirements=[requirement.text for requirement in world.requirements],
        counters={"sessions": found["sessions"], "check_ins": check_ins_made, "plans": found["plans"], **counted},
        assignments=found["assignments"],
        wall_s=time.perf_counter() - started_at,
    )


def _engine(
    engine: Engine, world: World, planner: Planner, *, validate: bool, keep_assignments: bool
) -> "ReferenceEngine | KernelEngine":
    if engine == "kernel" and (reason := beyond_kernel(world, planner)):
        raise InvalidInput(reason, field="engine", value=engine, fix="leave out the engine")
    if not takes_kernel(engine, world, planner, validate=validate):
        return ReferenceEngine(world, planner, validate=validate, keep_assignments=keep_assignments)
    from vennue.simulation.kernel.compiling import make_ready
    from vennue.simulation.kernel.driver import KernelEngine

    make_ready()
    return KernelEngine(world, planner, validate=validate, keep_assignments=keep_assignments)


def takes_kernel(engine: Engine, world: World, planner: Planner, *, validate: bool) -> bool:
    """Whether the kernel makes a run."""
    wanted = engine == "kernel" or (engine == "auto" and not validate)
    return wanted and beyond_kernel(world, planner) is None


def beyond_kernel(world: World, planner: Planner) -> str | None:
    """Why only the reference engine can make a run, if so."""
    if not find_spec("numba"):
        return "the kernel needs numba: pip install 'vennue[sim]'"
    unknown = None
    if world.options.batch_window_s:
        unknown = "check-ins that wait for one another"
    elif any(job.spec.overcommit == "auto" for job in world.jobs):
        unknown = 'overcommit "auto"'
    elif getattr(planner, "sees_everyone", False) and type(planner) not in {StaticPartition, ClientRandom}:
        unknown = "policies of your own that look at requests which need no device"
    elif getattr(planner, "learns", False) and type(planner) not in {FifoMatch, Venn}:
        unknown = "what a policy of your own learns from reports"
    return unknown and f"the kernel does not know {unknown}"


def describe(planner: Planner) -> str:
    """A policy's name, with the parameters that differ from their defaults."""
    if not isinstance(planner, Policy):
        return str(getattr(planner, "name", type(planner).__name__))
    defaults = msgspec.structs.asdict(type(planner).Parameters())
    changed = {k: v for k, v in msgspec.structs.asdict(planner.parameters).items() if v != defaults[k]}
    return planner.name + ("(" + ", ".join(f"{k}={v}" for k, v in changed.items()) + ")" if changed else "")


def _jobs(workload: str | Workload | Sequence[JobTemplate], seed: int) -> tuple[str, Sequence[JobTemplate]]:
    if isinstance(workload, str):
        workload = load(workload)
    if isinstance(workload, Workload):
        return workload.name, draw(workload, workload.seed + seed)
    return "jobs", workload
