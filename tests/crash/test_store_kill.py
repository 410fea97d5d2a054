"""SIGKILL while parts go to S3 over a faulty network and merge there: each row is in the bucket once, none is lost.

EDGE_CRASH_KILLS says how often (`make crash N=1000`), EDGE_CRASH_SEED repeats the moments of an earlier run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess
from bucket import download, numbers
from crash_load import HttpWriter, Lines, Repeating, check
from fault_proxy import Fault, FaultProxy
from object_stores import SeaweedFS, store_keys
from ports import free_port, wait_until

KILLS = int(os.environ.get("EDGE_CRASH_KILLS") or 12)
SEED = int(os.environ.get("EDGE_CRASH_SEED") or random.SystemRandom().randrange(2**32))
FAULTS: tuple[Fault, ...] = ("none", "none", "drop answer", "503", "away", "hang", "slow")

pytestmark = [pytest.mark.crash, pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """One server for the module; each test has a prefix of its own."""
    with SeaweedFS(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


def daemon(tmp_path: Path, port: int, **store: object) -> ApplianceProcess:
    """An appliance that ships to S3 on `port`, in many small parts."""
    settings: dict[str, dict[str, object]] = {
        "store": store_keys(tmp_path, port, prefix=tmp_path.name, **{"retries": 1, "timeout": "2s", **store}),
        "segment": {"max_bytes": "64KiB", "max_age": "1s"},
        "wal": {"min_free": "1MiB", "group_delay": "5ms"},
        "maintain": {"period": "100ms", "merge_stored": "all", "closed_after": "0s"},
    }
    return ApplianceProcess(tmp_path / "appliance", mqtt_port=free_port(), settings=settings)


def is_drained(appliance: ApplianceProcess) -> bool:
    """Whether the store has everything, and nothing is in memory any more."""
    metrics = appliance.metrics()
    return metrics['parts{state="spooled"}'] == metrics["buffer_bytes"] == metrics["gone_parts"] == 0


def is_settled(appliance: ApplianceProcess) -> bool:
    """Whether it is drained and stays so for a while, without another merge."""
    merges = appliance.metric("merges_total")
    if not is_drained(appliance):
        return False
    time.sleep(0.7)
    return is_drained(appliance) and appliance.metric("merges_total") == merges


def wait_drained(appliance: ApplianceProcess) -> None:
    """Wait until an outsider would find everything in the store."""
    wait_until(lambda: appliance.metric("buffer_bytes") == 0, "all rows are persisted", 30, 0.1)
    wait_until(lambda: is_settled(appliance), "the store has everything", 60, 0.1)


def assert_bucket_holds(seaweed: SeaweedFS, tmp_path: Path, writer: HttpWriter) -> int:
    """Acked ⊆ rows in the bucket ⊆ sent, and no row twice, neither in one file nor in two; returns the files."""
    target = tmp_path / "bucket"
    keys = download(seaweed.client(), tmp_path.name, target)
    for table in ("timed", "untimed"):
        found = numbers(target, table)
        assert len(found) == len(set(found)), f"{len(found) - len(set(found))} rows of {table} are there twice"
        assert set(found) <= writer.books.sent
    everything = set(numbers(target, "timed")) | set(numbers(target, "untimed"))
    assert writer.books.acked <= everything, f"{len(writer.books.acked - everything)} acknowledged rows are missing"
    return len(keys)


def test_kills_during_uploads_lose_and_double_nothing(tmp_path: Path, seaweed: SeaweedFS) -> None:
    """Whatever the network does and whenever the process dies, each acknowledged row is in the bucket exactly once."""
    print(f"seed {SEED}")
    moments = random.Random(SEED)
    with FaultProxy(seaweed.port) as proxy, daemon(tmp_path, proxy.port) as appliance:
        writer = HttpWriter(appliance, Lines())
        uploaded = merges = 0.0
        with Repeating(writer.step, "writer"):
            for _ in range(KILLS):
                appliance.start()
                for _ in range(moments.randrange(1, 4)):
                    proxy.become(moments.choice(FAULTS))
                    time.sleep(moments.uniform(0.05, 0.7))
                uploaded += appliance.metric("uploaded_parts_total")
                merges += appliance.metric("merges_total")
                appliance.kill()
        proxy.become("none")
        appliance.start()
        wait_drained(appliance)
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        assert appliance.metric("wal_damaged_records_total") == 0
        assert appliance.stop() == 0
        assert merges, "no kill hit a time of merges: the test shows nothing"
        assert uploaded, "no kill hit a time of uploads: the test shows nothing"
        files = assert_bucket_holds(seaweed, tmp_path, writer)
        print(f"{len(writer.books.acked):,} rows in {files} files, {proxy.dropped_answers} answers lost")


def test_outage_costs_disk_and_heals_by_itself(tmp_path: Path, seaweed: SeaweedFS) -> None:
    """Without the store, from the start on: ready, acknowledged, queried, named with its length; then it drains."""
    with FaultProxy(seaweed.port) as proxy, daemon(tmp_path, proxy.port) as appliance:
        proxy.become("away")
        appliance.start()
        writer = HttpWriter(appliance, Lines(), pause_s=0.001)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            assert writer.step(), "a write is refused only because the store is away"
        wait_until(lambda: b"wait for the store" in appliance.get("/health"), "the outage is named")
        assert b"(for " in appliance.get("/health")
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        assert appliance.metric("store_away_seconds") > 0
        assert appliance.metric("spool_bytes") > 0
        proxy.become("none")
        wait_drained(appliance)
        assert b"wait for the store" not in appliance.get("/health")
        assert appliance.stop() == 0
    assert_bucket_holds(seaweed, tmp_path, writer)


def test_full_spool_stops_acknowledging_and_goes_on(tmp_path: Path, seaweed: SeaweedFS) -> None:
    """At spool.max_bytes nothing is acknowledged, by name; queries work; with the store back it takes writes again."""
    with FaultProxy(seaweed.port) as proxy, daemon(tmp_path, proxy.port) as appliance:
        appliance.config.write_text(appliance.config.read_text() + '[spool]\nmax_bytes = "64KiB"\n')
        proxy.become("away")
        appliance.start()
        writer = HttpWriter(appliance, Lines(), pause_s=0)
        wait_until(lambda: not writer.step(), "writes are refused", timeout_s=60, pause_s=0)
        assert b"spool is full" in appliance.get("/api/v1/status")
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        proxy.become("none")
        wait_until(writer.step, "writes are taken again", timeout_s=90)
        wait_drained(appliance)
        assert appliance.stop() == 0
    assert_bucket_holds(seaweed, tmp_path, writer)


def test_remote_parts_are_read_and_named_when_the_store_is_away(tmp_path: Path, seaweed: SeaweedFS) -> None:
    """Without local copies a query fetches; with the store away it says which time range is missing, and soon."""
    with FaultProxy(seaweed.port) as proxy, daemon(tmp_path, proxy.port, keep_local="8MiB") as appliance:
        appliance.start()
        writer = HttpWriter(appliance, Lines())
        for _ in range(30):
            assert writer.step()
        wait_drained(appliance)
        appliance.stop()
        for path in (appliance.data_dir / "cache").iterdir():
            path.unlink()
        appliance.start()
        proxy.become("hang")
        started_s = time.monotonic()
        with pytest.raises(Exception, match=r"timed: .* from 2026-.* cannot be read here: there is no answer"):
            appliance.query("SELECT count(*) FROM timed")
        assert time.monotonic() - started_s < 40
        proxy.become("none")
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        assert appliance.metric("fetched_parts_total") > 0
        proxy.become("away")
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent)
        assert appliance.stop() == 0
