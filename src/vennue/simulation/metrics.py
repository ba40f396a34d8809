"""Fair shares: which jobs were done by the time that an equal share of the pool would have given them.

The fair-share JCT of job *i* is T_i = M · sd_i (the Venn paper's fairness): M jobs at once, sd_i its completion time
alone. M is the number of jobs active while job *i* is, averaged over that time, so that a job which ran among few
is measured against few. sd_i is a closed form, not a simulation: the same number for every policy, and free.
"""

import math

import numpy as np
import numpy.typing as npt

from vennue.core.job import JobSpec
from vennue.simulation.result import RunResult
from vennue.simulation.traces.devices import task_time_s
from vennue.simulation.traces.model import FloatArray
from vennue.simulation.world import World

_SAMPLE = 4096
"""Devices whose task times stand for all."""


def alone_s(world: World) -> FloatArray:
    """sd_i: each job's completion time with the pool for itself.

    Every round waits for its devices at the average rate of check-ins that meet its requirement, and then for the last
    report that it needs: the quantile of task times at the share of its devices that must report. Devices that ask
    again make the true delay shorter; sessions that end too soon, and aborted rounds, make it longer.
    """
    devices = world.population(np.arange(_SAMPLE))
    rates_per_s = world.shares @ world.meets() * world.check_ins.rate_per_s
    found = []
    for job in world.jobs:
        times_s = np.sort(task_time_s(devices, job.workload_s))
        found.append(_alone_s(job.spec, float(rates_per_s[job.requirement]), times_s))
    return np.array(found)


def _alone_s(spec: JobSpec, rate_per_s: float, times_s: FloatArray) -> float:
    rounds = spec.rounds or 0
    if spec.mode == "async":
        # Reports come as fast as devices can be had, or as fast as those at once can work.
        return rounds * spec.goal / min(rate_per_s, spec.demand / float(times_s.mean()))
    collection_s = float(times_s[math.ceil(spec.goal / spec.wanted * len(times_s)) - 1])
    return rounds * (spec.wanted / rate_per_s + collection_s)


def jobs_at_once(run: RunResult) -> FloatArray:
    """M: how many jobs were active while each job was, itself included, on average over that time."""
    arrived_s = run.jobs["arrival_s"]
    ended_s = np.where(np.isnan(run.jobs["ended_s"]), run.end_s, run.jobs["ended_s"])
    together_s = np.minimum(ended_s[:, None], ended_s) - np.maximum(arrived_s[:, None], arrived_s)
    own_s = ended_s - arrived_s
    shared: FloatArray = np.maximum(together_s, 0.0).sum(axis=1) / np.where(own_s > 0, own_s, 1.0)
    return np.maximum(shared, 1.0)


def shares_taken(run: RunResult, alone: FloatArray) -> FloatArray:
    """Each job's completion time over T_i = M · sd_i: 1 is its fair share. Of an unfinished job, its time so far."""
    ended_s = np.where(np.isnan(run.jobs["ended_s"]), run.end_s, run.jobs["ended_s"])
    taken: FloatArray = (ended_s - run.jobs["arrival_s"]) / (jobs_at_once(run) * alone)
    return taken


def met_fair_share(run: RunResult, alone: FloatArray) -> npt.NDArray[np.bool_]:
    """Which jobs completed within T_i of their arrival. Unfinished and failed ones did not."""
    completed = run.jobs["state"] == "completed"
    met: npt.NDArray[np.bool_] = completed & (shares_taken(run, alone) <= 1.0)
    return met
