"""What a bench run found: numbers beside those of a peer, with their ratio and their bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HEADING = f"  {'what':<80} {'value':>18}  {'beside':<38} {'ratio':>7}  {'bar':<20} verdict"


@dataclass(frozen=True)
class Bar:
    """What a number should keep; `of` says whether the number itself or its ratio to the peer's."""

    sign: Literal[">=", "<="]
    limit: float
    of: Literal["value", "ratio"] = "ratio"

    def is_kept_by(self, row: Row) -> bool | None:
        """Whether `row` keeps it; None when there is nothing to judge."""
        number = row.value if self.of == "value" else row.ratio
        if number is None:
            return None
        return number >= self.limit if self.sign == ">=" else number <= self.limit

    def __str__(self) -> str:
        limit = f"{self.limit:,.0f}" if self.limit >= 1_000 else f"{self.limit:g}"
        return f"{self.sign} {limit}{'x' if self.of == 'ratio' else ''}"


@dataclass(frozen=True)
class Row:
    """One measured number."""

    item: str
    what: str
    value: float | None
    """None when it was not measured; `note` says why."""
    unit: str
    peer_name: str = ""
    peer: float | None = None
    bar: str = ""
    is_kept: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The number as a multiple of the peer's."""
        return self.value / self.peer if self.value is not None and self.peer else None

    @property
    def brief(self) -> str:
        """The number and its bar only."""
        ratio = "" if self.ratio is None else f", {self.ratio:.2f}x of {self.peer_name}"
        value = "-" if self.value is None else shown(self.value)
        return f"{self.what}: {value} {self.unit}{ratio} (bar {self.bar})"

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{shown(self.value)} {self.unit}"
        peer = "" if self.peer is None else f"{self.peer_name}: {shown(self.peer)}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        verdict = {True: "met", False: "NOT MET", None: ""}[self.is_kept]
        line = f"{self.what:<80} {value:>18}  {peer:<38} {ratio:>7}  {self.bar:<20} {verdict}".rstrip()
        return f"{line}\n      {self.note}" if self.note else line


def shown(number: float) -> str:
    """A number with about three digits that count."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


@dataclass
class Bench:
    """A run: where it may write, how large it is, and what it found."""

    directory: Path
    scale: float
    item: str = ""
    """The one that runs now."""
    rows: list[Row] = field(default_factory=list)

    def size(self, full: int, least: int = 100) -> int:
        """A number of things, scaled."""
        return max(least, int(full * self.scale))

    def add(
        self,
        what: str,
        value: float,
        unit: str,
        *,
        peer: float | None = None,
        peer_name: str = "",
        bar: Bar | None = None,
        note: str = "",
    ) -> Row:
        """Note a number and show it."""
        row = Row(self.item, what, value, unit, peer_name, peer, note=note)
        if bar is not None:
            row = Row(self.item, what, value, unit, peer_name, peer, str(bar), bar.is_kept_by(row), note)
        return self._add(row)

    def judge(self, what: str, value: float, unit: str, bar: str, *, is_kept: bool, note: str = "") -> Row:
        """Note a number whose bar is more than a limit."""
        return self._add(Row(self.item, what, value, unit, bar=bar, is_kept=is_kept, note=note))

    def skip(self, what: str, why: str) -> None:
        """Note that something was not measured."""
        self._add(Row(self.item, what, None, "", note=f"skipped: {why}"))

    def _add(self, row: Row) -> Row:
        self.rows.append(row)
        print(f"  {row}", flush=True)
        return row


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time that `work` takes in this process: on a shared machine the neighbours are in the other one."""
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def quantile(values: list[float], share: float) -> float:
    """The `share` quantile of `values`."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
