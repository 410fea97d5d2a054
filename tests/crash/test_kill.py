"""SIGKILL at seeded moments under load by MQTT and HTTP: acked ⊆ recovered ⊆ sent, and no row twice.

EDGE_CRASH_KILLS says how often (`make crash N=1000`), EDGE_CRASH_SEED repeats the moments of an earlier run.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import deque
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from appliance_process import ApplianceProcess
from broker import Mosquitto
from crash_load import ROUTE, Books, HttpWriter, Lines, Repeating, check, numbers_in, numbers_of
from fake_broker import FakeBroker
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from ports import wait_until

KILLS = int(os.environ.get("EDGE_CRASH_KILLS") or 30)
KILLS_PER_LIFE = 30
"""Kills of one data directory; a long run goes on with a new one, so that each check stays small."""
SEED = int(os.environ.get("EDGE_CRASH_SEED") or random.SystemRandom().randrange(2**32))
BACKLOG_MAX = 300
"""Messages on the way; the window is smaller, so that some wait in the broker and some in flight."""
SETTINGS: dict[str, dict[str, object]] = {
    "mqtt": {"receive_maximum": 200},
    # Small, so that cuts, persists, catalog transactions and deletions of log files are going on at any moment.
    "segment": {"max_bytes": "64KiB", "max_age": "1s"},
    "wal": {"max_bytes": "64MiB", "min_free": "1MiB", "group_delay": "5ms"},
}

MEMORY: dict[str, dict[str, object]] = {
    **SETTINGS,
    # So little that rows are set aside all the time, and that no log fits into memory when it is replayed.
    "memory": {"buffer_limit": "4MiB", "inbox_limit": "1MiB"},
    "http": {"max_body": "1MiB"},
    "segment": {"max_bytes": "4MiB", "max_age": "1h"},
}

pytestmark = [pytest.mark.crash, pytest.mark.integration, pytest.mark.slow]


def kill_at_some_moment(appliance: ApplianceProcess, moments: random.Random, longest_s: float) -> float | None:
    """Kill it during its start, or soon after; returns how often rows were set aside, None when it was not ready."""
    if moments.random() < 0.3:
        time.sleep(moments.uniform(0.2, 1.5))
    else:
        appliance.wait_ready()
        time.sleep(moments.uniform(0.0, longest_s))
    set_asides = appliance.metric("set_asides_total") if appliance.is_ready() else None
    appliance.kill()
    return set_asides


def assert_undamaged(appliance: ApplianceProcess) -> None:
    """A kill leaves a torn tail at most, which is no damage."""
    metrics = appliance.metrics()
    assert metrics["wal_damaged_records_total"] == 0
    assert metrics["quarantine_files"] == 0


@pytest.mark.parametrize("life", range(-(-KILLS // KILLS_PER_LIFE)))
@pytest.mark.parametrize("settings", [pytest.param(SETTINGS, id="cuts"), pytest.param(MEMORY, id="set-asides")])
def test_kill_keeps_what_was_acknowledged(tmp_path: Path, settings: dict[str, dict[str, object]], life: int) -> None:
    """Whatever the moment of the kill, each acknowledged line is there once with its values, and nothing else is."""
    print(f"seed {SEED}, life {life}")
    moments = random.Random(f"{SEED}/{life}")
    # Rows are set aside once a second at most, and only when there is something to set aside.
    padding, longest_s = (2_000, 4.0) if settings is MEMORY else (0, 0.6)
    lines, bursts = Lines(padding), itertools.cycle((1, 40, 3, 90, 7))
    with (
        FakeBroker() as broker,
        ApplianceProcess(tmp_path, mqtt_port=broker.port, settings=settings, routes=[ROUTE]) as appliance,
    ):
        writer = HttpWriter(appliance, lines)

        def publish() -> None:
            burst = next(bursts)
            for _ in range(min(burst, BACKLOG_MAX - broker.backlog)):
                broker.publish(f"crash/d{burst % 3}/lp", lines.payload("mqtt"))
            time.sleep(burst * 0.004)

        def acked() -> set[int]:
            return numbers_of(message.payload for message in tuple(broker.ledger.acked)) | writer.books.acked.copy()

        def sent() -> set[int]:
            return numbers_of(message.payload for message in tuple(broker.ledger.written)) | writer.books.sent.copy()

        ready, early = 0, 0.0
        with Repeating(publish, "publisher"), Repeating(writer.step, "writer"):
            # Half of the kills for each of the settings.
            for _ in range(-(-min(KILLS_PER_LIFE, KILLS - life * KILLS_PER_LIFE) // 2)):
                appliance.launch()
                if moments.random() < 0.5:
                    appliance.wait_ready()
                    check(appliance, acked, sent)
                set_asides = kill_at_some_moment(appliance, moments, longest_s)
                ready += set_asides is not None
                early += set_asides or 0
        appliance.start()
        broker.wait_drained()
        recovered = check(appliance, acked, sent)
        assert sent() - writer.books.sent <= recovered, "all that the broker sent is acknowledged in the end"
        assert_undamaged(appliance)
        assert appliance.stop() == 0
        assert broker.ledger.unknown_acks == 0
        assert broker.ledger.disordered_acks == 0
        assert ready, "no kill hit a running appliance: the test shows nothing"
        assert early or settings is not MEMORY, "nothing was set aside: the test shows nothing"
        print(f"{len(recovered):,} lines, {broker.ledger.redelivered:,} redelivered, {broker.ledger.connects} connects")
        print(f"{early:.0f} set-asides")


class MqttPublisher:
    """A real client that publishes QoS 1 and books what the broker took."""

    def __init__(self, port: int, lines: Lines) -> None:
        self.books = Books()
        self._lines = lines
        self._pending: deque[tuple[paho.MQTTMessageInfo, list[int]]] = deque()
        self._lock = threading.Lock()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id="publisher", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def step(self) -> None:
        """Publish one message, and book those that arrived."""
        payload = self._lines.payload("mqtt")
        self.books.sent.update(numbers_in(payload))
        self._pending.append((self._client.publish("crash/real/lp", payload, qos=1), numbers_in(payload)))
        self.sweep()
        time.sleep(0.005)

    def sweep(self) -> int:
        """Book what the broker took since; returns how many messages it did not take yet."""
        while self._pending and self._pending[0][0].is_published():
            self.books.acked.update(self._pending.popleft()[1])
        return len(self._pending)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def test_kill_with_mosquitto_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """With a persistent broker, all that a client published is there exactly once after kills of the appliance."""
    print(f"seed {SEED}")
    moments = random.Random(SEED)
    settings = ("max_queued_messages 100000", "max_inflight_messages 0")
    with (
        Mosquitto(tmp_path / "broker", has_persistence=True, settings=settings) as broker,
        ApplianceProcess(tmp_path / "appliance", mqtt_port=broker.port, settings=SETTINGS, routes=[ROUTE]) as appliance,
    ):
        appliance.start()
        wait_until(lambda: appliance.metric("broker_connected") == 1, "the appliance has subscribed")
        publisher = MqttPublisher(broker.port, Lines())
        with Repeating(publisher.step, "publisher"):
            for _ in range(5):
                time.sleep(moments.uniform(0.0, 0.6))
                appliance.kill()
                appliance.start()
        wait_until(lambda: publisher.sweep() == 0, "the broker took everything")
        publisher.close()

        def recovered() -> set[int]:
            return check(appliance, set, lambda: publisher.books.sent)

        wait_until(lambda: recovered() == publisher.books.acked, "all that was published is there", pause_s=0.2)
        assert_undamaged(appliance)
        assert appliance.stop() == 0
