"""Commands that run until they are told to stop: SIGTERM ends them as Ctrl-C does, with everything cleaned up."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came first, and the work has cleaned up.
    """

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # an event loop of Windows takes no signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
