"""A load generator that needs much less of a core than what it measures: raw keep-alive connections and one epoll.

``python -m benchmarks.http_load`` reads its orders as JSON from standard input and prints what it saw as JSON. Without
a rate, each connection sends its next request as soon as the last one is answered (closed loop). With one, requests
are due at fixed times whether or not earlier ones are answered, and latency counts from when a request was due, so a
server that stalls cannot hide it.
"""

import json
import select
import socket
import sys
import time
from collections import deque
from urllib.parse import urlsplit

WARM_UP_S = 0.5


class Load:
    """One run.

    Args:
        url: the server.
        requests: whole requests as text, sent in turn.
        connections: how many at once.
        seconds: how long to measure, after the warm-up.
        rate_per_s: requests due per second; 0 for a closed loop.
        once: end when each request was sent once, where a server answers to repeats otherwise.
    """

    def __init__(
        self, url: str, requests: list[str], connections: int, seconds: float, rate_per_s: float, *, once: bool = False
    ) -> None:
        address = urlsplit(url)
        self._requests = [request.encode() for request in requests]
        self._sent = 0
        self._most = len(requests) if once else sys.maxsize
        self._seconds = seconds
        self._rate_per_s = rate_per_s
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for _ in range(connections):
            connection = socket.create_connection((address.hostname, address.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection.fileno()] = connection
            self._epoll.register(connection, select.EPOLLIN)
        self._idle = deque(self._sockets)
        self._since: dict[int, float] = {}
        self.latencies_s: list[float] = []
        self.errors = 0
        self.tasks = 0

    def run(self) -> dict[str, float]:
        """Send for as long as asked; what was seen."""
        began = time.perf_counter() + WARM_UP_S
        ends = began + self._seconds
        due = began - WARM_UP_S
        while (now := time.perf_counter()) < ends and (self._sent < self._most or self._since):
            if self._rate_per_s:
                while due <= now and self._idle and self._sent < self._most:
                    self._send(self._idle.popleft(), due)
                    due += 1.0 / self._rate_per_s
                wait_s = max(0.0, due - now) if self._idle else 0.05
            else:
                while self._idle and self._sent < self._most:
                    self._send(self._idle.popleft(), now)
                wait_s = 0.05
            for fd, _ in self._epoll.poll(min(wait_s, 0.05)):
                self._receive(fd, began)
        for connection in self._sockets.values():
            connection.close()
        counted = sorted(self.latencies_s)
        if not counted:
            raise RuntimeError("all requests were answered in the warm-up: give more of them")
        return {
            "per_s": len(counted) / (min(now, ends) - began),
            "p50_ms": 1e3 * counted[len(counted) // 2],
            "p99_ms": 1e3 * counted[len(counted) * 99 // 100],
            "sent": self._sent,
            "errors": self.errors,
            "tasks": self.tasks / max(1, len(counted)),
        }

    def _send(self, fd: int, since: float) -> None:
        self._since[fd] = since
        self._sockets[fd].sendall(self._requests[self._sent % len(self._requests)])
        self._sent += 1

    def _receive(self, fd: int, began: float) -> None:
        answer = self._sockets[fd].recv(65_536)
        while answer and answer[-1:] != b"}":  # every answer that is asked for here is one JSON object
            answer += self._sockets[fd].recv(65_536)
        since = self._since.pop(fd)
        if since >= began:
            self.latencies_s.append(time.perf_counter() - since)
            if not answer.startswith(b"HTTP/1.1 200"):
                self.errors += 1
            elif b'"task"' in answer:
                self.tasks += 1
        self._idle.append(fd)


def main() -> None:
    """Carry out the orders on standard input."""
    print(json.dumps(Load(**json.load(sys.stdin)).run()))


if __name__ == "__main__":
    main()
