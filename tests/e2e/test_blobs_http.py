"""Blobs over real HTTP, beyond the whole blob: other forms of it, and uploads in parts."""

import base64
import hashlib
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_server_api import is_problem, put, sha256
from vennue._zstd import zstd
from vennue.tensors.delta import DeltaReader
from vennue.tensors.model import load, save
from vennue.tensors.rounded import unrounded

ZSTD = {"accept-encoding": "zstd"}
PLAIN = {"accept-encoding": "identity"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as running:
        yield running
        assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def client(server) -> Iterator[httpx.Client]:
    with server.client() as connected:
        yield connected


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
