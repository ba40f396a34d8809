"""Calls: what is tried again and for how long, and blobs that arrive whole or not at all."""

import asyncio
import hashlib
import logging

import httpx
import pytest

from tests.unit.sdk.fake import SERVER, model, problem
from vennue import protocol
from vennue.core import errors
from vennue.sdk.retry import Retry
from vennue.sdk.transport import AsyncioTransport, BlockingTransport, blocking
from vennue.sdk.wire import Wire

HEALTH = protocol.Health(status="ok", version="1")


def wire(server, time, retry=None):
    return Wire(BlockingTransport(SERVER, server, time.timing), retry or Retry(), time.timing)


def ask(server, time, retry=None):
    return blocking(wire(server, time, retry).call("GET", "/healthz", protocol.Health))


def test_an_answer_is_decoded_into_its_message(server, time):
    server.on("GET /healthz", HEALTH)
    assert ask(server, time) == HEALTH


def test_the_async_transport_makes_the_same_call(server, time):
    async def asked():
        return await Wire(transport, Retry(), time.async_timing).call("GET", "/healthz", protocol.Health)

    server.on("GET /healthz", httpx.ConnectError("refused"), HEALTH)
    transport = AsyncioTransport(SERVER, server, time.async_timing)
    assert asyncio.run(asked()) == HEALTH
    assert server.calls == ["GET /healthz", "GET /healthz"]


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout(""),
        httpx.RemoteProtocolError("closed"),
        problem(503, "unavailable"),
        problem(503, "storage"),
        httpx.Response(502, text="bad gateway"),
        httpx.Response(429),
    ],
    ids=repr,
)
def test_a_passing_failure_is_tried_again(server, time, failure):
    server.on("GET /healthz", failure, failure, HEALTH)
    assert ask(server, time) == HEALTH
    assert time.waits == [0.25, 0.5]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 422])
def test_a_refusal_is_not_tried_again(server, time, status):
    server.on("GET /healthz", problem(status, "no-code-of-ours"))
    with pytest.raises(errors.VennueError):
        ask(server, time)
    assert len(server.calls) == 1


def test_a_defect_of_the_server_is_tried_three_times(server, time):
    server.on("GET /healthz", problem(500, "internal"))
    with pytest.raises(errors.Unavailable):
        ask(server, time)
    assert len(server.calls) == 3


def test_an_unreachable_server_is_given_up_within_the_total_time(server, time):
    server.on("GET /healthz", httpx.ConnectError("connection refused"))
    with pytest.raises(errors.Unavailable, match="cannot be reached: ConnectError: connection refused") as caught:
        ask(server, time, Retry(total_s=60))
    assert 50 < sum(time.waits) <= 60
    assert caught.value.field == "server"
    assert caught.value.__notes__ == ["GET /healthz failed 11 times within 55.8 s"]
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


def test_an_unreachable_server_is_given_up_after_the_attempts(server, time):
    server.on("GET /healthz", httpx.ConnectError("refused"))
    with pytest.raises(errors.Unavailable):
        ask(server, time, Retry(attempts=4))
    assert len(server.calls) == 4


def test_time_spent_in_the_first_try_does_not_count_against_further_ones(server, time):
    def slow_then_cut(request):
        time.now += 10_000
        raise httpx.WriteError("cut")

    server.on("GET /healthz", slow_then_cut, HEALTH)
    assert ask(server, time, Retry(total_s=60)) == HEALTH


def test_the_wait_that_the_server_asks_for_is_kept_and_jitter_comes_on_top(server, time):
    server.on("GET /healthz", problem(503, "overloaded", retry_after_s=7.5), HEALTH)
    ask(server, time)
    assert time.waits == [7.75]


def test_a_retry_after_header_counts_where_there_is_no_problem_document(server, time):
    server.on("GET /healthz", httpx.Response(503, headers={"retry-after": "3"}), HEALTH)
    ask(server, time)
    assert time.waits == [3.25]


def test_an_overload_that_lasts_is_reported_with_the_wait(server, time):
    server.on("GET /healthz", problem(503, "overloaded", retry_after_s=1000.0))
    with pytest.raises(errors.Overloaded) as caught:
        ask(server, time)
    assert caught.value.retry_after_s == 1000.0
    assert len(server.calls) == 1


def test_a_failure_of_the_server_that_lasts_is_its_unavailability(server, time):
    server.on("GET /healthz", problem(503, "storage", "the disk is full", fix="free space"))
    with pytest.raises(errors.Unavailable, match="the server still fails: the disk is full") as caught:
        ask(server, time, Retry(attempts=4))
    assert isinstance(caught.value.__cause__, errors.StorageError)
    assert caught.value.fix == "free space"


def test_the_first_failures_are_quiet_and_later_ones_are_warnings(server, time, caplog):
    caplog.set_level(logging.INFO, "vennue.sdk")
    server.on("GET /healthz", *[httpx.ConnectError("refused")] * 3, HEALTH)
    ask(server, time)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]
    assert "GET /healthz failed, trying again in 1.0 s: the server cannot be reached" in caplog.text


def test_an_answer_that_is_not_the_message_is_an_error_that_says_where_it_came_from(server, time):
    server.on("GET /healthz", httpx.Response(200, text="<html>welcome</html>"))
    with pytest.raises(errors.Unavailable, match=r"http://pool.test/healthz answered with something that is no Health"):
        ask(server, time)


# -- blobs -----------------------------------------------------------------------------------------------------------


def cut_after(blob, count):
    class Cut(httpx.SyncByteStream):
        def __iter__(self):
            yield blob[:count]
            raise httpx.RemoteProtocolError("peer closed connection")

    return lambda request: httpx.Response(200, stream=Cut())


def test_a_blob_that_the_server_has_is_not_uploaded_again(server, time):
    digest = server.holds(model(1, 2))
    assert blocking(wire(server, time).store(server.blobs[digest])) == digest
    assert [call[:4] for call in server.calls] == ["HEAD"]


def test_a_blob_that_the_server_lacks_is_uploaded_under_its_digest(server, time):
    digest = blocking(wire(server, time).store(b"a model"))
    assert digest == hashlib.sha256(b"a model").hexdigest()
    assert server.blobs == {digest: b"a model"}


def test_a_download_that_was_cut_goes_on_where_it_stopped(server, time):
    digest = server.holds(model(*range(100)))
    blob = server.blobs[digest]
    path = f"GET /v1/blobs/{digest[:6]}"
    server.on(path, cut_after(blob, 150), server._blob)
    assert blocking(wire(server, time).fetch(digest)).blob == blob
    assert [request.headers.get("range") for request in server.requests] == [None, "bytes=150-"]
    assert server.requests[1].headers["if-range"] == f'"{digest}"'


def test_a_server_that_ignores_ranges_sends_the_whole_and_that_is_kept(server, time):
    digest = server.holds(model(*range(100)))
    blob = server.blobs[digest]
    server.on(f"GET /v1/blobs/{digest[:6]}", cut_after(blob, 150), httpx.Response(200, content=blob))
    assert blocking(wire(server, time).fetch(digest)).blob == blob


def test_a_download_with_progress_outlives_more_cuts_than_a_call_has_attempts(server, time):
    digest = server.holds(model(*range(100)))
    blob = server.blobs[digest]

    def a_bit_more(request):
        start = int(request.headers.get("range", "bytes=0-")[6:-1])
        response = cut_after(blob[start:], 20)(request)
        response.status_code = 206 if start else 200
        response.headers["content-range"] = f"bytes {start}-{len(blob) - 1}/{len(blob)}"
        return response

    server.on(f"GET /v1/blobs/{digest[:6]}", *[a_bit_more] * (len(blob) // 20), server._blob)
    assert blocking(wire(server, time, Retry(attempts=2)).fetch(digest)).blob == blob


def test_a_damaged_blob_is_fetched_again_from_its_beginning(server, time):
    digest = server.holds(model(1, 2))
    server.on(f"GET /v1/blobs/{digest[:6]}", httpx.Response(200, content=b"damaged"), server._blob)
    assert blocking(wire(server, time).fetch(digest)).blob == server.blobs[digest]
    assert "range" not in server.requests[1].headers


def test_a_blob_that_stays_damaged_is_never_returned(server, time):
    digest = server.holds(model(1, 2))
    server.on(f"GET /v1/blobs/{digest[:6]}", httpx.Response(200, content=b"damaged"))
    with pytest.raises(errors.Unavailable, match="arrives damaged") as caught:
        blocking(wire(server, time, Retry(attempts=3)).fetch(digest))
    assert caught.value.field == "model"


def test_a_blob_that_is_not_there_is_not_found(server, time):
    with pytest.raises(errors.NotFound):
        blocking(wire(server, time).fetch("0" * 64))
