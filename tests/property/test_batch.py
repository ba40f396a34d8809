"""What a batch binds, against exhaustive search: as many devices as any way of binding them could."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.pools import MODEL, ArrivalOrder, profile
from vennue.core.effects import Answered
from vennue.core.events import CheckIn, OpenRound, SubmitJob, Tick
from vennue.core.ids import DeviceId, JobId
from vennue.core.job import JobSpec
from vennue.core.pool import Pool

RAMS = st.sampled_from([1, 4, 8])
NEEDS = {"true": {1, 4, 8}, "device.ram_gb >= 4": {4, 8}, "device.ram_gb >= 8": {8}, "device.ram_gb < 4": {1}}
JOBS = st.lists(st.tuples(st.sampled_from(sorted(NEEDS)), st.integers(1, 3)), min_size=1, max_size=4)


def bound(jobs: list[tuple[str, int]], rams: list[int], window_s: float) -> dict[str, str | None]:
    """Whom each device serves."""
    pool = Pool(ArrivalOrder(), batch_window_s=window_s)
    for number, (requirement, demand) in enumerate(jobs):
        job = JobId(f"j{number}")
        pool.handle(SubmitJob(job, JobSpec(name=job, demand=demand, requirement=requirement)), 0)
        pool.handle(OpenRound(job, 1, MODEL), 0)
    given: dict[str, str | None] = {}
    for number, ram in enumerate(rams):
        assignment = pool.handle(CheckIn(DeviceId(f"d{number}"), profile(ram)), 0)
        if not window_s:
            given[f"d{number}"] = None if assignment is None else assignment.job
    pool.handle(Tick(), window_s)
    for effect in pool.drain():
        if isinstance(effect, Answered):
            given[effect.device] = None if effect.assignment is None else effect.assignment.job
    return given


def most_that_can_be_bound(jobs: list[tuple[str, int]], rams: list[int]) -> int:
    """A maximum matching, by augmenting paths."""
    slots = [requirement for requirement, demand in jobs for _ in range(demand)]
    taken: dict[int, int] = {}

    def place(device: int, tried: set[int]) -> bool:
        for slot, requirement in enumerate(slots):
            if slot not in tried and rams[device] in NEEDS[requirement]:
                tried.add(slot)
                if slot not in taken or place(taken[slot], tried):
                    taken[slot] = device
                    return True
        return False

    return sum(place(device, set()) for device in range(len(rams)))


@given(jobs=JOBS, rams=st.lists(RAMS, max_size=8))
def test_every_device_is_answered_and_none_idles_that_an_open_request_could_use(jobs, rams):
    given = bound(jobs, rams, window_s=1.0)
    assert sorted(given) == sorted(f"d{number}" for number in range(len(rams)))
    served = list(given.values())
    for device, job in given.items():
        if job is None:
            ram = rams[int(device[1:])]
            short = [
                number
                for number, (requirement, demand) in enumerate(jobs)
                if ram in NEEDS[requirement] and served.count(f"j{number}") < demand
            ]
            assert short == []


@given(jobs=JOBS, rams=st.lists(RAMS, max_size=8))
def test_the_first_job_gets_as_many_as_if_it_were_alone(jobs, rams):
    requirement, demand = jobs[0]
    eligible = sum(ram in NEEDS[requirement] for ram in rams)
    assert list(bound(jobs, rams, window_s=1.0).values()).count("j0") == min(demand, eligible)


@given(rams=st.lists(RAMS, max_size=8), demands=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)))
def test_under_nested_requirements_as_many_devices_are_bound_as_possible(rams, demands):
    jobs = list(zip(["true", "device.ram_gb >= 4", "device.ram_gb >= 8"], demands, strict=True))
    served = [job for job in bound(jobs, rams, window_s=1.0).values() if job is not None]
    assert len(served) == most_that_can_be_bound(jobs, rams)
    online = [job for job in bound(jobs, rams, window_s=0.0).values() if job is not None]
    assert len(served) >= len(online)
