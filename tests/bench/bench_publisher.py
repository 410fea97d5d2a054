"""Queues many QoS 1 messages at a broker quickly: one MQTT 3.1.1 connection, nothing waited for but the last PUBACK."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence

_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05queue"
_DISCONNECT = b"\xe0\x00"
_ACK_BYTES = 4
_PIECE = 1_000
TIMEOUT_S = 120


def publish(port: int, topics: Sequence[str], payloads: Sequence[bytes]) -> None:
    """Publish all payloads, spread over the topics; returns when the broker has acknowledged each of them."""
    names = [struct.pack(">H", len(topic)) + topic.encode() for topic in topics]
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
        sock.sendall(_CONNECT)
        assert _read(sock, 4)[3] == 0, "the broker refuses the connection"
        reader = threading.Thread(target=_read, args=(sock, _ACK_BYTES * len(payloads)))
        reader.start()
        for start in range(0, len(payloads), _PIECE):
            packets = [
                _packet(names[number % len(names)], number % 65_535 + 1, payload)
                for number, payload in enumerate(payloads[start : start + _PIECE], start)
            ]
            sock.sendall(b"".join(packets))
        reader.join(TIMEOUT_S)
        assert not reader.is_alive(), "the broker has not acknowledged all messages"
        sock.sendall(_DISCONNECT)


def _packet(topic: bytes, packet_id: int, payload: bytes) -> bytes:
    body = topic + struct.pack(">H", packet_id) + payload
    length, left = bytearray(), len(body)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return b"\x32" + length + body


def _read(sock: socket.socket, count: int) -> bytes:
    """The next `count` bytes."""
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(1 << 16)
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return bytes(data)
