"""Reloading the configuration of the real process, with a real broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess
from broker import Mosquitto
from ports import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OLD, NEW = {"topic": "old/{device}"}, {"topic": "new/{device}"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """A running broker."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def appliance(tmp_path: Path, broker: Mosquitto) -> Iterator[ApplianceProcess]:
    """The appliance, connected and subscribed to the old route."""
    with ApplianceProcess(tmp_path / "a", mqtt_port=broker.port, routes=[OLD]) as process:
        process.start()
        wait_until(lambda: process.metric("broker_connected") == 1, "it is connected")
        yield process


def publish(broker: Mosquitto, topic: str, line: str) -> None:
    """Publish one line, QoS 1."""
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(broker.port), "-q", "1", "-t", topic, "-m", line]
    subprocess.run(command, check=True)


def replace(appliance: ApplianceProcess, before: str, after: str) -> None:
    """Edit the configuration file."""
    text = appliance.config.read_text()
    assert before in text
    appliance.config.write_text(text.replace(before, after))


def reload(appliance: ApplianceProcess) -> subprocess.CompletedProcess[str]:
    """`edge-appliance reload --wait`."""
    command = [sys.executable, "-m", "edge_appliance", "reload", "--wait", "--config", str(appliance.config)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def rows(appliance: ApplianceProcess, table: str) -> int:
    """Number of rows of a table."""
    tables = [row["table_name"] for row in appliance.query("SHOW TABLES")]
    return int(appliance.query(f"SELECT count(*) AS n FROM {table}")[0]["n"]) if table in tables else 0


def test_routes_change_while_the_link_stays(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """A new route takes messages at once and an old one no more, on the same connection."""
    replace(appliance, OLD["topic"], NEW["topic"])
    done = reload(appliance)
    assert (done.returncode, done.stdout) == (0, "applied: mqtt.route\n")
    publish(broker, "new/d1", "fresh v=1")
    wait_until(lambda: rows(appliance, "fresh") == 1, "the new route takes it")
    publish(broker, "old/d1", "stale v=1")
    publish(broker, "new/d1", "fresh v=2")
    wait_until(lambda: rows(appliance, "fresh") == 2, "the message behind it is there")
    assert rows(appliance, "stale") == 0
    assert appliance.metric("rejected_lines_total") == 0, "the old filter is gone from the broker"
    assert appliance.metric("broker_connects_total") == 1


def test_kept_filters_survive_a_restart(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """After a reload and a kill, the next start asks for the new filters only."""
    replace(appliance, OLD["topic"], NEW["topic"])
    assert reload(appliance).returncode == 0
    publish(broker, "new/d1", "fresh v=1")
    wait_until(lambda: rows(appliance, "fresh") == 1, "the new route takes it")
    appliance.kill()
    publish(broker, "new/d1", "fresh v=2")
    appliance.start()
    wait_until(lambda: rows(appliance, "fresh") == 2, "what came meanwhile is there")


def test_faults_change_nothing(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """A file with faults is refused with all of them, by the command and by SIGHUP, and the old one stays."""
    replace(appliance, OLD["topic"], "new/#/wrong")
    done = reload(appliance)
    assert done.returncode == 78
    assert re.search(r"edge-appliance\.toml:\d+: mqtt\.route\.topic: ", done.stderr)
    os.kill(appliance.pid, signal.SIGHUP)
    wait_until(lambda: "the old configuration stays" in appliance.log.read_text(), "the journal names it")
    publish(broker, "old/d1", "still v=1")
    wait_until(lambda: rows(appliance, "still") == 1, "the old route still works")


def test_what_needs_a_restart_is_named(appliance: ApplianceProcess) -> None:
    """What cannot be changed in place is named; what can be is applied all the same."""
    appliance.config.write_text('[query]\nmax_rows = 10\n[log]\nlevel = "debug"\n' + appliance.config.read_text())
    done = reload(appliance)
    assert (done.returncode, done.stdout) == (0, "applied: log.level; needs a restart: query.max_rows\n")


def test_storm_of_signals_under_load(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """A hundred SIGHUPs neither end the process nor lose or double a line."""
    pid = appliance.pid
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(broker.port), "-q", "1", "-l", "-t", "old/d1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as publisher:
        assert publisher.stdin is not None
        for number in range(100):
            publisher.stdin.writelines(
                f"storm n={number * 10 + k}i {1_700_000_000 + number * 10 + k}\n" for k in range(10)
            )
            publisher.stdin.flush()
            os.kill(pid, signal.SIGHUP)
    wait_until(lambda: rows(appliance, "storm") == 1000, "all lines are there")
    assert (appliance.is_running, appliance.metric("broker_connects_total")) == (True, 1)


def test_no_daemon(tmp_path: Path) -> None:
    """Without a daemon the command says where it looked."""
    appliance = ApplianceProcess(tmp_path / "a", mqtt_port=1883)
    done = reload(appliance)
    assert done.returncode == 69
    assert done.stderr.startswith(f"no daemon at {appliance.data_dir}/control: No such file or directory")
