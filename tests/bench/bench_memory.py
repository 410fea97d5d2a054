"""Resident memory: of an idle daemon, and at its height while more is written than the buffer may hold."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench_client import post_all
from bench_daemon import WRITE, daemon
from bench_lines import Shape, recent_ns
from bench_table import Bar, Bench

MOST_IDLE = Bar("<=", 130, of="value")
BUFFER_MIB = 64
BUFFER_FACTOR = 1.15
_MIB = 2**20
_SETTLE_S = 3
_SAMPLE_S = 0.05


@dataclass
class Watch:
    """Samples the resident memory of a process in a thread of its own."""

    process: psutil.Process
    highest_mib: float = 0

    def __enter__(self) -> Watch:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.highest_mib = max(self.highest_mib, self.process.memory_info().rss / _MIB)


def memory(bench: Bench) -> None:
    """RSS idle and loaded, once with few series and once with many."""
    loads = (
        ("1,000 series", Shape(), bench.size(2_000_000, 50_000)),
        ("200,000 series", Shape(series=200_000), bench.size(400_000, 50_000)),
    )
    for name, shape, count in loads:
        _loaded(bench, bench.directory / f"memory-{shape.series}", name, shape, count)


def _loaded(bench: Bench, directory: Path, name: str, shape: Shape, count: int) -> None:
    base_ns = recent_ns()
    with daemon(directory, memory={"buffer_limit": f"{BUFFER_MIB}MiB"}) as appliance:
        appliance.start()
        time.sleep(_SETTLE_S)  # what a start leaves behind is given back
        process = psutil.Process(appliance.pid)
        idle_mib = process.memory_info().rss / _MIB
        bench.add(f"RSS, idle, before {name}", idle_mib, "MiB", bar=MOST_IDLE)
        fullest_mib = 0.0
        with Watch(process) as watch:
            for first in range(0, count, 100_000):
                wanted = min(100_000, count - first)
                post_all(appliance.http_port, WRITE, shape.bodies(wanted, 1_000, first, base_ns), connections=8)
                fullest_mib = max(fullest_mib, appliance.metric("buffer_bytes") / _MIB)
        most = Bar("<=", round(idle_mib + BUFFER_FACTOR * BUFFER_MIB, 1), of="value")
        note = f"{count:,} lines, buffer limit {BUFFER_MIB} MiB, seen filled to {fullest_mib:.0f} MiB"
        bench.add(f"RSS, highest under load, {name}", watch.highest_mib, "MiB", bar=most, note=note)
