"""One connection to the broker: paho-mqtt's client with a bulk reader and joined acknowledgements.

The only importer of paho-mqtt. paho keeps the session: CONNECT, SUBSCRIBE, keep-alive, will and status.
Replaced is what costs time per message: reading (all the socket has at once, framed in memory) and
acknowledging (the PUBACKs of a group in one write). `tests/test_mqtt_contract.py` pins what is used of it.

A packet id means something on one connection only, so each connection is a client object of its own, with
its own half-read packet and its own order of acks. Event loop only. Knows no route and no inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_appliance.mqtt_packets import Framer, Packet, Publish, pubacks
from edge_appliance.mqtt_session import AckOrder, Subscriptions
from edge_appliance.mqtt_settings import MqttSettings, Version

if TYPE_CHECKING:
    from paho.mqtt.client import SocketLike  # paho defines it for type checkers only

_log = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10
"""Most that one read event takes. The inbox may pass its limit by it, and the loop is held for it: some 600
one-line messages, 2 ms. Larger reads also cost more per message, because they leave the processor's cache."""

_WILL_DELAY_S: Final = 30
_FILTERS_PER_SUBSCRIBE: Final = 8
"""Some brokers refuse more in one packet."""

_PUBACK: Final = PacketTypes.PUBACK << 4
_DISCONNECT_NORMAL: Final = b"\xe0\x00"
"""DISCONNECT without a body: reason 0x00 in MQTT 5, the only form in 3.1.1."""
_UNSUPPORTED_VERSION: Final = 0x84


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """What a link reports while it lives. None of them may raise or close the link."""

    accepted: Callable[[bool, int | None], None]
    """CONNACK: session present; session expiry in seconds, if the broker set its own."""
    published: Callable[[list[Publish]], None]
    subscribed: Callable[[], None]
    unsubscribed: Callable[[Sequence[int]], None]
    """UNSUBACK, with its codes (none in 3.1.1)."""


class Link(Client):
    """One connection to the broker: paho's client with a bulk reader and joined acks."""

    def __init__(self, settings: MqttSettings, version: Version, filters: Sequence[tuple[str, int]]) -> None:
        is_v5 = version == "5"
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            clean_session=None if is_v5 else False,
            protocol=MQTTProtocolVersion.MQTTv5 if is_v5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self.version = version
        self.ended = asyncio.Event()
        self.why = ""
        """Why the link ended, for people."""
        self.is_accepted = False
        self.refuses_us = False
        self.refuses_version = False
        self.up_since_s: float | None = None
        self.order = AckOrder()
        self.subscriptions = Subscriptions(filters)
        self.is_paused = False
        self.is_draining = False
        self._settings = settings
        self._framer = Framer(has_properties=is_v5, max_packet_bytes=settings.max_packet_bytes)

    def start(self, ready: socket.socket, events: LinkEvents) -> None:
        """Send CONNECT on a connected socket."""
        settings, is_v5 = self._settings, self.version == "5"
        self._ready_socket = ready
        self._events = events
        self._event_loop = asyncio.get_running_loop()
        self.on_connect = self._take_connack
        self.on_subscribe = self._take_suback
        self.on_unsubscribe = self._take_unsuback
        self.on_disconnect = self._take_end
        self.on_socket_open = self._watch_socket
        self.on_socket_close = self._unwatch_socket
        self.on_socket_register_write = self._watch_writable
        self.on_socket_unregister_write = self._unwatch_writable
        self.username_pw_set(settings.username or None, settings.password)
        will = Properties(PacketTypes.WILLMESSAGE)  # type: ignore[no-untyped-call]
        will.WillDelayInterval = _WILL_DELAY_S
        self.will_set(settings.status_topic, "offline", 1, True, will if is_v5 else None)
        connect = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        connect.SessionExpiryInterval = settings.session_expiry_s
        connect.ReceiveMaximum = settings.receive_maximum
        connect.MaximumPacketSize = settings.max_packet_bytes
        # paho has no alias table, so the framer cannot have one.
        connect.TopicAliasMaximum = 0
        keepalive_s = min(65_535, max(1, round(settings.keepalive_s)))
        self.connect_async(
            settings.host, settings.port, keepalive_s, clean_start=False, properties=connect if is_v5 else None
        )
        self.reconnect()

    def _create_socket(self) -> SocketLike:
        return self._ready_socket

    # Reading

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read all the socket has, up to READ_BYTES, and handle every packet in it."""
        if self._sock is None:
            return MQTTErrorCode.MQTT_ERR_NO_CONN
        try:
            data = self._receive()
        except BlockingIOError:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        except OSError as error:
            return self._end(MQTTErrorCode.MQTT_ERR_CONN_LOST, error.strerror or str(error))
        if not data:
            return self._end(MQTTErrorCode.MQTT_ERR_CONN_LOST, "closed by the broker")
        with self._msgtime_mutex:
            self._last_bytes_received = time.monotonic()
        if self.is_draining:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return self._handle(data)

    def _receive(self) -> bytes:
        data = self._sock_recv(READ_BYTES)
        if not isinstance(self._sock, ssl.SSLSocket):
            return data
        # TLS gives one record at a time, and decrypted bytes inside the library raise no socket event.
        pieces, size_bytes = [data], len(data)
        with contextlib.suppress(BlockingIOError):
            while data and (size_bytes < READ_BYTES or self._sock.pending()):
                data = self._sock_recv(READ_BYTES)
                pieces.append(data)
                size_bytes += len(data)
        return b"".join(pieces)

    def _handle(self, data: bytes) -> MQTTErrorCode:
        publishes: list[Publish] = []
        for packet in self._framer.feed(data):
            if isinstance(packet, Publish):
                publishes.append(packet)
                continue
            self._deliver(publishes)
            publishes = []
            rc = self._hand_over(packet)
            if rc > 0:
                return self._end(rc, f"{rc.name} at a packet of type {packet.command >> 4}")
            if self._sock is None:  # a DISCONNECT ended the link inside paho
                return rc
        self._deliver(publishes)
        if self._framer.fault:
            return self._end(MQTTErrorCode.MQTT_ERR_PROTOCOL, self._framer.fault)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _deliver(self, publishes: list[Publish]) -> None:
        if publishes and self.is_accepted:
            self._events.published(publishes)
        elif publishes:
            self._framer.fault = "a PUBLISH before the CONNACK"

    def _hand_over(self, packet: Packet) -> MQTTErrorCode:
        """Let paho handle a packet that is not a PUBLISH, as if it had read it."""
        self._in_packet = {
            "command": packet.command,
            "have_remaining": 1,
            "remaining_count": [],
            "remaining_mult": 1,
            "remaining_length": len(packet.body),
            "packet": bytearray(packet.body),
            "to_process": 0,
            "pos": 0,
        }
        try:
            return self._packet_handle()
        except MalformedPacket as error:
            self.why = f"a malformed packet of type {packet.command >> 4}: {error}"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def pause(self) -> None:
        """Stop reading; pings go on, and the verdict on their answers is suspended."""
        if not self.is_paused and self._sock is not None:
            self.is_paused = True
            self._event_loop.remove_reader(self._sock.fileno())

    def resume(self) -> None:
        """Read again; the verdict on pings starts anew."""
        if self.is_paused and self._sock is not None:
            self._suspend_verdict()
            self.is_paused = False
            self._event_loop.add_reader(self._sock.fileno(), self._when_readable)

    def loop_misc(self) -> MQTTErrorCode:
        """Ping when due, and end a link whose pings are not answered."""
        if self.is_paused:
            self._suspend_verdict()
        return super().loop_misc()

    def _suspend_verdict(self) -> None:
        self._ping_t = 0.0
        with self._msgtime_mutex:
            self._last_bytes_received = time.monotonic()

    # Writing

    @property
    def can_acknowledge(self) -> bool:
        """Whether acks can still be sent: the link has neither ended nor said goodbye."""
        return self._sock is not None and not self.is_draining

    def acknowledge(self, packet_ids: Sequence[int]) -> list[int]:
        """Note finished deliveries; send in one write the acks that may leave, and return their ids."""
        ready = self.order.finish(packet_ids)
        if ready:
            self._packet_queue(_PUBACK, pubacks(ready), 0, 0)
        return ready

    def subscribe_to(self, filters: Sequence[str]) -> None:
        """Ask for these of the wanted filters."""
        for start in range(0, len(filters), _FILTERS_PER_SUBSCRIBE):
            some = filters[start : start + _FILTERS_PER_SUBSCRIBE]
            _, packet_id = self.subscribe([(name, self._options(name)) for name in some])  # type: ignore[arg-type]
            if packet_id is not None:
                self.subscriptions.asked(packet_id, some)

    def _options(self, name: str) -> SubscribeOptions | int:
        qos = self.subscriptions.wanted[name]
        if self.version != "5":
            return qos
        return SubscribeOptions(
            qos=qos,
            # On a shared subscription No Local is a protocol error.
            noLocal=not name.startswith("$share/"),
            retainAsPublished=True,
            retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND,
        )

    def publish_status(self, status: str) -> bool:
        """Publish the retained status of this node; False when it could not be sent."""
        sent = self.publish(self._settings.status_topic, status, qos=1, retain=True)
        return sent.rc == MQTTErrorCode.MQTT_ERR_SUCCESS

    def finish(self) -> None:
        """Send DISCONNECT behind everything queued, then read and drop until the broker closes."""
        # Not paho's disconnect(), which closes at once: with unread data in the socket the kernel makes that
        # a reset, and a reset can overtake our last acks.
        self._packet_queue(_PUBACK, _DISCONNECT_NORMAL, 0, 0)
        self.is_draining = True
        self.resume()

    def close(self, why: str) -> None:
        """End the link now; nothing happens when it has ended."""
        if self._sock is not None:
            self._end(MQTTErrorCode.MQTT_ERR_CONN_LOST, why)

    def _end(self, rc: MQTTErrorCode, why: str) -> MQTTErrorCode:
        self.why = self.why or why
        return self._loop_rc_handle(rc)

    # paho's callbacks. Those below run under a lock of paho that closing takes too: they never close.

    def _take_connack(
        self, _client: Client, _data: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self.refuses_us = True
            self.refuses_version = reason.value == _UNSUPPORTED_VERSION
            self.why = f"refused: {reason}"
            return
        self.is_accepted = True
        self._events.accepted(flags.session_present, getattr(properties, "SessionExpiryInterval", None))

    def _take_suback(
        self, _client: Client, _data: Any, packet_id: int, reasons: list[ReasonCode], _properties: Properties | None
    ) -> None:
        self.subscriptions.answered(packet_id, [reason.value for reason in reasons])
        self._events.subscribed()

    def _take_unsuback(
        self, _client: Client, _data: Any, _packet_id: int, reasons: list[ReasonCode], _properties: Properties | None
    ) -> None:
        self._events.unsubscribed([reason.value for reason in reasons])

    def _take_end(
        self, _client: Client, _data: Any, flags: DisconnectFlags, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        sender = "the broker disconnected us: " if flags.is_disconnect_packet_from_server else ""
        self.why = self.why or f"{sender}{reason}"

    def _watch_socket(self, _client: Client, _data: Any, sock: SocketLike) -> None:
        self._event_loop.add_reader(sock.fileno(), self._when_readable)

    def _unwatch_socket(self, _client: Client, _data: Any, sock: SocketLike) -> None:
        self._event_loop.remove_reader(sock.fileno())
        self._event_loop.remove_writer(sock.fileno())
        self.ended.set()

    def _watch_writable(self, _client: Client, _data: Any, sock: SocketLike) -> None:
        self._event_loop.add_writer(sock.fileno(), self._when_writable)

    def _unwatch_writable(self, _client: Client, _data: Any, sock: SocketLike) -> None:
        self._event_loop.remove_writer(sock.fileno())

    def _when_readable(self) -> None:
        self._guarded(self.loop_read)

    def _when_writable(self) -> None:
        self._guarded(self.loop_write)

    def _guarded(self, step: Callable[[], MQTTErrorCode]) -> None:
        try:
            step()
        except Exception:  # protocol border: whatever bytes provoke, the link ends and the next one starts clean
            _log.exception("the MQTT link failed")
            self.close("an error of ours")
