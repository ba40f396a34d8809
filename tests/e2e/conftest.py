"""A server process for each file of tests that does not start its own."""

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as running:
        yield running
        assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as connected:
        yield connected
