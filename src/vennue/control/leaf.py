"""A leaf: takes the reports of many devices, and sends the root, or the next leaf, their sums in their place.

A report is spooled and checked as at the root. It then waits for the next partial sum, and its device is told that it
counts when the root has said so of the sum: an acknowledgement means the same at every level, so a leaf that never
comes back costs only what it had not acknowledged. Sums go up one at a time per attempt, each with all that has come
in meanwhile, and always before the round's deadline.

Nothing here decides what counts. The root does, by assignment, so a sum may be sent again, a device may turn to another
leaf or to the root, and a leaf that died may send what its spool holds anew, under other ids: each report counts once.
A report that the root will not have is taken out of the sum, and its device is told why. A sum of a leaf below that
holds a report which is on its way up already waits for the outcome, and its leaf is told what became of that report.

Rounds that cannot be summed (see `RoundPlan.keeps_updates`) are passed on report by report, by whoever owns this.
"""

import asyncio
import functools
import logging
import shutil
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from vennue.control.branch import FOLDS_AT_ONCE, OVER, RETRY_S, Branch, Flush, LeafCounters, Trunk, Unit, Upstream, seen
from vennue.control.crew import END_S
from vennue.control.dataplane import Body
from vennue.control.leaves import partial_of
from vennue.control.tokens import holder
from vennue.control.uploads import Uploads
from vennue.core.errors import (
    Conflict,
    InvalidInput,
    InvalidUpdate,
    NotFound,
    Overloaded,
    StorageError,
    TooLate,
    Unavailable,
    VennueError,
)
from vennue.core.ids import AssignmentId, AttemptId, Digest, attempt_of
from vennue.protocol import MODEL_HEADER, AttemptView, PartialManifest, PartialReceipt, ReportReceipt
from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blobs import BlobStore
from vennue.updates.intake import PartialSink, UpdateSink
from vennue.updates.plan import RoundPlan
from vennue.updates.spares import MAX_BYTES, Spares
from vennue.updates.sums import Partial

log = logging.getLogger("vennue.leaf")

ASK_AGAIN_S: Final = 1.0
IDLE_S: Final = 60.0
"""An attempt for which nothing has come for so long is forgotten; another report makes it known again."""


class PassOn(Conflict):
    """A report is none of the leaf's business, and was not read: the upstream itself must be asked.

    Its round needs every report by itself, or is over, and the upstream knows what counted.
    """


class Leaf:
    """The reports of one leaf. All methods belong to one event loop.

    Args:
        upstream: where sums go.
        blobs: where models are.
        spool: the directory where reports wait.
        flush: when sums go up.
        answer_s: how long a report waits to be counted before its device is told to ask again.
        max_uploads: reports being received at once.
        durable: whether a spooled report survives a power loss.
        spare_bytes: how much of the disk `Spares` may take.
    """

    def __init__(
        self,
        upstream: Upstream,
        blobs: BlobStore,
        spool: Path,
        *,
        flush: Flush,
        answer_s: float = 30.0,
        max_uploads: int = 1024,
        durable: bool = False,
        spare_bytes: int = MAX_BYTES,
    ) -> None:
        self.counters = LeafCounters()
        self.uploads = Uploads(max_uploads)
        self._upstream = upstream
        self._blobs = blobs
        self._spool = spool
        self._answer_s = answer_s
        self._durable = durable
        self._spares = Spares(spool.with_name("spares"), max_bytes=spare_bytes)
        self._trunk = Trunk(
            upstream,
            self.uploads,
            spool.with_name("outgoing"),
            flush,
            self.counters,
            asyncio.Semaphore(FOLDS_AT_ONCE),
        )
        self._branches: dict[AttemptId, Branch] = {}
        self._opening: dict[AttemptId, asyncio.Task[Branch]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused_bytes = 0
        self._is_stopped = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; what an earlier process has spooled goes up as soon as the root can be reached.

        Raises:
            StorageError: the directories cannot be used.
        """
        for attempt in await self.uploads.in_thread(self._prepare):
            self._spawn(self._resume(attempt))
        self._spawn(self._tidy())

    def announce_stop(self) -> None:
        """The end is near: what waits goes up now."""
        self._trunk.stopping = True
        for branch in self._branches.values():
            branch.hurry()

    async def stop(self, drain_s: float) -> None:
        """Let sums on their way arrive for at most so long. What then waits stays in the spool, and is told to wait."""
        if self._is_stopped:
            return
        self.announce_stop()
        until = asyncio.get_running_loop().time() + drain_s
        while sending := self._sending():
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await asyncio.wait(sending, timeout=left_s)
        self._is_stopped = True
        working: list[asyncio.Task[Any]] = [*self._tasks, *self._opening.values(), *self._sending()]
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working)
        for branch in self._branches.values():
            branch.abandon(_stopped())
            closing = branch.closing or self.uploads.in_thread(branch.aggregator.close, discard=branch.is_over)
            try:
                await asyncio.wait_for(closing, END_S)
            except StorageError as error:
                log.warning("%s", error)
            except TimeoutError:
                log.warning("what works on reports of %s does not end, and is not waited for", branch.view.attempt)
        await self.uploads.stop()
        await asyncio.to_thread(self._spares.clear)

    def _sending(self) -> list[asyncio.Task[None]]:
        return [branch.sending for branch in self._branches.values() if branch.sending is not None]

    @property
    def stopping(self) -> bool:
        """Whether the end is near."""
        return self._trunk.stopping

    @property
    def attempts(self) -> int:
        """Attempts known at this moment."""
        return len(self._branches)

    def models(self) -> frozenset[Digest]:
        """The models of the attempts known."""
        return frozenset(branch.view.model for branch in self._branches.values())

    @property
    def waiting(self) -> int:
        """Reports that wait to be counted."""
        return sum(len(branch.waiting) for branch in self._branches.values())

    @property
    def refused_bytes(self) -> int:
        """How much was received of reports and sums that were refused, or broken off."""
        return self._refused_bytes + sum(branch.aggregator.refused_bytes for branch in self._branches.values())

    # -- reports ------------------------------------------------------------------------------------------------------

    async def receive(
        self,
        id: AssignmentId,
        token: str,
        weight: float,
        metrics: Mapping[str, float],
        body: Body,
        *,
        sha256: Digest | None = None,
        model: Digest | None = None,
    ) -> ReportReceipt:
        """Take a device's update, and have it counted. Arguments are those of `Selector.report`.

        Raises:
            PassOn: the upstream must be asked itself.
            Overloaded: it is here, but not counted yet; the device asks again.
            VennueError: as `Selector.report`, and as the upstream says.
        """
        try:
            branch = await self._branch(attempt_of(id))
        except OVER as error:
            raise PassOn(error.message, field="assignment", value=id) from error
        holder(branch.key, id, token)
        if model is not None and model != branch.view.model:
            self.counters.refused_reports += 1
            raise InvalidUpdate(
                "the update was trained from the model of another round",
                field=MODEL_HEADER,
                value=model,
                limit=branch.view.model,
                fix="train the model that the task names",
            )
        counted = branch.counted.get(id)
        if counted is not None:
            self.counters.duplicates += 1
            return ReportReceipt(assignment=id, sha256=counted.sha256, duplicate=True)
        unit = branch.waiting.get(id)
        if unit is None:
            with branch.used():
                start = functools.partial(
                    branch.aggregator.start_update, id, weight, metrics=metrics, sha256=sha256, token=token
                )
                chunks = body(branch.aggregator.max_update_bytes)
                try:
                    receipt = await self.uploads.receive(start, UpdateSink.finish, chunks, owner=branch.view.attempt)
                except TooLate:  # its round ended while it arrived: the upstream knows what counted
                    raise _ask_again() from None
                except InvalidInput:
                    self.counters.refused_reports += 1
                    raise
            # A sum that holds it may have come from a leaf below in the meantime; it may even have gone up.
            unit = branch.waiting.get(id)
            if unit is None:
                if branch.aggregator.receipt(id) is None:
                    raise _ask_again()
                unit = branch.claim({id: receipt}, receipt.body_bytes)
                branch.make_ready(unit)
        outcome = await self._outcome(unit)
        if id in outcome.refused:
            self.counters.refused_reports += 1
            raise TooLate(outcome.refused[id], field="assignment", value=id, fix="check in again")
        if not outcome.counted and id not in outcome.counted_before:
            raise _ask_again()  # it was in a sum that came to nothing for another report's sake
        is_new = outcome.counted and not unit.sum_id and not unit.told
        unit.told = True
        self.counters.duplicates += not is_new
        return ReportReceipt(assignment=id, sha256=unit.receipts[id].sha256, duplicate=not is_new)

    async def expected(self, id: AssignmentId, token: str) -> int | None:
        """How large an assignment's report may be; None if it counts already.

        Raises:
            PassOn: the upstream must be asked itself.
            VennueError: as `receive`.
        """
        try:
            branch = await self._branch(attempt_of(id))
        except OVER as error:
            raise PassOn(error.message, field="assignment", value=id) from error
        holder(branch.key, id, token)
        return None if id in branch.counted else branch.aggregator.max_update_bytes

    async def attempt(self, id: AttemptId) -> AttemptView:
        """What a leaf below must know of an open attempt.

        Raises:
            VennueError: as the upstream says.
        """
        try:
            branch = await self._branch(id)
        except PassOn:  # then no leaf below can have its sums counted through this one
            return msgspec.structs.replace(await self._upstream.attempt(id), sums=False)
        left_s = max(0.0, branch.closes_at - asyncio.get_running_loop().time())
        return msgspec.structs.replace(branch.view, closes_in_s=left_s)

    async def report(self, attempt: AttemptId, id: str, manifest: PartialManifest, body: Body) -> PartialReceipt:
        """Take a partial sum of a leaf below, and have it counted, whole.

        Raises:
            Overloaded: it is here, but not counted yet; the leaf below asks again.
            VennueError: as `vennue.control.leaves.Leaves.report`, and as the upstream says.
        """
        partial = partial_of(id, manifest)
        try:
            branch = await self._branch(attempt)
            return _impostors(branch, manifest) or await self._report(branch, partial, body)
        except OVER:
            return await self._upstream.send(attempt, id, manifest, None)  # it knows which of them were counted

    async def _report(self, branch: Branch, partial: Partial, body: Body) -> PartialReceipt:
        while units := branch.holding(partial.receipts):
            if units[0].sum_id == partial.id:
                return await self._outcome(units[0])
            outcome = await self._after(units, partial)
            if outcome.counted_before or outcome.refused:
                return outcome
        aggregator = branch.aggregator
        with branch.used():
            start = functools.partial(aggregator.start_partial, partial)
            await self.uploads.receive(start, PartialSink.finish, body(aggregator.max_partial_bytes))
            # What came meanwhile has its own way up: the leaf below asks again, and learns what became of it.
            units = branch.holding(partial.receipts)
            if not units:
                unit = branch.claim(partial.receipts, aggregator.layout.total_bytes, partial.id)
                await asyncio.shield(self._spawn(self._take(branch, unit)))
                units = [unit]
            elif units[0].sum_id != partial.id:
                await self.uploads.in_thread(aggregator.drop_partial, partial.id)
                raise _ask_again()
        return await self._outcome(units[0])

    async def _take(self, branch: Branch, unit: Unit) -> None:
        """A sum of a leaf below stands for its reports, and may go up."""
        try:
            await self.uploads.in_thread(branch.aggregator.take, unit.sum_id)
        except StorageError as error:
            branch.withdraw(unit, error)
        except (Conflict, NotFound):
            branch.withdraw(unit, _ask_again())
        else:
            branch.make_ready(unit)

    async def _after(self, units: Iterable[Unit], partial: Partial) -> PartialReceipt:
        """What becomes of those reports of a sum that are on their way up already."""
        counted_before: list[AssignmentId] = []
        refused: dict[AssignmentId, str] = {}
        for unit in units:
            outcome = await self._outcome(unit)
            for assignment in unit.receipts.keys() & partial.receipts.keys():
                if assignment in outcome.refused:
                    refused[assignment] = outcome.refused[assignment]
                elif outcome.counted or assignment in outcome.counted_before:
                    counted_before.append(assignment)
        return PartialReceipt(counted=False, counted_before=sorted(counted_before), refused=refused)

    async def _outcome(self, unit: Unit) -> PartialReceipt:
        try:
            async with asyncio.timeout(self._answer_s):
                return await asyncio.shield(unit.outcome)
        except TimeoutError:
            raise Overloaded(
                "the report is safe here, but the root has not counted it yet",
                retry_after_s=ASK_AGAIN_S,
                fix="ask again",
            ) from None

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def _branch(self, attempt: AttemptId) -> Branch:
        """An attempt, asked for once however many devices come with its reports."""
        if self._is_stopped:
            raise _stopped()
        branch = self._branches.get(attempt)
        if branch is not None and branch.is_over:
            await self._forget(branch)
            branch = None
        if branch is None:
            opening = self._opening.get(attempt)
            if opening is None:
                opening = asyncio.get_running_loop().create_task(self._open(attempt), name=f"opening {attempt}")
                opening.add_done_callback(seen)
                self._opening[attempt] = opening
            branch = await asyncio.shield(opening)
        branch.busy_at = asyncio.get_running_loop().time()
        return branch

    async def _open(self, attempt: AttemptId) -> Branch:
        try:
            view = await self._upstream.attempt(attempt)
            if not view.sums:
                raise PassOn(f"attempt {attempt} takes no sums", field="attempt", value=attempt)
            try:
                plan = RoundPlan.of(view.spec)
            except InvalidInput as error:
                log.warning("reports of %s are passed on one by one: %s", attempt, error)
                raise PassOn(f"this leaf cannot sum up for {attempt}", field="attempt", value=attempt) from error
            await self._upstream.fetch(view.model)
            make = functools.partial(
                RoundAggregator, attempt, view.model, self._blobs, self._spool,
                plan=plan, durable=self._durable, spares=self._spares,
            )  # fmt: skip
            aggregator = await self.uploads.in_thread(make)
            for partial in aggregator.waiting:  # nobody was told of it: the leaf below sends it again
                await self.uploads.in_thread(aggregator.drop_partial, partial.id)
            branch = self._branches[attempt] = Branch(view, aggregator, self._trunk)
            for receipts in aggregator.units:
                branch.make_ready(branch.claim(receipts, sum(receipt.body_bytes for receipt in receipts.values())))
            return branch
        finally:
            del self._opening[attempt]

    async def _resume(self, attempt: AttemptId) -> None:
        """Have counted what an earlier process has spooled; or remove it, if its round is over."""
        wait_s, most_s = RETRY_S
        while True:
            try:
                await self._branch(attempt)
                return
            except (*OVER, PassOn) as error:
                log.info("what was spooled for %s is of no use any more: %s", attempt, error)
                await self.uploads.in_thread(shutil.rmtree, self._spool / attempt, True)
                return
            except (Unavailable, Overloaded, StorageError) as error:
                log.info("what was spooled for %s waits: %s", attempt, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, most_s)

    async def _forget(self, branch: Branch) -> None:
        """Remove an attempt; whoever wants it meanwhile waits for its end, and then for a new beginning."""
        branch.is_over = True
        if branch.closing is None:
            branch.closing = asyncio.ensure_future(self.uploads.in_thread(branch.aggregator.close))
        try:
            await asyncio.shield(branch.closing)
        except StorageError as error:  # what is left is removed, or sent again, by the next process
            log.warning("%s", error)
        if self._branches.get(branch.view.attempt) is branch:
            del self._branches[branch.view.attempt]
            self._refused_bytes += branch.aggregator.refused_bytes

    async def _tidy(self) -> None:
        """Forget attempts for which nothing comes any more."""
        while True:
            await asyncio.sleep(IDLE_S / 4)
            idle_since = asyncio.get_running_loop().time() - IDLE_S
            for branch in list(self._branches.values()):
                if branch.idle_since(idle_since):
                    await self._forget(branch)

    def _prepare(self) -> list[AttemptId]:
        outgoing = self._trunk.outgoing
        self._spares.clear()
        try:
            shutil.rmtree(outgoing, ignore_errors=True)
            outgoing.mkdir(parents=True)
            self._spool.mkdir(parents=True, exist_ok=True)
            return [AttemptId(path.name) for path in self._spool.iterdir() if path.is_dir()]
        except OSError as error:
            raise StorageError(
                f"the spool cannot be written: {error.strerror}",
                field="data_dir",
                value=str(self._spool),
                fix="make the data directory writable",
            ) from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def watched() -> None:
            try:
                await work
            except VennueError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("the leaf's own work failed")

        task = asyncio.get_running_loop().create_task(watched())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _ask_again() -> Overloaded:
    return Overloaded(
        "reports that belong together came by several ways at once, and are being sorted out",
        retry_after_s=ASK_AGAIN_S,
        fix="send it again",
    )


def _stopped() -> Unavailable:
    return Unavailable(
        "this leaf stops; what it holds goes up when it starts again", field="leaf", fix="ask again soon"
    )


def _impostors(branch: Branch, manifest: PartialManifest) -> PartialReceipt | None:
    """The answer to a sum with reports whose tokens are wrong; None where there are none."""
    refused = {}
    for report in manifest.reports:
        try:
            holder(branch.key, report.assignment, report.token)
        except VennueError as error:
            refused[report.assignment] = error.message
    return PartialReceipt(counted=False, refused=refused) if refused else None
