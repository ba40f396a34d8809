"""Devices and owners whose connections break, through a proxy that breaks them: what has arrived is not sent again."""

import contextlib
import hashlib
import itertools
import selectors
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.e2e.calls import until
from tests.e2e.server_process import ServerProcess
from vennue import Device, Job
from vennue.core.errors import OutOfSpace
from vennue.sdk import download
from vennue.sdk.download import Download
from vennue.sdk.retry import Retry
from vennue.sdk.transport import BlockingTransport, Timing, blocking
from vennue.sdk.wire import Wire
from vennue.tensors.model import save

MIB = 2**20
QUICK = Retry(first_s=0.01, most_s=0.05)


class Proxy:
    """Passes connections on to a server, and breaks the next ones once so many bytes have passed.

    ``down`` and ``up`` are what is yet to come: bytes after which a connection breaks, in order. ``passed_down`` and
    ``passed_up`` count the bytes of all connections. A client learns that its upload broke after the server did, which
    has then kept all that passed: otherwise the client might be told of less, and send it again.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.down: list[int] = []
        self.up: list[int] = []
        self.passed_down = self.passed_up = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _pass(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
            selectors.DefaultSelector() as ready,
        ):
            ready.register(client, selectors.EVENT_READ, True)
            ready.register(server, selectors.EVENT_READ, False)
            passed = {True: 0, False: 0}
            with contextlib.suppress(OSError):
                while True:
                    for key, _ in ready.select():
                        is_up = key.data
                        limits = self.up if is_up else self.down
                        left = (limits[0] - passed[is_up]) if limits else 65_536
                        chunk = (client if is_up else server).recv(min(65_536, left))
                        if not chunk:
                            return
                        (server if is_up else client).sendall(chunk)
                        passed[is_up] += len(chunk)
                        if is_up:
                            self.passed_up += len(chunk)
                        else:
                            self.passed_down += len(chunk)
                        if limits and passed[is_up] >= limits[0]:
                            del limits[0]
                            if is_up:
                                server.shutdown(socket.SHUT_WR)
                                while server.recv(65_536):
                                    pass
                            return


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def wire(proxy) -> Iterator[Wire]:
    timing = Timing()
    made = Wire(BlockingTransport(proxy.url, None, timing), QUICK, timing)
    yield made
    blocking(made.transport.close())


def weights(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).normal(size=size).astype(np.float32)}


@contextlib.contextmanager
def one_round(server: ServerProcess, model: dict[str, np.ndarray]) -> Iterator[list[dict[str, np.ndarray]]]:
    """An open round of one device while the block runs, and its result behind that."""
    with Job(server.url, name="slow", demand=1, rounds=1) as job, ThreadPoolExecutor(1) as owner:
        (turn,) = itertools.islice(job.rounds(), 1)
        running = owner.submit(turn.run, model)
        results: list[dict[str, np.ndarray]] = []
        try:
            with server.client() as client:
                until(lambda: client.get(f"/v1/jobs/{job.id}").json()["open_round"] is not None)
            yield results
        except BaseException:
            job.cancel()
            raise
        results.append(running.result())


def add_one(device: Device) -> None:
    """A device's work on its next task."""
    for task in device.tasks(max_tasks=1):
        assert task.report({"w": task.model["w"] + np.float32(1)}, examples=1)


@pytest.mark.parametrize("in_memory_bytes", [2**30, MIB], ids=["in memory", "in a file"])
def test_a_download_cut_at_half_goes_on_from_there_and_the_lease_is_kept(server, proxy, monkeypatch, in_memory_bytes):
    """Case D7, at a twenty-fifth of its size."""
    monkeypatch.setattr(download, "IN_MEMORY_BYTES", in_memory_bytes)
    model = weights(5 * MIB)  # 20 MiB
    with Device(proxy.url, retry=QUICK) as device, one_round(server, model):
        proxy.down = [10 * MIB]
        for task in device.tasks(max_tasks=1):
            assert proxy.down == []
            assert proxy.passed_down < 21 * MIB
            np.testing.assert_array_equal(task.model["w"], model["w"])
            assert task.expires_in_s > 500
            assert task.report(task.model, examples=1)


def test_an_upload_of_a_model_that_breaks_goes_on_from_there(server, proxy, wire):
    data = np.random.default_rng(7).bytes(12 * MIB)
    proxy.up = [5 * MIB, 6 * MIB]
    digest = blocking(wire.store(data))
    assert proxy.up == []
    assert proxy.passed_up < 13.5 * MIB
    with server.client() as client:
        assert hashlib.sha256(client.get(f"/v1/blobs/{digest}").content).hexdigest() == digest


def test_a_report_that_breaks_half_way_goes_on_in_parts_and_counts_once(server, proxy):
    """Case Q6, at a hundredth of its size."""
    model = weights(2 * MIB, seed=1)  # 8 MiB
    with Device(proxy.url, retry=QUICK) as device:
        proxy.up = [4 * MIB, 5 * MIB]
        with one_round(server, model) as results:
            add_one(device)
        assert proxy.up == []
        # The first attempt is lost; from then on, only the rest is sent.
        assert proxy.passed_up < 4 * MIB + 8 * MIB + MIB
    np.testing.assert_array_equal(results[0]["w"], model["w"] + np.float32(1))


def test_a_report_for_whose_parts_there_is_no_space_is_sent_whole(server, proxy, monkeypatch):
    async def full(self: Wire, *arguments: object, **options: object) -> None:
        raise OutOfSpace("models would take too much of the disk", field="disk_quota_bytes")

    monkeypatch.setattr(Wire, "upload", full)
    model = weights(100_000)
    with Device(proxy.url, retry=QUICK) as device, one_round(server, model) as results:
        add_one(device)
    np.testing.assert_array_equal(results[0]["w"], model["w"] + np.float32(1))


@pytest.mark.parametrize("form", ["compressed", "delta"])
def test_exact_forms_give_the_model_to_the_bit_through_breaks(proxy, wire, form):
    rng = np.random.default_rng(3)
    old = rng.normal(size=MIB).astype(np.float32)
    new = old * (1 + 1e-3 * rng.normal(size=MIB)).astype(np.float32)
    base, blob = save({"w": old}), save({"w": new})
    blocking(wire.store(base))
    digest = blocking(wire.store(blob))
    held = blocking(wire.fetch(hashlib.sha256(base).hexdigest()))
    before = proxy.passed_down
    proxy.down = [MIB]
    blocking(wire.transport.close())  # a connection that was made before breaks too early
    fetched = blocking(wire.fetch(digest, form=form, held=held))
    assert proxy.down == []
    assert bytes(fetched.blob) == blob
    share = {"compressed": 0.95, "delta": 0.55}[form]
    assert proxy.passed_down - before < share * len(blob)


@pytest.mark.parametrize(("form", "share"), [("float16", 0.51), ("bfloat16", 0.51), ("int8", 0.26), ("delta", 0.51)])
def test_a_device_on_a_metered_link_learns_from_fewer_bytes(server, proxy, form, share):
    """Rounding costs the result nothing but the step's own precision: the device reports a change."""
    model = weights(MIB // 2, seed=2)
    with Device(proxy.url, model_form=form, retry=QUICK) as device:
        with one_round(server, model) as first:
            add_one(device)
        np.testing.assert_allclose(first[0]["w"], model["w"] + 1, atol=2e-6)
        before = proxy.passed_down
        with one_round(server, {"w": model["w"] * np.float32(1.0001)}) as second:
            add_one(device)
        np.testing.assert_allclose(second[0]["w"], model["w"] * 1.0001 + 1, atol=2e-6)
        assert proxy.passed_down - before < share * model["w"].nbytes + 10_000


def test_a_form_that_something_on_the_way_spoils_is_fetched_plain(server, wire, monkeypatch):
    data = b"the same line again\n" * 10_000
    digest = blocking(wire.store(data))
    begin = Download.begin

    def spoiled(self, response):
        take = begin(self, response)
        return (lambda chunk: take(chunk[:-1] + b"?")) if "content-encoding" in response.headers else take

    monkeypatch.setattr(Download, "begin", spoiled)
    assert blocking(wire.fetch(digest, form="compressed")).blob == data
