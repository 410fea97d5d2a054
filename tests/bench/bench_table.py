"""What a bench run found: rows with their bars, printed as a table and kept as files."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One measured number. `bar` is what it should keep, in words; `is_kept` is None without one."""

    item: str
    what: str
    value: str
    bar: str = ""
    is_kept: bool | None = None

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return {True: "ok", False: "BELOW", None: ""}[self.is_kept]


@dataclass
class Bench:
    """A run: where it may write, how large it is, and what it found."""

    directory: Path
    scale: float
    rows: list[Row] = field(default_factory=list)

    def size(self, full: int, least: int = 100) -> int:
        """A number of things, scaled."""
        return max(least, int(full * self.scale))

    def add(self, item: str, what: str, value: str, bar: str = "", is_kept: bool | None = None) -> None:
        """Note a number and show it."""
        row = Row(item, what, value, bar, is_kept)
        self.rows.append(row)
        print(f"  {_line(row)}", flush=True)

    def skip(self, item: str, what: str, why: str) -> None:
        """Note that something was not measured."""
        self.add(item, what, f"skipped: {why}")

    def save(self, results: Path) -> Path:
        """Write the rows as text and JSON; returns the path of the text."""
        results.mkdir(exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        facts = {"when": stamp, "scale": self.scale, **host_facts(self.directory)}
        rows = [asdict(row) for row in self.rows]
        (results / f"{stamp}.json").write_text(json.dumps({"facts": facts, "rows": rows}, indent=2) + "\n")
        text = results / f"{stamp}.txt"
        text.write_text("\n".join([*(f"{k}: {v}" for k, v in facts.items()), "", *map(_line, self.rows)]) + "\n")
        return text


def _line(row: Row) -> str:
    return f"({row.item}) {row.what:<58} {row.value:>24}   {row.bar:<22} {row.verdict}".rstrip()


def host_facts(directory: Path) -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "cpu": f"{os.cpu_count()} x {_cpu_model()}",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "fdatasync of 4 KiB, median": f"{_fsync_ms(directory):.2f} ms",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fsync_ms(directory: Path) -> float:
    path = directory / "sync-probe"
    with path.open("wb", buffering=0) as file:

        def sync() -> None:
            file.write(b"\0" * 4096)
            os.fdatasync(file.fileno())

        times = sorted(seconds(sync) for _ in range(50))
    path.unlink()
    return times[25] * 1000


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def quantile(values: list[float], share: float) -> float:
    """The `share` quantile of `values`."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
