"""Walk over the frames of a WAL file and tell damage from a torn tail. Pure: the bytes come from a callable.

A record that cannot be read was *torn* by a crash when nothing shows that it had been durable: no valid record behind
it states a durable sequence at or above it, and no successor's header says that the file is durable beyond it. Else
acknowledged rows are *damaged*. Either way the walk goes on at the next block that holds a valid frame, since records
do not depend on each other: one bad record costs at most itself, and a valid one behind a torn one is kept, because
the sync that acknowledged it need not be stated anywhere.

Nothing that a successor's header puts behind the end is ever looked at: after a failed sync it may be the ghost of
records that the disk never took, and they were written again to the successor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from edge_appliance.core.wal_frame import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_VERSION,
    KNOWN_TYPES,
    SKIPPABLE,
    Frame,
    FrameHead,
    FrameType,
    Predecessor,
    decode_head,
    decode_stored,
    padded,
)

ReadAt = Callable[[int, int], bytes | None]
"""(offset, length) → the bytes there, fewer at the end of the file; None when the disk cannot read them."""

Stop = Literal["end", "torn", "damaged"]

_ZEROS: Final = bytes(BLOCK_BYTES)
_UNREADABLE: Final = "unreadable"
_UNKNOWN_VERSION: Final = "unknown version"
_HOLE: Final = "hole"
_NO_CRASH: Final = frozenset({_UNREADABLE, _UNKNOWN_VERSION, _HOLE})
"""Reasons that a crash in the middle of a write does not explain."""


class Damage(NamedTuple):
    """A range of a file without valid records, and what is known of the records that were in it."""

    offset: int
    length: int
    """0 for a hole: the records are missing, not damaged."""
    reason: str
    first_sequence: int | None = None
    """First and last lost sequence; None when unknown, first above last when no record is missing."""
    last_sequence: int | None = None
    rows: int | None = None
    """Lost rows; None when unknown."""
    is_torn: bool = False
    """Whether nothing shows that these records had ever been durable: information, not corruption."""


class Scan(NamedTuple):
    """What a whole file in memory holds."""

    frames: list[Frame]
    damaged: list[Damage]
    """Torn ranges included."""
    valid_end: int
    stop: Stop
    skipped: int
    """Records of types that this release does not know and may skip."""


def scan(
    data: bytes,
    *,
    offset: int = BLOCK_BYTES,
    salt: int,
    first_sequence: int | None = None,
    sealed: Predecessor | None = None,
) -> Scan:
    """All records of a file held in memory; never raises, whatever the bytes are."""
    walk = Walk(
        lambda start, length: data[start : start + length],
        len(data),
        offset=offset,
        salt=salt,
        first_sequence=first_sequence,
        sealed=sealed,
    )
    frames: list[Frame] = []
    damaged: list[Damage] = []
    skipped = 0
    for found in walk:
        if isinstance(found, Damage):
            damaged.append(found)
        elif found.type in KNOWN_TYPES:
            frames.append(found)
        else:
            skipped += 1
    stop: Stop = "end"
    if damaged:
        stop = "torn" if all(damage.is_torn for damage in damaged) else "damaged"
    return Scan(frames, damaged, walk.valid_end, stop, skipped)


def find_salt(read_at: ReadAt, size: int) -> int | None:
    """The salt of a file whose header is damaged: that of its first valid frame; None when it has none."""
    for offset in range(BLOCK_BYTES, size, BLOCK_BYTES):
        head = decode_head(read_at(offset, FRAME_HEADER_BYTES) or b"")
        if isinstance(head, FrameHead):
            stored = read_at(offset + FRAME_HEADER_BYTES, head.stored_bytes)
            if stored is not None and decode_stored(head, stored) is not None:
                return head.salt
    return None


class _Bad(NamedTuple):
    """Why a block does not begin a valid frame; sequence and rows when at least its header is intact."""

    reason: str
    sequence: int | None = None
    rows: int = 0


class _Region:
    """Adjacent blocks without a valid frame."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.reasons: list[str] = []
        self.rows: dict[int, int] = {}
        self.is_blank = True
        self.is_unreadable = False

    def add(self, bad: _Bad, *, is_blank: bool) -> None:
        if not self.reasons:
            self.reasons.append(bad.reason)
        if bad.sequence is not None:
            self.rows[bad.sequence] = bad.rows
        self.is_blank &= is_blank
        self.is_unreadable |= bad.reason == _UNREADABLE

    def damage(self, end: int, first: int | None, last: int | None) -> Damage:
        """The region as damage up to `end`, with the rows when the headers of all lost records are intact."""
        if last is None and self.rows:
            last = max(self.rows)
        if first is None and self.rows:
            first = min(self.rows)
        rows = None
        if first is not None and last is not None:
            lost = range(first, last + 1)
            if len(lost) <= len(self.rows) and all(sequence in self.rows for sequence in lost):
                rows = sum(self.rows[sequence] for sequence in lost)
        reason = self.reasons[0] if self.reasons else "cut short"
        return Damage(self.offset, end - self.offset, _UNREADABLE if self.is_unreadable else reason, first, last, rows)


class Walk:
    """Iterates once over the frames and the damage of one file, in bounded memory.

    Damage that needs a later record as proof comes after that record. `sealed` is what the successor's header says
    of this file; `durable_sequence` is what is known from elsewhere to have been durable.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size: int,
        *,
        salt: int,
        offset: int = BLOCK_BYTES,
        first_sequence: int | None = None,
        sealed: Predecessor | None = None,
        durable_sequence: int = 0,
    ) -> None:
        self._read_at = read_at
        self._size = size
        self._salt = salt
        self._sealed = sealed
        self._durable_sequence = durable_sequence
        self._limit = size if sealed is None else min(size, sealed.durable_length)
        self._pending: list[Damage] = []
        self.valid_end = offset
        """Behind the last valid frame."""
        self.last_crc = 0
        self.last_sequence = None if first_sequence is None else first_sequence - 1
        """Highest sequence met so far; before the first frame the one below the file's first."""

    def __iter__(self) -> Iterator[Frame | Damage]:
        offset = self.valid_end
        region: _Region | None = None
        while offset < self._limit:
            found = self._frame_at(offset)
            if isinstance(found, _Bad):
                region = region or _Region(offset)
                region.add(found, is_blank=self._is_blank(offset))
                offset += BLOCK_BYTES
                continue
            self._note_loss(region, offset, found)
            region = None
            self._durable_sequence = max(self._durable_sequence, found.durable_sequence)
            yield from self._proven()
            self.last_sequence, self.last_crc = found.sequence, found.crc
            self.valid_end = min(offset + found.length, self._limit)
            yield found if _is_readable(found) else _unknown(found)
            offset += found.length
        yield from self._tail(region)

    def _head_at(self, offset: int) -> FrameHead | _Bad:
        head_bytes = self._read_at(offset, min(FRAME_HEADER_BYTES, self._limit - offset))
        if head_bytes is None:
            return _Bad(_UNREADABLE)
        head = decode_head(head_bytes)
        if isinstance(head, str):
            return _Bad(head)
        if head.salt != self._salt:
            return _Bad("content of another file")
        if self.last_sequence is not None and head.sequence <= self.last_sequence - (head.type == FrameType.SEAL):
            return _Bad("sequence runs back")
        if head.version != FRAME_VERSION:
            return _Bad(_UNKNOWN_VERSION, head.sequence, head.rows)
        return head

    def _frame_at(self, offset: int) -> Frame | _Bad:
        head = self._head_at(offset)
        if isinstance(head, _Bad):
            return head
        start = offset + FRAME_HEADER_BYTES
        if start + head.stored_bytes > self._limit:
            return _Bad("cut short", head.sequence, head.rows)
        stored = self._read_at(start, head.stored_bytes)
        if stored is None:
            return _Bad(_UNREADABLE, head.sequence, head.rows)
        payload = decode_stored(head, stored)
        if payload is None:
            return _Bad("payload checksum", head.sequence, head.rows)
        return Frame(
            FrameType(head.type) if head.type in KNOWN_TYPES else head.type,
            head.sequence,
            head.durable_sequence,
            offset,
            padded(FRAME_HEADER_BYTES + head.stored_bytes),
            payload,
            head.crc,
            head.rows,
            head.flags,
        )

    def _is_blank(self, offset: int) -> bool:
        block = self._read_at(offset, min(BLOCK_BYTES, self._limit - offset))
        return block is not None and _ZEROS.startswith(block)

    def _note_loss(self, region: _Region | None, offset: int, frame: Frame) -> None:
        """Remember what lies between the last valid frame and this one, until something tells how bad it is."""
        first = None if self.last_sequence is None else self.last_sequence + 1
        last = frame.sequence - (frame.type != FrameType.SEAL)
        if region is not None:
            self._pending.append(region.damage(offset, first, last))
        elif first is not None and first <= last:
            self._pending.append(Damage(offset, 0, _HOLE, first, last))

    def _tail(self, region: _Region | None) -> Iterator[Damage]:
        """What ends the file: damage when it was sealed beyond it, blank blocks, or what a crash tore."""
        sealed = self._sealed
        end = self._limit if sealed is None else sealed.durable_length
        if region is None and end > self._limit:
            region = _Region(self._limit)
        if region is not None and (sealed is not None or not region.is_blank):
            first = None if self.last_sequence is None else self.last_sequence + 1
            self._pending.append(region.damage(end, first, None))
        elif sealed is not None and sealed.last_crc != self.last_crc:
            self._pending.append(Damage(end, 0, "successor names another last record"))
        yield from self._proven()
        yield from [damage._replace(is_torn=True) for damage in self._pending]

    def _proven(self) -> Iterator[Damage]:
        """Pending damage of which it is certain that it was durable, or that no crash explains it."""
        waiting: list[Damage] = []
        for damage in self._pending:
            is_durable = damage.first_sequence is None or damage.first_sequence <= self._durable_sequence
            if self._sealed is not None or damage.reason in _NO_CRASH or is_durable:
                yield damage
            else:
                waiting.append(damage)
        self._pending = waiting


def _is_readable(frame: Frame) -> bool:
    return isinstance(frame.type, FrameType) or bool(frame.flags & SKIPPABLE)


def _unknown(frame: Frame) -> Damage:
    """A record that only a later release can read, and that must not be skipped: its bytes are kept like damage."""
    return Damage(frame.offset, frame.length, "unknown type", frame.sequence, frame.sequence, frame.rows)
