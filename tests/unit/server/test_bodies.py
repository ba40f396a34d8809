"""Bodies of reports: small ones in one piece, within a bound, and none for longer than the slowest sender takes."""

import asyncio
import socket

import pytest

from tests.unit.server.test_app import Exchange
from vennue.core.errors import TooLarge
from vennue.server.http import WHOLE_BODY_BYTES, Request, StallWatch
from vennue.server.problems import RequestError
from vennue.server.silence import silent_peers
from vennue.testing import in_virtual_time

HALVES = (b"a" * 500, b"b" * 500)


def request(watch, *chunks, length=None, **headers):
    if length is not None:
        headers["content_length"] = str(length)
    exchange = Exchange("PUT", "/", *chunks, **headers)
    return Request(exchange.scope, exchange, {}, watch)


async def pieces(watch, *chunks, length=None, limit=2**30):
    return [piece async for piece in request(watch, *chunks, length=length).pieces(limit)]


async def test_a_small_body_comes_in_one_piece():
    assert await pieces(StallWatch(60.0, 1024.0), *HALVES, length=1_000) == [b"".join(HALVES)]


@pytest.mark.parametrize("length", [None, WHOLE_BODY_BYTES + 1])
async def test_a_body_that_is_large_or_of_unknown_size_comes_as_it_arrives(length):
    chunks = HALVES if length is None else (b"a", b"b" * WHOLE_BODY_BYTES)
    assert await pieces(StallWatch(60.0, 1024.0), *chunks, length=length) == list(chunks)


async def test_without_a_least_speed_nobody_is_waited_for_in_one_piece():
    assert await pieces(StallWatch(60.0), *HALVES, length=1_000) == list(HALVES)


async def test_a_body_in_one_piece_that_is_too_large_or_cut_off_is_refused():
    watch = StallWatch(60.0, 1024.0)
    with pytest.raises(TooLarge):
        await pieces(watch, *HALVES, length=1_000, limit=999)
    with pytest.raises(RequestError, match="cut off"):
        await pieces(watch, *HALVES, length=1_001)
    sent = request(watch, *HALVES, length=1_000)
    assert sent.has_unread_body
    assert [piece async for piece in sent.pieces(1_000)]
    assert not sent.has_unread_body


@in_virtual_time
async def test_bodies_in_one_piece_take_no_more_memory_than_they_may_and_others_come_as_they_arrive():
    watch = StallWatch(60.0, 1024.0, whole_bytes=2_500)
    go_on = asyncio.Event()

    class Slow(Exchange):
        async def __call__(self):
            await go_on.wait()
            return await super().__call__()

    slow = [Slow("PUT", "/", *HALVES, content_length="1000") for _ in range(2)]

    async def read(exchange):
        return [piece async for piece in Request(exchange.scope, exchange, {}, watch).pieces(1_000)]

    reading = [asyncio.ensure_future(read(exchange)) for exchange in slow]
    await asyncio.sleep(1)
    assert await pieces(watch, *HALVES, length=1_000) == list(HALVES)
    go_on.set()
    assert await asyncio.gather(*reading) == [[b"".join(HALVES)]] * 2
    assert await pieces(watch, *HALVES, length=1_000) == [b"".join(HALVES)]


@in_virtual_time
@pytest.mark.parametrize(("takes_s", "is_taken"), [(1_000, True), (2_000, False)])
async def test_a_body_in_one_piece_is_waited_for_as_long_as_the_slowest_sender_takes(takes_s, is_taken):
    """1000 bytes take 1000 s at 1 byte per second; one that stops is seen after 60 s more, and half as long again."""

    class Slow(Exchange):
        async def __call__(self):
            await asyncio.sleep(takes_s)
            return await super().__call__()

    watch = StallWatch(60.0, 1.0)
    watching = asyncio.ensure_future(watch.run())
    exchange = Slow("PUT", "/", *HALVES, content_length="1000")
    reading = Request(exchange.scope, exchange, {}, watch).pieces(1_000)
    if is_taken:
        assert [piece async for piece in reading] == [b"".join(HALVES)]
    else:
        with pytest.raises(RequestError, match="too little of the body arrived for 1060 s"):
            await anext(reading)
        assert 1_060 <= asyncio.get_running_loop().time() <= 1_090
    watching.cancel()


@in_virtual_time
async def test_a_body_in_one_piece_whose_client_is_silent_is_given_up_as_others_are():
    asked = []

    def silent(silent_s):
        asked.append(silent_s)
        return {"10.0.0.1:5"} if asyncio.get_running_loop().time() > 300 else set()

    class Stalled(Exchange):
        async def __call__(self):
            await asyncio.Event().wait()

    watch = StallWatch(60.0, 1.0, silent=silent)
    watching = asyncio.ensure_future(watch.run())
    exchange = Stalled("PUT", "/", content_length="1000")
    with pytest.raises(RequestError, match="nothing of the body arrived for 60 s") as told:
        await anext(Request(exchange.scope, exchange, {}, watch).pieces(1_000))
    assert told.value.status == 408
    assert asyncio.get_running_loop().time() == 330
    assert set(asked) == {60.0}
    watching.cancel()


@in_virtual_time
async def test_who_is_silent_is_not_asked_for_while_bodies_flow():
    watch = StallWatch(60.0, 1.0, silent=lambda _: pytest.fail("nobody is late"))
    watching = asyncio.ensure_future(watch.run())
    for _ in range(20):
        assert await pieces(watch, *HALVES, length=1_000) == [b"".join(HALVES)]
        await asyncio.sleep(20)
    watching.cancel()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="this system does not tell")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_tells_whose_connections_are_silent(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip("no such loopback address")
        listener.listen()
        with socket.socket(family) as client:
            client.connect(listener.getsockname())
            with listener.accept()[0]:
                port = client.getsockname()[1]
                name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                assert name in silent_peers(0.0)
                assert name not in silent_peers(3600.0)
