"""Whose connections are silent, as the kernel knows: for bodies that are waited for in one piece.

Nobody here sees how far such a body is. The kernel keeps for each connection when data came last, so who asks it now
and then, about those that take long, needs to watch no others.
"""

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

_LAST_DATA_RECEIVED: Final = struct.Struct("@52xI")
"""``tcpi_last_data_recv``, in milliseconds, of Linux's ``struct tcp_info``, whose beginning never changes."""
_OPEN_FILES: Final = Path("/proc/self/fd")


def silent_peers(silent_s: float) -> frozenset[str]:
    """The other ends of this process's connections from which nothing has come for so long, as ``address:port``.

    Where the system does not tell, there are none.
    """
    if not hasattr(socket, "TCP_INFO"):
        return frozenset()
    found = set()
    try:
        numbers = [int(name) for name in os.listdir(_OPEN_FILES)]  # noqa: PTH208 - names are all that is needed
    except OSError:
        return frozenset()
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                host, port = connection.getpeername()[:2]
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        except (OSError, ValueError):  # it is no connection, or has gone
            continue
        if len(told) == _LAST_DATA_RECEIVED.size and _LAST_DATA_RECEIVED.unpack(told)[0] >= 1000 * silent_s:
            found.add(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return frozenset(found)
