"""Heavy queries beside ingest: the event loop stays quick, and writes are acknowledged all the time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess
from crash_load import Repeating
from fake_broker import FakeBroker

SECONDS = float(os.environ.get("EDGE_SOAK_S") or 15)
ROWS, BODIES = 5_000, 60
BASE_NS = 1_767_225_600_000_000_000
LAG_S, ACK_S = 0.05, 1.0

pytestmark = [
    pytest.mark.skipif("EDGE_SOAK_S" not in os.environ, reason="make soak"),
    pytest.mark.soak,
    pytest.mark.integration,
    pytest.mark.slow,
]


def body(number: int) -> bytes:
    """One HTTP write of ROWS lines."""
    first = number * ROWS
    lines = (
        f'scan,device=d{n % 200} id={n}i,v={n / 4},s="n{n % 1000}" {BASE_NS + n * 1_000_000}'
        for n in range(first, first + ROWS)
    )
    return "\n".join(lines).encode()


def test_four_looping_scans_leave_loop_and_ingest_alone(tmp_path: Path) -> None:
    """With four full scans in a loop, loop lag p99 is below 50 ms and no write waits for a second."""
    settings: dict[str, dict[str, object]] = {"segment": {"max_bytes": "8MiB"}, "memory": {"buffer_limit": "128MiB"}}
    with FakeBroker() as broker, ApplianceProcess(tmp_path, mqtt_port=broker.port, settings=settings) as appliance:
        appliance.start()
        for number in range(BODIES):
            appliance.write(body(number))
        before = appliance.metrics()
        answers: list[int] = []

        def scan() -> None:
            sql = (
                "SELECT device, s, count(*) AS n, avg(v), max(id) FROM scan GROUP BY device, s ORDER BY n DESC LIMIT 5"
            )
            answers.append(len(appliance.query(sql)))

        waits: list[float] = []
        written = 0
        with Repeating(scan, "1"), Repeating(scan, "2"), Repeating(scan, "3"), Repeating(scan, "4"):
            ends_s = time.monotonic() + SECONDS
            while time.monotonic() < ends_s:
                started_s = time.monotonic()
                appliance.write(f"beside v={written} {BASE_NS + written}".encode())
                waits.append(time.monotonic() - started_s)
                written += 1
                time.sleep(0.05)
            after = appliance.metrics()
        lag = quantile(before, after, "loop_lag_seconds", 0.99)
        waits.sort()
        print(
            f"{len(answers)} scans, loop lag p99 {lag} s, {written} writes, p99 {waits[int(0.99 * len(waits))]:.3f} s"
        )
        assert len(answers) > 4
        assert lag <= LAG_S
        assert waits[int(0.99 * len(waits))] < ACK_S


def quantile(before: dict[str, float], after: dict[str, float], name: str, share: float) -> float:
    """Upper bound of the bucket that holds a quantile of what was counted between two readings."""
    wanted = share * (after[f"{name}_count"] - before[f"{name}_count"])
    bounds = [
        (float(key.partition('le="')[2].rstrip('"}')), count - before[key])
        for key, count in after.items()
        if key.startswith(f"{name}_bucket") and "Inf" not in key
    ]
    return next((bound for bound, count in sorted(bounds) if count >= wanted), float("inf"))
