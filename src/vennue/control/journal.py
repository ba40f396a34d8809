"""The journal: makes the pool's effects durable, in order, and has the others carried out after them.

Effects that arrive while a transaction is being written wait for the next one together (group commit), so the ledger's
speed bounds latency, not throughput. Whoever is about to answer waits for `settled`: nothing that a transaction holds
is told to anybody before it is durable.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from vennue.core.effects import Effect, SaveAttempt, SaveJob
from vennue.core.errors import StorageError
from vennue.core.ids import AttemptId
from vennue.state.ledger import Batch, Ledger

log = logging.getLogger("vennue.control")


class _Group:
    """What becomes durable in one transaction, and the effects to carry out once it is."""

    def __init__(self) -> None:
        self.batch = Batch()
        self.after: list[Effect] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, effect: Effect) -> None:
        if not self.batch.add(effect):
            self.after.append(effect)

    def fail(self, error: StorageError) -> None:
        self.done.set_exception(error)
        self.done.exception()  # nobody need be waiting


class Journal:
    """Writes effects to a ledger. All methods belong to one event loop.

    Args:
        ledger: where to.
        carry_out: what to do with an effect that is not durable. It must not fail and not block.
        failed: told once when the ledger fails. What was not written is then forgotten, its waiters have the error,
            and the journal stops: memory has run ahead of the ledger, and only the owner can bring them together.
    """

    def __init__(
        self, ledger: Ledger, carry_out: Callable[[Effect], None], failed: Callable[[StorageError], None]
    ) -> None:
        self._ledger = ledger
        self._carry_out = carry_out
        self._failed = failed
        self._next: _Group | None = None
        self._writing: _Group | None = None
        self._more = asyncio.Event()

    def add(self, effects: Iterable[Effect]) -> None:
        """Take effects. Without anything durable among or before them they are carried out at once."""
        for effect in effects:
            if self.clean and not isinstance(effect, SaveJob | SaveAttempt):
                self._carry_out(effect)
            else:
                self._group().add(effect)

    @property
    def batch(self) -> Batch:
        """The records of the next transaction, for what belongs to them besides the pool's effects."""
        return self._group().batch

    @property
    def clean(self) -> bool:
        """Whether everything is durable and carried out."""
        return self._next is None and self._writing is None

    def settled(self) -> asyncio.Future[None] | None:
        """Done when all that was added so far is durable and carried out; None when it is already."""
        group = self._next or self._writing
        return None if group is None else asyncio.shield(group.done)

    def holds(self, attempt: AttemptId) -> bool:
        """Whether the attempt's record waits to become durable."""
        return any(group is not None and attempt in group.batch.attempts for group in (self._next, self._writing))

    async def run(self) -> None:
        """Write until the ledger fails or the task is cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            group = self._writing = self._next
            self._next = None
            if group is None:
                continue
            try:
                if group.batch:
                    await self._ledger.save(group.batch)
            except Exception as error:
                if not isinstance(error, StorageError):
                    log.exception("the ledger raised what it should not")
                    error = StorageError(f"the ledger failed: {error}", field="ledger")
                self._stop(group, error)
                return
            for effect in group.after:
                self._carry_out(effect)
            self._writing = None
            group.done.set_result(None)

    def _stop(self, group: _Group, error: StorageError) -> None:
        waiting = self._next
        self._next = self._writing = None
        self._failed(error)
        group.fail(error)
        if waiting is not None:
            waiting.fail(error)

    def _group(self) -> _Group:
        if self._next is None:
            self._next = _Group()
            self._more.set()
        return self._next
