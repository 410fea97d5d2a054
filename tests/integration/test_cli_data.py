"""Commands over the data of a real daemon: import, export, parts, merge, retention."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from appliance_process import ApplianceProcess
from ports import free_port, wait_until

BASE_NS = 1_767_225_600_000_000_000
RULES = '[[database]]\nname = "edge"\nretention = "36500d"\n'
SETTINGS: dict[str, dict[str, object]] = {
    "segment": {"max_age": "1s"},
    "maintain": {"period": "1h", "clock": "trusted"},
}

pytestmark = pytest.mark.integration


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    """A running daemon that persists soon and never maintains."""
    with ApplianceProcess(tmp_path / "appliance", mqtt_port=free_port(), settings=SETTINGS) as process:
        process.config.write_text(process.config.read_text() + RULES)
        yield process.start()


def run(appliance: ApplianceProcess, command: str, *arguments: object, code: int = 0) -> bytes:
    """Run a command; returns its output."""
    words = [sys.executable, "-m", "edge_appliance", command, "--config", str(appliance.config), *map(str, arguments)]
    answer = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert answer.returncode == code, answer.stderr.decode()
    return answer.stdout if code == 0 else answer.stdout + answer.stderr


LINES = rb"""# comment with a "quote
all,site=a\ b,k\,=v\= f=1.5,i=-3i,u=18446744073709551615u,b=true,s="two
lines, \"quoted\" and \\ more" 1767225600000000001
all f=2e-300 1767225600000000002
all,site=x s="" 1767225600000000003
other i=1i 1767225600000000004
"""


def test_export_as_lines_and_import_again_give_the_same_rows(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """All kinds of values, names that need escapes and line ends inside strings survive the way out and in."""
    packed = tmp_path / "in.lp.gz"
    packed.write_bytes(gzip.compress(LINES))
    assert b"6 lines imported into edge, 0 of them rejected" in run(appliance, "import", packed)
    text = run(appliance, "export", "-o", "lp", "-")
    (tmp_path / "out.lp").write_bytes(text)
    run(appliance, "import", tmp_path / "out.lp", "-d", "copy")
    for table in ("all", "other"):
        sql = f'SELECT * FROM "{table}" ORDER BY time'
        assert appliance.query_table(sql, database="copy").equals(appliance.query_table(sql))
    assert run(appliance, "export", "-o", "lp", "-d", "copy", "-") == text


def test_export_in_pieces_is_complete_and_in_order(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """More rows than one query gives arrive as one Parquet and one CSV file, cut to the range, by time."""
    appliance.stop()
    appliance.config.write_text(appliance.config.read_text() + "[query]\nmax_rows = 1000\n")
    appliance.start()
    lines = "\n".join(f"cpu,host=h{n % 5} v={n}i {BASE_NS + n // 3 * 1_000}" for n in range(10_000))
    appliance.write(lines.encode())
    rows = {(f"h{n % 5}", n // 3 * 1_000): n for n in range(10_000)}
    start, stop = "2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00.003000Z"
    expected = [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0])) if 1_000 <= key[1] < 3_000_000]
    run(appliance, "export", "-t", "cpu", "--from", start, "--to", stop, tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert sorted(table["v"].to_pylist()) == sorted(expected)
    times = table["time"].cast("int64").to_pylist()
    assert times == sorted(times)
    text = run(appliance, "export", "-t", "cpu", "--from", start, "--to", stop, "-o", "csv", "-")
    assert sorted(pc.read_csv(io.BytesIO(text))["v"].to_pylist()) == sorted(expected)


def test_export_names_what_is_wrong(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """A table that is missing, none stated, a bad time: one sentence each."""
    appliance.write(b"cpu v=1 1")
    assert b"there is no table 'nope'" in run(appliance, "export", "-t", "nope", tmp_path / "x.csv", code=1)
    assert b"state one table with -t" in run(appliance, "export", tmp_path / "x.csv", code=2)
    assert b"yesterday" in run(appliance, "export", "-t", "cpu", "--from", "yesterday", tmp_path / "x.csv", code=2)
    assert b"does not exist" in run(appliance, "export", "-d", "none", "-t", "cpu", tmp_path / "x.csv", code=1)


def test_import_counts_and_names_rejected_lines(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """Bad lines are named with their number in the file, the good ones are in, and the exit code says it."""
    source = tmp_path / "some.lp"
    source.write_bytes(b"cpu v=1 1\ncpu v= 2\ncpu v=3 3\n")
    text = run(appliance, "import", source, code=1)
    assert b"line 2: " in text
    assert b"3 lines imported into edge, 1 of them rejected" in text
    assert appliance.query("SELECT count(*) AS n FROM cpu") == [{"n": 2}]


def test_import_goes_on_where_it_was_stopped(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """The daemon dies in the middle: the command says how to go on, and then everything is there once."""
    source = tmp_path / "many.lp"
    count = 400_000
    source.write_text("".join(f"cpu,host=h{n % 50} v={n}i {BASE_NS + n}\n" for n in range(count)))
    words = [sys.executable, "-m", "edge_appliance", "import", "--config", str(appliance.config), str(source)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: appliance.metric("lines_total") > count / 10, "some lines are in", pause_s=0.01)
        appliance.kill()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 69
    (skip,) = (line.split()[-1] for line in errors.decode().splitlines() if "--skip-lines" in line)
    assert 0 < int(skip) < count
    appliance.start()
    run(appliance, "import", source, "--skip-lines", skip)
    assert appliance.query("SELECT count(*) AS n, sum(v) AS s FROM cpu") == [
        {"n": count, "s": count * (count - 1) // 2}
    ]


def test_import_waits_for_a_busy_daemon(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """A daemon that does not answer for a while is no failure while --wait lasts."""
    source = tmp_path / "few.lp"
    source.write_text(f"cpu v=1 {BASE_NS}\n")
    words = [sys.executable, "-m", "edge_appliance", "import", "--config", str(appliance.config), str(source)]
    os.kill(appliance.pid, signal.SIGSTOP)
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        time.sleep(1.0)
        assert process.poll() is None
        os.kill(appliance.pid, signal.SIGCONT)
        assert process.wait(30) == 0


def test_parts_and_plans_are_shown(appliance: ApplianceProcess) -> None:
    """What the daemon lists is what lies in the store, and the plans name what maintenance would do."""
    for n in range(6):
        appliance.write(f"cpu v={n} {BASE_NS + n}\nold v=1 -3000000000000000000".encode())
        wait_until(lambda: appliance.metric("buffer_bytes") == 0, "the rows are persisted", pause_s=0.05)
    wait_until(lambda: appliance.metrics()['parts{state="spooled"}'] == 0, "the store has them")
    listed = [json.loads(line) for line in run(appliance, "parts", "list", "-t", "cpu", "--json").splitlines()]
    store = appliance.data_dir / "store"
    assert sorted(part["key"] for part in listed) == sorted(
        path.relative_to(store).as_posix() for path in store.glob("edge/cpu/*/*.parquet")
    )
    assert b"(12 parts, 12 rows, " in run(appliance, "parts", "list")
    merges = run(appliance, "merge", "--dry-run").decode()
    assert "6 parts" in merges
    assert "edge.cpu" in merges
    assert b"nothing is to be deleted" in run(appliance, "retention", "--dry-run")
    assert b"--dry-run" in run(appliance, "merge", code=2)
