"""SIGKILL during maintenance: at each single step in a small world, and at any moment of the real process under load.

EDGE_CRASH_KILLS says how often the latter (`make crash N=1000`), EDGE_CRASH_SEED repeats the moments of an earlier run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess, RefusedError
from crash_load import HttpWriter, Lines, Repeating, check
from ports import free_port, wait_until

KILLS = int(os.environ.get("EDGE_CRASH_KILLS") or 12)
SEED = int(os.environ.get("EDGE_CRASH_SEED") or random.SystemRandom().randrange(2**32))
DAY_NS = 86_400 * 10**9
RULES = """
[[database]]
name = "short"
retention = "96h"
"""
SETTINGS: dict[str, dict[str, object]] = {
    "segment": {"max_bytes": "64KiB", "max_age": "1s"},
    "wal": {"min_free": "1MiB", "group_delay": "5ms"},
    "maintain": {"period": "100ms", "merge_stored": "all", "closed_after": "0s", "clock": "trusted"},
}

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_kill_at_each_step_keeps_the_rows_and_leaves_nothing(tmp_path: Path) -> None:
    """Whatever step of retention, merge or deletion is the last one: the same rows, and no file that nobody lists."""
    support = Path(__file__).parent.parent / "support"
    answer = subprocess.run(
        [sys.executable, str(support / "maintain_steps.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(support.parent.parent)},
    )
    assert answer.returncode == 0, answer.stderr
    print(f"{answer.stdout.strip()} kills")
    assert int(answer.stdout) >= 50


class DatedWriter:
    """Writes rows of the last eight days into the database `short`, and books those that were acknowledged."""

    def __init__(self, appliance: ApplianceProcess) -> None:
        self._appliance = appliance
        self._next = 0
        self.today_ns = time.time_ns() // DAY_NS * DAY_NS
        self.acked: set[int] = set()

    def step(self) -> None:
        """Write one payload."""
        numbers = range(self._next, self._next + 16)
        self._next += 16
        lines = "\n".join(f"dated id={n}i {self.today_ns - n % 8 * DAY_NS + n * 1_003}" for n in numbers)
        time.sleep(0.02)
        try:
            self._appliance.write(lines.encode(), database="short", timeout_s=8)
        except (OSError, RefusedError):
            time.sleep(0.05)
            return
        self.acked.update(numbers)

    def check(self) -> None:
        """Rows of the last three days are all there, once; whatever is shown is no older than five."""
        must = {n for n in self.acked.copy() if n % 8 <= 3}
        rows = self._appliance.query_table("SELECT id FROM dated", database="short")["id"].to_pylist()
        assert len(rows) == len(set(rows)), "rows are there twice"
        assert must <= set(rows), f"{len(must - set(rows))} rows are gone before their time"


def parts_by_date(appliance: ApplianceProcess) -> Counter[str]:
    """Files of each table and date in the store."""
    store = appliance.data_dir / "store"
    return Counter(path.parent.relative_to(store).as_posix() for path in store.glob("*/*/date=*/*.parquet"))


def test_kills_during_merges_and_retention_lose_and_double_nothing(tmp_path: Path) -> None:
    """Under load, with merges and retention all the time: each row is there once until its time is over."""
    print(f"seed {SEED}")
    moments = random.Random(SEED)
    with ApplianceProcess(tmp_path, mqtt_port=free_port(), settings=SETTINGS) as appliance:
        appliance.config.write_text(appliance.config.read_text() + RULES)
        writer, dated = HttpWriter(appliance, Lines()), DatedWriter(appliance)
        merges = expired = 0.0
        with Repeating(writer.step, "writer"), Repeating(dated.step, "dated"):
            for number in range(KILLS):
                appliance.start()
                if number % 4 == 3:
                    check(appliance, writer.books.acked.copy, writer.books.sent.copy)
                    dated.check()
                time.sleep(moments.uniform(0.2, 1.5))
                merges += appliance.metric("merges_total")
                expired += appliance.metric("expired_parts_total")
                appliance.kill()
        appliance.start()
        wait_until(lambda: appliance.metric("buffer_bytes") == 0, "all rows are persisted", 30, 0.1)
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        dated.check()
        wait_until(lambda: max(parts_by_date(appliance).values()) <= 4, "few parts are left", 60, 0.2)
        wait_until(lambda: appliance.metric("gone_parts") == 0, "nothing is left to delete", 30, 0.1)
        old = [dated.today_ns // DAY_NS - days for days in (5, 6, 7)]
        assert not [
            name
            for name in parts_by_date(appliance)
            if "dated" in name and name.endswith(tuple(time.strftime("%Y-%m-%d", time.gmtime(d * 86_400)) for d in old))
        ]
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        dated.check()
        assert merges, "no merge came about: the test shows nothing"
        assert expired, "nothing expired: the test shows nothing"
        assert "merge" not in appliance.get("/health").decode()
        assert appliance.stop() == 0
        print(f"{len(writer.books.acked):,} rows, {merges:.0f} merges, {expired:.0f} parts expired")
