"""A requirement that nobody asked for before is evaluated in slices, and once for each kind of device."""

import asyncio
import itertools

import pytest

from tests.unit.control.rig import rig_at
from vennue.control import foresight
from vennue.core.job import JobSpec
from vennue.core.requirement import Requirement

KINDS = 200


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as rig:
        for number in range(KINDS):
            rig.check_in(f"d{number}", ram_gb=number)
        yield rig


@pytest.fixture
def evaluated(monkeypatch):
    """Which requirements are evaluated, each time that one is."""
    texts: list[str] = []
    evaluate = Requirement._evaluate

    def counted(self, values):
        texts.append(self.text)
        return evaluate(self, values)

    monkeypatch.setattr(Requirement, "_evaluate", counted)
    return texts


async def test_between_the_slices_others_are_served(rig, monkeypatch):
    monkeypatch.setattr(foresight, "SLICE_S", 0.0)
    served = 0
    submitted = asyncio.ensure_future(rig.job(requirement="device.ram_gb >= 100"))
    while not submitted.done():
        rig.check_in(f"e{served}", ram_gb=1)
        served += 1
        await asyncio.sleep(0)
    assert served > KINDS


async def test_admission_registration_and_the_regions_cost_one_evaluation_for_each_kind(rig, evaluated):
    job = await rig.job(requirement="device.ram_gb >= 100")
    await rig.open(job)
    for number in range(KINDS):
        assert (rig.check_in(f"d{number}", ram_gb=number) is not None) is (number in {100, 101})
    assert evaluated == ["device.ram_gb >= 100"] * KINDS


async def test_a_job_with_a_requirement_that_is_known_costs_none(rig, evaluated):
    await rig.job(requirement="device.ram_gb >= 100")
    evaluated.clear()
    await rig.job(requirement="device.ram_gb>=100", name="another")
    assert evaluated == []


async def test_jobs_that_come_at_once_with_one_key_are_still_one_job(rig, monkeypatch):
    monkeypatch.setattr(foresight, "SLICE_S", 0.0)
    spec = JobSpec(name="once", demand=1, requirement="device.ram_gb >= 100")
    views = await asyncio.gather(*(rig.coordinator.submit(spec, "k") for _ in range(3)))
    assert len({view.id for view, _ in views}) == 1
    assert [is_new for _, is_new in views].count(True) == 1


async def test_a_device_whose_kind_is_new_meanwhile_is_in_its_region_too(rig, monkeypatch):
    monkeypatch.setattr(foresight, "SLICE_S", 0.0)
    submitted = asyncio.ensure_future(rig.job(requirement="device.ram_gb >= 100"))
    for number in itertools.count(1000):
        if submitted.done():
            break
        rig.check_in("new", ram_gb=number)
        await asyncio.sleep(0)
    await rig.open(submitted.result())
    assert rig.check_in("new", ram_gb=number - 1) is not None
