"""A log ten times as large as memory, on a machine that would kill whoever tried to load it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess
from cgroup import MemoryGroup
from fake_broker import FakeBroker
from ports import wait_until

MIB = 2**20
BUFFER = 16 * MIB
OVERHEAD = 260 * MIB
"""Interpreter, libraries, one worker's slice, and the pages of files being written."""
LINES, BODIES = 2_000, 260
TEXT = "y" * 300
BASE_NS = 1_767_225_600_000_000_000

pytestmark = [
    pytest.mark.skipif("EDGE_SOAK_S" not in os.environ, reason="make soak"),
    pytest.mark.soak,
    pytest.mark.crash,
    pytest.mark.integration,
    pytest.mark.slow,
]


def body(number: int) -> bytes:
    """One HTTP write of LINES lines."""
    first = number * LINES
    lines = (f'log,device=d{n % 50} id={n}i,s="{n}{TEXT}" {BASE_NS + n}' for n in range(first, first + LINES))
    return "\n".join(lines).encode()


def test_log_of_ten_times_memory_is_replayed_over_kills(tmp_path: Path) -> None:
    """Under a hard limit of buffer and overhead, with kills in the middle, each start gets on, and no row is lost."""
    large: dict[str, dict[str, object]] = {
        "memory": {"buffer_limit": "2GiB"},
        "segment": {"max_bytes": "1GiB"},
        "wal": {"max_bytes": "4GiB"},
    }
    small: dict[str, dict[str, object]] = {
        "memory": {"buffer_limit": f"{BUFFER // MIB}MiB"},
        "query": {"memory_limit": "32MiB"},
        "segment": {"max_bytes": "8MiB"},
        "wal": {"max_bytes": "4GiB"},
    }
    data_dir = tmp_path / "data"
    with (
        FakeBroker() as broker,
        ApplianceProcess(tmp_path / "1", mqtt_port=broker.port, settings=large, data_dir=data_dir) as appliance,
    ):
        appliance.start()
        for number in range(BODIES):
            appliance.write(body(number))
        metrics = appliance.metrics()
        assert metrics["buffer_bytes"] > 9 * BUFFER
        assert metrics['parts{state="stored"}'] == 0
        appliance.kill()
    with (
        MemoryGroup(BUFFER + OVERHEAD) as group,
        FakeBroker() as broker,
        ApplianceProcess(tmp_path / "2", mqtt_port=broker.port, settings=small, data_dir=data_dir) as appliance,
    ):
        appliance.wrapper = group.wrapper
        for _ in range(2):
            appliance.launch()
            # Until a part is there: far enough to have got on, and not yet done.
            wait_until(lambda: any((data_dir / "spool").glob("*.parquet")), "rows are persisted", timeout_s=60)
            time.sleep(0.3)
            appliance.kill()
        appliance.start(timeout_s=120)
        left = appliance.metric("replay_lines")
        assert group.kills == 0
        assert left < LINES * BODIES, "the last start did not begin from zero"
        (row,) = appliance.query("SELECT count(*) AS rows, count(DISTINCT id) AS ids, sum(id) AS total FROM log")
        count = LINES * BODIES
        assert row == {"rows": count, "ids": count, "total": count * (count - 1) // 2}
        print(f"{left:,.0f} of {count:,} lines were left to the last start")
