"""Values of the configuration as people write them: sizes, durations, times, paths, addresses, secrets.

A parser takes what TOML gave and returns the value in its base unit, or raises ValueError with a sentence that says
what was expected. `Key` ties one TOML key to its default and parser. No parser opens a file or knows another key.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

Parser = Callable[[object], object]


class Key(NamedTuple):
    """One TOML key: its name, its default as written in TOML, and its parser."""

    name: str
    default: object
    parse: Parser


class Secret:
    """A password or token. It shows its text only on `reveal()`: never in repr, str, format or JSON."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text; hand it straight to who needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __str__(self) -> str:
        return "…"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not pickled or copied")


MAX_TEXT: Final = 4_096
"""Characters: no path or name is longer, and protocols do not take more than 65,535 bytes."""
MAX_SECRET_BYTES: Final = 65_535
"""What MQTT takes as a password."""

_SIZE_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_DURATION_UNITS_NS: Final = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+|%)", re.ASCII)
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse_size(value: object) -> int:
    """Return bytes of `"16MiB"`, `"500 MB"` or 0."""
    expected = 'expected a size with its unit such as "16MiB", "1GiB" or "500MB"'
    number, unit = _quantity(value, expected)
    factor = _SIZE_UNITS.get(unit.upper()) if unit else 1
    if factor is None:
        raise ValueError(f"{expected}; {unit!r} is no unit of size")
    return round(number * factor)


def parse_duration_ns(value: object) -> int:
    """Return nanoseconds of `"30s"`, `"1h"`, `"20 ms"` or 0."""
    expected = 'expected a duration with its unit such as "20ms", "30s", "5m", "1h" or "1d"'
    number, unit = _quantity(value, expected)
    factor = _DURATION_UNITS_NS.get(unit.lower()) if unit else 1
    if factor is None:
        raise ValueError(f"{expected}; {unit!r} is no unit of time")
    return round(number * factor)


def parse_percent(value: object) -> float | None:
    """Return 0.25 of `"25%"`; None when the value is no percentage."""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1]) / 100 if match is not None and match[2] == "%" else None


def parse_time_ns(value: object) -> int:
    """Return nanoseconds since 1970 of an RFC 3339 time with offset, as text or as a TOML date-time."""
    expected = 'expected a time such as "2015-01-01T00:00:00Z"'
    text = value.isoformat() if isinstance(value, datetime.datetime) else value
    match = _RFC_3339.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(expected + _got(value))
    date, time, fraction, offset = match.groups()
    try:
        instant = datetime.datetime.fromisoformat(f"{date}T{time}{offset.upper().replace('Z', '+00:00')}")
    except ValueError as error:
        raise ValueError(f"{expected}; {error}") from None
    whole_s = (instant - _EPOCH) // datetime.timedelta(seconds=1)
    time_ns = whole_s * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
    if not -(2**63) <= time_ns < 2**63:
        raise ValueError(f"{expected}, between 1677 and 2262{_got(value)}")
    return time_ns


def size_text(size_bytes: int) -> str:
    """Return a size for people: `64 MiB`, `1.5 GiB`, `512 B`."""
    amount, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


def time_text(time_ns: int) -> str:
    """Return a time as RFC 3339 in UTC, with a fraction only when there is one."""
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    fraction = f".{rest_ns:09}" if rest_ns else ""
    return (_EPOCH + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"


def _quantity(value: object, expected: str) -> tuple[float, str]:
    """Return (number, unit); the unit is empty for 0 only."""
    if value == 0 and not isinstance(value, bool):
        return 0, ""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(expected + _got(value))
    return float(match[1]), match[2]


def _got(value: object) -> str:
    if isinstance(value, bool):
        return f", got {str(value).lower()}"
    if isinstance(value, str):
        return f", got {value!r}" if value else ", got an empty text"
    if isinstance(value, (int, float)):
        return f", got {value}"
    return f", got {'a table' if isinstance(value, dict) else 'a list' if isinstance(value, list) else value}"


# What sections are declared with. Each returns a parser.


def size(least: str = "0B", most: str = "1024TiB") -> Parser:
    """Bytes within limits."""
    low, high = parse_size(least), parse_size(most)

    def parse(value: object) -> int:
        number = parse_size(value)
        if not low <= number <= high:
            raise ValueError(f"expected {least} to {most}{_got(value)}")
        return number

    return parse


def share_or_size(least: str) -> Parser:
    """Bytes, or a percentage, returned as a float share, which the loader turns into bytes of usable RAM."""

    def parse(value: object) -> int | float:
        share = parse_percent(value)
        if share is None:
            try:
                return int(size(least)(value))  # type: ignore[call-overload, no-any-return]
            except ValueError as error:
                raise ValueError(f'{error} (or a share of usable RAM such as "25%")') from None
        if not 0 < share < 1:
            raise ValueError(f"expected more than 0% and less than 100%{_got(value)}")
        return share

    return parse


def duration_ns(least: str, most: str) -> Parser:
    """Nanoseconds within limits."""
    low, high = parse_duration_ns(least), parse_duration_ns(most)

    def parse(value: object) -> int:
        number = parse_duration_ns(value)
        if not low <= number <= high:
            raise ValueError(f"expected {least} to {most}{_got(value)}")
        return number

    return parse


def duration_s(least: str, most: str) -> Parser:
    """Seconds within limits."""
    parse_ns = duration_ns(least, most)
    return lambda value: parse_ns(value) / 1_000_000_000  # type: ignore[operator]


def whole_seconds(least: str, most: str) -> Parser:
    """Whole seconds within limits, for protocols that know no fractions."""
    parse_ns = duration_ns(least, most)

    def parse(value: object) -> int:
        seconds, rest = divmod(int(parse_ns(value)), 1_000_000_000)  # type: ignore[call-overload]
        if rest:
            raise ValueError(f"expected whole seconds{_got(value)}")
        return int(seconds)

    return parse


def integer(least: int, most: int) -> Parser:
    """A whole number within limits."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least} to {most}{_got(value)}")
        return value

    return parse


def boolean(value: object) -> bool:
    """Return true or false."""
    if value is not True and value is not False:
        raise ValueError(f"expected true or false{_got(value)}")
    return value


def text(value: object) -> str:
    """Return a text without control characters; it may be empty."""
    if not isinstance(value, str) or any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError(f"expected a text in quotes, without control characters{_got(value)}")
    if len(value) > MAX_TEXT:
        raise ValueError(f"expected at most {MAX_TEXT:,} characters, got {len(value):,}")
    return value


def name(pattern: str, expected: str) -> Parser:
    """A text that matches `pattern`; `expected` describes it."""
    compiled = re.compile(pattern, re.ASCII)

    def parse(value: object) -> str:
        if compiled.fullmatch(text(value)) is None:
            raise ValueError(f"expected {expected}{_got(value)}")
        return str(value)

    return parse


def host(value: object) -> str:
    """A host name or address; scheme and port, which many write there, would only be found out by the resolver."""
    # A single colon is a port; an IPv6 address has two at least.
    pattern = r"[^\s:/]{1,255}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[^\s/]{0,200}"
    return str(name(pattern, "a host name or address, without scheme and port")(value))


def one_of(*choices: str) -> Parser:
    """One of a few words."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}{_got(value)}")
        return str(value)

    return parse


def optional(parse: Parser) -> Parser:
    """None for an empty text, else what `parse` makes of the value."""
    return lambda value: None if value == "" else parse(value)


def absolute_path(value: object) -> Path:
    """Return an absolute path: the service runs in another directory than the one who writes the file."""
    path = Path(text(value))
    if not path.is_absolute():
        raise ValueError(f"expected an absolute path{_got(value)}")
    return path


def host_and_port(value: object) -> tuple[str, int]:
    """Return (host, port) of `127.0.0.1:8181` or `[::1]:8181`."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+)):(\d{1,5})", text(value), re.ASCII)
    if match is None or not 1 <= int(match[3]) <= 65_535:
        raise ValueError(f'expected address:port such as "127.0.0.1:8181" or "[::1]:8181"{_got(value)}')
    return match[1] or match[2], int(match[3])


def is_loopback(address: str) -> bool:
    """Whether only this host can reach the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address in ("localhost", "ip6-localhost")
