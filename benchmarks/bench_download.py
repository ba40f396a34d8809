"""Models over HTTP on loopback: as they are, compressed and as deltas, against an echo's plain file in the same run.

The server has one core, the client the other. The yardstick, ``benchmarks.http_server`` with a file, sends the same
bytes by granian's own file response, without a route, a header or a form to choose.
"""

import hashlib
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.harness import Result
from benchmarks.http_server import Served, served
from vennue._zstd import zstd
from vennue.tensors.delta import DeltaReader
from vennue.tensors.model import save

SIZE_MB = 64
DOWNLOADS = 24
RATIO_GATE = 0.8


def bench_download() -> Iterator[Result]:
    """Megabytes of models per second, and what other forms take of the wire."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=SIZE_MB * 250_000).astype(np.float32)
    old = save({"w": weights})
    new = save({"w": weights * (1 + 1e-3 * rng.normal(size=len(weights))).astype(np.float32)})
    with (
        tempfile.TemporaryDirectory() as folder,
        served("vennue.server", VENNUE_PORT="0", VENNUE_DATA_DIR=folder) as server,
    ):
        file = Path(folder) / "model"
        file.write_bytes(new)
        with served("benchmarks.http_server", ECHO_FILE=str(file)) as echo, httpx.Client(base_url=server.url) as client:
            base, digest = (_put(client, blob) for blob in (old, new))
            path = f"/v1/blobs/{digest}"
            pairs = [(_rates(server, path), _rates(echo, "/")) for _ in range(3)]
            plain, yardstick = max(pairs, key=lambda pair: pair[0][0])
            yield Result(
                name="download/plain", value=plain[0], unit="MB/s", baseline=yardstick[0], ratio_gate=RATIO_GATE
            )
            yield Result(name="download/plain_per_cpu_second", value=plain[1], unit="MB/s", baseline=yardstick[1])
            for name, query in (("zstd", ""), ("delta", f"?from={base}")):
                yield from _form(client, server, name, path + query, old, new)


def _put(client: httpx.Client, blob: bytes) -> str:
    digest = hashlib.sha256(blob).hexdigest()
    client.put(f"/v1/blobs/{digest}", content=blob).raise_for_status()
    return digest


def _form(client: httpx.Client, server: Served, name: str, path: str, old: bytes, new: bytes) -> Iterator[Result]:
    """How long a form takes to be made, how small it is, how fast it is sent and made a model again."""
    headers = {"accept-encoding": "zstd"}
    began = time.perf_counter()
    with client.stream("GET", path, headers=headers, timeout=120) as answer:
        body = b"".join(answer.iter_raw())
    yield Result(name=f"download/{name}_first", value=time.perf_counter() - began, unit="s", higher_is_better=False)
    yield Result(name=f"download/{name}_size", value=len(body) / len(new), unit="×", higher_is_better=False)
    yield Result(name=f"download/{name}", value=_rates(server, path, "zstd")[0] * len(new) / len(body), unit="MB/s")
    began = time.perf_counter()
    model = zstd.decompress(body)
    if name == "delta":
        model = DeltaReader(old).feed(model)
    yield Result(name=f"download/{name}_decoded", value=len(new) / 1e6 / (time.perf_counter() - began), unit="MB/s")
    if model != new:
        raise RuntimeError(f"{name}: another model has arrived")


def _rates(server: Served, path: str, encoding: str = "identity") -> tuple[float, float]:
    """Megabytes on the wire per second, and per second of the server's processor time, over one connection."""
    address = urlsplit(server.url)
    request = f"GET {path} HTTP/1.1\r\nhost: bench\r\naccept-encoding: {encoding}\r\n\r\n".encode()
    buffer = bytearray(2**20)
    received = 0
    with socket.create_connection((address.hostname, address.port)) as connection:
        cpu_s, began = server.cpu_s(), time.perf_counter()
        for _ in range(DOWNLOADS):
            connection.sendall(request)
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            lines, _, body = head.partition(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in lines.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            left = length - len(body)
            while left:
                count = connection.recv_into(buffer, min(left, len(buffer)))
                if not count:
                    raise RuntimeError("the download was cut off")
                left -= count
            received += length
        return received / 1e6 / (time.perf_counter() - began), received / 1e6 / max(0.01, server.cpu_s() - cpu_s)
