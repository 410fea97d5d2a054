"""WAL files as bytes: the layout is the drawn one, and what an older release wrote is read for ever."""

import struct
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.delivery import ColumnDefinition, DeliveryKey, Kind, TableDefinition
from edge_appliance.core.wal_frame import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    MAX_PAYLOAD_BYTES,
    FileHeader,
    FrameHead,
    FrameType,
    Predecessor,
    decode_head,
    decode_header,
    decode_stored,
    encode_frame,
    encode_header,
    frame_crc,
    padded,
)
from edge_appliance.core.wal_record import (
    GroupRecord,
    LoggedEntry,
    PersistBegin,
    decode_begin,
    decode_end,
    decode_group,
    encode_begin,
    encode_end,
    encode_group,
)
from edge_appliance.core.wal_scan import scan
from edge_appliance.errors import FormatError, NewerFormatError

DATA = Path(__file__).parent.parent / "data"
SALT = 0xA1B2C3D4
HEADER = FileHeader(
    format_version=1,
    node="gw-01",
    incarnation="0badcafe",
    segment_id=7,
    first_sequence=40,
    salt=SALT,
    created_ns=1_764_000_000_123_456_789,
    generation=3,
    previous=Predecessor(6, 12_288, 0xFEEDFACE),
)
GROUP = GroupRecord(
    parser_version=1,
    definitions=[
        TableDefinition(
            "edge",
            "grün",
            (
                ColumnDefinition("device", Kind.TAG),
                ColumnDefinition("f", Kind.FLOAT),
                ColumnDefinition("i", Kind.INT),
                ColumnDefinition("u", Kind.UINT),
                ColumnDefinition("b", Kind.BOOL),
                ColumnDefinition("s", Kind.STRING),
            ),
        )
    ],
    entries=[
        LoggedEntry(
            arrival_ns=1_764_000_000_000_000_001,
            clock_unset=False,
            database="edge",
            precision="ms",
            tags=(("device", "d1"), ("site", "nørd")),
            source="mqtt",
            key=DeliveryKey(4711, bytes(range(16))),
            times_crc=0x01020304,
            spans=[b"gr\xc3\xbcn f=1.5,i=2i,u=3u,b=t 1764000000000", b'gr\xc3\xbcn s="a\nb"'],
        ),
        LoggedEntry(
            arrival_ns=-5,
            clock_unset=True,
            database="other",
            precision="auto",
            tags=(),
            source="http",
            key=None,
            times_crc=0,
            spans=[b"m f=1"],
        ),
    ],
)
ZSTD = pa.Codec("zstd")
LARGE = GroupRecord(
    1, [], [LoggedEntry(1, False, "edge", "ns", (), "mqtt", None, 9, [b"m f=%d" % n]) for n in range(500)]
)


def golden_file():
    """One frame of each type, none compressed."""
    payloads = [
        (FrameType.GROUP, 40, 39, encode_group(GROUP), GROUP.rows),
        (FrameType.PERSIST_BEGIN, 41, 40, encode_begin("edge", "grün", 1_764_000_000_000_000_000), 0),
        (FrameType.PERSIST_END, 42, 41, encode_end(41), 0),
        (FrameType.SEAL, 42, 42, b"", 0),
    ]
    frames = [
        encode_frame(kind, sequence, known, SALT, payload, compress=False, rows=rows)
        for kind, sequence, known, payload, rows in payloads
    ]
    return encode_header(HEADER) + b"".join(frames)


def test_format_1_is_written_as_ever():
    """The same records give the same bytes as in the first release."""
    assert golden_file() == (DATA / "wal_format_1.wal").read_bytes()


def test_format_1_is_read_as_ever():
    """A file of the first release gives its records."""
    data = (DATA / "wal_format_1.wal").read_bytes()
    assert decode_header(data[:BLOCK_BYTES]) == HEADER
    found = scan(data, salt=SALT, first_sequence=40)
    assert found.stop == "end"
    assert [(f.type, f.sequence, f.durable_sequence, f.rows) for f in found.frames] == [
        (FrameType.GROUP, 40, 39, 3),
        (FrameType.PERSIST_BEGIN, 41, 40, 0),
        (FrameType.PERSIST_END, 42, 41, 0),
        (FrameType.SEAL, 42, 42, 0),
    ]
    group, begin, end, seal = (frame.payload for frame in found.frames)
    assert decode_group(group).entries() == GROUP.entries
    assert decode_begin(begin) == PersistBegin("edge", "grün", 1_764_000_000_000_000_000)
    assert decode_end(end) == 41
    assert seal == b""


def test_format_1_compressed_is_read_as_ever():
    """Compressed bytes differ between zlib releases, so they are only read."""
    found = scan((DATA / "wal_format_1_zlib.wal").read_bytes(), salt=SALT, first_sequence=40)
    assert (found.stop, len(found.frames), found.frames[0].length) == ("end", 1, BLOCK_BYTES)
    assert decode_group(found.frames[0].payload).entries() == LARGE.entries


def test_format_2_compressed_is_read_as_ever():
    """Compressed bytes differ between zstd releases, so they are only read."""
    found = scan((DATA / "wal_format_2_zstd.wal").read_bytes(), salt=SALT, first_sequence=40)
    assert (found.stop, len(found.frames), found.frames[0].length) == ("end", 1, BLOCK_BYTES)
    assert decode_group(found.frames[0].payload).entries() == LARGE.entries


def test_file_header_follows_the_drawing():
    """Offsets in the drawing are those in the file."""
    block = encode_header(HEADER)
    assert len(block) == BLOCK_BYTES
    assert block[:8] == b"EDGEWAL\n"
    assert struct.unpack_from("<HHIQQqQQQIHH", block, 8) == (
        *(1, 1, SALT, 7, 40, 1_764_000_000_123_456_789, 3, 6, 12_288, 0xFEEDFACE, 1, 5),
    )
    assert struct.unpack_from("<I", block, 4092) == (zlib.crc32(block[:4092]),)
    assert block[74:87] == b"gw-010badcafe"


def test_frame_follows_the_drawing():
    """Offsets in the drawing are those in the file."""
    frame = encode_frame(FrameType.GROUP, 40, 39, SALT, b"payload", compress=True, rows=3)
    assert len(frame) == BLOCK_BYTES
    assert frame[:8] == b"EDGF\x01\x01\x00\x00"
    assert struct.unpack_from("<IIQQIII", frame, 8) == (7, 7, 40, 39, SALT, zlib.crc32(b"payload"), 3)
    assert frame[44:60] == bytes(16)
    assert struct.unpack_from("<I", frame, 60) == (zlib.crc32(frame[:60]),) == (frame_crc(frame),)
    assert frame[64:71] == b"payload"
    assert not any(frame[71:])


def test_hints_are_skippable_and_rows_are_not():
    """A reader of an earlier release loses no row by skipping."""
    flags = {kind: encode_frame(kind, 1, 0, 0, b"", compress=False)[6] for kind in FrameType}
    assert flags == {
        FrameType.GROUP: 0,
        FrameType.PERSIST_BEGIN: 0,
        FrameType.PERSIST_END: 1,
        FrameType.SEAL: 1,
    }


def test_file_header_without_predecessor_comes_back():
    """The first file of all has none."""
    header = FileHeader(1, "n" * 1000, "", 1, 1, 0, -1, 0, None)
    assert decode_header(encode_header(header)) == header


def test_file_header_refuses_names_that_do_not_fit():
    """A node id is never cut in silence."""
    with pytest.raises(ValueError, match="do not fit"):
        encode_header(FileHeader(1, "n" * 4096, "", 1, 1, 0, 0, 0, None))


def test_file_header_with_any_bit_flipped_is_refused():
    """A flip is a format error, and never a later release, which would refuse the start."""
    block = encode_header(HEADER)
    for bit in range(8 * BLOCK_BYTES):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError) as caught:
            decode_header(bytes(flipped))
        assert not isinstance(caught.value, NewerFormatError)


@given(st.binary(max_size=BLOCK_BYTES))
def test_file_header_of_junk_is_refused(junk):
    """Nothing but a format error comes from any bytes, short ones included."""
    for block in (junk, junk.ljust(BLOCK_BYTES, b"\0"), (b"EDGEWAL\n" + junk).ljust(BLOCK_BYTES, b"\1")):
        with pytest.raises(FormatError):
            decode_header(block)


def test_file_header_of_a_later_release_is_named_so():
    """The start is refused with one sentence that says why."""
    body = bytearray(encode_header(HEADER)[:4092])
    body[8] = FORMAT_VERSION + 1
    block = bytes(body) + struct.pack("<I", zlib.crc32(body))
    with pytest.raises(NewerFormatError, match="newer than this release"):
        decode_header(block)


@pytest.mark.parametrize("field", [70, 72], ids=["node", "incarnation"])
def test_file_header_with_a_checked_but_impossible_length_is_refused(field):
    """A good checksum does not make a length true."""
    body = bytearray(encode_header(HEADER)[:4092])
    body[field : field + 2] = b"\xff\xff"
    with pytest.raises(FormatError):
        decode_header(bytes(body) + struct.pack("<I", zlib.crc32(body)))


@pytest.mark.parametrize(("length", "size"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_padded_rounds_up_to_blocks(length, size):
    """Every frame ends where the next may begin."""
    assert padded(length) == size


def test_compression_is_used_only_when_it_saves_a_block():
    """One block stays raw: compressing it would save nothing."""
    small = encode_frame(FrameType.GROUP, 1, 0, 0, b"a" * (BLOCK_BYTES - 64), compress=True)
    large = encode_frame(FrameType.GROUP, 1, 0, 0, b"a" * (BLOCK_BYTES - 63), compress=True)
    assert (len(small), small[7]) == (BLOCK_BYTES, 0)
    assert (len(large), large[7]) == (BLOCK_BYTES, 2)
    assert len(encode_frame(FrameType.GROUP, 1, 0, 0, b"a" * (BLOCK_BYTES - 63), compress=False)) == 2 * BLOCK_BYTES


@given(st.binary(max_size=200), st.integers(1, 200), st.booleans())
def test_payload_comes_back_as_it_went_in(seed, repeats, compress):
    """Raw or compressed, the same bytes come back."""
    payload = seed * repeats
    frame = encode_frame(FrameType.GROUP, 1, 0, 5, payload, compress=compress)
    head = decode_head(frame[:64])
    assert isinstance(head, FrameHead)
    assert len(frame) == padded(64 + head.stored_bytes)
    assert decode_stored(head, frame[64 : 64 + head.stored_bytes]) == payload


def forged(stored, payload_bytes, codec=1):
    """A frame head with good checksums around a payload that lies about itself."""
    return FrameHead(1, 1, 0, codec, len(stored), payload_bytes, 1, 0, 0, zlib.crc32(stored), 0, 0)


@pytest.mark.parametrize(
    ("stored", "payload_bytes", "codec"),
    [
        (zlib.compress(bytes(1 << 20)), 100, 1),
        (zlib.compress(b"abc"), 4, 1),
        (zlib.compress(b"abc")[:-1], 3, 1),
        (b"no zlib", 3, 1),
        (ZSTD.compress(bytes(1 << 20), asbytes=True), 100, 2),
        (ZSTD.compress(b"abc", asbytes=True), 4, 2),
        (ZSTD.compress(b"abc", asbytes=True)[:-1], 3, 2),
        (b"no zstd", 3, 2),
        (b"abc", 3, 3),
    ],
    ids=[
        *(f"{codec}: {what}" for codec in ("zlib", "zstd") for what in ("bomb", "too short", "cut", "garbage")),
        "unknown codec",
    ],
)
def test_payload_that_lies_about_itself_is_refused(stored, payload_bytes, codec):
    """A good checksum does not make a codec or a size true; a bomb is not inflated."""
    assert decode_stored(forged(stored, payload_bytes, codec), stored) is None


def test_bomb_is_not_inflated():
    """A payload that inflates beyond what it states costs no memory."""
    bomb = zlib.compress(bytes(32 << 20))
    tracemalloc.start()
    assert decode_stored(forged(bomb, 100), bomb) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_payload_above_the_limit_is_refused_by_writer_and_reader():
    """What nobody could hold is neither written nor inflated."""
    with pytest.raises(ValueError, match="above the limit"):
        encode_frame(FrameType.GROUP, 1, 0, 0, bytes(MAX_PAYLOAD_BYTES + 1), compress=False)
    frame = bytearray(encode_frame(FrameType.GROUP, 1, 0, 0, b"x", compress=False))
    frame[12:16] = struct.pack("<I", MAX_PAYLOAD_BYTES + 1)
    frame[60:64] = struct.pack("<I", zlib.crc32(frame[:60]))
    assert decode_head(bytes(frame[:64])) == "payload above the limit"
