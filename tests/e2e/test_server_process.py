"""The server as a process: how it starts, refuses to start, stops, and goes on after a stop."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from subprocess import PIPE
from typing import Any

import httpx
import pytest

from tests.e2e.calls import until
from tests.e2e.server_process import ServerProcess, model, raw_request, read_answer
from vennue.core.errors import InvalidInput
from vennue.server.config import ServerConfig
from vennue.server.run import serve


def submitted(client: httpx.Client, **spec: object) -> str:
    job: str = client.post("/v1/jobs", json={"spec": {"name": "job", "demand": 1, **spec}}).json()["id"]
    return job


def opened(client: httpx.Client, job: str) -> None:
    digest = hashlib.sha256(model()).hexdigest()
    client.put(f"/v1/blobs/{digest}", content=model())
    assert client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest}).status_code == 200


def refused(server: ServerProcess) -> str:
    """The log of a server that must not have started."""
    assert server.url == ""
    assert server.wait() == 1
    return server.log


def test_a_stopped_server_ends_well_and_its_jobs_are_there_at_the_next_start(tmp_path):
    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        job = submitted(client)
        opened(client, job)
        assert server.stop() == 0
    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        view = client.get(f"/v1/jobs/{job}").json()
        assert (view["state"], view["open_round"]["attempt"]) == ("active", 1)
        assert server.stop(signal.SIGINT) == 0


def gauges(client: httpx.Client) -> dict[str, float]:
    """What the server counts at this moment."""
    lines = [line.rpartition(" ") for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def half_a_report(client: httpx.Client, server: ServerProcess) -> tuple[socket.socket, bytes]:
    """A connection on which half of a report has arrived, and the other half."""
    job = submitted(client)
    opened(client, job)
    task = client.post("/v1/check-ins", json={"device": "d"}).json()["task"]
    data = model(1.0)
    headers = (f"authorization: Bearer {task['token']}", f"content-length: {len(data)}")
    connection = server.connect()
    path = f"/v1/assignments/{task['assignment']}/report"
    connection.sendall(raw_request("PUT", path, *headers, body=data[:50]))
    until(lambda: gauges(client)["vennue_uploads"] == 1)
    return connection, data[50:]


def test_a_stop_answers_long_polls_and_finishes_what_is_being_received(tmp_path):
    with ServerProcess(tmp_path / "data", drain_s="100") as server, server.client() as client:
        upload, rest = half_a_report(client, server)
        (job,) = [listed["id"] for listed in client.get("/v1/jobs").json()["jobs"]]
        with upload, server.connect() as poll:
            poll.sendall(raw_request("GET", f"/v1/jobs/{job}/rounds/1?wait=3600"))
            until(lambda: gauges(client)["vennue_waiters"] == 1)
            server.process.send_signal(signal.SIGTERM)
            assert read_answer(poll)[0] == 200
            upload.sendall(rest)
            status, body = read_answer(upload)
        assert server.wait() == 0
        assert (status, json.loads(body).get("duplicate")) == (200, False), body


def test_a_second_signal_stops_at_once(tmp_path):
    with ServerProcess(tmp_path / "data", drain_s="1000") as server, server.client() as client:
        stuck, _ = half_a_report(client, server)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "SIGTERM: stopping" in server.log)
        assert server.stop(signal.SIGTERM) == -signal.SIGTERM
        stuck.close()


def test_a_port_in_use_is_an_error_that_says_so_even_by_another_vennue(tmp_path):
    with ServerProcess(tmp_path / "one") as first:
        log = refused(ServerProcess(tmp_path / "two", port=first.port))
        assert f"port {first.port} of 127.0.0.1 is in use" in log
        assert "Traceback" not in log
        with first.client() as client:
            assert client.get("/healthz").status_code == 200


def test_an_address_of_another_machine_is_refused(tmp_path):
    assert "cannot listen on 192.0.2.1" in refused(ServerProcess(tmp_path / "data", host="192.0.2.1"))


@pytest.mark.parametrize("host", ["x" * 300, "a..b", "no\u00adsuch host"], ids=["too long", "empty part", "no host"])
async def test_a_text_that_is_no_address_is_refused(tmp_path, host):
    with pytest.raises(InvalidInput, match="cannot listen on") as caught:
        await serve(ServerConfig(data_dir=tmp_path / "data", host=host, port=0))
    assert caught.value.field == "host"


def test_with_few_open_files_allowed_the_server_says_how_many_connections_it_can_have(tmp_path):
    script = 'ulimit -n 64 && exec "$0" -m vennue.server'
    environment = {"VENNUE_PORT": "0", "VENNUE_DATA_DIR": str(tmp_path / "data"), "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        ["sh", "-c", script, sys.executable], env=environment, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        status = httpx.get(f"{url}/healthz", timeout=60).status_code if url else 0
        process.terminate()
        _, log = process.communicate(timeout=250)
    assert status == 200, log
    assert process.returncode == 0
    assert "only 64 files may be open, so at most 32 connections" in log


def test_two_servers_on_one_data_directory_are_refused(tmp_path):
    with ServerProcess(tmp_path / "data") as first:
        log = refused(ServerProcess(tmp_path / "data"))
        assert f"another server is using the data directory (process {first.process.pid})" in log


def test_a_data_directory_from_a_newer_version_is_refused_with_both_versions(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        assert server.stop() == 0
    database = sqlite3.connect(tmp_path / "data" / "ledger.sqlite")
    database.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    database.commit()
    database.close()
    log = refused(ServerProcess(tmp_path / "data"))
    assert "schema version 99" in log
    assert "upgrade Vennue" in log
    assert "Traceback" not in log


def test_a_data_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    log = refused(ServerProcess(tmp_path / "file" / "data"))
    assert "the data directory is a file, or in one" in log
    assert "Traceback" not in log


def test_a_configuration_that_makes_no_sense_is_refused_by_name(tmp_path):
    log = refused(ServerProcess(tmp_path / "data", limits_json_bytes="many"))
    assert "VENNUE_LIMITS_JSON_BYTES" in log
    assert "Traceback" not in log


async def test_a_policy_that_there_is_not_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(InvalidInput, match="venn-sched"):
        await serve(ServerConfig(data_dir=tmp_path / "data", port=0, policy="venn-shed"))


def test_a_body_of_which_nothing_arrives_any_more_is_given_up(tmp_path):
    with ServerProcess(tmp_path / "data", limits_idle_body_s="0.2") as server, server.connect() as connection:
        connection.sendall(raw_request("POST", "/v1/jobs", "content-length: 100", body=b"{"))
        status, body = read_answer(connection)
        assert status == 408
        assert b"nothing of the body arrived" in body


def test_a_server_that_dies_of_a_bus_error_says_where_it_was(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        server.process.send_signal(signal.SIGBUS)
        assert server.wait() == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in server.log


@pytest.mark.parametrize("gone", ["spool", "blobs", "ledger.sqlite", "."])
def test_a_server_under_which_its_data_is_removed_says_that_it_is_not_ready_and_what_is_gone(tmp_path, gone):
    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        assert client.get("/readyz").status_code == 200
        (tmp_path / "data" / gone).resolve().rename(tmp_path / "elsewhere")
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "failing")
        assert ready.json()["reason"].startswith(f"{tmp_path / 'data' / gone} ")


def turned_away(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    """What the door answers; it waits for no caller, so one that is slow to listen has to ask again."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = client.request(method, path, **options)
            assert answer.status_code == 503
            return answer


def test_who_finds_all_connections_taken_is_told_to_come_back_and_is_served_when_one_is_free(tmp_path):
    with ServerProcess(tmp_path / "data", limits_connections="3", limits_idle_connection_s="100") as server:
        idle = [server.connect() for _ in range(3)]
        for connection in idle:
            connection.sendall(raw_request("GET", "/healthz"))
            assert read_answer(connection)[0] == 200
        with server.client() as client:
            refused = turned_away(client, "GET", "/readyz")
            assert refused.json()["detail"] == "all 3 connections are taken"
            assert 5 <= int(refused.headers["retry-after"]) <= 15
            turned_away(client, "POST", "/v1/check-ins", content=b"x" * 300_000)  # which is not read
            idle.pop().close()
            while client.get("/readyz").status_code == 503:  # until the server has noticed
                pass
            assert gauges(client)['vennue_responses_total{status="503"}'] >= 2
        for connection in idle:
            connection.close()
        assert "all 3 connections are taken: more are turned away" in server.log
        assert server.stop() == 0


def in_time(server: ServerProcess) -> socket.socket:
    """A connection on which a request was answered before it counted as idle: it may take this process some tries."""
    while True:
        connection = server.connect()
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw_request("GET", "/healthz"))
            if read_answer(connection)[0] == 200:
                return connection
        connection.close()


def test_idle_connections_are_closed_and_make_room_for_others(tmp_path):
    with ServerProcess(tmp_path / "data", limits_connections="2", limits_idle_connection_s="0.3") as server:
        silent = server.connect()
        assert silent.recv(1) == b""
        # Of this side, all of them stay open.
        done = [in_time(server) for _ in range(3)]
        for connection in done:
            assert connection.recv(1) == b""
        for connection in (silent, *done):
            connection.close()


def test_a_server_listens_on_ipv6_too(tmp_path):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with ServerProcess(tmp_path / "data", host="::1") as server, server.client() as client:
        assert server.url.startswith("http://[::1]:")
        assert client.get("/healthz").json()["status"] == "ok"


def test_a_server_with_policy_files_says_so_if_it_follows_none_of_their_policies(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("from vennue.policies.fifo import Fifo\n\nclass Own(Fifo):\n    name = 'longest-wait'\n")
    said = "the policy followed is venn-sched, and none that the policy files define (longest-wait)"
    with ServerProcess(tmp_path / "data", policy_files=json.dumps([str(file)])) as server, server.client() as client:
        assert said in server.log
        client.put("/v1/policy", json={"policy": "longest-wait"}).raise_for_status()
    with ServerProcess(tmp_path / "data", policy_files=json.dumps([str(file)])) as server:
        assert "the policy followed" not in server.log  # it was chosen for good
