"""A gateway with 512 MiB that gets twice what its store can take: nothing is lost, nothing is killed.

EDGE_SOAK_S says for how long (`make soak FOR=600`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess, RefusedError
from cgroup import MemoryGroup, peak_rss_bytes
from crash_load import Repeating
from fake_broker import FakeBroker
from ports import wait_until

SECONDS = float(os.environ.get("EDGE_SOAK_S") or 30)
MIB = 2**20
LIMIT = 512 * MIB
BUFFER = 128 * MIB
LINES_PER_BODY = 500
NUMBERS_PER_QUERY = 500_000
TEXT = "x" * 300
SLOW_STORE_S = 8
"""So long takes the sync of each job, which frees some 30 to 60 MiB: about 5 MiB a second."""
BASE_NS = 1_767_225_600_000_000_000
LINES: dict[str, Callable[[int], str]] = {
    "text": lambda n: f'flood,device=d{n % 50} id={n}i,v={n / 4},s="{n}{TEXT}" {BASE_NS + n * 1_000_000}',
    "series": lambda n: f"flood,device=unique{n} id={n}i {BASE_NS + n * 1_000_000}",
}
"""Long values of few series, and a flood of series: tags that no other line has."""
ONLY_SOAK = pytest.mark.skipif("EDGE_SOAK_S" not in os.environ, reason="make soak")

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.slow]


class Flood:
    """HTTP writes as fast as they are taken; refused ones are sent again."""

    def __init__(self, appliance: ApplianceProcess, shape: str) -> None:
        self._line = LINES[shape]
        self.acked = 0
        self.refused = 0
        self._appliance = appliance
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def step(self) -> None:
        """Write one body until it is acknowledged."""
        body = next(self._numbers)
        first = body * LINES_PER_BODY
        lines = "\n".join(map(self._line, range(first, first + LINES_PER_BODY))).encode()
        while True:
            try:
                self._appliance.write(lines, timeout_s=30)
                break
            except RefusedError as error:
                assert error.status == 503, error
                with self._lock:
                    self.refused += 1
                time.sleep(0.1)
        with self._lock:
            self.acked += LINES_PER_BODY


class Gauge:
    """Samples of what the appliance says about itself."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        self._appliance = appliance
        self.samples: list[tuple[float, dict[str, float]]] = []

    def step(self) -> None:
        """Take one."""
        self.samples.append((time.monotonic(), self._appliance.metrics()))
        time.sleep(0.1)

    def slowest_resume_s(self, limit: int) -> float:
        """Longest time from room in a buffer that was full to the next lines."""
        slowest, is_full, room_since, lines = 0.0, False, None, 0.0
        for now, metrics in self.samples:
            if metrics["lines_total"] > lines and room_since is not None:
                slowest, room_since = max(slowest, now - room_since), None
            lines = metrics["lines_total"]
            if metrics["buffer_bytes"] >= limit:
                is_full, room_since = True, None
            elif is_full and metrics["buffer_bytes"] < 0.9 * limit:
                is_full, room_since = False, now
        return slowest


@pytest.mark.parametrize("shape", ["text", pytest.param("series", marks=ONLY_SOAK)])
def test_flood_beyond_the_store_on_a_small_machine(tmp_path: Path, shape: str) -> None:
    """RSS stays below the control group's limit, acks stop and go, and each acknowledged line is there once."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    settings: dict[str, dict[str, object]] = {
        "memory": {"buffer_limit": f"{BUFFER // MIB}MiB"},
        "query": {"memory_limit": "64MiB"},
        "wal": {"max_bytes": "4GiB", "min_free": "16MiB"},
        "mqtt": {"receive_maximum": 100},
    }
    with (
        MemoryGroup(LIMIT) as group,
        FakeBroker() as broker,
        ApplianceProcess(tmp_path, mqtt_port=broker.port, settings=settings) as appliance,
    ):
        appliance.wrapper = [
            *group.wrapper,
            *(strace, "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fsync"),
            *("-e", f"inject=fsync:delay_enter={SLOW_STORE_S * 1_000_000}"),
            *("-P", str(appliance.data_dir / "spool")),
        ]
        appliance.start(timeout_s=120)
        flood, gauge = Flood(appliance, shape), Gauge(appliance)
        with (
            Repeating(flood.step, "writer 1"),
            Repeating(flood.step, "writer 2"),
            Repeating(flood.step, "writer 3"),
            Repeating(gauge.step, "gauge"),
        ):
            ends_s = time.monotonic() + SECONDS
            while time.monotonic() < ends_s:
                assert appliance.is_running, appliance.log_tail()
                time.sleep(0.5)
        metrics = appliance.metrics()
        pid = next(int(p) for p in (group.path / "cgroup.procs").read_text().split() if _is_daemon(int(p)))
        peak = peak_rss_bytes(pid)
        print(
            f"{flood.acked:,} lines, {flood.refused} refusals, peak RSS {peak / MIB:.0f} MiB, "
            f"buffer at most {max(m['buffer_bytes'] for _, m in gauge.samples) / MIB:.0f} MiB, "
            f"cool-down {metrics['cool_down_seconds_total']:.1f} s in {metrics['cool_downs_total']:.0f}, "
            f"set-asides {metrics['set_asides_total']:.0f}, slowest resume {gauge.slowest_resume_s(BUFFER):.1f} s, "
            f"loop lag p99 {_quantile(metrics, 'loop_lag_seconds', 0.99):.3f} s"
        )
        assert group.kills == 0
        assert peak < LIMIT
        assert metrics["cool_downs_total"] > 0, "the load was too small to show anything"
        assert max(m["buffer_bytes"] for _, m in gauge.samples) < BUFFER + 16 * MIB
        assert gauge.slowest_resume_s(BUFFER) < 2
        wait_until(lambda: _found(appliance) == (flood.acked, flood.acked), "each line is there once", timeout_s=90)


def _found(appliance: ApplianceProcess) -> tuple[int, int] | None:
    """Rows and different numbers; None while there is no memory for queries, which what is persisted takes as well."""
    try:
        return _count(appliance)
    except RefusedError as error:
        if error.status != 503:
            raise
        return None


def _count(appliance: ApplianceProcess) -> tuple[int, int]:
    """The same, asked for in pieces, since the pool for queries is small here."""
    rows = ids = 0
    (last,) = appliance.query("SELECT max(id) AS id FROM flood")
    for first in range(0, last["id"] + 1, NUMBERS_PER_QUERY):
        lo, hi = (f"to_timestamp_nanos({BASE_NS + n * 1_000_000})" for n in (first, first + NUMBERS_PER_QUERY))
        sql = f"SELECT count(*) AS rows, count(DISTINCT id) AS ids FROM flood WHERE time >= {lo} AND time < {hi}"
        (found,) = appliance.query(sql)
        rows, ids = rows + found["rows"], ids + found["ids"]
    return rows, ids


def _is_daemon(pid: int) -> bool:
    return (
        b"edge_appliance" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and b"strace" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    )


def _quantile(metrics: dict[str, float], name: str, share: float) -> float:
    """Upper bound of the bucket that holds a quantile of a histogram."""
    wanted = share * metrics[f"{name}_count"]
    bounds = [
        (float(key.partition('le="')[2].rstrip('"}')), count)
        for key, count in metrics.items()
        if key.startswith(f"{name}_bucket") and "Inf" not in key
    ]
    return next((bound for bound, count in sorted(bounds) if count >= wanted), float("inf"))
