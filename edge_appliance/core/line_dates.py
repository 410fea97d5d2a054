"""How many UTC dates of a table one delivery may bring: each becomes a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_appliance.core.line_protocol import Line
from edge_appliance.core.parts import DAY_NS

MAX_DATES: Final = 4_096
"""Ten years of days fit."""
TOO_MANY_DATES: Final = f"one delivery may bring {MAX_DATES} dates of a table"


def lines_beyond_dates(lines: Sequence[Line]) -> list[Line]:
    """Lines that bring a table more than MAX_DATES dates."""
    if len(lines) <= MAX_DATES:
        return []
    dates: dict[str, set[int]] = {}
    beyond = []
    for line in lines:
        seen = dates.setdefault(line.head.measurement, set())
        day = line.time_ns // DAY_NS
        if day in seen or len(seen) < MAX_DATES:
            seen.add(day)
        else:
            beyond.append(line)
    return beyond
