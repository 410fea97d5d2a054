"""Shapes of lines that are hard on memory, and a process of its own that says what they cost.

python memory_shapes.py <shape>      prints payload, accounted and resident bytes, each as growth
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_CHOOSE = random.Random(1)
_TEN_YEARS_S = 10 * 365 * 86_400


def _steady(n: int) -> str:
    return f"m,d=d{n % 100} a={n},b={n / 3:.3f},c={n % 7}i {1_700_000_000_000_000_000 + n}"


def _strings(n: int) -> str:
    return f'm,d=d{n % 100} s="{_CHOOSE.random()}{"x" * 100}" {1_700_000_000_000_000_000 + n}'


def _scattered(n: int) -> str:
    return f"m,d=d{n % 100} a={n} {1_400_000_000_000_000_000 + _CHOOSE.randrange(_TEN_YEARS_S) * 10**9}"


def _sparse(n: int) -> str:
    return f"m,d=d{n % 10} f{n % 1000}={n} {1_700_000_000_000_000_000 + n}"


def _wide(n: int) -> str:
    return "m,d=d1 " + ",".join(f"f{i}={n + i}" for i in range(200)) + f" {1_700_000_000_000_000_000 + n}"


def _huge(n: int) -> str:
    return f'm s="{_CHOOSE.random()}{"x" * 60_000}" {1_700_000_000_000_000_000 + n}'


def _series(n: int) -> str:
    tags = f"device=dev{n},site=s{n % 10},line=l{n % 100},kind=k{n % 5},room=r{n % 50}"
    return f"m,{tags} a={n} {1_700_000_000_000_000_000 + n}"


SHAPES: dict[str, tuple[Callable[[int], str], int, int]] = {
    "steady": (_steady, 200, 2_000),
    "strings": (_strings, 150, 2_000),
    "scattered": (_scattered, 200, 2_000),
    "wide and sparse": (_sparse, 200, 2_000),
    "wide": (_wide, 100, 200),
    "huge strings": (_huge, 60, 20),
    "many series": (_series, 40, 2_000),
}
"""Name to line, groups, and lines of a group."""


def measure(shape: str, directory: Path) -> dict[str, int]:
    """Growth of payload, of the accounts and of the process, behind a fifth of the groups, which warm it up."""
    from core_harness import Core

    from edge_appliance import host

    line, groups, lines = SHAPES[shape]
    core = Core(directory, wal_max_bytes=2**40, horizon_s=0.001)
    payload = resident = accounted = 0
    for group in range(groups):
        if group == groups // 5:
            gc.collect()
            host.release_free_memory()
            payload, resident, accounted = 0, host.rss_bytes(), core.buffer.size_bytes
        body = "\n".join(line(group * lines + n) for n in range(lines)).encode()
        payload += len(body)
        core.commit(core.delivery(body, packet_id=1))
        core.committed.clear()
    gc.collect()
    host.release_free_memory()
    grown = {
        "payload": payload,
        "accounted": core.buffer.size_bytes - accounted,
        "resident": host.rss_bytes() - resident,
    }
    core.abandon()
    return grown


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(sys.argv[1], Path(directory))))
