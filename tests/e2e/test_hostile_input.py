"""Requests that no honest client makes, over real HTTP: each is refused with a reason, and never by a failure."""

import hashlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.calls import until
from tests.e2e.server_process import ServerProcess, model, raw_request


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[httpx.Client]:
    # No long poll ends by itself while a test watches.
    folder = tmp_path_factory.mktemp("hostile")
    with (
        ServerProcess(folder / "data", limits_wait_s="3600") as server,
        server.client() as connected,
    ):
        yield connected
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def job(client) -> str:
    name: str = client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 1000}}).json()["id"]
    assert client.post(f"/v1/jobs/{name}/rounds", json={"round": 1, "model": put(client, model())}).status_code == 200
    return name


@pytest.fixture
def task(client, job, request) -> dict[str, Any]:
    answer = client.post("/v1/check-ins", json={"device": request.node.name[:128]})
    task: dict[str, Any] = answer.json()["task"]
    return task


def put(client: httpx.Client, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    assert client.put(f"/v1/blobs/{digest}", content=data).status_code in {200, 201}
    return digest


def report(client: httpx.Client, task: dict[str, Any], data: bytes, *headers: tuple[bytes, bytes]) -> httpx.Response:
    token = (b"authorization", f"Bearer {task['token']}".encode())
    return client.put(f"/v1/assignments/{task['assignment']}/report", content=data, headers=[token, *headers])


@pytest.mark.parametrize(
    "attributes", ["[" * 30_000, "[" * 30_000 + "]" * 30_000, '{"a":' * 10_000 + "1" + "}" * 10_000]
)
def test_attributes_that_nest_without_end_are_refused(client, attributes):
    answer = client.post("/v1/check-ins", content=f'{{"device": "d", "attributes": {attributes}}}')
    assert (answer.status_code, answer.json()["field"]) == (400, "body")


@pytest.mark.parametrize("number", [0, -1, -(2**63) - 1, 2**63, 10**30])
def test_a_round_that_has_no_such_number_is_refused(client, job, number):
    answer = client.post(f"/v1/jobs/{job}/rounds", json={"round": number, "model": "0" * 64})
    assert (answer.status_code, answer.json()["field"]) == (422, "round")


@pytest.mark.parametrize("name", [b"vennue-examples", b"vennue-metrics", b"content-digest"])
def test_a_header_that_is_not_ascii_is_refused_and_not_passed_over(client, task, name):
    answer = report(client, task, model(), (name, "é".encode()))
    assert (answer.status_code, answer.json()["field"].lower()) == (400, name.decode())


def test_an_idempotency_key_that_is_not_ascii_makes_no_job(client):
    before = len(client.get("/v1/jobs").json()["jobs"])
    spec = {"spec": {"name": "twice", "demand": 1}}
    answer = client.post("/v1/jobs", json=spec, headers={b"idempotency-key": "schlüssel".encode()})
    assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")
    assert len(client.get("/v1/jobs").json()["jobs"]) == before


ENTRY = r'"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'


@pytest.mark.parametrize(
    "header",
    [
        r'{"w":{"dtype":"\ud800","shape":[4],"data_offsets":[0,16]}}',
        r'{"\ud800":1,"\ud800":2}',
        r'{"__metadata__":{"vennue.codec":"\ud800"},' + ENTRY + "}",
        r'{"__metadata__":{"vennue.content":"\ud800"},' + ENTRY + "}",
    ],
    ids=["dtype", "name", "codec", "content"],
)
def test_words_that_are_no_unicode_are_quoted_in_a_refusal_of_an_update(client, task, header):
    answer = report(client, task, struct.pack("<Q", len(header)) + header.encode() + bytes(16))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:vennue:error:invalid-update")
    assert "\\ud800" in answer.text


def test_a_policy_s_parameter_may_not_be_self(client):
    answer = client.put("/v1/policy", json={"policy": "venn", "parameters": {"self": 1}})
    assert (answer.status_code, answer.json()["field"]) == (422, "self")


def test_a_client_is_told_that_its_connection_closes_before_it_sends_more(client, job):
    body = bytes(200_000)
    for _ in range(10):  # on one connection, if it stays open
        answer = client.put(f"/v1/assignments/{job}.1.1.1/report", content=body, headers={"authorization": "Bearer x"})
        assert (answer.status_code, answer.headers["connection"]) == (403, "close")


def test_a_long_poll_ends_with_its_client(client, job):
    def waiters() -> int:
        lines = client.get("/metrics").text.splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith("vennue_waiters "))

    polls = [socket.create_connection((client.base_url.host, client.base_url.port), timeout=60) for _ in range(20)]
    for poll in polls:
        poll.sendall(raw_request("GET", f"/v1/jobs/{job}/rounds/1?wait=3600"))
    until(lambda: waiters() == len(polls))
    for poll in polls:
        poll.close()
    until(lambda: waiters() == 0)
