"""How the C library holds the memory through which bodies pass, and how often Python looks for cycles in it.

A body comes in pieces of some 100 KB, each in memory of its own, which is soon free again. By default, glibc returns
such memory to the kernel at once, and gets it back page by page, zeroed: a sixth of all that a report of 1 MB cost.
"""

import ctypes
import gc
from typing import Final

OWN_MAP_BYTES: Final = 4 * 2**20
"""From this size on, memory is mapped for one use, and returned after it."""
KEPT_BYTES: Final = 16 * 2**20
"""How much free memory at the end of an arena is kept; there are a few arenas."""
COLLECT_EVERY: Final = 10_000
"""How many more objects there must be before Python looks for cycles. A report leaves some ten of them for as long as
its round lasts, so that by default, at 700, a twelfth of what small reports cost went into looking."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Let glibc keep some memory that is free; whether the C library can do so. To be called before threads start."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, OWN_MAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


def collect_rarely() -> None:
    """Let Python look for cycles less often, and never in what is there now. To be called when all has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
