"""A server by script and a time that passes when somebody waits."""

import pytest

from tests.unit.sdk.fake import FakeServer, FakeTime


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def time():
    return FakeTime()
