"""``vennue ready``: a server that is ready, becomes so, is not, or is not there."""

import json
import socket
import threading
from contextlib import suppress

import pytest

from tests.unit.cli.test_remote import server_that_answers
from vennue.cli import run
from vennue.cli.terminal import ExitCode

OK = {"status": "ok", "version": "1"}
FAILING = {"status": "failing", "version": "1", "reason": "the disk is full"}


@pytest.fixture
def nobody():
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_server_that_is_ready_is_told_to_people_and_to_scripts(capsys):
    with server_that_answers(200, OK) as address:
        assert run(["ready", "--within", "0", "--server", address]) == ExitCode.OK
        assert capsys.readouterr().out == f"{address} is ready\n"
        assert run(["ready", "--server", address, "--json"]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out)["ready"]


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [(503, FAILING, "the disk is full"), (200, "welcome", "what answers is no Vennue server")],
)
def test_a_server_that_is_not_ready_in_time_is_told_with_the_reason(capsys, status, answer, reason):
    with server_that_answers(status, answer) as address:
        assert run(["ready", "--within", "0", "--server", address]) == ExitCode.UNREACHABLE
    assert f"{address} is not ready after 0 s: {reason}" in capsys.readouterr().err


def test_nobody_at_the_address_is_asked_again_until_the_time_is_up(capsys, nobody, monkeypatch):
    now, waits = [0.0], []

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("vennue.cli.ready.time.monotonic", lambda: now[0])
    monkeypatch.setattr("vennue.cli.ready.time.sleep", sleep)
    assert run(["ready", "--within", "1", "--server", nobody]) == ExitCode.UNREACHABLE
    assert waits == [0.2] * 5
    said = capsys.readouterr().err
    assert f"{nobody} is not ready after 1 s: " in said
    assert "what `vennue serve` printed says why" in said


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(capsys, monkeypatch):
    monkeypatch.setattr("vennue.cli.ready._LEAST_ANSWER_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert run(["ready", "--within", "0", "--server", address]) == ExitCode.UNREACHABLE
    assert f"{address} is not ready after 0 s: timed out" in capsys.readouterr().err


def test_a_server_that_becomes_ready_is_waited_for(capsys, monkeypatch):
    answer = dict(FAILING)
    monkeypatch.setattr("vennue.cli.ready.time.sleep", lambda _: answer.update(OK))
    with server_that_answers(200, answer) as address:
        assert run(["ready", "--server", address]) == ExitCode.OK
    assert capsys.readouterr().out == f"{address} is ready\n"


@pytest.mark.parametrize("within", ["-1", "inf", "nan"])
def test_a_time_without_a_bound_is_refused(within):
    assert run(["ready", "--within", within]) == ExitCode.INVALID


def test_an_answer_that_cannot_be_read_is_no_defect(capsys):
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert run(["ready", "--within", "0", "--server", address]) == ExitCode.UNREACHABLE
        listener.shutdown(socket.SHUT_RDWR)
    assert f"{address} is not ready after 0 s: " in capsys.readouterr().err
