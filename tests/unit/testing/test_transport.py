"""The faulty transport: each fault does what its name says, and a seed gives the same faults again."""

from itertools import pairwise

import httpx
import pytest

from vennue.core.errors import InvalidInput
from vennue.testing import FaultyTransport
from vennue.testing.transport import REMEMBERED

URL = "http://pool.test/"


class Server(httpx.MockTransport):
    """Counts the requests that arrive whole, and answers with a hundred bytes."""

    def __init__(self):
        self.arrived = []
        super().__init__(self.answer)

    def answer(self, request):
        self.arrived.append(request.content)
        return httpx.Response(200, content=bytes(100))


@pytest.fixture
def server():
    return Server()


def put(transport, body=b"update"):
    return httpx.Client(transport=transport).put(URL, content=body)


def outcome(transport):
    try:
        return put(transport).status_code
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}"


def test_without_faults_everything_passes(server):
    assert put(FaultyTransport(server)).content == bytes(100)
    assert server.arrived == [b"update"]


def test_a_dropped_request_never_arrives(server):
    with pytest.raises(httpx.ConnectError):
        put(FaultyTransport(server, drop=1.0))
    assert server.arrived == []


def test_a_duplicated_request_arrives_twice_and_is_answered_once(server):
    assert put(FaultyTransport(server, duplicate=1.0)).content == bytes(100)
    assert server.arrived == [b"update", b"update"]


def test_a_delayed_request_waits_within_its_bounds(server):
    waits: list[float] = []
    transport = FaultyTransport(server, delay=1.0, delay_s=(2.0, 3.0), sleep=waits.append)
    for _ in range(20):
        put(transport)
    assert len(waits) == 20
    assert 2.0 <= min(waits) < max(waits) <= 3.0


def test_a_delay_falls_on_the_way_there_or_on_the_way_back(server):
    had_arrived: list[int] = []
    transport = FaultyTransport(server, delay=1.0, sleep=lambda _: had_arrived.append(len(server.arrived)))
    for _ in range(20):
        put(transport)
        server.arrived.clear()
    assert set(had_arrived) == {0, 1}


def test_a_replayed_request_arrives_once_more_before_a_later_one_and_nobody_sees_its_answer(server):
    transport = FaultyTransport(server, replay=1.0)
    for body in (b"first", b"second"):
        assert put(transport, body).content == bytes(100)
    assert server.arrived == [b"first", b"first", b"second"]
    assert transport.injected["replay"] == 1


def test_only_the_last_requests_are_replayed(server):
    transport = FaultyTransport(server, replay=1.0)
    for number in range(200):
        put(transport, b"%d" % number)
    arrived = [int(body) for body in server.arrived]
    assert max(later - number for number, later in pairwise(arrived)) <= REMEMBERED + 1
    assert len(arrived) == 399


def test_a_connection_breaks_in_the_request_before_the_answer_or_within_it(server):
    transport = FaultyTransport(server, disconnect=1.0, seed=1)
    seen = {outcome(transport) for _ in range(50)}
    assert seen == {
        "WriteError: the connection was cut in the request on purpose",
        "ReadError: the connection was cut before the answer on purpose",
        "ReadError: the connection was cut in the answer on purpose",
    }
    assert 20 < len(server.arrived) < 46  # the two thirds whose request was not cut


def test_of_an_answer_that_breaks_off_the_first_half_arrives(server):
    received = bytearray()
    transport = FaultyTransport(server, disconnect=1.0)
    for _ in range(50):
        try:
            with httpx.Client(transport=transport).stream("GET", URL) as response:
                for chunk in response.iter_bytes():
                    received += chunk
                break
        except httpx.TransportError:
            if received:
                break
    assert len(received) == 50


def test_the_same_seed_gives_the_same_faults(server):
    transports = [FaultyTransport(server, drop=0.2, duplicate=0.2, disconnect=0.2, seed=seed) for seed in (1, 1, 2)]
    first, again, other = [[outcome(transport) for _ in range(30)] for transport in transports]
    assert first == again
    assert first != other


def test_faults_are_counted_and_their_rates_are_those_asked_for(server):
    transport = FaultyTransport(server, drop=0.1, duplicate=0.3, seed=3)
    for _ in range(1000):
        outcome(transport)
    assert 70 < transport.injected["drop"] < 130
    assert 250 < transport.injected["duplicate"] < 350


def test_a_healed_transport_lets_everything_pass(server):
    transport = FaultyTransport(server, drop=1.0)
    transport.heal()
    assert put(transport).status_code == 200


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_a_probability_that_is_none_is_refused_by_name(server, probability):
    with pytest.raises(InvalidInput) as caught:
        FaultyTransport(server, disconnect=probability)
    assert caught.value.field == "disconnect"


async def test_the_same_faults_strike_an_async_client(server):
    transport, asynchronous = (
        FaultyTransport(server, drop=0.2, duplicate=0.2, replay=0.2, disconnect=0.4, seed=5) for _ in range(2)
    )
    blocking = [outcome(transport) for _ in range(100)]
    arrived, server.arrived = server.arrived, []
    awaited: list[int | str] = []
    async with httpx.AsyncClient(transport=asynchronous) as client:
        for _ in range(100):
            try:
                awaited.append((await client.put(URL, content=b"update")).status_code)
            except httpx.TransportError as error:
                awaited.append(f"{type(error).__name__}: {error}")
    assert awaited == blocking
    assert server.arrived == arrived
    assert asynchronous.injected == transport.injected
