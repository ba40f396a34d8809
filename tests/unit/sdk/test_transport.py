"""The seam to the network: addresses, long bodies, and coroutines that run without an event loop."""

import httpx
import pytest

from tests.unit.sdk.fake import SERVER
from vennue.core import errors
from vennue.sdk.retry import Retry
from vennue.sdk.transport import AsyncioTransport, BlockingTransport, Timing, blocking
from vennue.sdk.wire import Wire


def test_a_server_below_a_path_is_called_below_that_path(time):
    below = BlockingTransport(f"{SERVER}/pool/", None, time.timing)
    assert str(below.build("GET", "/healthz", {}, None).url) == f"{SERVER}/pool/healthz"


@pytest.mark.parametrize("address", ["localhost:8765", "ftp://pool", "http://", "", "http://pool:port", 7])
def test_an_address_that_is_none_is_refused_with_an_example(address, time):
    with pytest.raises(errors.InvalidInput, match=r"http://127\.0\.0\.1:8765") as caught:
        BlockingTransport(address, None, time.timing)
    assert caught.value.field == "server"


@pytest.mark.parametrize(
    ("variable", "called"), [("http://elsewhere:9", "http://elsewhere:9/x"), ("", "http://127.0.0.1:8765/x")]
)
def test_without_an_address_the_environments_is_used_or_the_default(time, monkeypatch, variable, called):
    monkeypatch.setenv("VENNUE_SERVER", variable)
    assert str(BlockingTransport(None, None, time.timing).build("GET", "/x", {}, None).url) == called


def test_a_coroutine_that_would_suspend_is_refused():
    class Suspends:
        def __await__(self):
            yield

    async def suspends():
        await Suspends()

    with pytest.raises(RuntimeError, match="about to suspend"):
        blocking(suspends())


def test_a_long_body_is_sent_whole_with_its_length_as_often_as_it_takes():
    body = bytes(range(256)) * 4096 + b"end"
    seen: list[tuple[str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["content-length"], request.read()))
        assert "transfer-encoding" not in request.headers
        return httpx.Response(503 if len(seen) == 1 else 200, json={})

    timing = Timing(sleep=lambda _: None)
    sender = Wire(BlockingTransport("http://pool", httpx.MockTransport(answer), timing), Retry(), timing)
    blocking(sender.send("PUT", "/v1/blobs/x", body=body))
    assert seen == [(str(len(body)), body)] * 2


async def test_a_long_body_is_sent_whole_under_asyncio_too():
    body = bytes(range(256)) * 4096 + b"end"

    async def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["content-length"] == str(len(body))
        assert await request.aread() == body
        return httpx.Response(200, json={})

    timing = Timing()
    sender = Wire(AsyncioTransport("http://pool", httpx.MockTransport(answer), timing), Retry(), timing)
    await sender.send("PUT", "/v1/blobs/x", body=body)
