"""Framing: any cut of a stream gives the same packets; a stream that cannot be read ends with a reason."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance import mqtt_packets
from edge_appliance.mqtt_packets import DUP, KEPT_BYTES, QOS1, RETAIN, Framer, Packet, Publish, pubacks

LIMIT = 1 << 20
COMPILED = mqtt_packets._cut_publishes


@pytest.fixture(params=["python"] + ["compiled"] * (COMPILED is not None), scope="module", autouse=True)
def implementation(request) -> Iterator[None]:
    """Every test here runs with and without the compiled shortcut."""
    mqtt_packets._cut_publishes = COMPILED if request.param == "compiled" else None
    yield
    mqtt_packets._cut_publishes = COMPILED


def length_bytes(number: int) -> bytes:
    """The protocol's variable length."""
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def frame(command: int, body: bytes) -> bytes:
    """One packet."""
    return bytes([command]) + length_bytes(len(body)) + body


def publish(
    topic: bytes = b"a/b",
    payload: bytes = b"x v=1",
    *,
    flags: int = QOS1,
    packet_id: int = 7,
    properties: bytes | None = None,
) -> bytes:
    """One PUBLISH packet; `properties` of MQTT 5, None for 3.1.1."""
    identifier = packet_id.to_bytes(2, "big") if flags & 0x06 else b""
    listed = b"" if properties is None else length_bytes(len(properties)) + properties
    return frame(0x30 | flags, len(topic).to_bytes(2, "big") + topic + identifier + listed + payload)


def framer(*, has_properties: bool = False, limit: int = LIMIT) -> Framer:
    """A fresh framer."""
    return Framer(has_properties=has_properties, max_packet_bytes=limit)


STREAM_5 = b"".join(
    [
        frame(0x20, b"\x00\x00\x00"),
        publish(properties=b""),
        publish(b"dev/1", b"", flags=RETAIN, properties=b""),
        frame(0xD0, b""),
        publish(b"dev/2", b"p" * 300, flags=QOS1 | DUP, packet_id=0xFFFE, properties=b"\x26\x00\x01k\x00\x01v" * 30),
        frame(0x90, b"\x00\x01\x00\x01"),
    ]
)
PACKETS_5 = [
    Packet(0x20, b"\x00\x00\x00"),
    Publish(QOS1, b"a/b", 7, b"x v=1", 0),
    Publish(RETAIN, b"dev/1", 0, b"", 0),
    Packet(0xD0, b""),
    Publish(QOS1 | DUP, b"dev/2", 0xFFFE, b"p" * 300, 0),
    Packet(0x90, b"\x00\x01\x00\x01"),
]


def test_whole_stream() -> None:
    """One read with everything gives every packet, in order, without its properties."""
    assert framer(has_properties=True).feed(STREAM_5) == PACKETS_5


def test_stream_cut_at_every_position() -> None:
    """Where a read ends does not matter."""
    for cut in range(len(STREAM_5) + 1):
        reader = framer(has_properties=True)
        assert reader.feed(STREAM_5[:cut]) + reader.feed(STREAM_5[cut:]) == PACKETS_5, cut


def test_stream_byte_by_byte() -> None:
    """A packet comes out with its last byte and not before."""
    reader = framer(has_properties=True)
    assert [packet for byte in STREAM_5 for packet in reader.feed(bytes([byte]))] == PACKETS_5


def test_large_packet_in_pieces() -> None:
    """A packet with a length of three bytes is joined from many reads."""
    payload = bytes(range(256)) * 400
    stream = publish(payload=payload) + publish(payload=b"next")
    reader = framer()
    got = [packet for start in range(0, len(stream), 1000) for packet in reader.feed(stream[start : start + 1000])]
    assert [payload, b"next"] == [packet.payload for packet in got if isinstance(packet, Publish)]


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 10_000_000])
def test_message_above_the_limit_is_skipped_and_reported(piece_bytes: int) -> None:
    """Its topic, id and first bytes (here 3 of properties) are kept; its neighbours are whole."""
    big = publish(b"dev/big", b"B" * 5000, packet_id=9, properties=b"\x01\x01")
    stream = publish(properties=b"") + big + publish(packet_id=8, properties=b"")
    reader = framer(has_properties=True, limit=1000)
    got = [
        packet
        for start in range(0, len(stream), piece_bytes)
        for packet in reader.feed(stream[start : start + piece_bytes])
    ]
    assert [
        Publish(QOS1, b"a/b", 7, b"x v=1", 0),
        Publish(QOS1, b"dev/big", 9, b"B" * (KEPT_BYTES - 3), len(big)),
        Publish(QOS1, b"a/b", 8, b"x v=1", 0),
    ] == got


def test_message_at_the_limit_is_taken() -> None:
    """The limit counts the whole packet and is itself allowed."""
    whole = publish(payload=b"y" * 990)
    assert framer(limit=len(whole)).feed(whole)[0].skipped_bytes == 0  # type: ignore[union-attr]
    assert len(whole) == framer(limit=len(whole) - 1).feed(whole)[0].skipped_bytes  # type: ignore[union-attr]


def test_skipped_message_is_not_held() -> None:
    """A message of 64 MiB passes through without its bytes being kept."""
    reader = framer()
    head = bytes([0x32]) + length_bytes(64 << 20) + b"\x00\x03a/b\x00\x07"
    piece = b"z" * 65536
    tracemalloc.start()
    try:
        reader.feed(head)
        for _ in range(512):
            reader.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        pytest.param(b"\x30\xff\xff\xff\xff\x01", "more than four bytes", id="fifth-length-byte"),
        pytest.param(frame(0x90, bytes(2000)), "type 9 with 2003 bytes", id="oversized-and-no-publish"),
        pytest.param(publish(flags=0x04), "QoS 2", id="qos-2"),
        pytest.param(publish(flags=0x06), "QoS 2", id="qos-3"),
        pytest.param(publish(packet_id=0), "packet id 0", id="packet-id-0"),
        pytest.param(publish(b""), "without a topic", id="topic-alias"),
        pytest.param(frame(0x32, b"\x00\x09a/b"), "shorter than its parts", id="topic-beyond-the-end"),
        pytest.param(frame(0x32, b"\x00"), "shorter than its parts", id="no-room-for-a-topic"),
        pytest.param(frame(0x32, b""), "shorter than its parts", id="no-body"),
        pytest.param(frame(0x32, b"\x00\x01a\x00"), "shorter than its parts", id="half-a-packet-id"),
    ],
)
def test_stream_that_cannot_be_read_on(stream: bytes, reason: str) -> None:
    """Packets before the fault are returned, the fault has a reason, and nothing behind it is read."""
    for trailing in (b"", publish(packet_id=2)):
        reader = framer(limit=1000)
        assert [Publish(QOS1, b"a/b", 1, b"x v=1", 0)] == reader.feed(publish(packet_id=1) + stream + trailing)
        assert reason in reader.fault
        assert reader.feed(publish(packet_id=3)) == []


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.booleans())
def test_any_bytes_cut_anywhere(stream: bytes, cuts: list[int], has_properties: bool) -> None:
    """No bytes raise anything, and no cut changes what comes out."""
    whole = framer(has_properties=has_properties, limit=100)
    expected = whole.feed(stream)
    reader = framer(has_properties=has_properties, limit=100)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    got = [packet for start, stop in itertools.pairwise(edges) for packet in reader.feed(stream[start:stop])]
    assert (expected, whole.fault) == (got, reader.fault)


def test_pubacks_are_joined_in_order() -> None:
    """Each id gives a four-byte PUBACK, in the order given."""
    assert pubacks([1, 65535, 256]) == b"\x40\x02\x00\x01\x40\x02\xff\xff\x40\x02\x01\x00"
    assert pubacks([]) == b""


pieces = st.one_of(
    st.sampled_from([STREAM_5, publish(), publish(payload=b""), publish(b""), publish(flags=0), publish(flags=4)]),
    st.sampled_from([publish(packet_id=0), publish(properties=b"\x80"), publish(payload=b"p" * 200), b"\x30\x01a"]),
    st.sampled_from([publish(payload=b"p" * 20_000), b"\x30\x80", b"\x32\xff\xff\xff\xff", b"\xc0\x00"]),
    st.binary(max_size=6),
)


@pytest.mark.skipif(COMPILED is None, reason="the shortcut was not built")
@given(st.lists(pieces, max_size=8).map(b"".join), st.lists(st.integers(0, 2_000), max_size=4), st.booleans())
def test_compiled_shortcut_changes_nothing(stream: bytes, cuts: list[int], has_properties: bool) -> None:
    """Packets, faults and what is held are the same with and without it, on any stream in any pieces."""
    seen = []
    for shortcut in (COMPILED, None):
        mqtt_packets._cut_publishes = shortcut
        one = framer(has_properties=has_properties, limit=5_000)
        edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
        seen.append(([one.feed(stream[a:b]) for a, b in itertools.pairwise(edges)], one.fault, one._held_bytes))
    assert seen[0] == seen[1]
