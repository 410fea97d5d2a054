"""(a) A queue of QoS 1 messages drained from a stock Mosquitto: the appliance with durable acks, and mosquitto_sub.

Each subscriber gets the same queue from the same kind of broker: it makes its session and leaves, the messages are
published to the absent one, and it comes back. The broker is held by SIGSTOP until the subscriber is up and waiting for
its CONNACK, so no start-up counts; the time runs from SIGCONT to the last acknowledgement.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from appliance_process import ApplianceProcess
from bench_lines import line
from bench_table import Bench
from broker import Mosquitto
from ports import wait_until

WINDOW = 4_000
TOPICS = 10
LEAST_RATIO = 0.5
MOST_CPU_US = 45
# Stock drops what a client does not take beyond 1000 messages; without this there is no queue to drain.
QUEUE = "max_queued_messages 10000000"
TIMEOUT_S = 300
ROUNDS = 3
"""The fastest counts, for both sides; they take turns, so that a busy moment of the machine meets both."""


PEERS = {
    "-V 5": ("-V", "5", "-x", "3600"),
    f"-V 5, window {WINDOW}": ("-V", "5", "-x", "3600", "-D", "CONNECT", "receive-maximum", str(WINDOW)),
    "-V 311": ("-V", "mqttv311"),
}


def drain(bench: Bench) -> None:
    """Drain with each subscriber in turn, and compare."""
    count = bench.size(100_000, 1_000)
    peers = PEERS if shutil.which("mosquitto_sub") is not None else {}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("ours", *peers)}
    for turn in range(ROUNDS):
        directory = bench.directory / f"drain-{turn}"
        taken["ours"].append(_drain_with_appliance(directory, count))
        for name, options in peers.items():
            taken[name].append(_drain_with_mosquitto_sub(directory / "peer", count, options))
    ours_s, cpu_s = min(taken.pop("ours"))
    ours, cpu_us = count / ours_s, cpu_s / count * 1e6
    bench.add("a", f"edge-appliance, {count:,} single-line messages, durable acks", f"{ours:,.0f} msg/s")
    bench.add("a", "its process CPU a message", f"{cpu_us:.1f} us", f"<= {MOST_CPU_US} us", cpu_us <= MOST_CPU_US)
    for name, times in taken.items():
        peer_s, peer_cpu_s = min(times)
        ratio = peer_s / ours_s
        value = f"{count / peer_s:,.0f} msg/s, {peer_cpu_s / count * 1e6:.1f} us"
        bench.add("a", f"mosquitto_sub -q 1 {name}", value)
        bench.add("a", "edge-appliance against it", f"{ratio:.2f}x", f">= {LEAST_RATIO}x", ratio >= LEAST_RATIO)
    if not peers:
        bench.skip("a", "mosquitto_sub", "not installed")


def _publish(port: int, count: int) -> None:
    """Queue `count` lines, from a few connections."""
    publishers = []
    for topic in range(TOPICS):
        command = ["mosquitto_pub", "-p", str(port), "-q", "1", "-l", "-t", f"devices/gw-{topic}/lp"]
        publishers.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    for topic, publisher in enumerate(publishers):
        publisher.communicate(b"\n".join(line(number) for number in range(topic, count, TOPICS)) + b"\n", TIMEOUT_S)
        assert publisher.returncode == 0


def _drain_with_appliance(directory: Path, count: int) -> tuple[float, float]:
    """Seconds and CPU seconds of the appliance."""
    settings: dict[str, dict[str, object]] = {
        "mqtt": {"receive_maximum": WINDOW},
        "memory": {"buffer_limit": "25%"},
    }
    with Mosquitto(directory / "broker", settings=(QUEUE,)) as broker:
        appliance = ApplianceProcess(directory / "appliance", mqtt_port=broker.port, settings=settings)
        with appliance:
            appliance.start()
            wait_until(lambda: appliance.metric("broker_connected") == 1, "the appliance has subscribed")
            appliance.stop()
            _publish(broker.port, count)
            os.kill(broker.pid, signal.SIGSTOP)
            appliance.start()
            process = psutil.Process(appliance.pid)
            before_s = _cpu_s(process)
            os.kill(broker.pid, signal.SIGCONT)
            start_s = time.perf_counter()
            wait_until(lambda: appliance.metric("acked_total") >= count, "all is acked", TIMEOUT_S, pause_s=0.05)
            took_s, used_s = time.perf_counter() - start_s, _cpu_s(process) - before_s
            rows = appliance.query("SELECT count(*) AS n FROM cpu")
            assert rows[0]["n"] == count, f"{rows[0]['n']} of {count} lines are there"
            return took_s, used_s


def _drain_with_mosquitto_sub(directory: Path, count: int, options: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of mosquitto_sub."""
    with Mosquitto(directory, settings=(QUEUE,)) as broker:
        command = ["mosquitto_sub", "-p", str(broker.port), "-i", "bench", "-c", "-q", "1", "-t", "devices/+/lp"]
        command += options
        subprocess.run([*command, "-E"], check=True, timeout=30)  # makes its session and leaves
        _publish(broker.port, count)
        os.kill(broker.pid, signal.SIGSTOP)
        subscriber = subprocess.Popen([*command, "-C", str(count)], stdout=subprocess.DEVNULL)
        time.sleep(0.5)  # it is up and waits for its CONNACK
        os.kill(broker.pid, signal.SIGCONT)
        start_s = time.perf_counter()
        _, status, usage = os.wait4(subscriber.pid, 0)
        took_s = time.perf_counter() - start_s
        subscriber.returncode = os.waitstatus_to_exitcode(status)
        assert subscriber.returncode == 0
        return took_s, usage.ru_utime + usage.ru_stime


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
