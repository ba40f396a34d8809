"""Compiles the kernel ahead of its first run, and says so: half a minute without a word looks like a hang.

Processes that are started afterwards find the code on disk, where each of them would have compiled it for itself.
"""

import logging
import multiprocessing
from functools import cache

from vennue.core.job import JobSpec
from vennue.policies import get_policy
from vennue.simulation.kernel.caching import is_kept
from vennue.simulation.options import Options
from vennue.simulation.traces import Capacity, DevicePopulation, DeviceTable, Trace
from vennue.simulation.workload import JobTemplate
from vennue.simulation.world import World

log = logging.getLogger("vennue.simulation")


@cache
def make_ready() -> None:
    """Compile the kernel, unless its code is on disk already. Does nothing when it is called again."""
    if is_kept():
        return
    if multiprocessing.parent_process() is None:  # one that was started by a simulation has a parent that said it
        log.warning("Compiling the simulator: about half a minute, once per installation")
    run_smallest()


def run_smallest() -> None:
    """Run one device for one job: all that is compiled is used, and it serves every other world."""
    from vennue.simulation.kernel.driver import KernelEngine

    job = JobTemplate(spec=JobSpec(name="smallest", demand=1, rounds=1), arrival_s=0.0, workload_s=1.0)
    trace = Trace([0], [0.0], [100.0])
    population = DevicePopulation(DeviceTable({"ram_gb": [1.0]}), Capacity([1000.0], [1000.0]))
    KernelEngine(World([job], trace, population, seed=0, options=Options()), get_policy("fifo")).run(lambda: False)
