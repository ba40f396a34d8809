"""Devices that give tasks back: none is given a task of the same job again before a while has passed.

A device that cannot do a job's task, and asks again at once, would be given it again hundreds of times in a second. So
that job passes it over, for longer each time, while other jobs have it at once. Waits are short and end by themselves:
a round that has no other devices still goes on. Memory is bounded, and all of it may be lost.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from vennue.core.ids import DeviceId, JobId

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
MAX_DEVICES: Final = 65_536
MAX_JOBS: Final = 64
"""Of one device: so many tasks it can hardly give back before the first wait is over."""

_NONE: Final = frozenset[JobId]()


class _Return(NamedTuple):
    times: int
    until: float


class Returns:
    """Who has given back tasks lately. Times are pool time, seconds."""

    def __init__(self) -> None:
        self._by_device: OrderedDict[DeviceId, dict[JobId, _Return]] = OrderedDict()

    def note(self, device: DeviceId, job: JobId, now: float, *, most_s: float) -> None:
        """A device has given back a task. It waits for the job's next twice as long as last time, ``most_s`` at most.

        A wait that was over for a minute is forgotten.
        """
        jobs = self._by_device.pop(device, {})
        recent = {name: one for name, one in jobs.items() if now < one.until + MOST_S}
        earlier = recent.pop(job, None)
        times = 1 if earlier is None else earlier.times + 1
        if len(recent) >= MAX_JOBS:
            del recent[next(iter(recent))]
        recent[job] = _Return(times, now + min(MOST_S, most_s, FIRST_S * 2.0 ** min(times - 1, 16)))
        if len(self._by_device) >= MAX_DEVICES:
            self._by_device.popitem(last=False)
        self._by_device[device] = recent

    def barred(self, device: DeviceId, now: float) -> frozenset[JobId]:
        """The jobs whose tasks a device is not given at this moment."""
        jobs = self._by_device.get(device)
        return _NONE if jobs is None else frozenset(name for name, one in jobs.items() if now < one.until)

    def forgive(self, device: DeviceId, job: JobId) -> None:
        """A device's report counts: that it gave back the job's tasks before was no habit."""
        jobs = self._by_device.get(device, {})
        if jobs.pop(job, None) is not None and not jobs:
            del self._by_device[device]

    def __len__(self) -> int:
        """How many devices are remembered."""
        return len(self._by_device)
