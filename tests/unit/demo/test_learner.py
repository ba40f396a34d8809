"""What the demo's phones hold, and how they train on it."""

from types import SimpleNamespace

import numpy as np
import pytest

from vennue.demo.learner import PhoneData, attribute
from vennue.demo.tasks import TASKS, task


@pytest.fixture(scope="module")
def data():
    return PhoneData(20, seed=3)


def offered(name, config=None, round=1):
    learning = task(name if name in TASKS else "digits")
    return SimpleNamespace(name=name, config=config or {}, round=round, model=learning.initial_model(0))


def test_a_phone_knows_how_much_data_it_holds_for_every_task(data):
    assert data.private(0).keys() == {
        "next_character_samples", "missing_letter_samples", "clothes_samples", "digits_samples",
    }  # fmt: skip
    # 1 797 images, of which a fifth is held out, dealt to 20 phones but for what rounding leaves over.
    assert 1438 - 20 < sum(data.private(device)["digits_samples"] for device in range(20)) <= 1438


def test_two_fleets_of_one_size_and_seed_hold_the_same_data(data):
    assert [data.private(device) for device in range(20)] == [PhoneData(20, 3).private(device) for device in range(20)]


def test_more_phones_than_a_small_dataset_goes_round_hold_the_same_parts_again():
    many = PhoneData(300, 3)

    assert many.private(0)["digits_samples"] == many.private(150)["digits_samples"]


def test_a_phone_trains_the_task_that_a_rounds_config_names(data):
    trained = data.train(0, offered("any name", {"task": "digits"}))

    assert trained.examples == data.private(0)["digits_samples"]
    assert trained.metrics["loss"] > 0


def test_without_a_task_in_the_config_the_jobs_name_must_be_one(data):
    assert data.train(0, offered("digits")) is not None
    assert data.train(0, offered("no such task")) is None


def test_the_owners_learning_rate_replaces_the_tasks_own(data):
    usual, faster = (data.train(0, offered("digits", {"learning_rate": rate})).model for rate in (0.3, 0.6))

    assert np.array_equal(usual["output.weight"], data.train(0, offered("digits")).model["output.weight"])
    assert not np.array_equal(usual["output.weight"], faster["output.weight"])


def test_the_private_attribute_of_a_task_can_be_written_in_a_requirement():
    assert attribute("missing-letter") == "missing_letter_samples"
