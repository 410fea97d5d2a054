"""The lines that the benches send: five fields, a hundred devices, values with noise as sensors have it."""

from __future__ import annotations

BASE_NS = 1_767_225_600_000_000_000
DEVICES = 100


def line(number: int) -> bytes:
    """One line of about 105 bytes; a number gives the same line each time, and its own time."""
    device, core, noise = number % DEVICES, number // DEVICES % 4, _noise(number)
    return (
        f"cpu,host=gw-{device:02d},core={core} user={12.5 + (noise & 0xFFF) / 100:.2f},"
        f"system={3.25 + (noise >> 12 & 0x3FF) / 100:.2f},idle={42 + (noise >> 22) / 20:.1f},"
        f"load={number % 8}i,throttled={'t' if number % 50 == 0 else 'f'} "
        f"{BASE_NS + number * 1_000_003 + (noise & 0xFFFF)}"
    ).encode()


def body(first: int, count: int) -> bytes:
    """`count` lines in one payload."""
    return b"\n".join(line(number) for number in range(first, first + count))


def _noise(number: int) -> int:
    """32 bits that look random (the finish of MurmurHash3), so that nothing compresses better than it would."""
    bits = number * 0x85EBCA6B & 0xFFFFFFFF
    bits ^= bits >> 13
    bits = bits * 0xC2B2AE35 & 0xFFFFFFFF
    return bits ^ bits >> 16
