"""What tests ask of a server over HTTP, in one line each."""

import base64
import hashlib
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.e2e.server_process import model

PATIENCE_S = 100.0


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(client: httpx.Client, data: bytes) -> str:
    digest = sha256(data)
    assert client.put(f"/v1/blobs/{digest}", content=data).status_code in {200, 201}
    return digest


def submit(client: httpx.Client, **spec: object) -> str:
    answer = client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 2, **spec}})
    assert answer.status_code == 201, answer.text
    job: str = answer.json()["id"]
    return job


def open_round(client: httpx.Client, job: str, round_number: int = 1) -> None:
    answer = client.post(f"/v1/jobs/{job}/rounds", json={"round": round_number, "model": put(client, model())})
    assert answer.status_code == 200, answer.text


def task_for(client: httpx.Client, device: str, **attributes: object) -> dict[str, Any]:
    answer = client.post("/v1/check-ins", json={"device": device, "attributes": attributes})
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()["task"]
    return task


def report(client: httpx.Client, task: dict[str, Any], data: bytes, **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {task['token']}", **{n.replace("_", "-"): v for n, v in headers.items()}}
    return client.put(f"/v1/assignments/{task['assignment']}/report", content=data, headers=headers)


def closed(client: httpx.Client, job: str, round_number: int = 1) -> dict[str, Any]:
    """The round, once it is over, however long that takes."""
    while True:
        answer = client.get(f"/v1/jobs/{job}/rounds/{round_number}", params={"wait": 30})
        assert answer.status_code == 200, answer.text
        view: dict[str, Any] = answer.json()
        if view["state"] not in {"open", "committing"}:
            return view


def until(holds: Callable[[], bool]) -> None:
    """Ask until it is so; the limit is for failures."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def end(client: httpx.Client, *jobs: str) -> None:
    """So that no other test's device is given these jobs."""
    for job in jobs:
        assert client.post(f"/v1/jobs/{job}/cancel").status_code == 200


def is_problem(answer: httpx.Response, status: int, field: str | None = None) -> dict[str, Any]:
    """The problem document that an answer must be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:vennue:error:")
    assert document["detail"]
    if field is not None:
        assert document["field"] == field
    return document


# -- uploads in parts ------------------------------------------------------------------------------------------------


def announced(task: dict[str, Any], data: bytes) -> dict[str, str]:
    """What the headers of a report in parts say of it."""
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {
        "authorization": f"Bearer {task['token']}", "repr-digest": f"sha-256=:{digest}:", "vennue-examples": "7",
        "vennue-metrics": '{"loss": 0.5}',
    }  # fmt: skip


def of(task: dict[str, Any]) -> str:
    """The path of a task's assignment."""
    return f"/v1/assignments/{task['assignment']}"


def part(client: httpx.Client, path: str, data: bytes, offset: int, *, last: bool, **headers: str) -> httpx.Response:
    """Send a part of an upload."""
    shown = {"upload-offset": str(offset), "upload-complete": "?1" if last else "?0"}
    return client.patch(
        f"{path}/upload", content=data, headers=shown | {n.replace("_", "-"): v for n, v in headers.items()}
    )


def state(client: httpx.Client, path: str, **headers: str) -> tuple[int, bool]:
    """How far an upload is: the bytes that are there, and whether these are all."""
    answer = client.get(f"{path}/upload", headers={n.replace("_", "-"): v for n, v in headers.items()})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert answer.headers["upload-offset"] == str(told["received_bytes"])
    assert answer.headers["cache-control"] == "no-store"
    return told["received_bytes"], told["complete"]
