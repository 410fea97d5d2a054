"""The parts of paho-mqtt that the link relies on, pinned: a new release of it must pass here before it is taken.

No network: a scripted socket stands for the broker, and paho's own reader for the truth.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import paho.mqtt.client as paho
import pytest

from edge_appliance import mqtt
from edge_appliance.mqtt import Link, LinkEvents
from edge_appliance.mqtt_packets import DUP, QOS1, RETAIN, Publish
from edge_appliance.mqtt_settings import MqttSettings

SETTINGS = MqttSettings("broker", 1883, "edge-1", "gw-01", keepalive_s=10, max_packet_bytes=2000)
CONNACK_5 = b"\x20\x03\x00\x00\x00"
CONNACK_311 = b"\x20\x02\x00\x00"


class _FakeSocket:
    """Gives scripted pieces to `recv`, keeps what is sent; would block when the script is used up."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = deque(pieces)
        self.sent: list[bytes] = []
        self.is_closed = False

    def recv(self, size: int) -> bytes:
        if not self.pieces:
            raise BlockingIOError
        piece = self.pieces.popleft()
        if len(piece) > size:
            self.pieces.appendleft(piece[size:])
        return piece[:size]

    def send(self, data: bytes) -> int:
        self.sent.append(bytes(data))
        return len(data)

    def fileno(self) -> int:
        return 99

    def setblocking(self, flag: bool) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class _FakeLoop:
    """Keeps which descriptors are watched."""

    def __init__(self) -> None:
        self.reading: set[int] = set()
        self.writing: set[int] = set()

    def add_reader(self, fd: int, _callback: object) -> None:
        self.reading.add(fd)

    def remove_reader(self, fd: int) -> None:
        self.reading.discard(fd)

    def add_writer(self, fd: int, _callback: object) -> None:
        self.writing.add(fd)

    def remove_writer(self, fd: int) -> None:
        self.writing.discard(fd)


class _Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class _Wired:
    """A started link over a scripted socket, and a record of what it reported."""

    def __init__(self, *pieces: bytes, version: Any = "5", filters: Sequence[tuple[str, int]] = (("a/+", 1),)) -> None:
        self.record: list[tuple[Any, ...]] = []
        self.socket = _FakeSocket(*pieces)
        self.link = Link(SETTINGS, version, filters)
        self.link.start(
            self.socket,  # type: ignore[arg-type]
            LinkEvents(
                accepted=lambda present, _expiry: self.record.append(("connack", present)),
                published=self.published,
                subscribed=lambda: None,
                unsubscribed=lambda codes: self.record.append(("unsuback", list(codes))),
            ),
        )
        answered = self.link.subscriptions.answered
        self.link.subscriptions.answered = lambda mid, codes: (  # type: ignore[method-assign]
            self.record.append(("suback", mid, list(codes))),
            answered(mid, codes),
        )[1]

    def published(self, publishes: list[Publish]) -> None:
        for flags, topic, packet_id, payload, _ in publishes:
            self.record.append(("message", flags, topic.decode(), packet_id, payload))

    def read_all(self) -> _Wired:
        """Read until the script is used up or the link has ended."""
        while self.socket.pieces and not self.link.ended.is_set():
            self.link.loop_read()
        return self

    @property
    def loop(self) -> _FakeLoop:
        loop = self.link._event_loop
        assert isinstance(loop, _FakeLoop)
        return loop

    def written(self) -> list[bytes]:
        """What one turn of the writer sends, by send call."""
        self.socket.sent.clear()
        self.link.loop_write()
        sent, self.socket.sent = self.socket.sent, []
        return sent


@pytest.fixture(autouse=True)
def _fake_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mqtt, "asyncio", SimpleNamespace(get_running_loop=_FakeLoop, Event=mqtt.asyncio.Event))
    yield


def stock_record(version: Any, stream: bytes) -> list[tuple[Any, ...]]:
    """What paho's own reader reports for a stream."""
    record: list[tuple[Any, ...]] = []
    is_v5 = version == "5"
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        client_id="edge-1",
        clean_session=None if is_v5 else False,
        protocol=paho.MQTTv5 if is_v5 else paho.MQTTv311,
        manual_ack=True,
        reconnect_on_failure=False,
    )
    client.on_connect = lambda _c, _u, flags, _reason, _p: record.append(("connack", flags.session_present))
    client.on_subscribe = lambda _c, _u, mid, reasons, _p: record.append(("suback", mid, [r.value for r in reasons]))
    client.on_unsubscribe = lambda _c, _u, _mid, reasons, _p: record.append(("unsuback", [r.value for r in reasons]))
    client.on_message = lambda _c, _u, m: record.append(
        ("message", m.dup << 3 | m.qos << 1 | m.retain, m.topic, m.mid, bytes(m.payload))
    )
    client._create_socket = lambda: _FakeSocket(stream)  # type: ignore[method-assign]
    client.connect("broker", clean_start=False if is_v5 else paho.MQTT_CLEAN_START_FIRST_ONLY)
    while client._sock is not None and client._sock.pieces:  # type: ignore[attr-defined]
        client.loop_read()
    return record


def frame(command: int, body: bytes) -> bytes:
    """One packet of up to 16,383 bytes."""
    low, high = len(body) & 0x7F, len(body) >> 7
    return bytes([command, low | 0x80, high] if high else [command, low]) + body


def publish(flags: int, topic: bytes, packet_id: int, payload: bytes, properties: bytes | None) -> bytes:
    """One PUBLISH; `properties` with their length, None in 3.1.1."""
    identifier = struct.pack("!H", packet_id) if flags & QOS1 else b""
    return frame(0x30 | flags, struct.pack("!H", len(topic)) + topic + identifier + (properties or b"") + payload)


def stream(version: str) -> bytes:
    """Every packet type that a broker sends to a subscriber."""
    none, some = (b"\x00", b"\x0a\x01\x00\x26\x00\x01k\x00\x02vv") if version == "5" else (None, None)
    codes = b"\x00" if version == "5" else b""
    return b"".join(
        [
            CONNACK_5 if version == "5" else CONNACK_311,
            frame(0x90, b"\x00\x01" + codes + b"\x01"),
            publish(QOS1, b"a/b", 1, b"x v=1", none),
            publish(0, b"a/b", 0, b"x v=2", some),
            frame(0xD0, b""),
            publish(QOS1 | DUP, b"a/c", 0xFFFF, b"y" * 200, some),
            publish(RETAIN, b"a/d", 0, b"", none),
            frame(0xB0, b"\x00\x02" + codes + (b"\x00" if version == "5" else b"")),
            frame(0x40, b"\x00\x09"),
            publish(QOS1, b"a/e", 2, b"last", none),
            frame(0xE0, b"\x8e") if version == "5" else b"",
        ]
    )


def test_version_is_the_pinned_one() -> None:
    """What is private in paho may change in any release: each is checked against this file before it is allowed."""
    assert importlib.metadata.version("paho-mqtt") == "2.2.0"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_sock_recv", ["self", "bufsize"]),
        ("_packet_queue", ["self", "command", "packet", "mid", "qos", "info"]),
        ("_packet_handle", ["self"]),
        ("_loop_rc_handle", ["self", "rc"]),
        ("_create_socket", ["self"]),
        ("loop_read", ["self", "max_packets"]),
        ("loop_write", ["self"]),
        ("loop_misc", ["self"]),
    ],
)
def test_method_has_the_known_signature(name: str, parameters: list[str]) -> None:
    """Overridden and called methods of paho take what we give them."""
    assert list(inspect.signature(getattr(paho.Client, name)).parameters) == parameters


def test_attributes_are_the_known_ones() -> None:
    """The state that the link reads and writes exists with these meanings at the start."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    assert list(client._in_packet) == [
        "command",
        "have_remaining",
        "remaining_count",
        "remaining_mult",
        "remaining_length",
        "packet",
        "to_process",
        "pos",
    ]
    assert (client._ping_t, client._sock) == (0.0, None)
    assert client._last_bytes_received <= time.monotonic()
    assert paho.time_func is time.monotonic
    with client._msgtime_mutex:
        pass


def test_link_hides_nothing_of_paho() -> None:
    """No attribute of the link has the name of one of paho's, but for the methods it replaces."""
    stock = paho.Client(paho.CallbackAPIVersion.VERSION2)
    own = set(vars(_Wired().link)) - set(vars(stock))
    assert not own & set(dir(paho.Client))
    replaced = {name for name in vars(Link) if hasattr(paho.Client, name) and not name.startswith("__")}
    assert replaced == {"_create_socket", "loop_read", "loop_misc"}


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_any_cut_gives_what_the_stock_reader_gives(version: str) -> None:
    """A stream with every packet type, cut anywhere, is reported as paho's own reader reports it."""
    whole = stream(version)
    expected = stock_record(version, whole)
    assert len(expected) == 8
    for cut in range(1, len(whole)):
        assert _Wired(whole[:cut], whole[cut:], version=version).read_all().record == expected, cut


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_byte_by_byte_gives_what_the_stock_reader_gives(version: str) -> None:
    """The smallest reads of all give the same."""
    whole = stream(version)
    pieces = [bytes([byte]) for byte in whole]
    assert _Wired(*pieces, version=version).read_all().record == stock_record(version, whole)


def test_thousand_acks_leave_in_one_send() -> None:
    """The acks of a group are one write, and a broker decodes the same ids from it."""
    messages = b"".join(publish(QOS1, b"a/b", number, b"x", b"\x00") for number in range(1, 1001))
    wired = _Wired(CONNACK_5 + messages).read_all()
    wired.written()
    wired.link.order.took(range(1, 1001))
    assert wired.link.acknowledge(range(1, 1001)) == list(range(1, 1001))
    (sent,) = wired.written()
    assert [packet_id for _, packet_id in struct.iter_unpack("!HH", sent)] == list(range(1, 1001))
    assert set(sent[::4]) == {0x40}


def test_acks_leave_in_receive_order() -> None:
    """A delivery that is not finished holds back the acks behind it."""
    wired = _Wired(CONNACK_5).read_all()
    wired.written()
    wired.link.order.took([1, 2, 3])
    assert wired.link.acknowledge([2, 3]) == []
    assert wired.written() == []
    wired.link.acknowledge([1])
    assert wired.written() == [b"\x40\x02\x00\x01\x40\x02\x00\x02\x40\x02\x00\x03"]


def test_half_a_frame_dies_with_its_connection() -> None:
    """What a connection left unfinished is no part of the next one's stream."""
    message = publish(QOS1, b"a/b", 1, b"x v=1", b"\x00")
    first = _Wired(CONNACK_5 + message[:-3], b"").read_all()
    assert (first.link.ended.is_set(), first.link.why) == (True, "closed by the broker")
    second = _Wired(CONNACK_5 + message).read_all()
    assert (first.record, second.record) == (
        [("connack", False)],
        [("connack", False), ("message", QOS1, "a/b", 1, b"x v=1")],
    )


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        pytest.param(b"\xf0\x00", "packet of type 15", id="unknown-type"),
        pytest.param(b"\x82\x00", "packet of type 8", id="type-only-clients-send"),
        pytest.param(b"\x32\xff\xff\xff\xff\x01", "more than four bytes", id="fifth-length-byte"),
        pytest.param(frame(0x90, bytes(3000)), "type 9 with 3003 bytes", id="oversized"),
        pytest.param(b"\x90\x01\x00", "malformed packet of type 9", id="malformed-suback"),
        pytest.param(b"\xd0\x01\x00", "packet of type 13", id="pingresp-with-a-body"),
        pytest.param(publish(QOS1, b"", 1, b"x", b"\x03\x23\x00\x01"), "without a topic", id="topic-alias"),
    ],
)
def test_broken_stream_ends_the_link_cleanly(broken: bytes, why: str) -> None:
    """The socket is closed and unwatched, nothing is raised, and the reason names the packet."""
    wired = _Wired(CONNACK_5 + broken + publish(QOS1, b"a/b", 1, b"x", b"\x00")).read_all()
    assert (wired.link.ended.is_set(), wired.socket.is_closed) == (True, True)
    assert (wired.loop.reading, wired.loop.writing) == (set(), set())
    assert why in wired.link.why
    assert wired.record == [("connack", False)]


def test_message_before_the_connack_ends_the_link() -> None:
    """Nothing may come before the CONNACK, and such a message is not taken."""
    wired = _Wired(publish(QOS1, b"a/b", 1, b"x", b"\x00") + CONNACK_5).read_all()
    assert ("message", QOS1, "a/b", 1, b"x") not in wired.record
    assert wired.link.why == "a PUBLISH before the CONNACK"


@pytest.mark.parametrize(
    ("connack", "refuses_version"),
    [
        pytest.param(b"\x20\x03\x00\x84\x00", True, id="5-unsupported-version"),
        pytest.param(b"\x20\x02\x00\x01", True, id="311-unsupported-version"),
        pytest.param(b"\x20\x03\x00\x87\x00", False, id="not-authorised"),
    ],
)
def test_refusal_is_told_from_a_refused_version(connack: bytes, refuses_version: bool) -> None:
    """Only a refused version leads to 3.1.1; a broker of 3.1.1 answers in its own format."""
    link = _Wired(connack).read_all().link
    assert (link.ended.is_set(), link.refuses_us, link.refuses_version) == (True, True, refuses_version)


def test_connect_asks_for_a_lasting_session() -> None:
    """CONNECT: clean start off, session expiry, receive maximum, packet size, no aliases, will with a delay."""
    (sent,) = _Wired().written()
    assert sent[2:12] == b"\x00\x04MQTT\x05\x2c\x00\x0a"  # flags: will retain, will QoS 1, will; no clean start
    for field in (
        b"\x11" + struct.pack("!I", 7 * 24 * 3600),
        b"\x21" + struct.pack("!H", 4000),
        b"\x27" + struct.pack("!I", 2000),
        b"\x22\x00\x00",
        b"\x18" + struct.pack("!I", 30),
        b"\x00\x06edge-1",
        b"\x00\x11edge/gw-01/status\x00\x07offline",
    ):
        assert field in sent


def test_subscribe_options() -> None:
    """No replays, retain flags as published, nothing of our own; shared filters without No Local."""
    wired = _Wired(CONNACK_5, filters=[("a/+", 1), ("$share/g/b", 0)]).read_all()
    wired.written()
    wired.link.subscribe_to(["a/+", "$share/g/b"])
    (sent,) = wired.written()
    assert sent.endswith(b"\x00\x03a/+\x2d" + b"\x00\x0a$share/g/b\x28")


def test_subscribe_in_small_packets() -> None:
    """At most eight filters are asked for in one SUBSCRIBE, and each answer finds its own."""
    filters = [(f"a/{number}", 1) for number in range(20)]
    wired = _Wired(CONNACK_5, filters=filters).read_all()
    wired.written()
    wired.link.subscribe_to([name for name, _ in filters])
    assert len(wired.written()) == 3
    wired.socket.pieces.extend(
        frame(0x90, struct.pack("!H", mid) + b"\x00" + b"\x01" * n) for mid, n in ((3, 4), (1, 8))
    )
    wired.read_all()
    assert not wired.link.subscriptions.is_complete
    wired.socket.pieces.append(frame(0x90, b"\x00\x02\x00" + b"\x01" * 8))
    wired.read_all()
    assert wired.link.subscriptions.is_complete


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The clock of paho and of the link."""
    moved = _Clock()
    monkeypatch.setattr(paho, "time_func", moved)
    monkeypatch.setattr(mqtt, "time", SimpleNamespace(monotonic=moved))
    return moved


def test_unanswered_ping_ends_the_link(clock: _Clock) -> None:
    """Without a pause a broker that does not answer for a keep-alive is given up."""
    wired = _Wired(CONNACK_5).read_all()
    wired.written()
    for _ in range(25):
        clock.now_s += 1
        wired.link.loop_misc()
        wired.link.loop_write()
    assert wired.socket.sent == [b"\xc0\x00"]
    assert wired.link.ended.is_set()


def test_pause_keeps_pinging_without_a_verdict(clock: _Clock) -> None:
    """While we do not read, pings go out each keep-alive, and unread answers end nothing; later they do again."""
    wired = _Wired(CONNACK_5).read_all()
    wired.written()
    wired.link.pause()
    assert wired.loop.reading == set()
    for _ in range(105):
        clock.now_s += 1
        wired.link.loop_misc()
        wired.link.loop_write()
    assert wired.socket.sent == [b"\xc0\x00"] * 10
    assert not wired.link.ended.is_set()
    wired.link.resume()
    assert wired.loop.reading == {99}
    for _ in range(9):
        clock.now_s += 1
        wired.link.loop_misc()
    assert not wired.link.ended.is_set()
    for _ in range(16):
        clock.now_s += 1
        wired.link.loop_misc()
    assert wired.link.ended.is_set()


def test_finish_sends_everything_then_reads_on() -> None:
    """Acks, then DISCONNECT without a reason; the socket stays open until the broker closes it."""
    wired = _Wired(CONNACK_5).read_all()
    wired.written()
    wired.link.order.took([1, 2])
    wired.link.pause()
    wired.link.acknowledge([1])
    wired.link.finish()
    assert not wired.link.can_acknowledge
    assert wired.written() == [b"\x40\x02\x00\x01", b"\xe0\x00"]
    assert (wired.socket.is_closed, wired.loop.reading) == (False, {99})
    wired.socket.pieces.extend([publish(QOS1, b"a/b", 3, b"x", b"\x00"), b""])
    wired.read_all()
    assert (wired.socket.is_closed, wired.record) == (True, [("connack", False)])


def test_error_in_our_own_code_ends_the_link(caplog: pytest.LogCaptureFixture) -> None:
    """An exception behind a packet is logged and ends the link: the broker will send the message again."""
    wired = _Wired(CONNACK_5).read_all()

    def fail(_publishes: list[Publish]) -> None:
        raise RuntimeError("a fault of ours")

    wired.link._events = LinkEvents(lambda *_: None, fail, lambda: None, lambda _: None)
    wired.socket.pieces.append(publish(QOS1, b"a/b", 1, b"x", b"\x00"))
    wired.link._when_readable()
    assert (wired.link.ended.is_set(), wired.link.why) == (True, "an error of ours")
    assert "the MQTT link failed" in caplog.text
