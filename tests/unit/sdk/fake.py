"""A server by script, in memory: it keeps blobs, answers every other call as a test tells it, and records all calls.

What a real server does with these calls is tested in tests/e2e.
"""

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec
import numpy as np

from vennue import protocol
from vennue.core.errors import VennueError
from vennue.core.ids import AssignmentId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.sdk.models import encode
from vennue.sdk.transport import Timing

SERVER = "http://pool.test"

Reply = msgspec.Struct | httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class FakeServer(httpx.MockTransport):
    """Answers by script: ``on("POST /v1/check-ins", first, second)``; the last answer to a call is repeated."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.blobs: dict[str, bytes] = {}
        self.requests: list[httpx.Request] = []
        self._script: dict[str, list[Reply]] = {}

    def on(self, call: str, *replies: Reply) -> None:
        self._script[call] = list(replies)

    def holds(self, model: Mapping[str, Any]) -> Digest:
        """Put a model among the blobs."""
        blob = encode(model)
        digest = hashlib.sha256(blob).hexdigest()
        self.blobs[digest] = blob
        return Digest(digest)

    @property
    def calls(self) -> list[str]:
        """All calls so far, blobs by the first letters of their digests."""
        return [name_of(request) for request in self.requests]

    def sent(self, call: str) -> list[httpx.Request]:
        return [request for request in self.requests if name_of(request) == call]

    def bodies(self, call: str) -> list[Any]:
        return [json.loads(request.content) for request in self.sent(call)]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        replies = self._script.get(name_of(request))
        if replies is None:
            return self._blob(request) if request.url.path.startswith("/v1/blobs/") else problem(404, "not-found")
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, httpx.Response):
            return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)
        return answer(reply) if isinstance(reply, msgspec.Struct) else reply(request)

    def _blob(self, request: httpx.Request) -> httpx.Response:
        digest = request.url.path.rpartition("/")[2]
        if request.method == "PUT":
            self.blobs[digest] = request.content
            return answer(protocol.BlobReceipt(sha256=Digest(digest), size_bytes=len(request.content)))
        blob = self.blobs.get(digest)
        if blob is None:
            return problem(404, "not-found", field="model")
        if request.method == "HEAD":
            return httpx.Response(200)
        start = int(request.headers.get("range", "bytes=0-")[6:-1])
        if "range" in request.headers:
            span = {"content-range": f"bytes {start}-{len(blob) - 1}/{len(blob)}"}
            return httpx.Response(206, headers=span, content=blob[start:])
        return httpx.Response(200, content=blob)


class FakeTime:
    """Time that passes only by being slept through; `waits` are the sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.timing = Timing(clock=lambda: self.now, sleep=self.sleep, rng=_Highest())
        self.async_timing = Timing(clock=lambda: self.now, sleep=self.async_sleep, rng=_Highest())

    def sleep(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        self.now += delay_s

    async def async_sleep(self, delay_s: float) -> None:
        self.sleep(delay_s)


class _Highest(random.Random):
    """A random generator whose every draw is the highest possible, so that waits are their ceilings."""

    def uniform(self, a: float, b: float) -> float:
        return b


def name_of(request: httpx.Request) -> str:
    path = request.url.raw_path.decode()
    return f"{request.method} {path[:16] if path.startswith('/v1/blobs/') else path}"


def answer(message: msgspec.Struct, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=msgspec.json.encode(message))


def problem(status: int, code: str, detail: str = "no", **context: Any) -> httpx.Response:
    document = protocol.Problem(type=f"urn:vennue:error:{code}", title=code, status=status, detail=detail, **context)
    return httpx.Response(
        status, headers={"content-type": "application/problem+json"}, content=msgspec.json.encode(document)
    )


def problem_of(status: int, error: VennueError) -> httpx.Response:
    return problem(status, error.code, error.message, field=error.field, fix=error.fix)


def model(*numbers: float) -> dict[str, Any]:
    return {"w": np.array(numbers, np.float32)}


def offer(digest: str, assignment: str = "j1.1.1.1", **changes: Any) -> protocol.Task:
    fields: dict[str, Any] = {
        "assignment": AssignmentId(assignment),
        "token": f"secret of {assignment}",
        "job": JobId(assignment.partition(".")[0]),
        "name": "keyboard",
        "round": 1,
        "model": Digest(digest),
        "expires_in_s": 600.0,
    }
    return protocol.Task(**(fields | changes))


def job_view(state: Any = "active", committed: int = 0, **changes: Any) -> protocol.JobView:
    fields: dict[str, Any] = {
        "id": JobId("j1"),
        "spec": JobSpec(name="keyboard", demand=2, rounds=2),
        "state": state,
        "committed_rounds": committed,
        "model": None,
        "submitted_at": 0.0,
        "ended_at": None,
        "jct_s": None,
        "scheduling_delay_s": 0.0,
        "collection_s": 0.0,
        "devices_bound": 0,
        "reason": protocol.Reason(code="waiting-for-owner", text="the owner has not opened a round"),
    }
    return protocol.JobView(**(fields | changes))


def round_view(number: int = 1, state: Any = "open", **changes: Any) -> protocol.RoundView:
    fields: dict[str, Any] = {
        "job": JobId("j1"),
        "round": number,
        "attempt": 1,
        "state": state,
        "demand": 2,
        "bound": 2,
        "reported": 0,
        "model": Digest("0" * 64),
        "opened_at": 0.0,
    }
    return protocol.RoundView(**(fields | changes))
