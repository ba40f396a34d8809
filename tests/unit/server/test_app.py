"""The application without a network: dispatch, errors as problem documents, and nothing of the inside in an answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.control.rig import rig_at
from vennue.core import errors
from vennue.core.errors import (
    IllegalTransition,
    InvariantViolated,
    Overloaded,
    StorageError,
    StrategyFailed,
    VennueError,
)
from vennue.server.app import App
from vennue.server.config import Limits
from vennue.server.openapi import describe
from vennue.server.problems import RequestError, headers_of, problem, status_of
from vennue.server.routes import all_routes
from vennue.server.routing import Router
from vennue.server.telemetry import Telemetry
from vennue.state.space import Space
from vennue.testing import LocalPool, in_virtual_time


class Exchange:
    """A request and its answer, in place of granian."""

    def __init__(self, method: str, path: str, *chunks: bytes, query: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.scope = SimpleNamespace(client="10.0.0.1:5", method=method, path=path, query_string=query, headers=named)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._chunks = chunks

    async def __call__(self) -> bytes:
        return b"".join(self._chunks)

    def response_file(self, status: int, headers: list[tuple[str, str]], file: str) -> None:
        raise AssertionError("no test asks for a file")

    def response_file_range(self, status: int, headers: list[tuple[str, str]], file: str, start: int, end: int) -> None:
        raise AssertionError("no test asks for a file")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def client_disconnect(self) -> None:
        await asyncio.Event().wait()

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.headers, self.body = status, dict(headers), body

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.response_bytes(status, headers, b"")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
async def app(tmp_path):
    async with rig_at(tmp_path) as rig:
        yield App(rig.coordinator, rig.selector, Limits(check_in_bytes=100), "1.2.3")


async def ask(app: App, method: str, path: str, *chunks: bytes, **options: str) -> Exchange:
    exchange = Exchange(method, path, *chunks, **options)
    await app.__rsgi__(exchange.scope, exchange)
    return exchange


async def test_a_check_in_is_answered(app):
    answer = await ask(app, "POST", "/v1/check-ins", b'{"device": "d1"}', content_length="16")
    assert (answer.status, list(answer.json)) == (200, ["retry_after_s"])
    assert app.in_flight == 0


async def test_while_the_loop_is_late_check_ins_are_told_to_come_back_each_at_a_time_of_its_own(app):
    app.lag.note(1.2)
    answers = [await ask(app, "POST", "/v1/check-ins", b"not even read") for _ in range(20)]
    assert {answer.status for answer in answers} == {503}
    assert len({answer.json["retry_after_s"] for answer in answers}) == 20
    assert (await ask(app, "GET", "/healthz")).status == 200
    app.lag.note(0.0)  # 0.96 s are left of it
    assert (await ask(app, "POST", "/v1/check-ins", b'{"device": "d1"}')).status == 200


async def test_callers_that_are_turned_away_together_are_told_to_come_back_at_different_times(app):
    app._coordinator.stopping = True
    waits = {(await ask(app, "GET", "/v1/jobs/x")).json["retry_after_s"] for _ in range(50)}
    assert len(waits) == 50
    assert 2.5 <= min(waits) <= max(waits) <= 7.5


async def test_a_check_in_without_a_length_is_answered_too(app):
    answer = await ask(app, "POST", "/v1/check-ins", b'{"device"', b': "d1"}')
    assert answer.status == 200


async def test_a_body_above_the_limit_is_refused_by_its_length_or_as_it_arrives(app):
    announced = await ask(app, "POST", "/v1/check-ins", content_length="101")
    arrived = await ask(app, "POST", "/v1/check-ins", b" " * 60, b" " * 60)
    assert (announced.status, announced.json["limit"]) == (413, 100)
    assert (arrived.status, arrived.json["value"]) == (413, 120)


async def test_a_storage_failure_is_logged_with_the_file_and_answered_without_it(app, monkeypatch, caplog):
    def fail(**_: object) -> None:
        raise StorageError("cannot store a blob: disk full", field="path", value="/srv/data/blobs/x")

    monkeypatch.setattr(app._coordinator.data.blobs, "create", fail)
    answer = await ask(app, "PUT", f"/v1/blobs/{'0' * 64}", b"x", content_length="1")
    assert answer.status == 503
    assert b"/srv/data" not in answer.body
    assert "/srv/data/blobs/x" in caplog.text


@pytest.mark.parametrize(
    ("path", "chunks", "headers", "closes"),
    [
        ("/v1/nothing", [], {"content_length": "5"}, True),
        ("/v1/nothing", [], {"transfer_encoding": "chunked"}, True),
        ("/v1/nothing", [], {"content_length": "0"}, False),
        ("/v1/nothing", [], {}, False),
        ("/v1/jobs", [b"[]"], {"content_length": "2"}, False),
        ("/v1/jobs", [b"[", b"]"], {"transfer_encoding": "chunked"}, False),
        ("/v1/check-ins", [], {"content_length": "101"}, True),
        ("/v1/check-ins", [b"[]"], {"content_length": "2"}, False),
    ],
)
async def test_an_answer_to_a_request_whose_body_was_not_read_says_that_the_connection_closes(
    app, path, chunks, headers, closes
):
    answer = await ask(app, "POST", path, *chunks, **headers)
    assert 400 <= answer.status < 500
    assert (answer.headers.get("connection") == "close") is closes


async def test_an_empty_body_in_chunks_may_have_been_cut_off_and_ends_no_job(app):
    # Granian ends the chunks of a connection that breaks as it ends those of a whole body.
    exchange = Exchange("POST", "/v1/jobs/j/cancel", transfer_encoding="chunked")
    await app.__rsgi__(exchange.scope, exchange)
    assert (exchange.status, exchange.json["detail"]) == (400, "the body is empty, or was cut off")


async def test_a_body_shorter_than_its_length_is_refused(app):
    answer = await ask(app, "POST", "/v1/check-ins", b'{"device": "d1"}', content_length="17")
    assert (answer.status, answer.json["detail"]) == (400, "the body was cut off")


async def test_an_unexpected_exception_is_a_500_that_tells_nothing_and_the_app_goes_on(app, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise RuntimeError("the inside of the server")

    monkeypatch.setattr(app._selector, "check_in", fail)
    answer = await ask(app, "POST", "/v1/check-ins", b'{"device": "d1"}', content_length="16")
    assert (answer.status, answer.json["type"]) == (500, "urn:vennue:error:internal")
    assert b"inside of the server" not in answer.body
    assert b"Traceback" not in answer.body
    assert "the inside of the server" in caplog.text
    monkeypatch.undo()
    assert (await ask(app, "POST", "/v1/check-ins", b'{"device": "d1"}', content_length="16")).status == 200


async def test_an_exception_after_the_client_has_gone_is_no_exception_of_the_app(app):
    class Gone(Exchange):
        def response_bytes(self, *_: object) -> None:
            raise RuntimeError("RSGI transport is closed")

    exchange = Gone("GET", "/v1/nothing")
    await app.__rsgi__(exchange.scope, exchange)
    assert app.in_flight == 0


async def test_answers_are_counted_by_status(app):
    await ask(app, "GET", "/healthz")
    await ask(app, "GET", "/nothing")
    await ask(app, "GET", "/nothing")
    assert app.responses == {200: 1, 404: 2}
    metrics = (await ask(app, "GET", "/metrics")).body.decode()
    assert 'vennue_responses_total{status="404"} 2.0' in metrics


async def test_head_is_get_without_the_body(app):
    get, head = await ask(app, "GET", "/v1/jobs"), await ask(app, "HEAD", "/v1/jobs")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(get.body)))


async def test_a_server_that_is_stopping_sends_callers_away_but_tells_operators(app):
    app._coordinator.announce_stop()
    away = await ask(app, "GET", "/v1/jobs")
    ready = await ask(app, "GET", "/readyz")
    assert away.status == 503
    assert 3 <= int(away.headers["retry-after"]) <= 8
    assert (ready.status, ready.json["status"]) == (503, "stopping")


async def test_a_server_whose_ledger_fails_is_alive_but_not_ready_and_says_why(app):
    app._coordinator._ledger_failed(StorageError("database or disk is full"))
    assert (await ask(app, "GET", "/healthz")).status == 200
    ready = await ask(app, "GET", "/readyz")
    assert (ready.status, ready.json["status"], ready.json["reason"]) == (503, "failing", "database or disk is full")
    check_in = await ask(app, "POST", "/v1/check-ins", b'{"device": "d1"}', content_length="16")
    assert (check_in.status, check_in.json["type"]) == (503, "urn:vennue:error:storage")
    assert check_in.headers["retry-after"] in {"1", "2"}


@pytest.mark.parametrize("full", ["pool", "spool", "blobs"])
async def test_a_server_is_not_ready_while_any_of_its_disks_is_full_and_says_which(tmp_path, monkeypatch, full):
    free = {tmp_path / "pool": 10_000, tmp_path / "pool" / "spool": 5000, tmp_path / "pool" / "blobs": 10_000}
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=free[path], f_frsize=1))
    place = next(path for path in free if path.name == full)
    for path in free:
        path.mkdir()
    async with rig_at(tmp_path) as rig:
        app = App(rig.coordinator, rig.selector, Limits(), "1", space=Space(tuple(free), 5000))
        assert (await ask(app, "GET", "/readyz")).status == 200
        free[place] = 4999
        ready = await ask(app, "GET", "/readyz")
        assert (ready.status, ready.json["status"]) == (503, "failing")
        said = f"4999 bytes are free in {place}, 5000 are needed: free space on its file system"
        assert ready.json["reason"] == said
        assert "vennue_ready 0.0" in (await ask(app, "GET", "/metrics")).body.decode()
        assert (await ask(app, "GET", "/healthz")).status == 200
        free[place] = 5000
        assert (await ask(app, "GET", "/readyz")).status == 200


# -- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("InvalidInput", 422), ("InvalidRequirement", 422), ("UnknownAttribute", 422), ("InvalidModel", 422),
        ("InvalidUpdate", 422), ("Infeasible", 422), ("TooLarge", 413), ("NotFound", 404), ("Forbidden", 403),
        ("Conflict", 409), ("TooLate", 409), ("IllegalTransition", 409), ("JobEnded", 409),
        ("Unavailable", 503), ("InvariantViolated", 500),
    ],
)  # fmt: skip
def test_every_error_has_its_status(name, status):
    error = getattr(errors, name)("what went wrong", field="f", value=1, limit=2, fix="do this")
    document = problem(error)
    assert status_of(error) == document.status == status
    assert document.type == f"urn:vennue:error:{error.code}"
    assert (document.detail, document.field, document.value, document.limit, document.fix) == (
        "what went wrong", "f", 1, 2, "do this",
    )  # fmt: skip


def test_which_file_failed_is_not_for_callers():
    document = problem(StorageError("cannot store a blob: disk full", field="path", value="/srv/data/x", fix="free it"))
    assert (document.status, document.detail, document.value) == (503, "cannot store a blob: disk full", None)


def test_no_error_class_was_forgotten():
    def all_of(kind: type[VennueError]) -> set[type[VennueError]]:
        return {kind}.union(*(all_of(child) for child in kind.__subclasses__()))

    kinds = all_of(VennueError) - {RequestError}  # which brings its own
    ours = {VennueError, InvariantViolated, StrategyFailed}
    assert {kind for kind in kinds if status_of(kind.__new__(kind)) == 500} == ours


def test_a_problem_carries_the_story_and_when_to_come_back():
    assert problem(IllegalTransition("no", story=("1 s opened", "2 s closed"))).story == ["1 s opened", "2 s closed"]
    overloaded = Overloaded("busy", retry_after_s=2.5)
    assert problem(overloaded).retry_after_s == 2.5
    assert ("retry-after", "3") in headers_of(overloaded, problem(overloaded))


@pytest.mark.parametrize(("value", "printed"), [(float("nan"), "nan"), ([1, 2], "[1, 2]"), (True, True), (None, None)])
def test_a_value_that_json_cannot_hold_is_printed(value, printed):
    assert problem(errors.InvalidInput("no", value=value)).value == printed


# -- routes and their description ------------------------------------------------------------------------------------


async def test_every_route_is_described_and_every_reference_leads_somewhere(app):
    description = (await ask(app, "GET", "/openapi.json")).json
    described = {(method.upper(), path) for path, item in description["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in app._router.routes}
    text = json.dumps(description)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]}:
        assert reference in description["components"]["schemas"]
    for item in description["paths"].values():
        for operation in item.values():
            statuses = operation["responses"]
            assert {"500", "503"} <= statuses.keys()
            assert operation["summary"].endswith((".", "?"))


async def test_operations_have_distinct_names_and_links_lead_to_them(app):
    description = (await ask(app, "GET", "/openapi.json")).json
    operations = [operation for item in description["paths"].values() for operation in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    linked = {
        link["operationId"]
        for operation in operations
        for reply in operation["responses"].values()
        for link in reply.get("links", {}).values()
    }
    assert linked <= set(names)


async def test_placeholders_take_any_segment_but_an_empty_one(tmp_path):
    async with rig_at(tmp_path) as rig:
        routes = all_routes(rig.coordinator, rig.selector, Limits(), "1", Telemetry(rig.coordinator, {}))
    router = Router(routes)
    route, params = router.find("GET", "/v1/jobs/a-1/rounds/7")
    assert (route.name, params) == ("showRound", {"id": "a-1", "round": "7"})
    for path in ("/v1/jobs//rounds/7", "/v1/jobs/a/rounds", "/v1/jobs/a/rounds/7/x", ""):
        with pytest.raises((errors.NotFound, RequestError)):
            router.find("GET", path)
    assert describe(routes, "1")["info"]["version"] == "1"


@in_virtual_time
async def test_a_body_that_drips_is_given_up_although_it_never_stops():
    async def drips():
        for _ in range(100):
            await asyncio.sleep(20)
            yield b"x"

    async with LocalPool(limits=Limits(idle_body_s=60, least_bytes_per_s=1.0)) as pool, pool.client() as client:
        answer = await client.put(f"/v1/blobs/{'0' * 64}", content=drips())
        assert (answer.status_code, answer.json()["limit"]) == (408, 1.0)
        assert pool.coordinator.data.uploads.active == 0
        assert 60 < asyncio.get_running_loop().time() <= 100


@in_virtual_time
async def test_a_body_that_stops_arriving_is_given_up():
    async def stops():
        yield b"x"
        await asyncio.sleep(86_400)

    async with LocalPool(limits=Limits(idle_body_s=60)) as pool, pool.client() as client:
        answer = await client.put(f"/v1/blobs/{'0' * 64}", content=stops())
        assert (answer.status_code, answer.json()["detail"]) == (408, "nothing of the body arrived for 60 s")
        assert 60 < asyncio.get_running_loop().time() <= 90
