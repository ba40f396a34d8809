"""What a leaf knows of its root before it has anything to send, and after something went wrong."""

import asyncio
import hashlib

import httpx
import pytest

from tests.unit.server.test_app import Exchange
from vennue.core.errors import NotFound, Unavailable
from vennue.core.ids import AttemptId, Digest
from vennue.server import upstream
from vennue.server.http import Request, StallWatch
from vennue.server.upstream import HttpUpstream
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.cache import BlobCache


def problem(status: int, code: str, detail: str) -> httpx.Response:
    document = {
        "type": f"urn:vennue:error:{code}",
        "title": code,
        "status": status,
        "detail": detail,
        "fix": "repair it",
    }
    return httpx.Response(status, json=document)


REFUSED = problem(403, "forbidden", "this is not the pool's key for leaves")
NO_SUCH_ATTEMPT = problem(404, "not-found", "there is no such attempt")


class Root(httpx.AsyncBaseTransport):
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.answer: httpx.Response | None = NO_SUCH_ATTEMPT
        self.asked = 0
        self.path = b""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        self.path = request.url.raw_path
        if self.answer is None:
            await asyncio.Event().wait()
        assert self.answer is not None
        return httpx.Response(self.answer.status_code, content=self.answer.content, request=request)


@pytest.fixture
def root():
    return Root()


@pytest.fixture
async def up(root, tmp_path):
    up = HttpUpstream("http://root", "a secret of leaves", BlobCache(DirectoryBlobs(tmp_path)), transport=root)
    yield up
    await up.close()


async def test_a_root_that_takes_the_key_is_asked_once(root, up):
    assert [await up.trouble() for _ in range(3)] == [None, None, None]
    assert root.asked == 1


async def test_a_wrong_key_is_known_before_there_is_a_report_and_logged_once(root, up, caplog):
    root.answer = REFUSED
    assert "not the pool's key" in await up.trouble()
    assert "not the pool's key" in await up.trouble()
    (record,) = caplog.records
    assert record.message.endswith("(repair it)")


async def test_a_leaf_to_which_nothing_comes_sees_that_its_trouble_is_over(root, up):
    root.answer = REFUSED
    await up.trouble()
    root.answer = NO_SUCH_ATTEMPT
    assert await up.trouble() is None


async def test_that_an_attempt_is_over_is_believed_of_no_proxy(root, up):
    root.answer = httpx.Response(404, text="default backend - 404")
    assert await up.trouble() == "http://root answers like no root or leaf: the server answered 404 Not Found"
    with pytest.raises(Unavailable):
        await up.attempt(AttemptId("job.1.1"))
    with pytest.raises(Unavailable):
        await up.fetch(Digest("0" * 64))
    root.answer = NO_SUCH_ATTEMPT
    with pytest.raises(NotFound):
        await up.attempt(AttemptId("job.1.1"))
    assert await up.trouble() is None


async def test_a_root_that_does_not_answer_is_trouble(root, up, monkeypatch):
    monkeypatch.setattr(upstream, "CHECK_S", 0.01)
    root.answer = None
    assert await up.trouble() == "http://root does not answer"


async def test_a_model_that_was_damaged_in_the_cache_is_fetched_anew(root, tmp_path):
    data = b"a model"
    digest = Digest(hashlib.sha256(data).hexdigest())
    DirectoryBlobs(tmp_path).put(data)
    DirectoryBlobs(tmp_path).path(digest).write_bytes(b"a modem")
    root.answer = httpx.Response(200, content=data)
    cache = BlobCache(DirectoryBlobs(tmp_path))
    up = HttpUpstream("http://root", "a secret of leaves", cache, transport=root)
    await up.fetch(digest)
    await up.fetch(digest)
    assert cache.blobs.path(digest).read_bytes() == data
    assert root.asked == 1
    assert not list(tmp_path.glob("damaged/*"))
    await up.close()


# As granian gives it: a leaf's client has written the unusual characters with percent signs.
STRANGE = [("a?b#c", b"a%3Fb%23c"), ("a b%2F", b"a%20b%252F"), ("\0\r\n", b"%00%0D%0A"), ("é", b"%C3%A9")]


@pytest.mark.parametrize(("id", "sent"), STRANGE)
async def test_an_id_that_a_stranger_made_up_stays_one_segment_of_the_path(root, up, id, sent):
    with pytest.raises(NotFound):
        await up.attempt(AttemptId(id))
    assert root.path == b"/v1/attempts/" + sent


@pytest.mark.parametrize(("id", "sent"), STRANGE)
async def test_a_path_is_passed_on_as_it_came(root, up, id, sent):
    exchange = Exchange("POST", f"/v1/assignments/{id}/accept", query="x=%ff")
    request = Request(exchange.scope, exchange, {}, StallWatch(60.0))
    assert (await up.pass_on(request, 100)).status == 404
    assert root.path == b"/v1/assignments/" + sent + b"/accept?x=%ff"


async def test_a_path_too_long_to_be_passed_on_leads_nowhere(root, up):
    exchange = Exchange("POST", f"/v1/assignments/{chr(34) * 60_000}/accept")
    with pytest.raises(NotFound, match="no such path"):
        await up.pass_on(Request(exchange.scope, exchange, {}, StallWatch(60.0)), 100)
    assert root.asked == 0
