r"""From a payload to its lines, and from raw text to names: everything about line protocol that needs no meaning.

Two facts carry this module. A backslash takes the next byte with it unless that is an LF, so whether a byte is
free depends on nothing but the backslashes directly before it. And a taken byte never structures anything. So one
pass that blanks every taken separator (`mask`) leaves a text of the same length in which each separator found is a
free one: all further reading is plain searching, in time linear in the size of the payload.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MAX_PARTS: Final = 10_000
"""Tags of a line, and its fields. No table has so many columns; each one costs far more memory than its bytes."""
SAMPLE_BYTES: Final = 200
"""What a reject record shows of its line: enough to recognise the device, too little to fill a disk."""

_BLANKS: Final = re.compile(rb"[ \t]*")


def clean(payload: bytes) -> bytes:
    """The payload without one byte-order mark at its start and without the NULs at its end."""
    return payload.removeprefix(BYTE_ORDER_MARK).rstrip(b"\0")


def invalid_at(text: bytes) -> int:
    """Offset of the first byte that is not strict UTF-8, or -1."""
    if text.isascii():
        return -1
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


def mask(text: bytes) -> bytes:
    """`text` with every taken backslash, comma, space, `=` and quote blanked: same length, only free ones left.

    TAB, CR, NUL and LF keep their place: they mean the same behind a backslash.
    """
    if b"\\" not in text:
        return text
    # Pairs go first and from the left, as reading does: what is left of a run is one backslash or none.
    text = text.replace(b"\\\\", b"..")
    return text.replace(b"\\,", b"..").replace(b"\\ ", b"..").replace(b"\\=", b"..").replace(b'\\"', b"..")


def split(text: bytes) -> Iterable[tuple[int, bytes]]:
    """Each line with the physical line it starts on, untrimmed; blank and comment lines are among them.

    A line is a physical line, except that an LF inside a quoted string does not end it.
    """
    if b'="' not in text:
        return enumerate(text.split(b"\n"), 1)
    return _split_quoted(text)


def _split_quoted(text: bytes) -> Iterator[tuple[int, bytes]]:
    masked = mask(text)
    number, start = 1, 0
    while start <= len(text):
        end = _line_end(masked, start)
        yield number, text[start:end]
        number += 1 + text.count(b"\n", start, end)
        start = end + 1


def _line_end(masked: bytes, start: int) -> int:
    """Where the line that starts at `start` ends: an LF outside strings, or the end of the payload.

    Behind the head a quote directly after `=` opens a string. A string that nothing closes costs only the
    physical line it opens on; this can happen once in a payload, as no free quote is left behind it.
    """
    end = masked.find(b"\n", start)
    end = len(masked) if end < 0 else end
    first = _end(_BLANKS, masked, start)
    if masked.startswith(b"#", first):
        return end
    at = masked.find(b" ", first, end)
    while at >= 0:
        at = masked.find(b'="', at, end)
        if at < 0:
            break
        close = masked.find(b'"', at + 2)
        if close < 0:
            break
        if close > end:
            end = masked.find(b"\n", close)
            end = len(masked) if end < 0 else end
        at = close + 1
    return end


def trim(raw: bytes) -> tuple[bytes, int]:
    """The line without blanks around it and without one CR at its end; and how many bytes went from its start."""
    line = raw.removesuffix(b"\r").rstrip(b" \t")
    start = _end(_BLANKS, line, 0)
    return line[start:], start


def sample(span: bytes) -> bytes:
    """The first 200 bytes of a line, cut back to a whole character."""
    if len(span) <= SAMPLE_BYTES:
        return span
    cut = SAMPLE_BYTES
    # At most three steps in UTF-8; bounded because the text may be something else.
    while cut > SAMPLE_BYTES - 3 and span[cut] & 0xC0 == 0x80:
        cut -= 1
    return span[:cut]


def unescape_measurement(raw: bytes) -> str:
    r"""Measurement name as stored: `\,` `\␣` and `\\` lose their backslash, every other backslash stays.

    No text to unescape holds a NUL, which a line may not have: it stands in for a backslash of a pair.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"\0").replace(b"\\,", b",").replace(b"\\ ", b" ").replace(b"\0", b"\\")
    return raw.decode()


def unescape_key(raw: bytes) -> str:
    r"""Tag key, tag value or field key as stored: like a measurement, and `\=` too."""
    if b"\\" in raw:
        # The pairs must be out of the way, or the second backslash of one would take the `=` behind it.
        raw = raw.replace(b"\\\\", b"\0").replace(b"\\,", b",").replace(b"\\ ", b" ").replace(b"\\=", b"=")
        raw = raw.replace(b"\0", b"\\")
    return raw.decode()


def unescape_string(raw: bytes) -> str:
    r"""String value as stored: `\"` and `\\` lose their backslash, every other backslash stays."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"\0").replace(b'\\"', b'"').replace(b"\0", b"\\")
    return raw.decode()


def _end(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    """Where the run that `pattern` describes ends; such a pattern matches everywhere, if only nothing."""
    match = pattern.match(text, start)
    return start if match is None else match.end()
