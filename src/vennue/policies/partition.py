"""Pools that do not share: each device serves one job and no other, whether or not that job needs it at the moment.

These are what platforms do without a resource manager, and what the Propius paper compares itself with. They are not
work conserving, and are here as baselines: a device may idle beside a job that waits for it.
"""

from collections.abc import Sequence

import xxhash

from vennue.core.ids import DeviceId, JobId
from vennue.core.plan import Plan, PoolView
from vennue.policies.base import Policy, arrival_order


def owner(device: DeviceId, _draw: float, jobs: Sequence[JobId]) -> int:
    """The index of the job that owns the device, whatever chance says."""
    return max(range(len(jobs)), key=lambda index: xxhash.xxh64_digest(f"{jobs[index]}/{device}".encode()))


def any_of(_device: DeviceId, draw: float, jobs: Sequence[JobId]) -> int:
    """The index of any of the jobs, whoever asks."""
    return int(draw * len(jobs))


class StaticPartition(Policy):
    """Every job owns an equal share of the devices that may serve it.

    A device belongs to the job for which a hash of the two is the largest (rendezvous hashing, Thaler and Ravishankar
    1998). So it stays with its job for as long as both are there: a job that arrives takes an equal share from each
    of the others, and one that ends leaves each an equal share of its own.
    """

    name = "static-partition"
    work_conserving = False
    sees_everyone = True

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(sorted(view.everyone, key=arrival_order), choice=owner)


class ClientRandom(Policy):
    """Every device picks one of the jobs that it may serve by itself, uniformly, each time that it checks in.

    It does not know which of them need devices. `random` is how a server would choose, which does.
    """

    name = "client-random"
    work_conserving = False
    sees_everyone = True

    def plan(self, view: PoolView) -> Plan:
        return Plan.ordered(sorted(view.everyone, key=arrival_order), choice=any_of)
