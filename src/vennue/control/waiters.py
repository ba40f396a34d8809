"""Long polls: who waits for which job. Bounded, and every one ends: by news, by its time limit or at a stop."""

import asyncio

from vennue.core.errors import Overloaded
from vennue.core.ids import JobId


class Waiters:
    """Those who wait for something to happen to a job. All methods belong to one event loop.

    Args:
        limit: how many may wait at once, over all jobs.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # In the order in which they came, so that they are answered in it.
        self._waiting: dict[JobId, dict[asyncio.Future[None], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    async def wait(self, job: JobId, timeout_s: float) -> None:
        """Return when the job is woken, or after ``timeout_s``.

        Raises:
            Overloaded: too many wait already.
        """
        if self._count >= self._limit:
            raise Overloaded("too many wait for news already", limit=self._limit, retry_after_s=5.0)
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(job, {})
        waiting[news] = None
        self._count += 1
        try:
            await asyncio.wait((news,), timeout=timeout_s)
        finally:
            self._count -= 1
            del waiting[news]
            if not waiting and self._waiting.get(job) is waiting:
                del self._waiting[job]

    def wake(self, job: JobId) -> None:
        """Something has happened to the job."""
        for news in self._waiting.get(job, ()):
            if not news.done():
                news.set_result(None)

    def wake_all(self) -> None:
        """Something has happened to everybody."""
        for job in self._waiting:
            self.wake(job)
