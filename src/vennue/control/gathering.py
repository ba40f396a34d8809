"""Requests of devices whose check-in waits for others, in a pool that binds them together (`vennue.core.batch`).

Each is answered when the pool has bound the device, at a stop, or when the ledger fails.
"""

import asyncio

from vennue.core.assignment import Assignment
from vennue.core.errors import StorageError
from vennue.core.ids import DeviceId


class Gathering:
    """Who waits to be bound. All methods belong to one event loop.

    A device that asks again while it waits is answered together with its first request.
    """

    def __init__(self) -> None:
        self._waiting: dict[DeviceId, asyncio.Future[Assignment | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, device: DeviceId) -> asyncio.Future[Assignment | None]:
        """The device's assignment, or None, once it is known. Ask before the check-in is applied: it may fill a batch.

        Several requests may share it, so a single one must not cancel it.
        """
        waiting = self._waiting.get(device)
        if waiting is None:
            waiting = self._waiting[device] = asyncio.get_running_loop().create_future()
        return waiting

    def leave(self, device: DeviceId) -> None:
        """The device need not wait after all."""
        self._waiting.pop(device, None)

    def answer(self, device: DeviceId, assignment: Assignment | None) -> None:
        """The pool has bound the device, or found nothing for it."""
        waiting = self._waiting.pop(device, None)
        if waiting is not None:
            waiting.set_result(assignment)

    def dismiss(self) -> None:
        """Nobody waits any more; whoever did comes back later."""
        for device in list(self._waiting):
            self.answer(device, None)

    def fail(self, error: StorageError) -> None:
        """What the pool had collected is forgotten."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(error)
            future.exception()  # nobody need be waiting
