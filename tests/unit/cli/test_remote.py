"""What commands ask a server: all of a long list, however many pages it has; and what they say of one that is none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from vennue.cli import run
from vennue.cli.remote import Operator
from vennue.cli.terminal import ExitCode
from vennue.core.ids import JobId
from vennue.protocol import JobList
from vennue.testing import LocalPool, in_virtual_time


class Pages(Operator):
    """An operator whose server is a script."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.asked = []

    def get(self, path, answer):
        self.asked.append(path)
        return self.pages.pop(0)


def test_a_list_of_jobs_is_followed_to_its_last_page():
    server = Pages(JobList(jobs=[], next=JobId("a b")), JobList(jobs=[], next=JobId("c")), JobList(jobs=[]))
    assert server.jobs() == []
    assert server.asked == ["/v1/jobs?limit=500", "/v1/jobs?limit=500&after=a+b", "/v1/jobs?limit=500&after=c"]


@in_virtual_time
async def test_a_server_gives_the_pages_that_it_is_asked_for_and_refuses_what_is_no_page():
    async with LocalPool() as pool, pool.client() as client:
        for name in "abc":
            await client.post("/v1/jobs", json={"spec": {"name": name, "demand": 1}})
        page = (await client.get("/v1/jobs?limit=2")).json()
        rest = (await client.get("/v1/jobs", params={"limit": 2, "after": page["next"]})).json()
        assert [job["spec"]["name"] for job in page["jobs"] + rest["jobs"]] == ["a", "b", "c"]
        assert rest["next"] is None
        for query in ("limit=0", "limit=501", "limit=1.5", "after=x"):
            refused = await client.get(f"/v1/jobs?{query}")
            assert (refused.status_code, refused.json()["field"]) == (422, query.partition("=")[0])


HEALTH = {"status": "ok", "version": "0.0.7"}


@contextmanager
def server_that_answers(status: int, body: object, health: object = None) -> Iterator[str]:
    """The address of one that answers so to everything but the question after its health."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            content = json.dumps(health if self.path == "/healthz" and health else body).encode()
            self.send_response(200 if self.path == "/healthz" and health else status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Nothing: the test's output is what counts."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))  # how soon it ends
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "job.yaml").write_text("{name: a, demand: 1}")
    return str(tmp_path / "job.yaml")


@pytest.mark.parametrize("command", ["jobs", "why x-1", "pull x-1", "submit FILE"])
@pytest.mark.parametrize(
    ("answer", "code", "said", "fix"),
    [
        ((200, {"jobs": [{"id": "x"}]}, HEALTH), 3, "the server is Vennue 0.0.7, and this program is", "install"),
        ((404, {}, HEALTH), 3, "the server is Vennue 0.0.7, and this program is", "install the server's version"),
        ((200, "welcome"), 3, "this is no Vennue server, or none of this version", "name another server"),
        ((404, "not found"), 3, "this is no Vennue server, or none of this version", "name another server"),
        ((401, "who are you?"), 1, "the server answered 401 Unauthorized", "wants to know who asks"),
        ((403, "forbidden"), 1, "the server answered 403 Forbidden", "wants to know who asks"),
        ((500, "oops"), 3, "the server answered 500 Internal Server Error", "see the server's log"),
    ],
    ids=["older", "without the route", "another program", "nothing", "unknown", "forbidden", "failing"],
)
def test_a_server_that_does_not_answer_as_expected_is_told_in_a_line(
    command, answer, code, said, fix, job_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with server_that_answers(*answer) as address:
        assert run([*command.replace("FILE", job_file).split(), "--server", address]) == ExitCode(code)
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first.startswith(f"error: server: {address}: {said}")
    assert second.startswith("  fix: ")
    assert fix in second
