"""MQTT packets in bulk: bytes as they come from the socket → PUBLISH and other packets; packet ids → PUBACK bytes.

    fixed header      type and flags (1 byte) · remaining length (1 to 4 bytes, 7 bits each, low first)
    PUBLISH body      topic length (2) · topic · packet id (2, QoS 1 only) · properties (MQTT 5) · payload
    properties        length (1 to 4 bytes, as above) · that many bytes

Only PUBLISH is taken apart, and of it only what a delivery needs; properties are skipped. All other packets
are handed on whole. Pure: knows no socket and no client library.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

try:
    from edge_appliance.mqtt_frames import cut_publishes as _cut_publishes
except ImportError:  # not compiled: slower, and the same
    _cut_publishes = None  # type: ignore[assignment]

DUP: Final = 0x08
QOS1: Final = 0x02
RETAIN: Final = 0x01

_PUBLISH: Final = 0x30
_QOS2: Final = 0x04
_PUBACK_HEAD: Final = 0x4002 << 16
"""Type PUBACK, remaining length 2; the packet id follows. Without a reason it is valid in 3.1.1 and 5."""

KEPT_BYTES: Final = 200
"""Bytes behind the packet id that are kept of a skipped message, as the sample of its dead letter."""


class Publish(NamedTuple):
    """One PUBLISH packet. `flags` are the low four bits of its first byte: DUP, QOS1, RETAIN."""

    flags: int
    topic: bytes
    packet_id: int
    payload: bytes
    skipped_bytes: int
    """0, or the size of a packet above the limit: then `payload` is only its beginning."""


class Packet(NamedTuple):
    """Any other packet: its first byte, and what follows the remaining length."""

    command: int
    body: bytes


class _MalformedError(Exception):
    """Raised inside this module when a stream cannot be read on."""


class Framer:
    """Cuts the byte stream of one connection into packets; holds at most one incomplete packet.

    A PUBLISH above `max_packet_bytes` is skipped without being held. `fault` says why the stream cannot
    be read on; packets before the fault are still returned, nothing behind it is.
    """

    def __init__(self, *, has_properties: bool, max_packet_bytes: int) -> None:
        self.fault = ""
        self._has_properties = has_properties
        self._max_packet_bytes = max_packet_bytes
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        self._skip_bytes = 0

    def feed(self, data: bytes) -> list[Publish | Packet]:
        """Return the packets that `data` completes, in order."""
        if self.fault:
            return []
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        if self._held_bytes:
            # Joined once enough has come, not at each read: a large packet comes in many pieces.
            self._pieces.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._pieces)
        packets: list[Publish | Packet] = []
        try:
            position = self._cut(data, packets)
        except _MalformedError as malformed:
            self.fault = str(malformed)
            position = len(data)
        self._pieces = [data[position:]]
        self._held_bytes = len(data) - position
        return packets

    def _cut(self, data: bytes, packets: list[Publish | Packet]) -> int:
        """Append the whole packets of `data`; return where the first incomplete one begins."""
        position, end = 0, len(data)
        limit = self._max_packet_bytes
        while position < end:
            if _cut_publishes is not None:  # nearly all packets
                position = _cut_publishes(data, position, self._has_properties, limit, Publish, packets)
                if position == end:
                    break
            try:
                length, body = _variable_length(data, position + 1)
            except IndexError:
                self._needed_bytes = end - position + 1
                break
            stop = body + length
            command = data[position]
            if stop - position > limit:
                if not self._skip(data, position, body, stop, packets):
                    break
            elif stop > end:
                self._needed_bytes = stop - position
                break
            elif command & 0xF0 == _PUBLISH:
                packets.append(self._publish(data, command, body, stop))
            else:
                packets.append(Packet(command, data[body:stop]))
            position = stop
        # Behind the end after a skip: the rest of the skipped packet has not come yet.
        return min(position, end)

    def _publish(self, data: bytes, command: int, body: int, stop: int) -> Publish:
        """Take a PUBLISH apart that reaches from `body` to `stop`; `data` may end within its payload."""
        if command & _QOS2:
            raise _MalformedError("a PUBLISH with QoS 2, which was never asked for")
        try:
            at = body + 2 + (data[body] << 8 | data[body + 1])
            topic = data[body + 2 : at]
            packet_id = 0
            if command & QOS1:
                packet_id = data[at] << 8 | data[at + 1]
                at += 2
                if not packet_id:
                    raise _MalformedError("a PUBLISH with packet id 0")
            if self._has_properties:
                length, at = _variable_length(data, at)
                at += length
        except IndexError:
            raise _MalformedError("a PUBLISH shorter than its parts") from None
        if at > stop:
            raise _MalformedError("a PUBLISH shorter than its parts")
        if not topic:
            # In MQTT 5 an empty topic stands for a topic alias; we allow none.
            raise _MalformedError("a PUBLISH without a topic")
        return Publish(command & 0x0F, topic, packet_id, data[at:stop], 0)

    def _skip(self, data: bytes, position: int, body: int, stop: int, packets: list[Publish | Packet]) -> bool:
        """Report a PUBLISH above the limit and drop the rest of it; False while its beginning has not come."""
        command = data[position]
        if command & 0xF0 != _PUBLISH:
            raise _MalformedError(f"a packet of type {command >> 4} with {stop - position} bytes")
        end = len(data)
        head = body + 2
        if end >= head:
            head = min(stop, head + (data[body] << 8 | data[body + 1]) + 2 + KEPT_BYTES)
        if end < head:
            self._needed_bytes = head - position
            return False
        message = self._publish(data[:head], command, body, stop)
        packets.append(message._replace(skipped_bytes=stop - position))
        self._skip_bytes = max(0, stop - end)
        return True


def _variable_length(data: bytes, at: int) -> tuple[int, int]:
    """Number of 1 to 4 bytes at `at`, and where it ends; IndexError when `data` ends before."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in (7, 14, 21):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise _MalformedError("a length of more than four bytes")


def pubacks(packet_ids: Sequence[int]) -> bytes:
    """PUBACK packets for these ids, joined in their order."""
    return struct.pack(f"!{len(packet_ids)}I", *[_PUBACK_HEAD | packet_id for packet_id in packet_ids])
