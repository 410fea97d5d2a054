"""Rejected lines on their way back into the real process, with a real broker, by the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess, RefusedError
from broker import Mosquitto
from ports import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROUTE = {"topic": "devices/{device}/lp", "max_future": "1h"}
PAST_NS, FUTURE_NS = 1_767_225_600_000_000_000, 4_000_000_000_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """A running broker."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def appliance(tmp_path: Path, broker: Mosquitto) -> Iterator[ApplianceProcess]:
    """The appliance, with a route that takes no times of tomorrow."""
    with ApplianceProcess(tmp_path / "a", mqtt_port=broker.port, routes=[ROUTE]) as process:
        process.start()
        wait_until(lambda: process.metric("broker_connected") == 1, "it is connected")
        yield process


def publish(broker: Mosquitto, *lines: str) -> None:
    """Publish lines of one device, each as a message."""
    command = ["mosquitto_pub", "-p", str(broker.port), "-q", "1", "-t", "devices/d1/lp", "-l"]
    subprocess.run(command, input="".join(f"{line}\n" for line in lines), text=True, check=True)


def command(appliance: ApplianceProcess, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours for this appliance."""
    whole = [sys.executable, "-m", "edge_appliance", *words, "--config", str(appliance.config)]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)


def reject(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """Leave four letters: two lines of a later time, one of them long, one of the wrong type, and one over HTTP."""
    long = f'm note="{"x" * 300}" {FUTURE_NS}'
    publish(broker, f"m v=1 {PAST_NS}", f"m v=2 {FUTURE_NS}", long, f'm v="text" {PAST_NS}')
    with pytest.raises(RefusedError):
        appliance.write(b"m v= 3")
    wait_until(lambda: appliance.metric("rejected_lines_total") == 4, "four lines are rejected")
    wait_until(lambda: len(listed(appliance)) == 4, "they are listed")


def listed(appliance: ApplianceProcess) -> list[str]:
    """Reasons of the letters that are there."""
    letters = json.loads(command(appliance, "rejects", "list", "--json").stdout)
    return sorted(letter["reason"] for letter in letters)


def allow_future(appliance: ApplianceProcess) -> None:
    """What an operator does about it."""
    text = appliance.config.read_text()
    appliance.config.write_text(text.replace('max_future = "1h"', 'max_future = ""'))
    assert json.loads(command(appliance, "reload", "--json").stdout)["applied"] == ["mqtt.route"]


def test_lines_are_stored_once_their_route_takes_them(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """What is stored has its tags and its time and no letter any more; each other letter says why it is still there."""
    reject(appliance, broker)
    allow_future(appliance)
    done = command(appliance, "rejects", "retry", "--json")
    counts = {outcome: count for outcome, count in json.loads(done.stdout).items() if count}
    assert (done.returncode, counts) == (1, {"stored": 1, "rejected": 1, "cut": 1, "no_topic": 1})
    appliance.kill()  # the letter is gone, so that the row must have been durable
    appliance.start()
    found = appliance.query("SELECT device, v, CAST(time AS bigint) AS time_ns FROM m ORDER BY v")
    assert found == [{"device": "d1", "v": 1, "time_ns": PAST_NS}, {"device": "d1", "v": 2, "time_ns": FUTURE_NS}]
    assert listed(appliance) == ["missing_field_value", "time_out_of_range", "type_conflict"]
    wait_until(lambda: appliance.metric("broker_connected") == 1, "it is connected")
    shown = command(appliance, "rejects", "retry").stdout.splitlines()
    assert [line.split(":")[0] for line in shown] == [
        "1 rejected again, with a letter of their own",
        "1 not sent",
        "1 not sent",
    ]
    assert listed(appliance) == ["missing_field_value", "time_out_of_range", "type_conflict"]


def test_purge(appliance: ApplianceProcess, broker: Mosquitto) -> None:
    """Only a confirmed purge throws letters away, and what is rejected afterwards is kept as before."""
    reject(appliance, broker)
    refused = command(appliance, "rejects", "purge")
    assert (refused.returncode, "--yes" in refused.stderr, len(listed(appliance))) == (2, True, 4)
    assert command(appliance, "rejects", "purge", "--yes").stdout == "4 rejected lines purged\n"
    assert listed(appliance) == []
    publish(broker, f'm v="text" {PAST_NS}')
    wait_until(lambda: listed(appliance) == ["type_conflict"], "the next one is kept")
    assert appliance.metric("dead_letter_bytes") > 0


def test_without_a_daemon(appliance: ApplianceProcess) -> None:
    """Retry and purge say that nobody answers; nothing else is tried."""
    appliance.stop()
    for words in (("retry",), ("purge", "--yes")):
        done = command(appliance, "rejects", *words)
        assert done.returncode == 69
        assert done.stderr.startswith(f"no daemon at {appliance.data_dir}")
