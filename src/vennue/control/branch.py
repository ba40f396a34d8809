"""An attempt at a leaf: the reports that wait to be counted, and the sums of them that go up.

One sum at a time is on its way, with all that has come in before it was begun. It is delivered however often that
takes; what the upstream names as counted before, or as too late, is taken out, and the rest sent again.

A report is in one unit at a time. Whatever else brings it waits until that one has its outcome, since what is in a sum
cannot be taken out of it again.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from vennue._files import storage_errors, write_all
from vennue.control.uploads import Uploads
from vennue.core.errors import JobEnded, NotFound, Overloaded, StorageError, TooLate, Unavailable, VennueError
from vennue.core.ids import AssignmentId, AttemptId, Digest
from vennue.protocol import AttemptView, PartialManifest, PartialReceipt, PartialReport
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.sums import Receipt

log = logging.getLogger("vennue.leaf")

T = TypeVar("T")

RETRY_S: Final = (0.1, 5.0)
"""The first and the longest wait before a sum that could not be delivered is sent again."""
FOLDS_AT_ONCE: Final = 2
"""So many sums are computed at once, each of which takes the memory of a model."""
OVER: Final = (TooLate, NotFound, JobEnded)
"""What the upstream says of an attempt that has ended."""


class Upstream(Protocol):
    """The root, or the leaf above. Whatever it cannot be reached for is `Unavailable`."""

    async def attempt(self, id: AttemptId) -> AttemptView:
        """What must be known of an open attempt; ``TooLate`` or ``NotFound`` when there is none."""
        ...

    async def fetch(self, digest: Digest) -> None:
        """Bring a model into the leaf's blob store."""
        ...

    async def send(self, attempt: AttemptId, id: str, manifest: PartialManifest, sums: Path | None) -> PartialReceipt:
        """Deliver a partial sum; or, of an attempt that is over, only ask what has become of its reports."""
        ...


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """When a sum goes up, whichever comes first."""

    reports: int
    """When so many reports wait for it."""
    bytes: int
    """When they are so many bytes."""
    age_s: float
    """When the first of them has waited so long."""
    margin_s: float
    """And always so long before the round's end."""


class LeafCounters(msgspec.Struct):
    """What a leaf counts as it goes. Only ever grows."""

    reports: int = 0
    """Acknowledged to devices, here or at leaves below."""
    duplicates: int = 0
    refused_reports: int = 0
    report_bytes: int = 0
    partials: int = 0
    """Sums that the root has counted."""
    partials_refused: int = 0
    """Sums that had to be made again without some reports."""
    passed_on: int = 0
    """Reports of rounds that take no sums."""


@dataclass(eq=False)
class Trunk:
    """What all attempts of a leaf share."""

    upstream: Upstream
    uploads: Uploads
    outgoing: Path
    """The directory of sums on their way."""
    flush: Flush
    counters: LeafCounters
    folding: asyncio.Semaphore
    stopping: bool = False


@dataclass(eq=False)
class Unit:
    """What goes up whole: a device's report, or the sum of a leaf below."""

    receipts: Mapping[AssignmentId, Receipt]
    body_bytes: int
    outcome: asyncio.Future[PartialReceipt]
    since: float
    """When it came; the event loop's time."""
    sum_id: str
    """The id of a leaf's sum; empty for a device's report."""
    ready: bool = False
    """Whether it is durable here as a unit, and may go up."""
    told: bool = False
    """Whether its device was told that it counts."""


class Branch:
    """An attempt. All methods belong to one event loop.

    Args:
        view: what the upstream says of it.
        aggregator: its reports.
        trunk: what it shares with the others.
    """

    def __init__(self, view: AttemptView, aggregator: RoundAggregator, trunk: Trunk) -> None:
        loop = asyncio.get_running_loop()
        self.view = view
        self.aggregator = aggregator
        self.key = bytes.fromhex(view.token_key)
        self.closes_at = loop.time() + view.closes_in_s
        self.waiting: dict[AssignmentId, Unit] = {}
        """The units that have no outcome yet, by each assignment in them."""
        self.counted: dict[AssignmentId, Receipt] = {}
        """Of devices that reported here, for their repeats."""
        self.busy_at = loop.time()
        """When it was last used."""
        self.is_over = False
        self.closing: asyncio.Future[None] | None = None
        self.sending: asyncio.Task[None] | None = None
        self._trunk = trunk
        self._users = 0
        self._more = asyncio.Event()

    def idle_since(self, time: float) -> bool:
        """Whether nothing has come, and nothing waits, since then."""
        return not self.waiting and not self._users and self.busy_at < time

    @contextmanager
    def used(self) -> Iterator[None]:
        """Something is on its way into it."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def hurry(self) -> None:
        """Send what waits without further delay."""
        self._more.set()

    def holding(self, assignments: Iterable[AssignmentId]) -> list[Unit]:
        """The units that have some of these reports in them."""
        return list(dict.fromkeys(self.waiting[each] for each in assignments if each in self.waiting))

    def claim(self, receipts: Mapping[AssignmentId, Receipt], body_bytes: int, sum_id: str = "") -> Unit:
        """Begin a unit of reports that no other one holds. It goes up once it is made ready."""
        loop = asyncio.get_running_loop()
        unit = Unit(receipts, body_bytes, loop.create_future(), loop.time(), sum_id)
        unit.outcome.add_done_callback(seen)
        self.waiting |= dict.fromkeys(receipts, unit)
        return unit

    def make_ready(self, unit: Unit) -> None:
        """A unit is durable, and waits for the next sum."""
        unit.ready = True
        self._more.set()
        if self.sending is None and not unit.outcome.done():
            self.sending = asyncio.get_running_loop().create_task(self._send_all(), name=f"sums of {self.view.attempt}")

    def withdraw(self, unit: Unit, error: VennueError) -> None:
        """A unit did not become durable."""
        self._settle(unit, error)

    def abandon(self, error: VennueError) -> None:
        """Nothing that waits goes up any more; what is durable stays so."""
        for unit in dict.fromkeys(self.waiting.values()):
            self._settle(unit, error)

    def _ready(self) -> list[Unit]:
        return [unit for unit in dict.fromkeys(self.waiting.values()) if unit.ready]

    async def _send_all(self) -> None:
        """Send sums until nothing waits."""
        try:
            while self._ready():
                await self._until_due()
                units = self._ready()
                try:
                    await self._deliver(units)
                except OVER as error:
                    log.info("reports of %s are too late: %s", self.view.attempt, error)
                    self.is_over = True
                    await self._release(self._ready())
                    self.abandon(error)
                except VennueError as error:
                    await self._give_up(units, error)
                except Exception as error:  # a strategy of somebody's own may raise anything
                    log.exception("the sum of reports of %s failed", self.view.attempt)
                    await self._give_up(units, Unavailable(f"their sum failed: {error!r}"))
        finally:
            self.sending = None
            self.busy_at = asyncio.get_running_loop().time()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        flush = self._trunk.flush
        while not self._trunk.stopping:
            units = self._ready()
            due_at = min(units[0].since + flush.age_s, self.closes_at - flush.margin_s)
            reports = sum(len(unit.receipts) for unit in units)
            if loop.time() >= due_at or reports >= flush.reports:
                return
            if sum(unit.body_bytes for unit in units) >= flush.bytes:
                return
            self._more.clear()
            try:
                async with asyncio.timeout_at(due_at):
                    await self._more.wait()
            except TimeoutError:
                return

    async def _deliver(self, units: list[Unit]) -> None:
        """Send the sum of these, without those that the upstream will not have, until each has its outcome."""
        while units:
            id = uuid.uuid4().hex
            sums = self._trunk.outgoing / id
            try:
                manifest = await self._until_done(lambda: self._written(id, units, sums))  # noqa: B023 - awaited here
                receipt = await self._until_done(
                    lambda: self._trunk.upstream.send(self.view.attempt, id, manifest, sums)  # noqa: B023 - as above
                )
            finally:
                sums.unlink(missing_ok=True)
            if receipt.counted:
                self._trunk.counters.partials += 1
                done = units
            else:
                self._trunk.counters.partials_refused += 1
                named = {*receipt.counted_before, *receipt.refused}
                done = [unit for unit in units if not named.isdisjoint(unit.receipts)]
                if not done:
                    raise Unavailable("the upstream refuses a sum, but names none of its reports", field="root")
            await self._release(done)
            for unit in done:
                self._settle(unit, _about(unit, receipt))
            units = [unit for unit in units if unit not in done]

    async def _until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what may fail for a while, a full disk or an upstream that is away, however often that takes.

        There is no limit: as long as the upstream cannot be asked, nobody knows that the round is over.
        """
        wait_s, most_s = RETRY_S
        while True:
            try:
                return await work()
            except (Unavailable, Overloaded, StorageError) as error:
                if self._trunk.stopping:
                    raise
                log.info("a sum of %s waits: %s", self.view.attempt, error)
                await asyncio.sleep(max(wait_s, getattr(error, "retry_after_s", 0.0)))
                wait_s = min(2 * wait_s, most_s)

    async def _written(self, id: str, units: list[Unit], sums: Path) -> PartialManifest:
        assignments = [assignment for unit in units for assignment in unit.receipts]
        async with self._trunk.folding:
            return await self._trunk.uploads.in_thread(_write, self.aggregator, id, assignments, sums)

    async def _give_up(self, units: list[Unit], error: VennueError) -> None:
        """These do not go up as they are, for no fault of their devices: those may send them again, here or elsewhere.

        At a stop they stay in the spool.
        """
        log.warning("reports of %s came to nothing here: %s", self.view.attempt, error)
        waiting = [unit for unit in units if not unit.outcome.done()]
        if not self._trunk.stopping:
            await self._release(waiting)
        elsewhere = Unavailable(
            f"this leaf could not have the report counted: {error.message}",
            field="root",
            fix="send it again, here or to the root",
        )
        for unit in waiting:
            self._settle(unit, elsewhere)

    async def _release(self, units: Iterable[Unit]) -> None:
        """These are of no more use here. One that cannot be removed is sent again by the next process, and is known."""
        gone = [assignment for unit in units for assignment in unit.receipts]
        try:
            await self._trunk.uploads.in_thread(self.aggregator.release, gone)
        except StorageError as error:
            log.warning("%s", error)

    def _settle(self, unit: Unit, outcome: PartialReceipt | VennueError) -> None:
        for assignment in unit.receipts:
            if self.waiting.get(assignment) is unit:
                del self.waiting[assignment]
        if unit.outcome.done():
            return
        if isinstance(outcome, VennueError):
            unit.outcome.set_exception(outcome)
            return
        if outcome.counted:
            self._trunk.counters.reports += len(unit.receipts)
        if not unit.sum_id:
            if outcome.counted:
                self._trunk.counters.report_bytes += unit.body_bytes
            self.counted |= {
                assignment: receipt
                for assignment, receipt in unit.receipts.items()
                if outcome.counted or assignment in outcome.counted_before
            }
        unit.outcome.set_result(outcome)


def _write(aggregator: RoundAggregator, id: str, assignments: list[AssignmentId], path: Path) -> PartialManifest:
    """Write the sum of some reports to a file; what is in it."""
    with storage_errors("write a partial sum", path), path.open("wb", buffering=0) as file:
        partial = aggregator.partial(id, assignments, lambda data: write_all(file.fileno(), data))
    metrics = partial.metrics
    return PartialManifest(
        reports=[
            PartialReport(receipt.assignment, receipt.token, receipt.body_bytes, receipt.weight, receipt.sha256)
            for receipt in partial.receipts.values()
        ],
        weight=partial.totals.weight,
        models=partial.totals.models,
        metrics={name: (value, metrics.weights[name]) for name, value in metrics.sums.items()},
    )


def _about(unit: Unit, receipt: PartialReceipt) -> PartialReceipt:
    """What an answer to a sum says of one of the units in it."""
    if receipt.counted:
        return receipt
    return PartialReceipt(
        counted=False,
        counted_before=[assignment for assignment in receipt.counted_before if assignment in unit.receipts],
        refused={assignment: why for assignment, why in receipt.refused.items() if assignment in unit.receipts},
    )


def seen(done: asyncio.Future[Any]) -> None:
    """Nobody need wait for an outcome: that it is an error is no news to the log."""
    if not done.cancelled():
        done.exception()
