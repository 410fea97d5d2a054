"""A small MQTT 5 broker for one subscriber, whose every step a test can see.

It keeps a persistent session in memory: a window as large as the subscriber's Receive Maximum, packet ids that stay
with a message until it is acknowledged, and redelivery with DUP, in the old order, when the subscriber comes back.
What a real broker hides is recorded: which messages went to the socket, and which ones were acknowledged.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 1, 2, 3, 4, 8, 9
UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 10, 11, 12, 13, 14

_RECEIVE_MAXIMUM: Final = 0x21
_PROPERTY_SIZES: Final = {0x11: 4, 0x21: 2, 0x27: 4, 0x22: 2, 0x19: 1, 0x17: 1}
"""Fixed-size CONNECT properties; the others of CONNECT are strings or pairs of them."""
_STRING_PAIR: Final = 0x26


class Message(NamedTuple):
    """One application message on its way to the subscriber."""

    topic: str
    payload: bytes


@dataclass
class Ledger:
    """What happened, seen from the broker. Each list is in order of time."""

    written: list[Message] = field(default_factory=list)
    """Messages handed to the socket for the first time."""
    acked: list[Message] = field(default_factory=list)
    redelivered: int = 0
    unknown_acks: int = 0
    """PUBACKs whose id was not in flight: an ack of an older connection, or one sent twice."""
    disordered_acks: int = 0
    """PUBACKs that overtook an earlier message of the same connection."""
    connects: int = 0


class FakeBroker:
    """Serves one persistent session on a port of the loopback; safe to use from any thread."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self.ledger = Ledger()
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._in_flight: OrderedDict[int, Message] = OrderedDict()
        self._next_id = 1
        self._window = 0
        """Messages that may be in flight; 0 while nobody is subscribed."""
        self._client: socket.socket | None = None
        self._closing = False
        self._session: str | None = None
        self._acceptor = threading.Thread(target=self._accept, name="fake-broker", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connection()
        self._acceptor.join(5)

    def publish(self, topic: str, payload: bytes) -> None:
        """Queue a QoS 1 message, and send it when the window allows."""
        with self._changed:
            self._queue.append(Message(topic, payload))
            self._send_queued()

    @property
    def backlog(self) -> int:
        """Messages that are not acknowledged yet."""
        with self._changed:
            return len(self._queue) + len(self._in_flight)

    @property
    def is_connected(self) -> bool:
        """Whether the subscriber is there and has subscribed."""
        return self._window > 0

    def wait_drained(self, timeout_s: float = 30.0) -> None:
        """Wait until everything is acknowledged."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._queue and not self._in_flight, timeout_s):
                raise AssertionError(f"{len(self._queue)} queued and {len(self._in_flight)} in flight are not acked")

    def drop_connection(self) -> None:
        """Cut the subscriber's connection without a word."""
        with self._changed:
            if self._client is not None:
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_RDWR)

    # Serving

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client, contextlib.suppress(OSError):
                self._serve(client)
            with self._changed:
                self._client, self._window = None, 0

    def _serve(self, client: socket.socket) -> None:
        with client.makefile("rb") as stream:
            window = 65_535
            while (packet := _read_packet(stream)) is not None:
                kind, body = packet
                if kind == CONNECT:
                    window = self._connect(client, body)
                elif kind == SUBSCRIBE:
                    self._subscribe(body, window)
                elif kind == UNSUBSCRIBE:
                    self._send(UNSUBACK << 4, body[:2] + b"\0" + b"\0" * _filter_count(body, options=0))
                elif kind == PUBACK:
                    self._acknowledge(int.from_bytes(body[:2], "big"))
                elif kind == PUBLISH:
                    self._take_status(body)
                elif kind == PINGREQ:
                    self._send(PINGRESP << 4, b"")
                elif kind == DISCONNECT:
                    return

    def _connect(self, client: socket.socket, body: bytes) -> int:
        """Answer CONNECT and return the window it asks for."""
        assert body[:7] == b"\0\4MQTT\5", "this broker speaks MQTT 5 only"
        is_clean = bool(body[7] & 0x02)
        length, start = _varint(body, 10)
        window = _receive_maximum(body[start : start + length])
        identity = _string(body, start + length)
        is_resumed = self._session == identity and not is_clean
        with self._changed:
            self._client = client
            self.ledger.connects += 1
            if not is_resumed:
                self._session = identity
                self._queue.extendleft(reversed(self._in_flight.values()))
                self._in_flight.clear()
            self._send(CONNACK << 4, bytes([is_resumed, 0, 0]))
            if is_resumed:
                self._redeliver()
                self._window = window
                self._send_queued()
        return window

    def _subscribe(self, body: bytes, window: int) -> None:
        with self._changed:
            self._send(SUBACK << 4, body[:2] + b"\0" + b"\1" * _filter_count(body, options=1))
            self._window = window
            self._changed.notify_all()
            self._send_queued()

    def _redeliver(self) -> None:
        for packet_id, message in self._in_flight.items():
            self.ledger.redelivered += 1
            self._send_publish(packet_id, message, is_dup=True)

    def _send_queued(self) -> None:
        """Fill the window; the condition is held."""
        while self._queue and len(self._in_flight) < self._window:
            while self._next_id in self._in_flight:
                self._next_id = self._next_id % 65_535 + 1
            message, packet_id = self._queue.popleft(), self._next_id
            self._next_id = self._next_id % 65_535 + 1
            self._in_flight[packet_id] = message
            self.ledger.written.append(message)
            self._send_publish(packet_id, message, is_dup=False)

    def _send_publish(self, packet_id: int, message: Message, *, is_dup: bool) -> None:
        topic = message.topic.encode()
        head = struct.pack(">H", len(topic)) + topic + struct.pack(">H", packet_id) + b"\0"
        self._send(PUBLISH << 4 | 0x02 | 0x08 * is_dup, head + message.payload)

    def _acknowledge(self, packet_id: int) -> None:
        with self._changed:
            message = self._in_flight.get(packet_id)
            if message is None:
                self.ledger.unknown_acks += 1
                return
            if next(iter(self._in_flight)) != packet_id:
                self.ledger.disordered_acks += 1
            del self._in_flight[packet_id]
            self.ledger.acked.append(message)
            self._changed.notify_all()
            self._send_queued()

    def _take_status(self, body: bytes) -> None:
        """Take a message that the subscriber publishes; its QoS is told by the reader in the first byte."""
        qos, rest = body[0], body[1:]
        if qos:
            at = 2 + int.from_bytes(rest[:2], "big")
            self._send(PUBACK << 4, rest[at : at + 2])

    def _send(self, first_byte: int, body: bytes) -> None:
        """Write one packet; a connection that is gone is noticed by the reader."""
        client = self._client
        if client is not None:
            with self._changed, contextlib.suppress(OSError):
                client.sendall(bytes([first_byte]) + _encode_varint(len(body)) + body)


def _read_packet(stream: object) -> tuple[int, bytes] | None:
    """Packet type and body of the next packet; None at the end. The body of a PUBLISH is preceded by its QoS."""
    read = stream.read  # type: ignore[attr-defined]
    first = read(1)
    if not first:
        return None
    length, shift = 0, 0
    while True:
        byte = read(1)
        if not byte:
            return None
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
    body = read(length)
    if len(body) < length:
        return None
    kind = first[0] >> 4
    return kind, bytes([first[0] >> 1 & 0x03]) + body if kind == PUBLISH else body


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer at `at`, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, byte = divmod(value, 0x80)
        out.append(byte | 0x80 * bool(value))
        if not value:
            return bytes(out)


def _string(data: bytes, at: int) -> str:
    length = int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : at + 2 + length].decode()


def _receive_maximum(properties: bytes) -> int:
    at = 0
    while at < len(properties):
        name, at = properties[at], at + 1
        if name == _RECEIVE_MAXIMUM:
            return int.from_bytes(properties[at : at + 2], "big")
        if name in _PROPERTY_SIZES:
            at += _PROPERTY_SIZES[name]
            continue
        for _ in range(2 if name == _STRING_PAIR else 1):
            at += 2 + int.from_bytes(properties[at : at + 2], "big")
    return 65_535


def _filter_count(body: bytes, options: int) -> int:
    """Filters in a SUBSCRIBE (one byte of options each) or an UNSUBSCRIBE (none)."""
    length, at = _varint(body, 2)
    at, count = at + length, 0
    while at < len(body):
        at += 2 + int.from_bytes(body[at : at + 2], "big") + options
        count += 1
    return count
