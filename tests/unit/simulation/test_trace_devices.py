"""Device populations: the same device is always the same, and there are as many of each kind as there should be."""

import numpy as np
import pytest

from vennue.core.errors import InvalidInput
from vennue.core.ids import Signature
from vennue.core.requirement import Requirement
from vennue.simulation.traces.devices import (
    Capacity,
    DevicePopulation,
    Devices,
    DeviceTable,
    class_requirements,
    phone_population,
    task_time_s,
)

MANY = np.arange(200_000)


def test_the_phones_fall_into_the_classes_as_the_paper_published():
    shares = phone_population().region_shares(class_requirements())
    # Bits: general, compute, memory, high performance. 417, 305, 124, 78 and 35 of 959 devices.
    published = {0b1111: 0.435, 0b0001: 0.318, 0b0101: 0.129, 0b0011: 0.081, 0b0000: 0.037}
    assert shares == pytest.approx(published, abs=0.0006)


def test_drawn_devices_fall_into_the_classes_as_often():
    population = phone_population(seed=3)
    regions = population.regions(class_requirements())
    counts = np.bincount(regions.of_row[population(MANY).row])
    # 200 000 draws: a standard deviation of 0.11 %.
    found = dict(zip(regions.signatures, counts / len(MANY), strict=True))
    assert found == pytest.approx({15: 0.435, 1: 0.318, 5: 0.129, 3: 0.081, 0: 0.037}, abs=0.004)


def test_without_weights_every_model_is_as_likely():
    shares = DevicePopulation(DeviceTable.phones(), Capacity.fedscale()).region_shares(class_requirements())
    general = sum(share for signature, share in shares.items() if signature & 1)
    compute = sum(share for signature, share in shares.items() if signature & 2)
    memory = sum(share for signature, share in shares.items() if signature & 4)
    assert (general, compute, memory, shares[Signature(15)]) == pytest.approx((0.963, 0.428, 0.561, 0.361), abs=0.001)


def test_a_device_is_the_same_whatever_it_is_asked_with():
    population = phone_population(seed=3)
    alone = population(np.array([4711]))
    among = population(np.arange(5000))
    assert [float(column[0]) for column in alone] == [float(column[4711]) for column in among]


def test_another_seed_makes_other_devices():
    one, other = (phone_population(seed=seed)(MANY[:1000]) for seed in (1, 2))
    assert (one.row != other.row).mean() > 0.9


def test_neighbouring_devices_and_their_properties_are_unrelated():
    row, computation_ms, communication_kbps = phone_population(seed=5)(MANY)
    for one, two in ((computation_ms, np.log(communication_kbps)), (row, computation_ms), (row[1:], row[:-1])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.01


def test_fedscales_speeds_have_the_published_quantiles():
    devices = phone_population(seed=1)(MANY)
    computation_ms, communication_kbps = devices.computation_ms, devices.communication_kbps
    assert np.quantile(computation_ms, [0.25, 0.5, 0.75, 0.95]) == pytest.approx([24, 41, 148, 189], abs=2)
    assert computation_ms.mean() == pytest.approx(78, rel=0.01)
    assert (computation_ms.min(), computation_ms.max()) == (15, 199)
    assert np.quantile(communication_kbps, [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]) == pytest.approx(
        [1380, 1770, 2920, 6260, 14_440, 33_200, 55_000, 99_800], rel=0.03
    )
    assert communication_kbps.mean() == pytest.approx(13_736, rel=0.04)
    # Published as log-normal with µ 8.84 and σ 1.19 (the quantiles bound the lower tail at 1000 kbit/s).
    assert np.log(communication_kbps).mean() == pytest.approx(8.84, abs=0.05)
    assert np.log(communication_kbps).std() == pytest.approx(1.19, abs=0.1)


def test_the_papers_speeds_have_their_means_and_spread():
    devices = phone_population(Capacity.paper(), seed=1)(MANY)
    assert devices.computation_ms.mean() == pytest.approx(78, rel=0.01)
    assert devices.communication_kbps.mean() == pytest.approx(13_736, rel=0.015)
    assert np.log(devices.computation_ms).std() == pytest.approx(0.9, abs=0.005)
    assert np.log(devices.communication_kbps).std() == pytest.approx(1.2, abs=0.007)


def test_the_first_199_records_are_there_to_choose_from():
    devices = phone_population(Capacity.first_199(), seed=1)(MANY)
    assert len(np.unique(devices.communication_kbps)) > 100
    assert {153.0, 39.0, 22.0} <= set(devices.computation_ms.tolist())


def test_by_model_a_phones_training_time_is_its_own_latency():
    population = phone_population(Capacity.by_model(), seed=1)
    devices = population(MANY[:100])
    latency_ms = np.array(population.table.columns["latency_ms"])
    assert np.array_equal(devices.computation_ms, latency_ms[devices.row])


def test_by_model_needs_a_latency():
    with pytest.raises(InvalidInput, match="latency_ms"):
        DevicePopulation(DeviceTable({"ram_gb": [4.0]}), Capacity.by_model())


def test_a_task_takes_its_training_and_two_transfers():
    devices = Devices(np.zeros(3, int), np.array([78.0, 156.0, 78.0]), np.array([13_736.0, 13_736.0, 6868.0]))
    # Mean device: 30 + 2 × 10 s. Half the speed: 60 + 20. Half the link: 30 + 40.
    assert task_time_s(devices, 30).tolist() == [50, 80, 70]


def test_any_number_of_requirements_make_regions():
    requirements = [Requirement.parse(f"device.cpu_score >= {least}") for least in range(1, 100)]
    regions = phone_population().regions(requirements)
    assert all(signature & (signature + 1) == 0 for signature in regions.signatures)
    # The fastest phone scores 24.8, which meets the first 24 of them.
    assert max(regions.signatures) == (1 << 24) - 1


def test_any_attribute_of_the_table_can_be_required():
    table = DeviceTable({"ram_gb": [4.0, 8.0], "country": ["FR", "DE"], "charging": [True, False]})
    population = DevicePopulation(table, Capacity.fedscale(), weights=[1, 3])
    requirements = [
        Requirement.parse(text, population.table.schema) for text in ('device.country == "DE"', "device.charging")
    ]
    assert population.region_shares(requirements) == {0b01: 0.75, 0b10: 0.25}


@pytest.mark.parametrize("columns", [{}, {"ram_gb": []}, {"ram_gb": [4.0], "android": [10.0, 11.0]}])
def test_a_table_without_devices_or_with_uneven_columns_is_refused(columns):
    with pytest.raises(InvalidInput, match="needs at least one row and equally long columns"):
        DeviceTable(columns)


@pytest.mark.parametrize("weights", [[1], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(InvalidInput, match="weights"):
        DevicePopulation(DeviceTable({"ram_gb": [4.0, 8.0]}), Capacity.fedscale(), weights=weights)


@pytest.mark.parametrize("speed", [[], [0.0], [-3.0], [float("nan")], [float("inf")]])
def test_speeds_that_are_none_are_refused(speed):
    with pytest.raises(InvalidInput, match="communication_kbps: must be finite and above 0"):
        Capacity([1.0], speed)
