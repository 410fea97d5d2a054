"""The lines that the benches send. A number gives the same line each time, with a time of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

BASE_NS = 1_767_225_600_000_000_000
HOUR_NS = 3_600_000_000_000
_STRIDE = 700_001
"""A prime: visits all series of any set in an order that no cache foresees."""
_FIELD_KINDS = ("float", "int", "float", "bool", "float")


@dataclass(frozen=True)
class Shape:
    """What lines look like. The default has 80 bytes a line, four fields, 20 tables and 1,000 series."""

    tables: int = 20
    series: int = 1_000
    fields: int = 4
    string: bytes = b""
    """Content of one more field, as it is written between its quotes."""

    def line(self, number: int, base_ns: int = BASE_NS) -> bytes:
        """One line; one after the other visit the series in a scattered order, all of them before any again."""
        series = number * _STRIDE % self.series
        noise = _noise(number)
        if self.fields == 4:
            fields = (
                f"temp={10 + noise % 9000 / 100:.2f},rpm={1000 + (noise >> 13 & 0x7FF)}i,"
                f"load=0.{100 + (noise >> 24) % 900},ok={'t' if number % 50 else 'f'}"
            )
        else:
            fields = ",".join(_field(place, noise) for place in range(self.fields))
        if self.string:
            fields += f',msg="{self.string.decode()}"'
        time_ns = base_ns + number * 1_000_003 + (noise & 0xFFFF)
        return f"engine{series % self.tables:02d},host=gw-{series:06d} {fields} {time_ns}".encode()

    def lines(self, count: int, first: int = 0, base_ns: int = BASE_NS) -> list[bytes]:
        """Lines one after the other."""
        return [self.line(number, base_ns) for number in range(first, first + count)]

    def bodies(self, count: int, lines: int, first: int = 0, base_ns: int = BASE_NS) -> list[bytes]:
        """`count` lines in payloads of `lines` each."""
        return joined(self.lines(count, first, base_ns), lines)


def joined(lines: list[bytes], count: int) -> list[bytes]:
    """Payloads of `count` lines each."""
    return [b"\n".join(lines[start : start + count]) for start in range(0, len(lines), count)]


def recent_ns() -> int:
    """A time to begin at so that all lines are of the last hours: some peers keep nothing older than a month."""
    return time.time_ns() - 3 * HOUR_NS


def sensor_lines(devices: int, rounds: int, base_ns: int = BASE_NS) -> list[bytes]:
    """What a plant sends: every device every ten seconds, values that drift, a counter, a state that rarely changes.

    Five fields a line; the clock of each device is off by its own few milliseconds.
    """
    walk = [[200 + device % 60, 450 + device % 90, 10_130, 0] for device in range(devices)]
    lines = []
    for turn in range(rounds):
        for device, state in enumerate(walk):
            noise = _noise(turn * devices + device)
            state[0] += (noise & 3) - 1 if noise & 4 else 0
            state[1] += (noise >> 3 & 3) - 1
            state[2] += (noise >> 5 & 3) - 1 if noise & 128 else 0
            state[3] += noise >> 8 & 7
            time_ns = base_ns + turn * 10_000_000_000 + (device * 37 % 1000 + (noise >> 28)) * 1_000_000
            lines.append(
                f"climate,site=plant-{device % 4},device=dev-{device:03d} temperature={state[0] / 10:.1f},"
                f"humidity={state[1] / 10:.1f},pressure={state[2] / 10:.1f},pulses={state[3]}i,"
                f"door={'t' if noise >> 24 == 0 else 'f'} {time_ns}".encode()
            )
    return lines


def _field(place: int, noise: int) -> str:
    number = (noise >> place % 16 & 0xFFFF) + place
    kind = _FIELD_KINDS[place % len(_FIELD_KINDS)]
    if kind == "int":
        return f"v{place}={number}i"
    if kind == "bool":
        return f"v{place}={'t' if number & 1 else 'f'}"
    return f"v{place}={number / 100:.2f}"


def _noise(number: int) -> int:
    """32 bits that look random (the finish of MurmurHash3), so that nothing compresses better than it would."""
    bits = number * 0x85EBCA6B & 0xFFFFFFFF
    bits ^= bits >> 13
    bits = bits * 0xC2B2AE35 & 0xFFFFFFFF
    return bits ^ bits >> 16
