"""Benches of one running daemon: replay, publish to visible, and the start of a command."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import paho.mqtt.client as paho
import psutil
from appliance_process import ApplianceProcess, RefusedError
from bench_client import post_all
from bench_lines import Shape
from bench_table import Bar, Bench, quantile, seconds
from broker import Mosquitto
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from ports import free_port, wait_until

WRITE = "/api/v2/write?bucket=edge&precision=ns"
LEAST_REPLAY = 1_000_000
GROUP_DELAY_MS = 20
MOST_LATENCY_MS = GROUP_DELAY_MS + 60
MOST_START_MS = 150
_MIB = 2**20


def daemon(directory: Path, mqtt_port: int = 0, **sections: dict[str, object]) -> ApplianceProcess:
    """A daemon with room for everything a bench sends, and no broker unless one is named."""
    settings: dict[str, dict[str, object]] = {"memory": {"buffer_limit": "25%"}, **sections}
    return ApplianceProcess(directory, mqtt_port=mqtt_port or free_port(), settings=settings)


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def replay(bench: Bench) -> None:
    """Lines a second from the log after SIGKILL."""
    keep: dict[str, dict[str, object]] = {
        "segment": {"max_age": "1d", "max_bytes": "1GiB"},
        "wal": {"max_bytes": "16GiB"},
    }
    bare_s = _cpu_of_empty_start(bench)
    for lines, full in ((1_000, 1_000_000), (100, 300_000), (1, 50_000)):
        count = bench.size(full, 5_000)
        with daemon(bench.directory / f"replay-{lines}", **keep) as appliance:
            appliance.start()
            post_all(appliance.http_port, WRITE, Shape().bodies(count, lines), connections=16)
            log_mib = appliance.metric("wal_bytes") / _MIB
            appliance.kill()
            start_s = seconds(appliance.start)
            used_s = cpu_s(psutil.Process(appliance.pid)) - bare_s
            read, took_s = appliance.metric("replay_lines"), appliance.metric("replay_seconds")
            rows = sum(appliance.query(f"SELECT count(*) AS n FROM engine{table:02d}")[0]["n"] for table in range(20))
        assert read == rows == count, f"{read} of {count} lines were replayed, {rows} are there"
        bar = Bar(">=", LEAST_REPLAY, of="value") if lines > 1 else None
        entries = "entries of one line" if lines == 1 else f"entries of {lines:,} lines"
        note = f"{count:,} lines, {log_mib:.0f} MiB of log; the whole start {start_s:.2f} s"
        bench.add(f"replay, {entries}", count / took_s, "lines/s", bar=bar, note=note)
        if used_s > 0:
            bench.add(f"replay, {entries}, by CPU time of the process", count / used_s, "lines/s")


def _cpu_of_empty_start(bench: Bench) -> float:
    """CPU seconds of a start with nothing to replay."""
    with daemon(bench.directory / "replay-nothing") as appliance:
        appliance.start()
        return cpu_s(psutil.Process(appliance.pid))


def latency(bench: Bench) -> None:
    """From publish with QoS 1 to visible in SQL, one message at a time."""
    with (
        Mosquitto(bench.directory / "latency-broker") as broker,
        daemon(bench.directory / "latency", broker.port) as appliance,
    ):
        appliance.start()
        wait_until(lambda: appliance.metric("broker_connected") == 1, "the appliance has subscribed")
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        client.publish("devices/gw/lp", b"seen n=0i", qos=1).wait_for_publish(5)
        wait_until(lambda: _newest(appliance) == 0, "the table is there")
        waits_ms, queries_ms = [], []
        for number in range(1, bench.size(300, 30) + 1):
            start_s = time.perf_counter()
            client.publish("devices/gw/lp", f"seen n={number}i".encode(), qos=1)
            asked_s = time.perf_counter()
            while _newest(appliance) < number:
                asked_s = time.perf_counter()
            now_s = time.perf_counter()
            waits_ms.append((now_s - start_s) * 1000)
            queries_ms.append((now_s - asked_s) * 1000)
        client.disconnect()
        client.loop_stop()
    bench.add("publish to visible, p50", quantile(waits_ms, 0.5), "ms")
    most = Bar("<=", MOST_LATENCY_MS, of="value")
    bench.add("publish to visible, p99", quantile(waits_ms, 0.99), "ms", bar=most)
    bench.add("of that the query itself, p50", quantile(queries_ms, 0.5), "ms")


def _newest(appliance: ApplianceProcess) -> int:
    try:
        newest = appliance.query("SELECT max(n) AS n FROM seen")[0]["n"]
    except RefusedError:  # there is no such table yet
        return -1
    return -1 if newest is None else int(newest)


def start_of_commands(bench: Bench) -> None:
    """What a person waits for before a command begins, beside the bare interpreter."""
    config = bench.directory / "start.toml"
    config.touch()
    bare_ms = _run_ms("-c", "pass")
    most = Bar("<=", MOST_START_MS, of="value")
    for command in (["version"], ["check-config", "--config", str(config)]):
        took_ms = _run_ms("-m", "edge_appliance", *command)
        bench.add(f"edge-appliance {command[0]}", took_ms, "ms", peer=bare_ms, peer_name="python -c pass", bar=most)


def _run_ms(*arguments: str) -> float:
    command = [sys.executable, *arguments]
    return min(seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(5)) * 1000
