"""Blobs over real HTTP, beyond the whole blob: other forms of it, and uploads in parts."""

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.calls import announced, closed, end, is_problem, of, part, put, report, sha256, state, submit, task_for
from tests.e2e.server_process import ServerProcess, model, numbers
from vennue._zstd import zstd
from vennue.tensors.delta import DeltaReader
from vennue.tensors.model import load, save
from vennue.tensors.rounded import unrounded

ZSTD = {"accept-encoding": "zstd"}
PLAIN = {"accept-encoding": "identity"}


def raw(client: httpx.Client, path: str, **headers: str) -> tuple[httpx.Response, bytes]:
    """An answer, and its body as it was on the wire."""
    with client.stream(
        "GET", path, headers={**PLAIN, **{n.replace("_", "-"): v for n, v in headers.items()}}
    ) as answer:
        return answer, b"".join(answer.iter_raw())


def versions() -> tuple[bytes, bytes]:
    """Two models, of which the second one is the first, trained for a step."""
    rng = np.random.default_rng(1)
    weights = rng.normal(size=50_000).astype(np.float32)
    trained = weights * (1 + 1e-4 * rng.normal(size=50_000)).astype(np.float32)
    return save({"w": weights, "steps": np.array([1])}), save({"w": trained, "steps": np.array([2])})


# -- other forms -----------------------------------------------------------------------------------------------------


def test_a_caller_that_accepts_zstd_gets_less_and_every_cache_is_told(client):
    data = b"the same line again\n" * 10_000
    path = f"/v1/blobs/{put(client, data)}"
    answer, body = raw(client, path, accept_encoding="gzip, zstd;q=0.8")
    assert answer.headers["content-encoding"] == "zstd"
    assert answer.headers["vary"] == "accept-encoding"
    assert zstd.decompress(body) == data
    assert len(body) < len(data) / 100
    plain, whole = raw(client, path)
    assert whole == data
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "accept-encoding"
    assert plain.headers["etag"] != answer.headers["etag"]


def test_the_etag_of_every_form_is_the_digest_of_its_bytes(client):
    old, new = versions()
    base = put(client, old)
    path = f"/v1/blobs/{put(client, new)}"
    asked = [
        (path, PLAIN), (path, ZSTD), (f"{path}?from={base}", ZSTD), (f"{path}?rounding=float16", PLAIN),
        (f"{path}?rounding=int8", ZSTD),
    ]  # fmt: skip
    etags = set()
    for where, headers in asked:
        answer, body = raw(client, where, accept_encoding=headers["accept-encoding"])
        assert answer.headers["etag"] == f'"{sha256(body)}"'
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        again = client.get(where, headers={**headers, "if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        etags.add(answer.headers["etag"])
    assert len(etags) == 5


@pytest.mark.parametrize("accepted", ["zstd;q=0", "zstd; q=0.0", "gzip, br", "*", ""])
def test_a_caller_that_does_not_accept_zstd_does_not_get_it(client, accepted):
    data = b"the same line again\n" * 1000
    answer, body = raw(client, f"/v1/blobs/{put(client, data)}", accept_encoding=accepted)
    assert body == data
    assert "content-encoding" not in answer.headers


def test_a_download_of_a_compressed_form_is_resumed_by_range(client):
    path = f"/v1/blobs/{put(client, b'some text, some more text' * 10_000)}"
    answer, whole = raw(client, path, accept_encoding="zstd")
    etag = answer.headers["etag"]
    rest, body = raw(client, path, accept_encoding="zstd", range="bytes=10-", if_range=etag)
    assert rest.status_code == 206
    assert rest.headers["content-range"] == f"bytes 10-{len(whole) - 1}/{len(whole)}"
    assert whole[:10] + body == whole
    other, body = raw(client, path, accept_encoding="zstd", range="bytes=10-", if_range='"another"')
    assert (other.status_code, body) == (200, whole)


def test_a_device_that_has_the_last_model_gets_the_difference(client):
    old, new = versions()
    base, digest = put(client, old), put(client, new)
    answer, body = raw(client, f"/v1/blobs/{digest}?from={base}", accept_encoding="zstd")
    assert answer.headers["vennue-variant"] == "delta"
    assert answer.headers["content-type"] == "application/vnd.vennue.delta"
    assert DeltaReader(old).feed(zstd.decompress(body)) == new
    assert len(body) < 0.6 * len(new)


def test_where_there_is_no_delta_the_blob_is_sent(client):
    old, new = versions()
    base, digest = put(client, old), put(client, new)
    noise = put(client, save({"w": np.frombuffer(np.random.default_rng(0).bytes(200_000), np.uint32)}))
    for query, encoding in ((f"from={'0' * 64}", "zstd"), (f"from={noise}", "zstd"), (f"from={base}", "identity")):
        answer, body = raw(client, f"/v1/blobs/{digest}?{query}", accept_encoding=encoding)
        assert "vennue-variant" not in answer.headers
        assert (zstd.decompress(body) if "content-encoding" in answer.headers else body) == new


def test_a_device_on_a_slow_link_may_ask_for_fewer_bits(client):
    _, new = versions()
    digest = put(client, new)
    for rounding, share in (("float16", 0.51), ("bfloat16", 0.51), ("int8", 0.26)):
        answer, body = raw(client, f"/v1/blobs/{digest}?rounding={rounding}")
        assert answer.headers["vennue-variant"] == rounding
        assert len(body) < share * len(new)
        near, exact = load(unrounded(body)), load(new)
        np.testing.assert_allclose(near["w"], exact["w"], rtol=0.01, atol=0.03)
        np.testing.assert_array_equal(near["steps"], exact["steps"])


def test_what_is_no_model_is_not_rounded(client):
    data = b"hello " * 1000
    answer, body = raw(client, f"/v1/blobs/{put(client, data)}?rounding=float16")
    assert body == data
    assert "vennue-variant" not in answer.headers


def test_forms_that_do_not_exist_are_refused(client):
    _, new = versions()
    path = f"/v1/blobs/{put(client, new)}"
    assert "float16" in str(is_problem(client.get(f"{path}?rounding=float13"), 422, "rounding")["limit"])
    is_problem(client.get(f"{path}?from=yesterday"), 422, "from")
    is_problem(client.get(f"{path}?from={'0' * 64}&rounding=int8"), 422, "from")
    is_problem(client.get(f"/v1/blobs/{'0' * 64}?rounding=int8"), 404, "digest")


# -- uploads in parts ------------------------------------------------------------------------------------------------


def fresh(name: str, size: int = 10_000) -> tuple[str, bytes]:
    """A blob that no server has, and its path."""
    data = (name.encode() * size)[:size]
    return f"/v1/blobs/{sha256(data)}", data


def test_a_blob_is_uploaded_in_parts(client):
    path, data = fresh("in parts")
    assert state(client, path) == (0, False)
    assert part(client, path, data[:4000], 0, last=False).json() == {"received_bytes": 4000, "complete": False}
    assert client.get(path).status_code == 404
    assert state(client, path) == (4000, False)
    last = part(client, path, data[4000:], 4000, last=True)
    assert (last.status_code, last.json()) == (201, {"received_bytes": 10_000, "complete": True})
    assert client.get(path).content == data
    assert state(client, path) == (10_000, True)


def test_what_is_there_already_is_not_uploaded_again(client):
    path, data = fresh("there already")
    put(client, data)
    assert state(client, path) == (10_000, True)
    assert part(client, path, data, 0, last=True).json() == {"received_bytes": 10_000, "complete": True}


def test_a_part_that_begins_elsewhere_is_refused_and_told_where(client):
    path, data = fresh("elsewhere")
    part(client, path, data[:1000], 0, last=False)
    for offset in (0, 999, 1001):
        problem = is_problem(part(client, path, data[offset:], offset, last=True), 409, "Upload-Offset")
        assert problem["limit"] == 1000
    assert part(client, path, data[1000:], 1000, last=True).status_code == 201


def test_what_has_arrived_of_a_part_whose_connection_breaks_is_kept(server, client):
    path, data = fresh("broken off", 300_000)
    with server.connect() as connection:
        head = f"PATCH {path}/upload HTTP/1.1\r\nhost: test\r\nupload-offset: 0\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data[:200_000])
    while state(client, path) != (200_000, False):
        pass  # until the server has noticed
    assert part(client, path, data[200_000:], 200_000, last=True).status_code == 201
    assert client.get(path).content == data


def test_parts_of_other_bytes_are_refused_in_the_end_and_begin_anew(client):
    path, data = fresh("wrong")
    part(client, path, b"x" * 5000, 0, last=False)
    is_problem(part(client, path, data[5000:], 5000, last=True), 422, "digest")
    assert state(client, path) == (0, False)
    assert part(client, path, data, 0, last=True).status_code == 201


def test_a_whole_of_another_size_than_announced_is_refused(client):
    path, data = fresh("size")
    is_problem(part(client, path, data[:100], 0, last=True, upload_length="101"), 422, "body")
    is_problem(part(client, path, data, 0, last=True, upload_length="9999"), 422, "Upload-Length")
    assert state(client, path) == (0, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("upload-offset", "one"), ("upload-offset", "-1"), ("upload-complete", "yes"), ("upload-length", "1e9")],
)
def test_headers_that_make_no_sense_are_refused(client, name, value):
    path, data = fresh("nonsense")
    headers = {"upload-offset": "0", name: value}
    is_problem(client.patch(f"{path}/upload", content=data, headers=headers), 422, name.title())
    is_problem(client.patch(f"{path}/upload", content=data), 422, "Upload-Offset")
    assert is_problem(part(client, path, b"", 2**60, last=True), 413, "Upload-Offset")["limit"] == 4 * 2**30


def test_an_upload_goes_on_after_the_server_was_killed(tmp_path):
    path, data = fresh("restart", 3_000_000)
    with ServerProcess(tmp_path / "data") as first, first.client() as client:
        part(client, path, data[:2_000_000], 0, last=False)
        first.kill()
    with ServerProcess(tmp_path / "data") as second, second.client() as client:
        assert state(client, path) == (2_000_000, False)
        assert part(client, path, data[2_000_000:], 2_000_000, last=True).status_code == 201
        assert client.get(path).content == data


def test_uploads_above_the_disk_s_quota_are_refused_with_the_numbers(tmp_path):
    with (
        ServerProcess(tmp_path / "data", disk_quota_bytes="1000000") as server,
        server.client() as client,
    ):
        path, data = fresh("fits", 900_000)
        assert client.put(path, content=data).status_code == 201
        path, data = fresh("does not fit", 100_001)
        for answer in (
            client.put(path, content=data),
            part(client, path, data, 0, last=True),
            part(client, path, data[:10], 0, last=False, upload_length="100001"),
        ):
            problem = is_problem(answer, 507, "disk_quota_bytes")
            assert (problem["value"], problem["limit"]) == (1_000_001, 1_000_000)
            assert "VENNUE_DISK_QUOTA_BYTES" in problem["fix"]
        path, data = fresh("fits, too", 100_000)
        assert part(client, path, data, 0, last=True).status_code == 201


# -- reports in parts ------------------------------------------------------------------------------------------------


@pytest.fixture
def task(client) -> Iterator[tuple[dict[str, Any], bytes]]:
    """A device's task of a round for one, and an update for it."""
    job = submit(client, demand=1)
    answer = client.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": put(client, model(size=100_000))})
    assert answer.status_code == 200, answer.text
    yield task_for(client, "slow"), model(1.5, size=100_000)
    end(client, job)


def send_the_rest(
    client: httpx.Client, task: dict[str, Any], update: bytes, position: int, headers: dict[str, str]
) -> None:
    """Send an update from a position, or from wherever the server says that the last connection broke."""
    answer = part(client, of(task), update[position:], position, last=True, **headers)
    while answer.status_code == 409:
        position, _ = state(client, of(task), **headers)
        answer = part(client, of(task), update[position:], position, last=True, **headers)
    assert (answer.status_code, answer.json()) == (200, {"received_bytes": len(update), "complete": True})


def test_a_report_over_a_link_that_breaks_again_and_again_counts_once(server, client, task):
    """Case Q6."""
    given, update = task
    headers = announced(given, update)
    position, step = 0, 70_000
    while len(update) - position > step:
        before = position
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"PATCH {of(given)}/upload HTTP/1.1\r\nhost: test\r\n{lines}"
            f"upload-offset: {position}\r\ncontent-length: {len(update) - position}\r\n\r\n"
        )
        with server.connect() as connection:
            connection.sendall(head.encode() + update[position : position + step])
        position, complete = state(client, of(given), **headers)
        assert not complete
        assert before <= position <= before + step  # what was sent and has not arrived in time is sent again
    send_the_rest(client, given, update, position, headers)
    view = closed(client, given["job"])
    assert (view["state"], view["reported"], view["weight"], view["metrics"]) == ("committed", 1, 7.0, {"loss": 0.5})
    assert numbers(client.get(f"/v1/blobs/{view['result']}").content) == [1.5] * 100_000
    assert part(client, of(given), b"", len(update), last=True, **headers).json()["complete"]
    assert state(client, of(given), **headers) == (len(update), True)


def test_a_part_over_a_new_connection_ends_the_one_that_broke_unnoticed(server, client, task):
    given, update = task
    headers = announced(given, update)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"PATCH {of(given)}/upload HTTP/1.1\r\nhost: test\r\n{lines}"
        f"upload-offset: 0\r\ncontent-length: {len(update)}\r\n\r\n"
    )
    with server.connect() as silent:
        silent.sendall(head.encode() + update[:1000])
        send_the_rest(client, given, update, 0, headers)
    assert closed(client, given["job"])["state"] == "committed"


def test_a_report_in_parts_that_is_no_update_is_refused_and_may_be_corrected(client, task):
    given, update = task
    wrong = model(1.0, size=3)
    is_problem(part(client, of(given), wrong, 0, last=True, **announced(given, wrong)), 422)
    assert state(client, of(given), **announced(given, wrong)) == (0, False)
    assert part(client, of(given), update, 0, last=True, **announced(given, update)).status_code == 200


@pytest.mark.parametrize(
    ("header", "value", "field"),
    [("vennue-examples", "none", "Vennue-Examples"), ("vennue-examples", "1e300", "weight"),
     ("vennue-metrics", "[1]", "Vennue-Metrics")],
)  # fmt: skip
def test_what_the_last_part_says_wrongly_of_a_report_costs_no_part_that_has_arrived(client, task, header, value, field):
    given, update = task
    headers = announced(given, update)
    part(client, of(given), update[:1000], 0, last=False, **headers)
    is_problem(part(client, of(given), update[1000:], 1000, last=True, **headers | {header: value}), 422, field)
    assert state(client, of(given), **headers) == (1000, False)
    assert part(client, of(given), update[1000:], 1000, last=True, **headers).status_code == 200
    again = part(client, of(given), update, 0, last=True, **headers)
    assert again.json() == {"received_bytes": len(update), "complete": True}


def test_a_device_has_one_report_in_parts_and_another_digest_replaces_it(client, task):
    given, update = task
    other = model(2.5, size=100_000)
    part(client, of(given), update[:1000], 0, last=False, **announced(given, update))
    part(client, of(given), other[:500], 0, last=False, **announced(given, other))
    assert state(client, of(given), **announced(given, update)) == (0, False)
    assert part(client, of(given), other[500:], 500, last=True, **announced(given, other)).status_code == 200


def test_only_the_device_itself_uploads_its_report(client, task):
    given, update = task
    headers = announced(given, update)
    is_problem(part(client, of(given), update, 0, last=True, **headers | {"authorization": "Bearer x"}), 403)
    is_problem(part(client, of(given), update, 0, last=True, repr_digest=headers["repr-digest"]), 401)
    is_problem(
        client.get(f"{of(given)}/upload", headers={"authorization": headers["authorization"]}), 422, "Repr-Digest"
    )
    is_problem(client.get("/v1/assignments/nobody-123456.1.1.1/upload", headers=headers), 404)
    is_problem(part(client, of(given), b"", 100_000_000, last=False, **headers), 413, "Upload-Offset")


def test_a_report_in_parts_ends_with_its_assignment(client, task):
    """Case Q6, the other way out, and D4: what is over takes no further part, and frees its slot."""
    given, update = task
    headers = announced(given, update)
    part(client, of(given), update[:1000], 0, last=False, **headers)
    abort = client.post(f"{of(given)}/abort", headers={"authorization": headers["authorization"]})
    assert abort.status_code == 204
    is_problem(part(client, of(given), update[1000:], 1000, last=True, **headers), 409)
    other = task_for(client, "another")
    assert other["job"] == given["job"]
    assert report(client, other, update).status_code == 200
    assert closed(client, given["job"])["state"] == "committed"
