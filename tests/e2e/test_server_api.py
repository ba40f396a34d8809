"""The server over real HTTP: a job from submission to its end, blobs as any cache expects them, good and bad input."""

import base64
import hashlib
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.calls import closed, end, is_problem, open_round, put, report, sha256, submit, task_for, until
from tests.e2e.server_process import ServerProcess, model, numbers, raw_request, read_answer

MIB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", limits_blob_bytes=str(8 * MIB)) as running:
        yield running
        assert running.stop() == 0, running.log


# -- a job's life ----------------------------------------------------------------------------------------------------


def test_a_job_runs_from_submission_to_its_last_commit(client):
    job = submit(client, rounds=1, demand=2, requirement="device.ram_gb >= 4")
    open_round(client, job)
    assert "task" not in client.post("/v1/check-ins", json={"device": "small", "attributes": {"ram_gb": 2}}).json()
    first, second = (task_for(client, device, ram_gb=6) for device in ("a1", "a2"))
    assert report(client, first, model(1.0), vennue_examples="30", vennue_metrics='{"loss": 1}').status_code == 200
    assert report(client, second, model(5.0), vennue_examples="10", vennue_metrics='{"loss": 5}').status_code == 200
    view = closed(client, job)
    assert (view["state"], view["weight"], view["metrics"], view["reported"]) == ("committed", 40.0, {"loss": 2.0}, 2)
    assert numbers(client.get(f"/v1/blobs/{view['result']}").content) == [2.0] * 4
    after = client.get(f"/v1/jobs/{job}").json()
    assert (after["state"], after["committed_rounds"], after["model"]) == ("completed", 1, view["result"])
    assert after["reason"]["code"] == "completed"


def test_a_declined_private_requirement_leads_to_the_next_task(client):
    private = submit(client, demand=1, private_requirement="device.samples > 10")
    plain = submit(client, demand=1)
    open_round(client, private)
    open_round(client, plain)
    offer = task_for(client, "p1")
    assert offer["private_requirement"] == "device.samples > 10"
    bearer = {"authorization": f"Bearer {offer['token']}"}
    answer = client.post(
        f"/v1/assignments/{offer['assignment']}/decline", json={"declined": [private]}, headers=bearer
    ).json()
    assert answer["task"]["job"] == plain
    offer = task_for(client, "p2")
    bearer = {"authorization": f"Bearer {offer['token']}"}
    assert client.post(f"/v1/assignments/{offer['assignment']}/accept", headers=bearer).json()["job"] == private
    assert client.post(f"/v1/assignments/{offer['assignment']}/abort", headers=bearer).status_code == 204
    assert is_problem(client.post(f"/v1/assignments/{offer['assignment']}/abort", headers=bearer), 409)["type"] == (
        "urn:vennue:error:too-late"
    )
    end(client, private, plain)


def test_a_job_that_waits_says_why_with_numbers(client):
    job = submit(client, requirement="device.ram_gb >= 4096")
    open_round(client, job)
    reason = client.get(f"/v1/jobs/{job}/explain").json()["reason"]
    assert reason["code"] in {"no-eligible-device", "no-supply-yet"}
    assert reason["needs"] == 2
    end(client, job)


def test_a_submission_repeated_with_its_key_answers_200_and_the_same_job(client):
    body = {"spec": {"name": "once", "demand": 1}}
    first = client.post("/v1/jobs", json=body, headers={"idempotency-key": "api-1"})
    again = client.post("/v1/jobs", json=body, headers={"idempotency-key": "api-1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    other = client.post("/v1/jobs", json={"spec": {"name": "x", "demand": 2}}, headers={"idempotency-key": "api-1"})
    is_problem(other, 409, "Idempotency-Key")
    end(client, first.json()["id"])


def test_pool_plan_and_policy_can_be_seen_and_changed(client):
    job = submit(client, requirement="device.ram_gb >= 5")
    open_round(client, job)
    end_of_plan = client.put("/v1/policy", json={"policy": "fifo"})
    assert end_of_plan.json()["policy"] == "fifo"
    pool = client.get("/v1/pool").json()
    assert (pool["policy"], pool["jobs"]["active"] >= 1) == ("fifo", True)
    assert "device.ram_gb >= 5" in [requirement["text"] for requirement in pool["requirements"]]
    is_problem(client.put("/v1/policy", json={"policy": "fifi"}), 422, "policy")
    assert client.put("/v1/policy", json={"policy": "venn-sched"}).status_code == 200
    end(client, job)


def test_health_readiness_metrics_and_description_are_there(client):
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json()["status"] == "ok"
    assert re.search(r"^vennue_check_ins_total \d", client.get("/metrics").text, re.MULTILINE)
    description = client.get("/openapi.json").json()
    assert description["openapi"] == "3.1.0"
    assert "/v1/check-ins" in description["paths"]


# -- blobs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def blob(client) -> tuple[str, bytes]:
    data = bytes(range(256)) * 40
    return f"/v1/blobs/{put(client, data)}", data


def test_a_blob_comes_back_whole_with_what_a_cache_needs(client, blob):
    path, data = blob
    answer = client.get(path)
    assert answer.content == data
    assert answer.headers["etag"] == f'"{sha256(data)}"'
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-length"] == str(len(data))


def test_head_tells_the_size_without_the_body(client, blob):
    path, data = blob
    answer = client.head(path)
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, str(len(data)), b"")
    assert client.head(f"/v1/blobs/{'0' * 64}").status_code == 404


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("0-0", 0, 1),
        ("5-9", 5, 10),
        ("10000-", 10_000, 10_240),
        ("-3", 10_237, 10_240),
        ("10239-99999", 10_239, 10_240),
        ("0000000000000000000000005-9", 5, 10),
        ("10239-99999999999999999999999", 10_239, 10_240),
    ],
)
def test_a_range_is_answered_with_exactly_its_bytes(client, blob, wanted, start, stop):
    path, data = blob
    answer = client.get(path, headers={"range": f"bytes={wanted}"})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/10240"
    assert answer.content == data[start:stop]


def test_a_range_beyond_the_blob_is_not_satisfiable(client, blob):
    path, _ = blob
    answer = client.get(path, headers={"range": "bytes=10240-"})
    is_problem(answer, 416, "Range")
    assert answer.headers["content-range"] == "bytes */10240"


@pytest.mark.parametrize("wanted", ["bytes=0-1,5-6", "lines=1-2", "bytes=", "bytes=-", "bytes=9-5", "bytes=a-b"])
def test_a_range_that_cannot_be_served_as_one_is_ignored(client, blob, wanted):
    path, data = blob
    answer = client.get(path, headers={"range": wanted})
    assert (answer.status_code, answer.content) == (200, data)


def test_a_range_of_another_blob_s_etag_is_ignored(client, blob):
    path, data = blob
    stale = client.get(path, headers={"range": "bytes=0-4", "if-range": '"other"'})
    fresh = client.get(path, headers={"range": "bytes=0-4", "if-range": f'"{sha256(data)}"'})
    assert (stale.status_code, fresh.status_code) == (200, 206)


@pytest.mark.parametrize("etags", ['"{}"', 'W/"{}"', '"x", "{}"', "*"])
def test_a_blob_at_hand_is_not_sent_again(client, blob, etags):
    path, data = blob
    answer = client.get(path, headers={"if-none-match": etags.format(sha256(data))})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == f'"{sha256(data)}"'


def test_a_blob_at_hand_is_not_said_to_be_empty(client, blob):
    path, data = blob
    answer = client.head(path, headers={"if-none-match": f'"{sha256(data)}"'})
    assert (answer.status_code, answer.headers.get("content-length")) == (304, None)


def test_a_blob_that_is_there_is_left_alone(client):
    data = b"twice"
    path = f"/v1/blobs/{sha256(data)}"
    assert [client.put(path, content=data).status_code for _ in range(2)] == [201, 200]


def test_an_empty_blob_is_a_blob(client):
    path = f"/v1/blobs/{put(client, b'')}"
    assert client.get(path).content == b""


def test_bytes_of_another_digest_are_refused_and_leave_nothing(client):
    path = f"/v1/blobs/{sha256(b'right')}"
    is_problem(client.put(path, content=b"wrong"), 422, "digest")
    assert client.get(path).status_code == 404


def test_a_blob_of_several_megabytes_survives_the_way_up_and_down(client):
    data = bytes(range(256)) * (6 * 4096)
    assert client.get(f"/v1/blobs/{put(client, data)}").content == data


@pytest.mark.parametrize("name", ["x", "A" * 64, "0" * 63, "..", "%2e%2e"])
def test_a_name_that_is_no_digest_names_no_blob(client, name):
    assert client.get(f"/v1/blobs/{name}").status_code in {404, 422}
    assert client.put(f"/v1/blobs/{name}", content=b"x").status_code in {404, 405, 422}


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field", "told"),
    [
        ({"requirement": "device.ram_gbb >= 4"}, "requirement", "ram_gb"),
        ({"requirement": "device.ram_gb >="}, "requirement", ""),
        ({"requirement": 'device.ram_gb >= "4"'}, "requirement", ""),
        ({"demand": 0}, "demand", "at least one"),
        ({"rounds": -1}, "rounds", "at least 1"),
        ({"min_fraction": 1.5}, "min_fraction", "at most 1"),
        ({"deadline_s": 0.001}, "deadline_s", "no device can answer"),
        ({"name": ""}, "name", "printable"),
        ({"demand": "many"}, "spec.demand", "int"),
        ({"demnad": 2}, "spec", "demnad"),
        ({"strategy": "fedavgg"}, "strategy", "did you mean 'fedavg'"),
        ({"codecs": ["int9"]}, "codecs", "did you mean 'int8'"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_by_field_and_nothing_changes(client, spec, field, told):
    before = client.get("/v1/jobs").json()
    document = is_problem(client.post("/v1/jobs", json={"spec": {"name": "x", "demand": 2, **spec}}), 422, field)
    assert told in document["detail"] + document.get("fix", "")
    assert client.get("/v1/jobs").json() == before


@pytest.mark.parametrize(
    ("path", "field", "fix"),
    [
        ("/v1/jobs?state=nope", "state", "leave it out: it takes limit, after"),
        ("/v1/jobs?limits=5", "limits", "leave it out: it takes limit, after"),
        ("/v1/pool?x=", "x", "leave it out: it takes none"),
    ],
)
def test_a_query_parameter_that_would_be_passed_over_is_refused(client, path, field, fix):
    assert is_problem(client.get(path), 422, field)["fix"] == fix


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"', b"nonsense", b"\x00"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/check-ins"])
def test_json_that_is_not_json_is_refused_as_such(client, path, body):
    is_problem(client.post(path, content=body), 400, "body")


@pytest.mark.parametrize("body", [b"[]", b"null", b'"x"', b"{}", b'{"device": 5}'])
def test_json_of_another_shape_is_refused_as_such(client, body):
    is_problem(client.post("/v1/check-ins", content=body), 422)


def test_a_round_on_a_model_that_is_not_there_is_refused_with_the_fix(client):
    job = submit(client)
    answer = client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": "0" * 64})
    assert "PUT /v1/blobs/" in is_problem(answer, 404, "model")["fix"]
    is_problem(client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": "x"}), 422, "digest")
    end(client, job)


def test_a_round_out_of_turn_is_refused_with_the_story(client):
    job = submit(client)
    answer = client.post(f"/v1/jobs/{job}/rounds", json={"round": 5, "model": put(client, model())})
    document = is_problem(answer, 409, "round")
    assert any("submitted" in line for line in document["story"])
    end(client, job)


def test_a_report_for_somebody_else_s_assignment_is_forbidden(client):
    job = submit(client)
    open_round(client, job)
    mine, theirs = task_for(client, "f1"), task_for(client, "f2")
    is_problem(report(client, {**theirs, "token": mine["token"]}, model()), 403)
    missing = client.put(f"/v1/assignments/{mine['assignment']}/report", content=model())
    is_problem(missing, 401, "Authorization")
    assert missing.headers["www-authenticate"] == "Bearer"
    assert report(client, theirs, model()).status_code == 200
    end(client, job)


@pytest.mark.parametrize("examples", ["0", "-1", "nan", "inf", "many", ""])
def test_a_weight_that_makes_no_sense_is_refused(client, examples):
    job = submit(client)
    open_round(client, job)
    task = task_for(client, "w1")
    is_problem(report(client, task, model(), vennue_examples=examples), 422, "Vennue-Examples")
    end(client, job)


@pytest.mark.parametrize("metrics", ["{", "[]", '{"loss": "x"}', '{"loss": null}', '{"loss": 1e999}'])
def test_metrics_that_make_no_sense_are_refused(client, metrics):
    job = submit(client)
    open_round(client, job)
    task = task_for(client, "m1")
    is_problem(report(client, task, model(), vennue_metrics=metrics), 422)
    assert report(client, task, model()).status_code == 200
    end(client, job)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (model(size=5), ""),
        (model(float("nan")), "nan"),
        (model(float("inf")), "inf"),
        (b"garbage", ""),
        (b"", ""),
        (b"\xff" * 100, ""),
    ],
    ids=["shape", "nan", "inf", "garbage", "empty", "lying header"],
)
def test_an_update_that_does_not_fit_is_refused_and_the_round_is_unharmed(client, data, told):
    job = submit(client, demand=1)
    open_round(client, job)
    task = task_for(client, "u1")
    assert told in is_problem(report(client, task, data), 422)["detail"].lower()
    assert report(client, task, model(3.0)).status_code == 200
    view = closed(client, job)
    assert (view["state"], view["reported"]) == ("committed", 1)
    end(client, job)


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", f"/v1/blobs/{'0' * 64}"), ("POST", "/v1/jobs"), ("POST", "/v1/check-ins"), ("PUT", "/v1/policy")],
)
def test_a_ten_gigabyte_content_length_is_refused_before_a_byte_is_read(server, method, path):
    with server.connect() as connection:
        connection.sendall(raw_request(method, path, "content-length: 10000000000"))
        status, body = read_answer(connection)
    assert status == 413
    assert b"10000000000" in body


def test_a_ten_gigabyte_report_is_refused_before_a_byte_is_read(server, client):
    job = submit(client)
    open_round(client, job)
    task = task_for(client, "g1")
    path = f"/v1/assignments/{task['assignment']}/report"
    with server.connect() as connection:
        connection.sendall(
            raw_request("PUT", path, "content-length: 10000000000", f"authorization: Bearer {task['token']}")
        )
        status, _ = read_answer(connection)
    assert status == 413
    assert report(client, task, model()).status_code == 200
    end(client, job)


def test_a_body_without_a_length_is_stopped_at_the_limit(server):
    with server.connect() as connection:
        connection.sendall(raw_request("POST", "/v1/check-ins", "transfer-encoding: chunked"))
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        connection.sendall(chunk * 2)
        status, _ = read_answer(connection)
    assert status == 413


def refusals(client: httpx.Client) -> float:
    """How many requests have been refused as bad ones."""
    counts = re.findall(r'^vennue_responses_total\{status="4.."\} (\S+)', client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, counts))


@pytest.mark.parametrize("framing", ["content-length: 1000", "transfer-encoding: chunked"])
def test_a_body_that_is_cut_off_leaves_nothing_behind(server, client, framing):
    before, refused = client.get("/v1/jobs").json(), refusals(client)
    body = b'{"spec": {"name": "cut", "demand": 1}}'
    framed = body if "length" in framing else b"%x\r\n%s\r\n" % (len(body) - 5, body[:-5])
    for method, path in (("POST", "/v1/jobs"), ("PUT", f"/v1/blobs/{'1' * 64}"), ("POST", "/v1/check-ins")):
        with server.connect() as connection:
            connection.sendall(raw_request(method, path, framing, body=framed))
            connection.shutdown(socket.SHUT_RDWR)
    until(lambda: refusals(client) == refused + 3)
    assert client.get("/v1/jobs").json() == before
    assert client.get(f"/v1/blobs/{'1' * 64}").status_code == 404


def test_a_cut_off_report_leaves_nothing_and_may_be_sent_again(server, client):
    job = submit(client, demand=1)
    open_round(client, job)
    task = task_for(client, "c1")
    data = model(2.0)
    headers = (f"authorization: Bearer {task['token']}", f"content-length: {len(data)}")
    refused = refusals(client)
    for _ in range(3):
        with server.connect() as connection:
            path = f"/v1/assignments/{task['assignment']}/report"
            connection.sendall(raw_request("PUT", path, *headers, body=data[:-7]))
            connection.shutdown(socket.SHUT_RDWR)
    until(lambda: refusals(client) == refused + 3)
    assert report(client, task, data).json()["duplicate"] is False
    view = closed(client, job)
    assert numbers(client.get(f"/v1/blobs/{view['result']}").content) == [2.0] * 4
    end(client, job)


def test_a_client_that_does_not_finish_its_body_blocks_nobody(server, client):
    connections = [server.connect() for _ in range(50)]
    for connection in connections:
        connection.sendall(raw_request("POST", "/v1/check-ins", "content-length: 100", body=b'{"dev'))
    assert client.post("/v1/check-ins", json={"device": "quick"}).status_code == 200
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/jobs/", "/v1//jobs", "/v1/assignments/a/report/x", "/é"])
def test_a_path_that_is_not_there_is_not_found(client, path):
    assert client.get(path).status_code in {404, 405}


def test_a_method_that_a_path_does_not_take_is_told_which_it_does(client):
    answer = client.delete("/v1/jobs")
    is_problem(answer, 405, "method")
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("wait", ["-1", "nan", "x", "1e99"])
def test_a_wait_that_makes_no_sense_is_refused(client, wait):
    job = submit(client)
    is_problem(client.get(f"/v1/jobs/{job}/rounds/1", params={"wait": wait}), 422, "wait")
    is_problem(client.get(f"/v1/jobs/{job}/rounds/x"), 422, "round")
    is_problem(client.get(f"/v1/jobs/{job}/rounds/1"), 404, "round")
    end(client, job)


def test_two_hundred_devices_at_once_are_all_answered(server, client):
    """Case D15."""
    job = submit(client, demand=50)
    open_round(client, job)

    connections = [server.connect() for _ in range(200)]
    for number, connection in enumerate(connections):
        body = b'{"device": "crowd-%d"}' % number
        connection.sendall(raw_request("POST", "/v1/check-ins", f"content-length: {len(body)}", body=body))
    answers = [read_answer(connection) for connection in connections]
    for connection in connections:
        connection.close()
    assert {status for status, _ in answers} == {200}
    assert sum(b'"task"' in body for _, body in answers) == 50
    assert sum(b'"retry_after_s"' in body for _, body in answers) == 150
    end(client, job)


def test_a_report_s_announced_digest_is_checked(client):
    job = submit(client, demand=1)
    open_round(client, job)
    task = task_for(client, "digest")
    right, wrong = (base64.b64encode(hashlib.sha256(data).digest()).decode() for data in (model(1.0), b"other"))
    is_problem(report(client, task, model(1.0), content_digest=f"sha-256=:{wrong}:"), 422)
    is_problem(report(client, task, model(1.0), content_digest="sha-256=:AAAA:"), 422, "Content-Digest")
    is_problem(report(client, task, model(1.0), repr_digest=f"sha-256=:{wrong}:"), 422)
    both = {"content_digest": f"sha-256=:{right}:", "repr_digest": f"sha-256=:{wrong}:"}
    is_problem(report(client, task, model(1.0), **both), 422, "Repr-Digest")
    answer = report(client, task, model(1.0), content_digest=f"md5=:AAAA:, sha-256=:{right}:")
    assert answer.json()["sha256"] == sha256(model(1.0))
