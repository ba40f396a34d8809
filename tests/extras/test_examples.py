"""The examples that one starts twice as a device and once as a job learn what they say, on a real server."""

import re
from contextlib import ExitStack

import pytest

from tests.e2e.test_readme_newcomer import EXAMPLES, program, server


def last_line(name, folder):
    """What an example's job says last, after two devices have served it."""
    with ExitStack() as stack:
        address = stack.enter_context(server(EXAMPLES / "own_policy.py", folder))
        for _ in range(2):
            stack.enter_context(program(EXAMPLES / name, "device", VENNUE_SERVER=address))
        job = stack.enter_context(program(EXAMPLES / name, VENNUE_SERVER=address))
        said, _ = job.communicate(timeout=250)
    assert job.returncode == 0
    return said.splitlines()[-1]


@pytest.mark.slow_suite
def test_the_numpy_network_learns_the_sine(tmp_path):
    loss = re.fullmatch(r"round 20: loss ([\d.]+)", last_line("numpy_network.py", tmp_path))
    assert loss is not None
    assert float(loss[1]) < 0.05  # the sine's variance, which is a constant's loss, is 0.55


@pytest.mark.extras
def test_the_scikit_learn_classifier_learns_digits_that_no_device_has_all_of(tmp_path):
    pytest.importorskip("sklearn")
    found = re.fullmatch(r"round 15: loss [\d.]+, accuracy ([\d.]+)", last_line("sklearn_digits.py", tmp_path))
    assert found is not None
    assert float(found[1]) > 0.6
