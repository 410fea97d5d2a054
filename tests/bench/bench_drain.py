"""Queues of QoS 1 messages drained from a stock Mosquitto: the appliance with durable acks, and mosquitto_sub.

Each subscriber gets the same queue from the same kind of broker: it makes its session and leaves, the messages are
published to the absent one, and it comes back. The broker is held by SIGSTOP until the subscriber is up and waiting for
its CONNACK, so no start-up counts; the time runs from SIGCONT to the last acknowledgement. CPU times of the broker and
of the busiest thread of the subscriber show who holds up whom.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from appliance_process import ApplianceProcess
from bench_daemon import cpu_s
from bench_lines import Shape
from bench_publisher import publish
from bench_table import Bar, Bench
from broker import Mosquitto
from ports import wait_until

WINDOW = 4_000
TOPICS = [f"devices/gw-{number}/lp" for number in range(10)]
LEAST_RATIO = Bar(">=", 0.9)
MOST_CPU_US = Bar("<=", 18, of="value")
LEAST_LINES = 400_000
BUSY_CORES = 0.9
"""CPU time by wall time from which a single-threaded process counts as the one that is waited for."""
# Stock drops what a client does not take beyond 1000 messages; without this there is no queue to drain.
QUEUE = ("max_queued_messages 10000000", "max_queued_bytes 0")
TIMEOUT_S = 120
ROUNDS = 3
"""The fastest counts, for both sides; they take turns, so that a busy moment of the machine meets both."""


PEERS = {
    "-V 5": ("-V", "5", "-x", "3600"),
    f"-V 5, window {WINDOW}": ("-V", "5", "-x", "3600", "-D", "CONNECT", "receive-maximum", str(WINDOW)),
    "-V 311": ("-V", "mqttv311"),
}


@dataclass(frozen=True, order=True)
class Drained:
    """What draining took, the fastest first."""

    took_s: float
    cpu_s: float
    """Of the subscriber, all threads."""
    broker_s: float
    busiest_s: float
    """Of the subscriber's busiest thread."""

    def __str__(self) -> str:
        broker, process, thread = (s / self.took_s for s in (self.broker_s, self.cpu_s, self.busiest_s))
        return f"broker {broker:.2f} cores, process {process:.2f}, its busiest thread {thread:.2f}"

    @property
    def is_bound_by_broker(self) -> bool:
        """Whether the broker has no CPU time left and the subscriber has."""
        broker = self.broker_s / self.took_s
        return broker >= BUSY_CORES and broker > self.busiest_s / self.took_s


def single_lines(bench: Bench) -> None:
    """Messages of one line."""
    taken, count = _drain(bench, bench.size(100_000, 1_000), lines=1, peers=PEERS)
    ours = taken.pop("ours")
    cpu_us = ours.cpu_s / count * 1e6
    bench.add("MQTT, one line a message: CPU of the process a message", cpu_us, "us", bar=MOST_CPU_US)
    _report(bench, "MQTT, one line a message", "msg/s", count, ours, taken)


def hundred_lines(bench: Bench) -> None:
    """Messages of a hundred lines."""
    peers = {name: options for name, options in PEERS.items() if "window" in name}
    taken, count = _drain(bench, bench.size(10_000, 100), lines=100, peers=peers)
    ours = taken.pop("ours")
    rate = count * 100 / ours.took_s
    is_kept = rate >= LEAST_LINES or ours.is_bound_by_broker
    bar = f">= {LEAST_LINES:,} or broker"
    bench.judge("MQTT, 100 lines a message", rate, "lines/s", bar, is_kept=is_kept, note=_bound(ours))
    bench.add("MQTT, 100 lines a message: CPU of the process a line", ours.cpu_s / count / 100 * 1e6, "us")
    _report(bench, "MQTT, 100 lines a message", "msg/s", count, ours, taken)


def _report(bench: Bench, what: str, unit: str, count: int, ours: Drained, peers: dict[str, Drained]) -> None:
    if not peers:
        bench.add(what, count / ours.took_s, unit, note=_bound(ours))
        bench.skip("mosquitto_sub", "not installed")
    for name, peer in peers.items():
        bench.add(
            f"{what}, against {name}",
            count / ours.took_s,
            unit,
            peer=count / peer.took_s,
            peer_name="mosquitto_sub",
            bar=LEAST_RATIO if what.endswith("one line a message") else None,
            note=f"ours: {_bound(ours)}; mosquitto_sub: {peer}, {peer.cpu_s / count * 1e6:.1f} us a message",
        )


def _bound(drained: Drained) -> str:
    bound = "bound by the broker" if drained.is_bound_by_broker else "not bound by the broker"
    return f"{drained}: {bound}"


def _drain(bench: Bench, count: int, lines: int, peers: dict[str, Sequence[str]]) -> tuple[dict[str, Drained], int]:
    """The fastest of some rounds for each subscriber, and the number of messages."""
    if shutil.which("mosquitto_sub") is None:
        peers = {}
    payloads = Shape().bodies(count * lines, lines)
    taken: dict[str, list[Drained]] = {}
    for turn in range(ROUNDS):
        directory = bench.directory / f"drain-{lines}-{turn}"
        taken.setdefault("ours", []).append(_drain_with_appliance(directory, payloads, lines))
        for name, options in peers.items():
            taken.setdefault(name, []).append(_drain_with_mosquitto_sub(directory / "peer", payloads, lines, options))
    return {name: min(runs) for name, runs in taken.items()}, count


def _drain_with_appliance(directory: Path, payloads: Sequence[bytes], lines: int) -> Drained:
    settings: dict[str, dict[str, object]] = {
        "mqtt": {"receive_maximum": WINDOW},
        "memory": {"buffer_limit": "25%"},
    }
    with Mosquitto(directory / "broker", settings=QUEUE) as broker:
        appliance = ApplianceProcess(directory / "appliance", mqtt_port=broker.port, settings=settings)
        with appliance:
            appliance.start()
            wait_until(lambda: appliance.metric("broker_connected") == 1, "the appliance has subscribed")
            appliance.stop()
            publish(broker.port, TOPICS, payloads)
            os.kill(broker.pid, signal.SIGSTOP)
            appliance.start()
            process, broker_process = psutil.Process(appliance.pid), psutil.Process(broker.pid)
            before_s, broker_before_s, threads = cpu_s(process), cpu_s(broker_process), _threads(process)
            os.kill(broker.pid, signal.SIGCONT)
            start_s = time.perf_counter()
            count = len(payloads)
            wait_until(lambda: appliance.metric("acked_total") >= count, "all is acked", TIMEOUT_S, pause_s=0.02)
            took_s = time.perf_counter() - start_s
            used_s, broker_s = cpu_s(process) - before_s, cpu_s(broker_process) - broker_before_s
            busiest_s = max(now_s - threads.get(thread, 0.0) for thread, now_s in _threads(process).items())
            rows = appliance.metric("lines_total")
            assert rows == count * lines, f"{rows} of {count * lines} lines are there"
            return Drained(took_s, used_s, broker_s, busiest_s)


def _drain_with_mosquitto_sub(
    directory: Path, payloads: Sequence[bytes], lines: int, options: Sequence[str]
) -> Drained:
    with Mosquitto(directory, settings=QUEUE) as broker:
        command = ["mosquitto_sub", "-p", str(broker.port), "-i", "bench", "-c", "-q", "1", "-t", "devices/+/lp"]
        command += options
        subprocess.run([*command, "-E"], check=True, timeout=30)  # makes its session and leaves
        publish(broker.port, TOPICS, payloads)
        os.kill(broker.pid, signal.SIGSTOP)
        subscriber = subprocess.Popen(
            [*command, "-C", str(len(payloads)), "-W", str(TIMEOUT_S)], stdout=subprocess.DEVNULL
        )
        time.sleep(0.5)  # it is up and waits for its CONNACK
        broker_process = psutil.Process(broker.pid)
        broker_before_s = cpu_s(broker_process)
        os.kill(broker.pid, signal.SIGCONT)
        start_s = time.perf_counter()
        _, status, usage = os.wait4(subscriber.pid, 0)
        took_s = time.perf_counter() - start_s
        subscriber.returncode = os.waitstatus_to_exitcode(status)
        assert subscriber.returncode == 0
        used_s = usage.ru_utime + usage.ru_stime
        return Drained(took_s, used_s, cpu_s(broker_process) - broker_before_s, used_s)


def _threads(process: psutil.Process) -> dict[int, float]:
    """CPU seconds of each thread."""
    return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
