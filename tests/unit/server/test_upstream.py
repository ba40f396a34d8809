"""What a leaf knows of its root before it has anything to send, and after something went wrong."""

import asyncio

import httpx
import pytest

from vennue.server import upstream
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

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
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


async def test_a_root_that_does_not_answer_is_trouble(root, up, monkeypatch):
    monkeypatch.setattr(upstream, "CHECK_S", 0.01)
    root.answer = None
    assert await up.trouble() == "http://root does not answer"
