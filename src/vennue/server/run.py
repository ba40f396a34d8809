"""Running a server: everything is put together here, started in order and stopped in order.

All that a server does, as a root or as a leaf, shares one event loop and one process. `serve` runs inside a loop that
exists (tests, the demo); `run` is the whole of ``vennue serve``: signals, exit codes, a loop of its own.
"""

import asyncio
import errno
import faulthandler
import logging
import random
import resource
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from threadpoolctl import threadpool_limits

from vennue.control.branch import Flush
from vennue.control.clock import Clock, pool_clock
from vennue.control.coordinator import Coordinator
from vennue.control.dataplane import DataPlane
from vennue.control.distribution import Distribution
from vennue.control.keeper import Keeper
from vennue.control.leaf import Leaf
from vennue.control.recorder import Recorder
from vennue.control.selector import Selector
from vennue.core.errors import Conflict, InvalidInput, StorageError, Unavailable, VennueError
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.policies import get_policy, load_policies
from vennue.policies.registry import POLICIES
from vennue.server.app import App
from vennue.server.application import Application
from vennue.server.config import Limits, ServerConfig
from vennue.server.door import Door
from vennue.server.leaf import LeafApp
from vennue.server.memory import collect_rarely, keep_freed_memory
from vennue.server.routes.leaves import MAX_TOGETHER
from vennue.server.upstream import HttpUpstream
from vennue.state.directory import DataDirectory
from vennue.state.ledger import Ledger, SqlLedger
from vennue.state.space import Space
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.blobs import BlobStore
from vennue.updates.cache import SERVED_S, BlobCache
from vennue.updates.strategies import load_strategies
from vennue.updates.variants import Variants

log = logging.getLogger("vennue.server")

BACKLOG: Final = 1024
READ_AHEAD_BYTES: Final = 128 * 1024
"""How much of a body granian holds before it is asked for, and hands over at once. With its own 408 KB, 500 reports at
once took half a gigabyte; with 64 KB, those of 10 MB took a fifth more of a processor."""
SPARE_FILES: Final = 256
"""Open files for all else but connections."""
RECORD_FILES: Final = 16
RECORD_FLUSH_S: Final = 1.0
POLL_S: Final = 0.02
"""How often a stop looks whether the last requests are answered."""


async def serve(
    config: ServerConfig, *, ready: Callable[[str], None] | None = None, stop: asyncio.Event | None = None
) -> None:
    """Serve until ``stop`` is set or the task is cancelled; either way, stop gracefully.

    Args:
        config: what to serve, where.
        ready: told the server's URL once it answers.
        stop: asks for a graceful stop.

    Raises:
        StorageError: the data directory cannot be used.
        Conflict: the address cannot be listened on.
        InvalidInput: the policy is unknown, its file does not import, or its parameters make no sense.
    """
    stop = asyncio.Event() if stop is None else stop
    for path in config.strategy_files:
        load_strategies(path)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(config.host, config.port))
        directory = stack.enter_context(DataDirectory(config.data_dir))
        blobs = DirectoryBlobs(
            directory.blobs,
            max_blob_bytes=config.limits.blob_bytes,
            quota_bytes=config.disk_quota_bytes if config.role == "root" else config.leaf.cache_bytes,
            durable=config.durable_blobs,
        )
        start = _leaf if config.role == "leaf" else _root
        app, announce_stop = await start(config, directory, blobs, stack)
        url = _url(listener)
        serving = await stack.enter_async_context(_answering(app, announce_stop, listener, config))
        log.info("serving at %s", url)
        if ready is not None:
            ready(url)
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((stopped, serving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if serving.done():
            serving.result()
            raise Unavailable("the HTTP server has stopped by itself", fix="see the log above")


def assemble(
    config: ServerConfig,
    ledger: Ledger,
    blobs: BlobStore,
    spool: Path,
    *,
    variants: Variants | None = None,
    make_clock: Callable[[float], Clock] = pool_clock,
    new_suffix: Callable[[], str] | None = None,
) -> Coordinator:
    """The coordinator of a configuration, not yet started.

    Args:
        config: what to serve.
        ledger: where promises are kept.
        blobs: where models are.
        spool: the directory of reports.
        variants: other forms of models.
        make_clock: as the coordinator's.
        new_suffix: as the coordinator's.

    Raises:
        InvalidInput: the policy is unknown, its file does not import, or its parameters make no sense.
    """
    for path in config.policy_files:
        load_policies(path)
    return Coordinator(
        ledger,
        DataPlane(
            blobs,
            spool,
            max_uploads=config.limits.uploads,
            durable=config.durable_reports,
            variants=variants,
            spare_bytes=config.spare_bytes,
        ),
        get_policy(config.policy, **config.parameters),
        policy=config.policy,
        parameters=config.parameters,
        schema=DEFAULT_SCHEMA.extend(config.attributes),
        seed=config.seed,
        replan_interval_s=config.replan_interval_s,
        accept_lease_s=config.accept_lease_s,
        admission_window_s=config.admission_window_s,
        stall_grace_s=config.stall_grace_s,
        quotas=config.quotas,
        batch_window_s=config.batch_window_s,
        max_waiters=config.limits.waiters,
        max_jobs=config.limits.jobs,
        make_clock=make_clock,
        new_suffix=new_suffix,
        validate=config.validate,
    )


async def _root(
    config: ServerConfig, directory: DataDirectory, blobs: BlobStore, stack: AsyncExitStack
) -> tuple[Application, Callable[[], None]]:
    """The whole pool; and what announces the stop."""
    variants = _variants(config, directory, blobs)
    coordinator = assemble(config, SqlLedger.at(directory.ledger), blobs, directory.spool, variants=variants)
    await stack.enter_async_context(_started(coordinator, config.drain_s))
    _warn_of_idle_policies(config, coordinator.policy)
    recorder = None
    if config.record_dir is not None:
        recorder = Recorder(
            config.record_dir, max_file_bytes=config.limits.record_bytes // RECORD_FILES, max_files=RECORD_FILES
        )
        await stack.enter_async_context(_recording(recorder))
    selector = Selector(coordinator, config.pacing, random.Random(secrets.randbits(64)), recorder=recorder)
    keeper = Keeper(coordinator, config.keep)
    await stack.enter_async_context(_running(keeper.run(), "keeper"))
    app = App(
        coordinator,
        selector,
        config.limits,
        version("vennue"),
        keeper=keeper,
        leaf_key=config.leaf_key,
        space=_space(config, directory),
    )
    return app, coordinator.announce_stop


def _warn_of_idle_policies(config: ServerConfig, in_force: str) -> None:
    """Say so if there are files with policies, and yet another policy is followed."""
    own = [name for path in config.policy_files for name in POLICIES.loaded[path]]
    if own and in_force not in own:
        log.warning(
            "the policy followed is %s, and none that the policy files define (%s): choose one with --policy, "
            "VENNUE_POLICY or PUT /v1/policy", in_force, ", ".join(own),
        )  # fmt: skip


async def _leaf(
    config: ServerConfig, directory: DataDirectory, blobs: BlobStore, stack: AsyncExitStack
) -> tuple[Application, Callable[[], None]]:
    """A leaf of the pool; and what announces the stop."""
    if directory.ledger.exists():  # whose reports would look like those of rounds that are over, and be removed
        raise StorageError(
            "the data directory is a root's",
            field="data_dir",
            value=str(directory.path),
            fix="give the leaf a directory of its own",
        )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every call of every device
    upstream = HttpUpstream(config.root, config.leaf_key, BlobCache(blobs, rest_s=SERVED_S))
    stack.push_async_callback(upstream.close)
    flush = Flush(
        reports=min(config.leaf.flush_reports, MAX_TOGETHER),
        bytes=config.leaf.flush_bytes,
        age_s=config.leaf.flush_s,
        margin_s=config.leaf.deadline_margin_s,
    )
    leaf = Leaf(
        upstream,
        blobs,
        directory.spool,
        flush=flush,
        answer_s=config.leaf.answer_s,
        max_uploads=config.limits.uploads,
        durable=config.durable_reports,
        spare_bytes=config.spare_bytes,
    )
    upstream.pinned = leaf.models
    await stack.enter_async_context(_started(leaf, config.drain_s))
    distribution = Distribution(blobs, _variants(config, directory, blobs))
    space = _space(config, directory)
    app = LeafApp(leaf, upstream, distribution, config.limits, version("vennue"), leaf_key=config.leaf_key, space=space)
    return app, leaf.announce_stop


def _variants(config: ServerConfig, directory: DataDirectory, blobs: BlobStore) -> Variants:
    return Variants(directory.path / "variants", blobs, max_bytes=config.limits.variant_bytes)


def _space(config: ServerConfig, directory: DataDirectory) -> Space:
    files = () if config.role == "leaf" else (directory.ledger,)
    return Space((directory.path, directory.spool, directory.blobs), config.least_free_bytes, files=files)


def run(config: ServerConfig, *, ready: Callable[[str], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then stop gracefully; a second signal stops at once.

    Returns:
        The process's exit code after a stop: 0.

    Raises:
        VennueError: as `serve`.
    """

    def is_ready(url: str) -> None:
        collect_rarely()
        if ready is not None:
            ready(url)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set():
                log.warning("%s again: stopping at once", number.name)
                sys.stderr.flush()
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            log.info("%s: stopping", number.name)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        await serve(config, ready=is_ready, stop=stop)

    with suppress(OSError, RuntimeError):  # where standard error is no file, or none at all
        faulthandler.enable()  # a process that dies of a file that was cut off, or of a library, says where it was
    keep_freed_memory()
    # A strategy's sums have a thread already. Several that share a processor wait for one another: Krum took ten times
    # as long.
    threadpool_limits(1, user_api="blas")
    _allow_connections(config.limits.connections)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())
    return 0


# Granian's type stub leaves out the constructor, by which it passes sockets between processes itself.
_socket_holder: Callable[[int, bool, int], Any] = SocketHolder  # type: ignore[assignment]


class _Granian(Server):
    """Granian on a socket of ours: a port in use is then an error, and port 0 can be known."""

    def __init__(self, application: Any, listener: socket.socket, limits: Limits) -> None:
        super().__init__(
            application,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            # Granian counts connections here, open long polls and idle ones included. Those above the limit wait.
            backpressure=_most_connections(limits),
            # This holds for the time between two requests, too.
            http1_settings=HTTP1Settings(
                header_read_timeout=max(1, round(limits.idle_connection_s * 1000)), max_buffer_size=READ_AHEAD_BYTES
            ),
            log_enabled=False,
        )
        self._listener = listener

    def _init_shared_socket(self) -> None:
        self._ssp = None
        # The descriptor is granian's from here on: it closes it when it stops listening.
        self._shd = _socket_holder(self._listener.detach(), False, BACKLOG)


@asynccontextmanager
async def _started(role: Coordinator | Leaf, drain_s: float) -> AsyncIterator[None]:
    try:
        await role.start()
        yield
    finally:
        await role.stop(drain_s)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def _recording(recorder: Recorder) -> AsyncIterator[None]:
    async def run() -> None:
        while True:
            await asyncio.sleep(RECORD_FLUSH_S)
            await asyncio.to_thread(recorder.write, recorder.take())

    flushing = asyncio.get_running_loop().create_task(run(), name="recorder")
    try:
        yield
    finally:
        flushing.cancel()
        await asyncio.wait((flushing,))
        await asyncio.to_thread(recorder.close)


@asynccontextmanager
async def _answering(
    app: Application, announce_stop: Callable[[], None], listener: socket.socket, config: ServerConfig
) -> AsyncIterator[asyncio.Task[None]]:
    entrance = listener.dup()
    granian = _Granian(app, listener, config.limits)
    loop = asyncio.get_running_loop()
    door = loop.create_task(Door(entrance, _most_connections(config.limits), app.responses).run(), name="door")
    watching = [
        loop.create_task(app.watch.run(), name="stalled bodies"),
        loop.create_task(app.lag.run(), name="loop lag"),
    ]
    serving = loop.create_task(granian.serve(), name="granian")
    try:
        yield serving
    finally:
        door.cancel()
        entrance.close()  # or the kernel would let others in, though nobody answers them any more
        announce_stop()
        granian.interrupt_signal = True
        granian.main_loop_interrupt.set()
        until = loop.time() + config.drain_s
        while app.in_flight and loop.time() < until:  # noqa: ASYNC110 - costs the hot path nothing
            await asyncio.sleep(POLL_S)
        await asyncio.wait((serving,), timeout=config.drain_s)
        for task in watching:
            task.cancel()
        # Granian writes the last answers from threads of its own, which it does not wait for.
        await asyncio.sleep(5 * POLL_S)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:  # the latter for what can be no host's name
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it, a file's first bytes wait 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError | ValueError) -> VennueError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} of {host} is in use",
            field="port",
            value=port,
            fix="stop the other program, or choose another port (0 takes a free one)",
        )
    return InvalidInput(
        f"cannot listen on {host[:200]}, port {port}: {getattr(error, 'strerror', None) or error}",
        field="host",
        value=host[:200],
        fix="127.0.0.1 for this machine only, 0.0.0.0 for all of its addresses",
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _most_connections(limits: Limits) -> int:
    return min(limits.connections, _connections_possible())


def _connections_possible() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else _connections_with(soft)


def _connections_with(files: int) -> int:
    return max(files // 2, files - SPARE_FILES)


def _allow_connections(wanted: int) -> None:
    """Raise this process's limit on open files as far as it may be, so that connections do not run into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        target = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        if target < needed:
            log.warning("only %d files may be open, so at most %d connections", target, _connections_with(target))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed: about a tenth more check-ins per second."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
