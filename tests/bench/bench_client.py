"""An HTTP client that costs next to nothing, so that the servers are measured and not the client."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

BUSY = 503
_RETRY_S = 0.05


def post_all(
    port: int, path: str, bodies: Sequence[bytes], connections: int, taken: Sequence[int] = (204,)
) -> Counter[int]:
    """Post all bodies over some connections, each waiting for its answers; returns the statuses.

    A body is posted until the server takes it; a status that is neither `taken` nor 503 raises AssertionError.
    """
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: "
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    with ThreadPoolExecutor(connections) as clients:
        shares = [requests[place::connections] for place in range(connections)]
        counts = clients.map(lambda share: _post(port, share, taken), shares)
        return sum(counts, Counter())


def _post(port: int, requests: list[bytes], taken: Sequence[int]) -> Counter[int]:
    statuses: Counter[int] = Counter()
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=120)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in requests:
            status = BUSY
            while status == BUSY:
                sock.sendall(request)
                status, body = _answer(sock)
                statuses[status] += 1
                if status == BUSY:
                    time.sleep(_RETRY_S)
            assert status in taken, f"{status}: {body[:200]!r}"
    return statuses


def _answer(sock: socket.socket) -> tuple[int, bytes]:
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _received(sock)
    head, body = data[:end], data[end + 4 :]
    status = int(head[9:12])
    names = head.lower()
    at = names.find(b"content-length:")
    if at >= 0:
        wanted = int(names[at + 15 :].split(b"\r\n", 1)[0])
        while len(body) < wanted:
            body += _received(sock)
    elif b"transfer-encoding: chunked" in names:
        while not body.endswith(b"0\r\n\r\n"):
            body += _received(sock)
    return status, body


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data
