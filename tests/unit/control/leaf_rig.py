"""Leaves under a rig's root, in one process: calls go straight up, through faults where a test wants some."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from tests.unit.control.rig import Rig, body, update
from vennue.control.branch import Flush, Upstream
from vennue.control.leaf import Leaf
from vennue.control.leaves import Leaves
from vennue.core.errors import Unavailable
from vennue.core.ids import AttemptId, Digest
from vennue.protocol import AttemptView, PartialManifest, PartialReceipt, ReportReceipt, Task
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.blobs import BlobStore

AT_ONCE = Flush(reports=1000, bytes=2**30, age_s=0.0, margin_s=0.0)
"""Every sum goes up as soon as the one before it is answered."""

Above = Callable[[], "Leaves | Leaf"]


class DirectUpstream:
    """Calls to a root or a leaf in the same process; ``above`` is asked for it anew, since it may have restarted.

    ``before`` and ``after`` are awaited around each delivery, and may raise, as a connection may break on either way.
    """

    def __init__(self, above: Above, source: BlobStore, target: BlobStore) -> None:
        self.sent: list[PartialManifest] = []
        self.before: Callable[[str], Awaitable[None]] = _nothing
        self.after: Callable[[str], Awaitable[None]] = _nothing
        self._above = above
        self._source = source
        self._target = target

    async def attempt(self, id: AttemptId) -> AttemptView:
        await self.before("attempt")
        view = await self._above().attempt(id)
        await self.after("attempt")
        return view

    async def fetch(self, digest: Digest) -> None:
        await self.before("fetch")
        if not self._target.exists(digest):
            self._target.put(self._source.path(digest).read_bytes())

    async def send(self, attempt: AttemptId, id: str, manifest: PartialManifest, sums: Path | None) -> PartialReceipt:
        await self.before("send")
        self.sent.append(manifest)
        data = b"" if sums is None else await asyncio.to_thread(sums.read_bytes)
        receipt = await self._above().report(attempt, id, manifest, body(data, chunk=50_000))
        await self.after("send")
        return receipt


async def _nothing(_: str) -> None:
    return None


async def _for_ever(_: str) -> None:
    await asyncio.Event().wait()


def unreachable() -> Unavailable:
    """What a broken connection is to a leaf."""
    return Unavailable("the connection broke", field="root")


class LeafRig:
    """A leaf and its surroundings."""

    def __init__(self, root: Path, above: Above, source: BlobStore, **options: Any) -> None:
        self.directory = root
        self.blobs = DirectoryBlobs(root / "blobs", durable=False)
        self.upstream = DirectUpstream(above, source, self.blobs)
        upstream: Upstream = self.upstream
        options = {"flush": AT_ONCE, "answer_s": 20.0, **options}
        self.leaf = Leaf(upstream, self.blobs, root / "spool", **options)

    async def __aenter__(self) -> Self:
        await self.leaf.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.leaf.stop(5.0)

    async def crash(self) -> None:
        """End at once, as SIGKILL would: nothing more is sent, and the spool stays as it is."""
        self.upstream.before = _for_ever
        kept = self.directory / "kept"
        shutil.copytree(self.directory / "spool", kept)
        await self.leaf.stop(0.0)
        shutil.rmtree(self.directory / "spool", ignore_errors=True)
        kept.rename(self.directory / "spool")

    async def report(
        self, task: Task, value: float = 1.0, weight: float = 1.0, *, data: bytes | None = None, **metrics: float
    ) -> ReportReceipt:
        """Report an update whose numbers are all ``value``."""
        chunks = body(update(value) if data is None else data)
        return await self.leaf.receive(task.assignment, task.token, weight, metrics, chunks)


@asynccontextmanager
async def leaf_under(rig: Rig, root: Path, **options: Any) -> AsyncIterator[LeafRig]:
    """A started leaf whose root is the rig's."""
    leaves = Leaves(rig.coordinator)
    async with LeafRig(root, lambda: leaves, rig.blobs, **options) as leaf:
        yield leaf
