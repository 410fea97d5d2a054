"""Benches of the running daemon: (c) replay, (e) HTTP writes, (f) memory, (g) publish to visible."""

from __future__ import annotations

import contextlib
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paho.mqtt.client as paho
import psutil
from appliance_process import ApplianceProcess, RefusedError
from bench_in_process import rate
from bench_lines import body
from bench_table import Bench, quantile, seconds
from broker import Mosquitto
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from ports import free_port, wait_until

LEAST_REPLAY = 100_000
MOST_IDLE_MIB = 140
GROUP_DELAY_MS = 20
MOST_LATENCY_MS = GROUP_DELAY_MS + 60
_MIB = 2**20


def daemon(directory: Path, mqtt_port: int = 0, **sections: dict[str, object]) -> ApplianceProcess:
    """A daemon with room for everything a bench sends, and no broker unless one is named."""
    settings: dict[str, dict[str, object]] = {"memory": {"buffer_limit": "25%"}, **sections}
    return ApplianceProcess(directory, mqtt_port=mqtt_port or free_port(), settings=settings)


def write_all(appliance: ApplianceProcess, bodies: list[bytes], connections: int) -> None:
    """Write all bodies, each until it is taken; every connection waits for its answers."""

    def write(own: list[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", appliance.http_port, timeout=60)
        with contextlib.closing(connection):
            for text in own:
                status = 503
                while status == 503:
                    connection.request("POST", "/api/v2/write?bucket=edge&precision=ns", text)
                    answer = connection.getresponse()
                    answer.read()
                    status = answer.status
                    if status == 503:
                        time.sleep(0.05)
                assert status == 204, status

    with ThreadPoolExecutor(connections) as clients:
        list(clients.map(write, [bodies[i::connections] for i in range(connections)]))


def replay(bench: Bench) -> None:
    """(c) Lines a second from the log after SIGKILL."""
    count = bench.size(300_000, 5_000)
    keep: dict[str, dict[str, object]] = {
        "segment": {"max_age": "1d", "max_bytes": "256MiB"},
        "wal": {"max_bytes": "16GiB"},
    }
    for lines in (100, 1):
        wanted = count if lines > 1 else count // 10
        with daemon(bench.directory / f"replay-{lines}", **keep) as appliance:
            appliance.start()
            write_all(appliance, [body(first, lines) for first in range(0, wanted, lines)], connections=32)
            log_mib = appliance.metric("wal_bytes") / _MIB
            appliance.kill()
            start_s = seconds(appliance.start)
            read, took_s = appliance.metric("replay_lines"), appliance.metric("replay_seconds")
        assert read == wanted, f"{read} of {wanted} lines were replayed"
        is_kept = None if bench.scale < 0.1 else read / took_s >= LEAST_REPLAY
        bar = f">= {LEAST_REPLAY:,} lines/s" if lines > 1 else ""
        what = f"replay, {wanted:,} lines in bodies of {lines} ({log_mib:.0f} MiB)"
        bench.add("c", what, rate(int(read), took_s), bar, is_kept if bar else None)
        bench.add("c", "the whole start", f"{start_s:.2f} s")


def http_writes(bench: Bench) -> None:
    """(e) Lines a second by HTTP, acknowledged when durable; and (f) memory of an idle and of a loaded daemon."""
    with daemon(bench.directory / "http") as appliance:
        appliance.start()
        process = psutil.Process(appliance.pid)
        time.sleep(2)
        idle_mib = process.memory_info().rss / _MIB
        bench.add("f", "RSS, idle", f"{idle_mib:.0f} MiB", f"<= {MOST_IDLE_MIB} MiB", idle_mib <= MOST_IDLE_MIB)
        first = 0
        for lines, connections, full in ((100, 4, 50_000), (100, 32, 300_000), (5_000, 4, 500_000)):
            count = bench.size(full, 5_000)
            bodies = [body(first + start, lines) for start in range(0, count, lines)]
            first += len(bodies) * lines
            took_s = seconds(lambda: write_all(appliance, bodies, connections))  # noqa: B023 - called at once
            bench.add(
                "e", f"HTTP, {lines:,} lines a body, {connections} connections", rate(len(bodies) * lines, took_s)
            )
        loaded_mib = process.memory_info().rss / _MIB
        buffer_mib = appliance.metric("buffer_bytes") / _MIB
        bench.add("f", f"RSS after {first:,} lines, {buffer_mib:.0f} MiB in the buffer", f"{loaded_mib:.0f} MiB")
        assert appliance.query("SELECT count(*) AS n FROM cpu")[0]["n"] == first


def latency(bench: Bench) -> None:
    """(g) From publish with QoS 1 to visible in SQL, one message at a time."""
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
    p50, p99 = quantile(waits_ms, 0.5), quantile(waits_ms, 0.99)
    bar = f"p99 <= {MOST_LATENCY_MS} ms"
    bench.add("g", "publish to visible, p50 · p99", f"{p50:.1f} · {p99:.1f} ms", bar, p99 <= MOST_LATENCY_MS)
    bench.add("g", "of that the query itself, p50", f"{quantile(queries_ms, 0.5):.1f} ms")


def _newest(appliance: ApplianceProcess) -> int:
    try:
        newest = appliance.query("SELECT max(n) AS n FROM seen")[0]["n"]
    except RefusedError:  # there is no such table yet
        return -1
    return -1 if newest is None else int(newest)
