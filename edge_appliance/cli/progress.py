"""How far a long command has come: a bar with rate and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Final, Self

from edge_appliance.config_values import size_text
from edge_appliance.health import duration_text

LINE_PERIOD_S: Final = 10.0


class Progress:
    """Progress in bytes of `total`, on stderr; 0 when the total is not known."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._started_s = time.monotonic()
        self._told_s = self._started_s
        self._bar: Any = None
        if sys.stderr.isatty():
            # Here and not above: a terminal library is slow to import.
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                DownloadColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar  # noqa: PLC0415

            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Bar(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
            self._task = self._bar.add_task(what, total=total or None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def reach(self, done: int, note: str = "") -> None:
        """`done` bytes are done; `note` is shown beside."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"{self._what} {note}".rstrip())
        elif time.monotonic() - self._told_s >= LINE_PERIOD_S:
            self._told_s = time.monotonic()
            print(self._line(note), file=sys.stderr)

    def _line(self, note: str) -> str:
        rate = self._done / max(time.monotonic() - self._started_s, 0.001)
        text = f"{self._what} {size_text(self._done)}"
        if self._total:
            left_s = (self._total - self._done) / max(rate, 1.0)
            text += f" of {size_text(self._total)}, {duration_text(left_s)} left"
        return f"{text}, {size_text(int(rate))}/s {note}".rstrip()
