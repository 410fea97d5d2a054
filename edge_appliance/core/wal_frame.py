r"""WAL files as bytes: a header block, then frames that each begin on a 4 KiB boundary. Pure.

    file      ┌────────────┬─────────┬─────────┬──
              │ header     │ frame   │ frame   │ …        every box starts on a block of 4,096 bytes
              └────────────┴─────────┴─────────┴──
    header      0  8s   magic "EDGEWAL\n"
                8  u16  format version
               10  u16  kind of checksum: 1 is CRC-32 as in zlib
               12  u32  salt: repeated by each frame, so that what an earlier file left in a block is not taken for one
               16  u64  segment id
               24  u64  first sequence: no record of this file is below it
               32  i64  created, ns since 1970
               40  u64  catalog generation, the newest known
               48  u64  predecessor's segment id         ┐
               56  u64  predecessor's durable length     ├ it ends there, whatever follows; zero when there is none
               64  u32  predecessor's last frame CRC     ┘
               68  u16  1 when there is a predecessor
               70  u16  bytes of the node id, then u16 bytes of the incarnation
               74       node id, incarnation, zeros
             4092  u32  CRC-32 of everything before
    frame       0  4s   magic "EDGF"
                4  u8   version
                5  u8   type
                6  u8   flags: 1 whoever does not know the type may skip it
                7  u8   codec of the payload: 0 raw, 1 zlib (format 1), 2 zstd
                8  u32  payload bytes as stored, then u32 payload bytes as decoded
               16  u64  sequence; a SEAL repeats that of the last record
               24  u64  durable sequence: the highest one known durable when this was written
               32  u32  salt of the file
               36  u32  CRC-32 of the payload as stored
               40  u32  rows in it, so that a loss can be stated without the payload
               44       16 zeros, for later
               60  u32  CRC-32 of the 60 bytes before: a damaged length misleads nobody
               64       payload, zeros up to the next block

A frame fills whole blocks because rewriting a block in part puts what it held at risk. Magic, format version and the
place of the header's CRC are the same in all versions, so that a flipped bit is never taken for a later release.
Numbers are little-endian. An unknown type without flag 1 is never skipped: a release that adds one raises the format.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from edge_appliance.errors import FormatError, NewerFormatError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES: Final = 4096
FORMAT_VERSION: Final = 2
"""2: payloads by zstd, which takes half the time of zlib and a fifth less room."""
FRAME_VERSION: Final = 1
FRAME_HEADER_BYTES: Final = 64
MAX_PAYLOAD_BYTES: Final = 64 << 20
"""Limit of one payload, stored or decoded: what a reader must be able to hold."""

_FILE_MAGIC: Final = b"EDGEWAL\n"
_FRAME_MAGIC: Final = b"EDGF"
_FILE: Final = struct.Struct("<8sHHIQQqQQQIHHH")
_FRAME: Final = struct.Struct("<4sBBBBIIQQIII16x")
_CRC: Final = struct.Struct("<I")
_CRC32: Final = 1
_RAW: Final = 0
_ZLIB: Final = 1
_ZSTD: Final = 2
_ZSTD_LEVEL: Final = 1


class FrameType(enum.IntEnum):
    """What a frame holds. The numbers are stored: never renumber."""

    GROUP = 1
    PERSIST_BEGIN = 2
    PERSIST_END = 3
    SEAL = 4


KNOWN_TYPES: Final = frozenset(FrameType)
SKIPPABLE: Final = 1
_HINTS: Final = frozenset({FrameType.PERSIST_END, FrameType.SEAL})
"""Types that a reader may skip without losing a row."""


class Predecessor(NamedTuple):
    """Where the file before ends: a reader ignores what lies behind `durable_length` and misses what lies before it."""

    segment_id: int
    durable_length: int
    last_crc: int
    """`crc` of its last frame; 0 when it has none."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """First block of a WAL file; the file is readable without any other."""

    format_version: int
    node: str
    incarnation: str
    segment_id: int
    first_sequence: int
    salt: int
    created_ns: int
    generation: int
    previous: Predecessor | None


class Frame(NamedTuple):
    """One record whose checksums were good, with its payload decoded."""

    type: int
    """A FrameType, or the bare number of a type that this release does not know."""
    sequence: int
    durable_sequence: int
    offset: int
    length: int
    """Bytes in the file, padding included."""
    payload: bytes
    crc: int
    """CRC of the frame header; it covers the payload's CRC."""
    rows: int = 0
    flags: int = 0


class FrameHead(NamedTuple):
    """The header of a frame whose own checksum was good; its payload is yet to be read and compared."""

    version: int
    type: int
    flags: int
    codec: int
    stored_bytes: int
    payload_bytes: int
    sequence: int
    durable_sequence: int
    salt: int
    payload_crc: int
    rows: int
    crc: int


def padded(length: int) -> int:
    """`length` rounded up to whole blocks."""
    return -(-length // BLOCK_BYTES) * BLOCK_BYTES


def encode_header(header: FileHeader) -> bytes:
    """The first block of a file."""
    node, incarnation = header.node.encode(), header.incarnation.encode()
    previous = header.previous or Predecessor(0, 0, 0)
    fixed = _FILE.pack(
        _FILE_MAGIC,
        header.format_version,
        _CRC32,
        header.salt,
        header.segment_id,
        header.first_sequence,
        header.created_ns,
        header.generation,
        *previous,
        header.previous is not None,
        len(node),
        len(incarnation),
    )
    body = (fixed + node + incarnation).ljust(BLOCK_BYTES - _CRC.size, b"\0")
    if len(body) > BLOCK_BYTES - _CRC.size:
        raise ValueError("node id and incarnation do not fit in the header of a WAL file")
    return body + _CRC.pack(zlib.crc32(body))


def decode_header(block: bytes) -> FileHeader:
    """Read the first block of a file; raises FormatError, or NewerFormatError when a later release wrote it."""
    what = "WAL file header"
    if len(block) < BLOCK_BYTES:
        raise FormatError(what, len(block), "ends too early")
    body = block[: BLOCK_BYTES - _CRC.size]
    if not body.startswith(_FILE_MAGIC):
        raise FormatError(what, 0, "this is no WAL file")
    if _CRC.unpack_from(block, len(body))[0] != zlib.crc32(body):
        raise FormatError(what, len(body), "checksum does not match")
    _, version, check, salt, segment_id, first, created_ns, generation, *rest = _FILE.unpack_from(body)
    if version > FORMAT_VERSION or check != _CRC32:
        raise NewerFormatError(what, 8, f"format {version}.{check} is newer than this release reads ({FORMAT_VERSION})")
    *previous, has_previous, node_bytes, incarnation_bytes = rest
    text = body[_FILE.size :]
    if node_bytes + incarnation_bytes > len(text):
        raise FormatError(what, _FILE.size, "names are too long")
    try:
        node = text[:node_bytes].decode()
        incarnation = text[node_bytes : node_bytes + incarnation_bytes].decode()
    except UnicodeDecodeError as error:
        raise FormatError(what, _FILE.size, "names are not UTF-8") from error
    return FileHeader(
        format_version=version,
        node=node,
        incarnation=incarnation,
        segment_id=segment_id,
        first_sequence=first,
        salt=salt,
        created_ns=created_ns,
        generation=generation,
        previous=Predecessor(*previous) if has_previous else None,
    )


def encode_frame(
    kind: FrameType,
    sequence: int,
    durable_sequence: int,
    salt: int,
    payload: bytes,
    *,
    compress: bool,
    rows: int = 0,
) -> bytes:
    """One frame with its padding; compressed when asked and when that saves a block."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a WAL record of {len(payload)} bytes is above the limit of {MAX_PAYLOAD_BYTES}")
    codec, stored = _RAW, payload
    raw_bytes = padded(FRAME_HEADER_BYTES + len(payload))
    if compress and raw_bytes > BLOCK_BYTES:
        packed = _zstd().compress(payload, asbytes=True)
        if padded(FRAME_HEADER_BYTES + len(packed)) < raw_bytes:
            codec, stored = _ZSTD, packed
    head = _FRAME.pack(
        _FRAME_MAGIC,
        FRAME_VERSION,
        kind,
        SKIPPABLE if kind in _HINTS else 0,
        codec,
        len(stored),
        len(payload),
        sequence,
        durable_sequence,
        salt,
        zlib.crc32(stored),
        rows,
    )
    length = FRAME_HEADER_BYTES + len(stored)
    return b"".join((head, _CRC.pack(zlib.crc32(head)), stored, bytes(padded(length) - length)))


def frame_crc(frame: bytes) -> int:
    """`crc` of an encoded frame."""
    return int(_CRC.unpack_from(frame, _FRAME.size)[0])


def decode_head(head: bytes) -> FrameHead | str:
    """Read the 64 bytes in front of a payload; a reason when they are no intact frame header."""
    if len(head) < FRAME_HEADER_BYTES:
        return "cut short"
    if not head.startswith(_FRAME_MAGIC):
        return "no frame"
    crc: int = _CRC.unpack_from(head, _FRAME.size)[0]
    if zlib.crc32(head[: _FRAME.size]) != crc:
        return "frame header checksum"
    found = FrameHead._make((*_FRAME.unpack_from(head)[1:], crc))
    if found.stored_bytes > MAX_PAYLOAD_BYTES or found.payload_bytes > MAX_PAYLOAD_BYTES:
        return "payload above the limit"
    return found


def decode_stored(head: FrameHead, stored: bytes) -> bytes | None:
    """The payload of a frame; None when its checksum or its codec does not fit. Nothing unchecked is inflated."""
    if len(stored) != head.stored_bytes or zlib.crc32(stored) != head.payload_crc:
        return None
    if head.codec == _RAW:
        return stored
    # One byte more than stated shows that there would be more, without inflating it.
    inflate = {_ZLIB: _inflate, _ZSTD: _decompress}.get(head.codec)
    payload = inflate(stored, head.payload_bytes + 1) if inflate else None
    return payload if payload is not None and len(payload) == head.payload_bytes else None


def _inflate(stored: bytes, max_bytes: int) -> bytes | None:
    inflater = zlib.decompressobj()
    try:
        payload = inflater.decompress(stored, max_bytes)
    except zlib.error:
        return None
    return payload if inflater.eof else None


@cache
def _zstd() -> pa.Codec:
    import pyarrow as pa  # noqa: PLC0415 - a command that only looks at the log's names starts without it

    return pa.Codec("zstd", _ZSTD_LEVEL)


def _decompress(stored: bytes, max_bytes: int) -> bytes | None:
    import pyarrow as pa  # noqa: PLC0415 - as above

    try:
        payload: bytes = pa.CompressedInputStream(pa.BufferReader(stored), "zstd").read(max_bytes)
    except OSError:
        return None
    return payload
