"""The lines that the benches send: five fields, a hundred devices, values with noise as sensors have it."""

from __future__ import annotations

BASE_NS = 1_767_225_600_000_000_000
DEVICES = 100


def line(number: int) -> bytes:
    """One line of about 105 bytes; a number gives the same line each time, and its own time."""
    device, core = number % DEVICES, number // DEVICES % 4
    noise = (number + 1) * 2_654_435_761 >> 7 & 0xFFFF
    swing = noise / 655.36
    return (
        f"cpu,host=gw-{device:02d},core={core} user={12.5 + swing:.2f},system={3.25 + swing / 7:.2f},"
        f"idle={84.2 - swing / 2:.1f},load={number % 8}i,throttled={'t' if number % 50 == 0 else 'f'} "
        f"{BASE_NS + number * 1_000_003 + noise}"
    ).encode()


def body(first: int, count: int) -> bytes:
    """`count` lines in one payload."""
    return b"\n".join(line(number) for number in range(first, first + count))
