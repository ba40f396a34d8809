"""Evaluating a new requirement for all kinds of devices in slices, so that a submission keeps no check-in waiting.

A pool knows up to some thousand kinds, and the dearest requirement takes a tenth of a millisecond for each.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from vennue.core.pool import Pool
from vennue.core.requirement import Requirement

SLICE_S: Final = 0.002
"""How long the event loop is kept at a time: the price of a few dozen check-ins."""


@asynccontextmanager
async def foreseen(pool: Pool, requirement: Requirement, now: float) -> AsyncIterator[None]:
    """Within it, what `requirement` says of the kinds of devices seen lately is known, and costs a look-up each.

    If the pool registers it meanwhile, its regions are worked out in the end, while that is cheap.
    """
    if requirement.text == "true" or pool.registry.bit(requirement) is not None:
        yield
        return
    loop = asyncio.get_running_loop()
    until = loop.time() + SLICE_S
    for profile in pool.supply.profiles(now):
        requirement.foresee(profile)
        if loop.time() >= until:
            await asyncio.sleep(0)
            until = loop.time() + SLICE_S
    try:
        with pool.registry.considering(requirement):
            yield
        if pool.registry.bit(requirement) is not None:
            pool.supply.region_rates(pool.registry, now)
    finally:
        requirement.forget()
