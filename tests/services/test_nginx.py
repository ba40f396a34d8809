"""The configuration in deploy/nginx with a real nginx: models come from its cache, everything else from the server."""

import asyncio
import contextlib
import hashlib
import http.client
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.e2e.calls import closed, open_round, put, submit, until
from tests.e2e.server_process import ServerProcess, model, numbers
from tests.e2e.test_leaf_cache import ask, metric
from vennue import Device
from vennue._zstd import zstd
from vennue.tensors.model import save

pytestmark = pytest.mark.services("nginx")

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "vennue-cdn.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Nginx:
    """An nginx in a directory of its own, in front of a server."""

    def __init__(self, root: Path, server_port: int) -> None:
        (root / "conf").mkdir()
        (root / "logs").mkdir()
        log = root / "logs" / "error.log"
        while not self._start(root, server_port, log):
            assert "Address already in use" in log.read_text(), log.read_text()  # somebody else took a free port

    def _start(self, root: Path, server_port: int, log: Path) -> bool:
        """Start it on free ports; whether it listens there."""
        log.unlink(missing_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self.port, devices_port = one.getsockname()[1], other.getsockname()[1]
        changes = {
            r"proxy_cache_path \S+": f"proxy_cache_path {root}/cache",
            r"server 127\.0\.0\.1:8765": f"server 127.0.0.1:{server_port}",
            r"listen 8080": f"listen 127.0.0.1:{devices_port}",
            r"listen 127\.0\.0\.1:8081": f"listen 127.0.0.1:{self.port}",
            r'"~\^8081 "': f'"~^{self.port} "',
        }
        text = CONFIGURATION.read_text()
        for old, new in changes.items():
            text, count = re.subn(old, new, text)
            assert count == 1, old
        temporary = "\n".join(
            f"{kind}_temp_path {root}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (root / "conf" / "nginx.conf").write_text(
            f"daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {log};\n"
            f"events {{ worker_connections 512; }}\n"
            f"http {{\naccess_log {root}/logs/access.log;\n{temporary}\n{text}\n}}\n"
        )
        assert NGINX is not None
        self._process = subprocess.Popen([NGINX, "-p", str(root), "-c", "conf/nginx.conf", "-e", str(log)])
        self.url = f"http://127.0.0.1:{self.port}"
        self.devices_url = f"http://127.0.0.1:{devices_port}"
        pid = root / "nginx.pid"  # which it writes once it listens
        until(lambda: pid.exists() or self._process.poll() is not None)
        return pid.exists()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(100)


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        yield running


@pytest.fixture
def nginx(server, tmp_path) -> Iterator[Nginx]:
    (tmp_path / "nginx").mkdir()
    running = Nginx(tmp_path / "nginx", server.port)
    yield running
    running.stop()


def get(nginx: Nginx, path: str, **headers: str) -> tuple[httpx.Response, bytes]:
    sent = {"accept-encoding": "identity", **{name.replace("_", "-"): value for name, value in headers.items()}}
    with nginx.client() as client, client.stream("GET", path, headers=sent) as answer:
        return answer, b"".join(answer.iter_raw())


def test_of_rounds_that_hundreds_of_devices_serve_nearly_all_models_come_from_the_cache(server, nginx):
    """Five rounds of 200 devices, fifty at a time: the server sends each model once."""
    hits = asked = 0
    for number in range(5):
        with nginx.client() as client:
            digest = put(client, np.random.default_rng(number).bytes(200_000))
        before = metric(server, "vennue_responses_total")
        assert asyncio.run(ask(nginx.url, f"/v1/blobs/{digest}", 200)) == [digest] * 200
        sent = metric(server, "vennue_responses_total") - before - 1  # the metrics themselves
        assert sent == 1
        asked += 200
        hits += 200 - int(sent)
    print(f"hit ratio {hits / asked:.1%}")  # noqa: T201 - the figure in the documentation
    assert hits / asked == 0.995


def test_ranges_and_conditions_are_answered_from_the_cache(server, nginx):
    data = np.random.default_rng(0).bytes(100_000)
    with nginx.client() as client:
        digest = put(client, data)
    first, whole = get(nginx, f"/v1/blobs/{digest}")
    assert (first.headers["x-cache-status"], whole) == ("MISS", data)
    etag = f'"{digest}"'
    rest, body = get(nginx, f"/v1/blobs/{digest}", range="bytes=50000-", if_range=etag)
    assert (rest.status_code, rest.headers["x-cache-status"], body) == (206, "HIT", data[50_000:])
    assert rest.headers["content-range"] == "bytes 50000-99999/100000"
    other, body = get(nginx, f"/v1/blobs/{digest}", range="bytes=50000-", if_range='"another"')
    assert (other.status_code, body) == (200, data)
    known, _ = get(nginx, f"/v1/blobs/{digest}", if_none_match=etag)
    assert (known.status_code, known.headers["etag"]) == (304, etag)
    assert first.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_a_range_that_is_asked_for_first_brings_the_whole_model_into_the_cache(server, nginx):
    data = np.random.default_rng(1).bytes(100_000)
    with nginx.client() as client:
        digest = put(client, data)
    first, body = get(nginx, f"/v1/blobs/{digest}", range="bytes=-10")
    assert (first.status_code, body) == (206, data[-10:])
    again, whole = get(nginx, f"/v1/blobs/{digest}")
    assert (again.headers["x-cache-status"], whole) == ("HIT", data)


def test_each_form_of_a_model_is_cached_for_itself_however_the_client_writes_its_header(server, nginx):
    rng = np.random.default_rng(2)
    old = rng.normal(size=50_000).astype(np.float32)
    base, new = save({"w": old}), save({"w": old * np.float32(1.0001)})
    with nginx.client() as client:
        first, digest = put(client, base), put(client, new)
    path = f"/v1/blobs/{digest}"
    seen = {}
    for query, accepted, status in (
        ("", "identity", "MISS"), ("", "zstd", "MISS"), ("", "gzip, br;q=0.5, zstd", "HIT"), ("", "gzip, br", "HIT"),
        ("", "zstd;q=0, gzip", "HIT"), (f"?from={first}", "zstd", "MISS"), (f"?from={first}", "zstd", "HIT"),
        ("?rounding=float16", "identity", "MISS"), ("?rounding=float16", "gzip", "HIT"),
    ):  # fmt: skip
        answer, body = get(nginx, path + query, accept_encoding=accepted)
        assert answer.headers["x-cache-status"] == status, (query, accepted)
        assert answer.headers["etag"] == f'"{hashlib.sha256(body).hexdigest()}"'
        seen[query, accepted] = body
    assert seen["", "identity"] == seen["", "gzip, br"] == seen["", "zstd;q=0, gzip"] == new
    assert zstd.decompress(seen["", "gzip, br;q=0.5, zstd"]) == new
    assert len(set(seen.values())) == 4


def test_nothing_but_models_is_cached_and_no_error_is(server, nginx):
    with nginx.client() as client:
        data = model(3.0)
        path = f"/v1/blobs/{hashlib.sha256(data).hexdigest()}"
        assert client.get(path).status_code == 404
        assert client.put(path, content=data).status_code == 201
        assert client.get(path).content == data
        job = submit(client, demand=1)
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "active"
        client.post(f"/v1/jobs/{job}/cancel")
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"


def test_devices_work_through_it_and_models_outlive_an_outage_of_the_server(server, nginx):
    with nginx.client() as client:
        job = submit(client, demand=1)
        open_round(client, job)
        with Device(nginx.devices_url) as device:
            for task in device.tasks(max_tasks=1):
                assert task.report({"w": task.model["w"] + np.float32(2)}, examples=1)
        view = closed(client, job)
        path = f"/v1/blobs/{view['result']}"
        assert numbers(client.get(path).content) == [2.0] * 4
        server.kill()
        assert numbers(client.get(path).content) == [2.0] * 4
        assert client.get("/v1/jobs").status_code == 502


def test_the_door_for_devices_takes_what_they_need_and_nothing_else(server, nginx):
    with nginx.client() as client:
        digest = put(client, b"model" * 100)
    with httpx.Client(base_url=nginx.devices_url) as device:
        assert device.post("/v1/check-ins", json={"device": "d"}).status_code == 200
        assert device.get(f"/v1/blobs/{digest}").status_code == 200
        assert device.get("/v1/assignments/none/upload").status_code == 401  # which the server itself says
        for method, path in (
            ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("PUT", "/v1/policy"), ("GET", "/v1/pool"), ("GET", "/metrics"),
            ("GET", "/"), ("GET", "/v1/check-ins"), ("PUT", f"/v1/blobs/{digest}"), ("GET", "/v1/assignments/"),
            ("PATCH", f"/v1/blobs/{digest}/upload"), ("POST", "/v1/leaves"),
        ):  # fmt: skip
            answer = device.request(method, path)
            assert (answer.status_code, answer.json()["title"]) == (404, "not found"), (method, path)
            assert answer.headers["content-type"] == "application/problem+json"
    for path in ("/v1/assignments/../jobs", "/v1/assignments/..%2Fjobs", "/v1/assignments/%2e%2e/jobs", "//v1/jobs"):
        assert raw_status(nginx.devices_url, path) == 404


def raw_status(url: str, path: str) -> int:
    """The answer to a path that is sent as it stands: an HTTP client would tidy it up."""
    with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        connection.putrequest("GET", path, skip_accept_encoding=True)
        connection.endheaders()
        return connection.getresponse().status


def test_an_upload_in_parts_goes_through(server, nginx):
    data = np.random.default_rng(5).bytes(3_000_000)
    path = f"/v1/blobs/{hashlib.sha256(data).hexdigest()}"
    with nginx.client() as client:
        headers = {"upload-offset": "0", "upload-complete": "?0"}
        assert client.patch(f"{path}/upload", content=data[:1_000_000], headers=headers).status_code == 200
        assert client.get(f"{path}/upload").json()["received_bytes"] == 1_000_000
        last = client.patch(f"{path}/upload", content=data[1_000_000:], headers={"upload-offset": "1000000"})
        assert last.status_code == 201
        assert client.get(path).content == data
