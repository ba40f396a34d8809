"""A whole server in this process, without a port: coordinator, selector, routes and data plane, for jobs and devices.

`LocalPool` is put together as ``vennue serve`` is; only the HTTP server is left out, and `LocalTransport` stands in for
it. In virtual time (`vennue.testing.run_virtual`) a round with hours of waiting takes milliseconds, and the pool can be
killed and started again on what it has left behind:

    async def main():
        async with LocalPool() as pool, pool.job(name="mean", demand=1, rounds=1) as job:
            async with pool.device() as device: ...
"""

import asyncio
import functools
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import httpx

from vennue.control.clock import Clock, pool_clock
from vennue.control.coordinator import Coordinator
from vennue.control.selector import Selector
from vennue.core.errors import Unavailable
from vennue.sdk.device import AsyncDevice
from vennue.sdk.job import AsyncJob
from vennue.sdk.transport import Timing
from vennue.server.app import App
from vennue.server.config import ServerConfig
from vennue.server.http import Headers
from vennue.server.run import assemble
from vennue.state.ledger import Ledger
from vennue.testing.ledgers import MemoryLedger
from vennue.testing.virtual import Process, VirtualLoop, check_alive, current_process
from vennue.updates.blob_directory import DirectoryBlobs

URL: Final = "http://pool.test"
EPOCH_S: Final = 1_700_000_000.0
"""The wall's time when a virtual loop's is 0."""
_POLL_S: Final = 0.02


class LocalPool:
    """A pool for the event loop that it is used in.

    Args:
        data_dir: the directory of models and reports; a temporary one by default.
        ledger: where promises are kept; in memory by default. Like the directory, it outlives a `kill`.
        wall: the wall's time in seconds, at which pool time starts. By default that of the loop if it is virtual, and
            the machine's otherwise.
        monotonic: seconds by which pool time goes on, never stepping back. By default the loop's.
        seed: of what the server leaves to chance.
        settings: fields of `vennue.server.config.ServerConfig`; invariants are checked unless ``validate`` says no.

    Attributes:
        coordinator, app: the running server's, or the last one's.
        responses: answers by status, over all servers that this pool has had.
    """

    coordinator: Coordinator
    app: App

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        ledger: Ledger | None = None,
        wall: Clock | None = None,
        monotonic: Clock | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.running = False
        """Whether a server answers."""
        self.responses: Counter[int] = Counter()
        self._directory = tempfile.TemporaryDirectory(prefix="vennue-") if data_dir is None else None
        self._root = Path(self._directory.name) if self._directory is not None else data_dir or Path()
        self._config = ServerConfig(**{"durable_blobs": False, "validate": True, "data_dir": self._root, **settings})
        self._ledger: Ledger = MemoryLedger() if ledger is None else ledger
        self._wall, self._monotonic = wall, monotonic
        self._rng = random.Random(seed)
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._starts = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {URL}: {self.coordinator.pool if self.running else 'not running'}>"

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a server on what is there.

        Raises:
            StorageError: the ledger or the directory cannot be used.
            Unavailable: the server was killed while it started.
        """
        assert not self.running, "the pool is running"
        self._starts += 1
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            self._process = Process(f"server {self._starts}")
        await self._outcome(self._assemble())
        self.running = True

    async def stop(self) -> None:
        """Stop as at SIGTERM: what is asked meanwhile is told to come back, what was begun is finished.

        Raises:
            Unavailable: the server was killed while it stopped.
        """
        if not self.running:
            return
        loop, process, drain_s = asyncio.get_running_loop(), self._process, self._config.drain_s
        self.coordinator.announce_stop()
        until = loop.time() + drain_s
        while self.app.in_flight and loop.time() < until:  # noqa: ASYNC110 - costs the requests nothing
            await asyncio.sleep(_POLL_S)
        if process is not None and not process.alive:
            raise _killed()
        self.running = False
        if self._watching is not None:
            self._watching.cancel()
        await self._outcome(self.coordinator.stop(drain_s))
        self.kill()
        await self.gone()

    def kill(self) -> None:
        """End the server at once, as by SIGKILL; only in a virtual loop. What it leaves behind is there for `start`.

        May be called by the server itself, in the middle of anything. `gone` is when its last trace has left the loop.
        """
        self.running = False
        if self._process is not None:
            self._process.kill()

    async def gone(self) -> None:
        """Return when a killed server is gone."""
        if self._process is not None:
            await self._process.gone()

    async def restart(self) -> None:
        """Kill the server, unless that has happened, and start another one."""
        self.kill()
        await self.gone()
        await self.start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.stop()
        finally:
            self._clean_up()

    # -- clients ----------------------------------------------------------------------------------------------------

    def transport(self) -> httpx.AsyncBaseTransport:
        """A way to the pool, for anything that takes an httpx transport."""
        return _Transport(self)

    def timing(self, seed: int = 0) -> Timing:
        """The loop's time, for the SDK's ``timing``."""
        return Timing(clock=asyncio.get_running_loop().time, rng=random.Random(seed))

    def job(self, **options: Any) -> AsyncJob:
        """A job on this pool; the options are `vennue.AsyncJob`'s."""
        return AsyncJob(URL, **{"transport": self.transport(), "timing": self.timing(), **options})

    def device(self, **options: Any) -> AsyncDevice:
        """A device of this pool; the options are `vennue.AsyncDevice`'s."""
        return AsyncDevice(URL, **{"transport": self.transport(), "timing": self.timing(), **options})

    def client(self) -> httpx.AsyncClient:
        """An HTTP client for it."""
        return httpx.AsyncClient(base_url=URL, transport=self.transport())

    @property
    def is_current(self) -> bool:
        """Whether what runs at this moment is the server, in virtual time."""
        return self._process is not None and current_process() is self._process

    @property
    def blobs(self) -> DirectoryBlobs:
        """The models that it has, whether it runs or not."""
        return DirectoryBlobs(self._root / "blobs", durable=False)

    @property
    def spool(self) -> Path:
        """The directory where reports wait for their round's commit."""
        return self._root / "spool"

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """For the transport: the server's answer to a request.

        Raises:
            httpx.TransportError: there is no server, it was killed before it answered, or the request was cut off.
        """
        check_alive()
        if not self.running:
            raise httpx.ConnectError("no server is running", request=request)
        exchange = _Exchange(request)
        task = self._spawn(self.app.__rsgi__(exchange.scope, exchange))
        try:
            await asyncio.wait((task,))
        finally:
            exchange.gone.set()  # the server learns that its client has gone, and goes on as it likes
        if task.cancelled():
            raise httpx.ReadError("the server went away", request=request)
        task.result()
        if exchange.cut is not None:
            raise exchange.cut
        assert exchange.response is not None, "the server answers every request"
        self.responses[exchange.response.status_code] += 1
        return exchange.response

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    async def _assemble(self) -> None:
        loop = asyncio.get_running_loop()
        wall, monotonic = self._wall or time.time, self._monotonic or loop.time
        if self._wall is None and isinstance(loop, VirtualLoop):
            wall = lambda: EPOCH_S + loop.time()  # noqa: E731 - it is one of two
        coordinator = assemble(
            self._config,
            self._ledger,
            self.blobs,
            self.spool,
            make_clock=functools.partial(pool_clock, wall=wall, monotonic=monotonic),
            new_suffix=lambda: f"{self._rng.getrandbits(24):06x}",
        )
        await coordinator.start()
        self.coordinator = coordinator
        selector = Selector(coordinator, self._config.pacing, self._rng)
        self.app = App(coordinator, selector, self._config.limits, version("vennue"), leaf_key=self._config.leaf_key)
        self.app.rng = self._rng
        self._watching = loop.create_task(self.app.watch.run(), name="stalled bodies")

    async def _outcome(self, work: Coroutine[Any, Any, None]) -> None:
        """Have the server do something to its end, if it lives that long."""
        task = self._spawn(work)
        await asyncio.wait((task,))
        if task.cancelled() or not (self._process is None or self._process.alive):
            raise _killed()
        task.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work) if self._process is None else self._process.spawn(work)


def _killed() -> Unavailable:
    return Unavailable("the server was killed", field="server", fix="start it again")


class _Transport(httpx.AsyncBaseTransport):
    """Requests to a local pool, by the pool's own hand."""

    def __init__(self, pool: LocalPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._pool.answer(request)


class _Scope:
    """What granian says of a request."""

    def __init__(self, request: httpx.Request) -> None:
        self.client = "in this process"
        self.method = request.method
        self.path = request.url.path
        self.query_string = request.url.query.decode()
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in request.headers.items()}


class _Exchange:
    """One request and its answer, as granian hands them to the application (RSGI)."""

    def __init__(self, request: httpx.Request) -> None:
        self.scope = _Scope(request)
        self.response: httpx.Response | None = None
        self.cut: httpx.TransportError | None = None
        """Why the request's body broke off, if it did."""
        self.gone = asyncio.Event()
        """Set when the client waits no more."""
        self._request = request

    async def __call__(self) -> bytes:
        body = b"".join([chunk async for chunk in self])
        if self.cut is not None:
            raise RuntimeError("the connection was closed")  # as granian says it
        return body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stream = self._request.stream
        assert isinstance(stream, httpx.AsyncByteStream), "the request comes from an asynchronous client"
        try:
            async for chunk in stream:
                yield chunk
        except httpx.TransportError as error:
            self.cut = error

    async def client_disconnect(self) -> None:
        await self.gone.wait()

    def response_empty(self, status: int, headers: Headers) -> None:
        self._respond(status, headers, b"")

    def response_bytes(self, status: int, headers: Headers, body: bytes) -> None:
        self._respond(status, headers, body)

    def response_file(self, status: int, headers: Headers, file: str) -> None:
        self._respond(status, headers, Path(file).read_bytes())

    def response_file_range(self, status: int, headers: Headers, file: str, start: int, end: int) -> None:
        with Path(file).open("rb") as opened:
            opened.seek(start)
            self._respond(status, headers, opened.read(end - start))

    def _respond(self, status: int, headers: Headers, body: bytes) -> None:
        # A stream, as from a network: who reads it bit by bit may do so.
        stream = httpx.ByteStream(body)
        self.response = httpx.Response(status, headers=headers, stream=stream, request=self._request)
