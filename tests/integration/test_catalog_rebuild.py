"""A lost catalog, a lost card: what is in object storage and in the log is found again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from appliance_process import ApplianceProcess
from object_stores import SeaweedFS, store_keys
from ports import free_port, wait_until

BASE_NS = 1_767_225_600_000_000_000

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """One server for the module; each test has a prefix of its own."""
    with SeaweedFS(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def appliance(tmp_path: Path, seaweed: SeaweedFS) -> Iterator[ApplianceProcess]:
    """A daemon with merged and unmerged parts in S3, and rows in its log."""
    settings: dict[str, dict[str, object]] = {
        "store": store_keys(tmp_path, seaweed.port, prefix=tmp_path.name),
        "segment": {"max_age": "1s"},
        "maintain": {"period": "200ms"},
    }
    with ApplianceProcess(tmp_path / "appliance", mqtt_port=free_port(), settings=settings) as process:
        process.start()
        for n in range(5):
            process.write(f"cpu,host=h{n % 2} v={n}i {BASE_NS + n}\nfew,host=a v={n}u {BASE_NS + n // 4}".encode())
            wait_until(lambda: process.metric("buffer_bytes") == 0, "the rows are persisted", pause_s=0.05)
        wait_until(lambda: process.metric("merges_total") >= 2, "parts are merged")
        wait_until(lambda: process.metrics()['parts{state="spooled"}'] == 0, "the store has all parts")
        yield process


def answers(appliance: ApplianceProcess) -> list[object]:
    """What the queries of this module give."""
    return [appliance.query(f"SELECT * FROM {table} ORDER BY time, host") for table in ("cpu", "few")]


def rebuild(appliance: ApplianceProcess, code: int = 0) -> str:
    """Run the command; returns what it said."""
    words = [sys.executable, "-m", "edge_appliance", "catalog", "rebuild", "--config", str(appliance.config)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == code, answer.stderr
    return answer.stdout + answer.stderr


def test_new_card_finds_the_rows_of_the_old_one(appliance: ApplianceProcess) -> None:
    """Without any local state, manifests and listing give all rows back, with the kinds of their columns."""
    before = answers(appliance)
    appliance.stop()
    shutil.rmtree(appliance.data_dir)
    text = rebuild(appliance)
    assert "in no manifest" not in text
    appliance.start()
    assert answers(appliance) == before
    assert appliance.get("/health")
    appliance.write(f"few,host=a v=7u {BASE_NS + 9}".encode())
    with pytest.raises(Exception, match="type_conflict"):
        appliance.write(f"few,host=a v=7i {BASE_NS + 9}".encode())


def test_parts_without_manifest_are_found_by_their_footers(
    appliance: ApplianceProcess, seaweed: SeaweedFS, tmp_path: Path
) -> None:
    """Somebody tidied `_edge/` away: the footers say the same."""
    before = answers(appliance)
    appliance.stop()
    client = seaweed.client()
    for page in obstore.list(client, f"{tmp_path.name}/_edge"):
        for item in page:
            obstore.delete(client, item["path"])
    shutil.rmtree(appliance.data_dir)
    assert "is in no manifest: its footer is read" in rebuild(appliance)
    appliance.start()
    assert answers(appliance) == before


def test_lost_catalog_waits_for_the_rebuild(appliance: ApplianceProcess) -> None:
    """The daemon starts, merges and deletes nothing, and says what to do, over restarts; then all is well."""
    before = answers(appliance)
    appliance.write(f"cpu,host=h9 v=9i {BASE_NS + 99}".encode())
    appliance.kill()
    for path in appliance.data_dir.glob("catalog.db*"):
        path.unlink()
    for _ in range(2):
        appliance.start()
        assert b"catalog rebuild" in appliance.get("/health") or b"made anew" in appliance.get("/health")
        plan = json.loads(appliance.get("/api/v1/maintenance"))
        assert plan["merges"] == []
        appliance.stop()
    rebuild(appliance)
    appliance.start()
    wait_until(lambda: b"made anew" not in appliance.get("/health"), "nothing is degraded")
    found = answers(appliance)
    assert found[1] == before[1]
    assert len(found[0]) == len(before[0]) + 1  # type: ignore[arg-type]


def test_rebuild_needs_the_store_and_the_lock(appliance: ApplianceProcess) -> None:
    """While the daemon runs it refuses; without the store it changes nothing."""
    assert "another" in rebuild(appliance, code=73)
    appliance.stop()
    text = re.sub(r'endpoint = ".*"', f'endpoint = "http://127.0.0.1:{free_port()}"', appliance.config.read_text())
    appliance.config.write_text(text)
    before = (appliance.data_dir / "catalog.db").read_bytes()
    assert "nothing was changed" in rebuild(appliance, code=1)
    assert (appliance.data_dir / "catalog.db").read_bytes() == before
