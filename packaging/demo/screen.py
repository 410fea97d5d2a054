"""The live status line: one line that changes on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

PLAIN_INTERVAL_S: Final = 2.0


def size_text(size_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


class StatusLine:
    """Shows the numbers that say how it goes; use as a context manager."""

    def __init__(self) -> None:
        self._live = Live(Text(""), console=Console(), auto_refresh=False) if sys.stdout.isatty() else None
        self._plain_due_s = 0.0
        self._last: tuple[float, float] | None = None

    def __enter__(self) -> StatusLine:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, metrics: dict[str, float]) -> None:
        """Show the state."""
        now_s = time.monotonic()
        if self._live is not None:
            self._live.update(Text(self._text(metrics, now_s), no_wrap=True, overflow="ellipsis"), refresh=True)
        elif now_s >= self._plain_due_s:
            self._plain_due_s = now_s + PLAIN_INTERVAL_S
            print(self._text(metrics, now_s), flush=True)

    def _text(self, metrics: dict[str, float], now_s: float) -> str:
        lines = metrics["lines_total"]
        then_s, before = self._last or (now_s, lines)
        rate = (lines - before) / (now_s - then_s) if now_s > then_s else 0.0
        self._last = (now_s, lines)
        parts = [
            f"{rate:,.0f} lines/s",
            f"{lines:,.0f} lines durable",
            f"{metrics['acked_total']:,.0f} messages acked",
            f"buffer {size_text(metrics['buffer_bytes'])}",
            f"WAL {size_text(metrics['wal_bytes'])}",
            f"{metrics.get('parts', 0):.0f} parts",
            f"{metrics.get('rejected_lines_total', 0):.0f} rejects",
        ]
        return " · ".join(parts)
