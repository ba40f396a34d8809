"""Fuzzing the server by its own OpenAPI description: whatever is sent, no answer is a 5xx or off the description."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.e2e.calls import open_round, put, submit, task_for
from tests.e2e.server_process import ServerProcess, model

pytestmark = pytest.mark.slow_suite

# A schema cannot say that a requirement parses, that bytes have a digest or that a policy exists: such requests fit
# the schema, and are refused with a 422.
NOT_CLAIMED = positive_data_acceptance
# Headers that a server does not know are passed over, as HTTP asks. Where any bytes make a good request, the tool takes
# that for the acceptance of a bad one.
ANY_BYTES = "/v1/blobs/{sha256}/upload"
CONFIGURATION = f"""
[[operations]]
include-path = "{ANY_BYTES}"
[operations.checks]
negative_data_rejection.enabled = false
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("fuzz") / "data", limits_wait_s="0.05") as running:
        yield running
        assert running.process.poll() is None, running.log
        assert running.stop() == 0, running.log
        assert "Traceback" not in running.log, running.log


def test_no_request_that_the_description_leads_to_breaks_the_server(server, tmp_path):
    """Cases at the bounds of every parameter, random ones, and sequences of calls that lead to one another."""
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    program = str(Path(sys.executable).with_name("schemathesis"))
    result = subprocess.run(
        [
            *(program, "run", f"{server.url}/openapi.json", "--no-color", "--max-examples=10", "--seed=1"),
            *("--exclude-checks", NOT_CLAIMED.__name__, "--generation-database=none"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("mode", GenerationMode)
def test_no_request_to_real_things_breaks_the_server(server, mode):
    """What random names never reach: a job with an open round, a device's task, a stored model."""
    description = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in description.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) > 20
    with server.client() as client:
        for operation in operations:
            parameters, headers = real_things(client, operation.path)

            @given(case=operation.as_strategy(mode, path_parameters=parameters, headers=headers))
            @settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            def try_it(case: schemathesis.Case[Any]) -> None:
                excluded: list[Any] = (
                    [NOT_CLAIMED, negative_data_rejection] if case.path == ANY_BYTES else [NOT_CLAIMED]
                )
                case.call_and_validate(excluded_checks=excluded)

            with suppress(Unsatisfiable):  # where everything is given, there is nothing left to get wrong
                try_it()


def real_things(client: httpx.Client, path: str) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """Path parameters and headers that lead to something that is there."""
    if "{sha256}" in path:
        return {"sha256": put(client, model())}, None
    if "{id}" not in path:
        return None, None
    job = submit(client, demand=1000)
    open_round(client, job)
    if "{round}" in path:
        return {"id": job, "round": "1"}, None
    if "/jobs/" in path:
        return {"id": job}, None
    task = task_for(client, f"fuzzed {job}")
    return {"id": task["assignment"]}, {"Authorization": f"Bearer {task['token']}"}
