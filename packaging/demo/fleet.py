"""A simulated fleet: devices of three sites that publish line protocol with QoS 1, now and then a wrong line.

The fleet keeps the books: what it published, what the broker took, and what of that must be in the database.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

SITES: Final = ("berlin", "graz", "turin")
TICK_S: Final = 0.05
WRONG_SHARE: Final = 0.005
"""Share of messages that carry one wrong line more."""
PENDING_MAX: Final = 5_000
"""Messages a publisher has on the way to the broker before it waits."""
WRONG_LINES: Final = (
    b"pumps,line=L2 flow=abc",
    b"pumps,line=L2 flow=12.1,rpm=",
    b"climate,zone= temperature=21.4",
    b'climate temperature=20.9,note="door open',
    b"energy kwh=18342.7 yesterday",
    b"vibration,axis=x rms=0.2 42",
    b"online",
)


class Message(NamedTuple):
    """One message: where to, what, and how many lines of it are good and wrong."""

    topic: str
    payload: bytes
    table: str
    good: int
    wrong: int


class Device:
    """One device: a random walk around a daily swing, and a clock that never shows the same time twice."""

    def __init__(self, kind: str, site: str, name: str) -> None:
        self.kind = kind
        self.topic = f"plants/{site}/{kind}/{name}/lp"
        self._random = random.Random(f"{site}/{name}")
        self._drift = self._random.uniform(-1, 1)
        self._last_ns = 0
        self._energy_kwh = self._random.uniform(10_000, 30_000)

    def message(self) -> Message:
        """The next message, in most cases without a fault."""
        lines = MAKERS[self.kind](self)
        good = len(lines)
        if self._random.random() < WRONG_SHARE:
            lines.insert(self._random.randrange(good + 1), self._random.choice(WRONG_LINES))
        wrong = len(lines) - good
        return Message(self.topic, b"\n".join(lines), self.kind, good, wrong)

    def walk(self, middle: float, swing: float) -> float:
        """The next value around `middle`."""
        self._drift = 0.98 * self._drift + self._random.uniform(-0.1, 0.1)
        day = math.sin(time.time() / 86_400 * 2 * math.pi)
        return middle + swing * (0.5 * day + self._drift)

    def time_ns(self, unit_ns: int = 1) -> int:
        """The time now in `unit_ns`, later than every time before."""
        self._last_ns = max(time.time_ns() // unit_ns, self._last_ns + 1)
        return self._last_ns

    def pumps(self) -> list[bytes]:
        """One line: floats, an integer, a boolean, time in ns."""
        flow, rpm = self.walk(42, 6), int(self.walk(1450, 40))
        fields = f"flow={flow:.2f},pressure={self.walk(3.2, 0.4):.3f},rpm={rpm}i,running={'t' if flow > 38 else 'f'}"
        return [f"pumps,line=L{1 + rpm % 3} {fields} {self.time_ns()}".encode()]

    def climate(self) -> list[bytes]:
        """One line without a time: it gets the time of its arrival."""
        return [f"climate,zone=hall temperature={self.walk(21, 3):.2f},humidity={self.walk(55, 10):.1f}".encode()]

    def energy(self) -> list[bytes]:
        """Three lines, one a phase, time in ms."""
        self._energy_kwh += self._random.uniform(0, 0.02)
        now_ms = self.time_ns(1_000_000)
        phases = [f"kwh={self._energy_kwh / 3:.3f},kw={self.walk(13, 4):.2f},pf={self.walk(0.95, 0.02):.3f}"] * 3
        return [f"energy,phase={n} {fields} {now_ms}".encode() for n, fields in enumerate(phases, 1)]

    def vibration(self) -> list[bytes]:
        """A burst of 20 lines, time in ns."""
        axes = "xyz"
        return [
            f"vibration,axis={axes[n % 3]} rms={self.walk(0.8, 0.3):.4f},peak={self.walk(2.5, 1):.4f} "
            f"{self.time_ns()}".encode()
            for n in range(20)
        ]


MAKERS: Final[dict[str, Callable[[Device], list[bytes]]]] = {
    "pumps": Device.pumps,
    "climate": Device.climate,
    "energy": Device.energy,
    "vibration": Device.vibration,
}
TABLES: Final = tuple(MAKERS)
NAMES: Final = {"pumps": "pump", "climate": "sensor", "energy": "meter", "vibration": "motor"}


class Publisher:
    """One MQTT connection on which the devices of a site publish."""

    def __init__(self, site: str, port: int, lines_per_s: float) -> None:
        self._devices = [Device(kind, site, f"{NAMES[kind]}-{n}") for kind in TABLES for n in range(1, 5)]
        self._lines_per_s = lines_per_s
        self._pending: deque[tuple[paho.MQTTMessageInfo, Message]] = deque()
        self._stopping = threading.Event()
        self.good: Counter[str] = Counter()
        """Good lines that the broker took, by table."""
        self.wrong = 0
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=f"fleet-{site}", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.max_inflight_messages_set(200)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run, name=f"fleet-{site}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish nothing more; what is on the way may still arrive."""
        self._stopping.set()
        self._thread.join()

    def settle(self, deadline_s: float) -> int:
        """Wait until the broker took everything; returns how many messages it did not take."""
        while self._pending and time.monotonic() < deadline_s:
            self._sweep()
            time.sleep(TICK_S)
        self._client.disconnect()
        self._client.loop_stop()
        return len(self._pending)

    def _run(self) -> None:
        due, last_s, turn = 0.0, time.monotonic(), 0
        while not self._stopping.wait(TICK_S):
            now_s = time.monotonic()
            due += (now_s - last_s) * self._lines_per_s
            last_s = now_s
            self._sweep()
            while due > 0 and len(self._pending) < PENDING_MAX:
                message = self._devices[turn % len(self._devices)].message()
                turn += 1
                due -= message.good
                self._pending.append((self._client.publish(message.topic, message.payload, qos=1), message))
            due = min(due, self._lines_per_s)

    def _sweep(self) -> None:
        """Book what the broker has acknowledged since."""
        while self._pending and self._pending[0][0].is_published():
            _, message = self._pending.popleft()
            self.good[message.table] += message.good
            self.wrong += message.wrong


class Fleet:
    """All publishers."""

    def __init__(self, port: int, lines_per_s: float) -> None:
        self._publishers = [Publisher(site, port, lines_per_s / len(SITES)) for site in SITES]

    @property
    def good(self) -> Counter[str]:
        """Good lines that the broker took, by table."""
        return sum((publisher.good for publisher in self._publishers), Counter())

    @property
    def wrong(self) -> int:
        """Wrong lines that the broker took."""
        return sum(publisher.wrong for publisher in self._publishers)

    def stop(self, timeout_s: float) -> int:
        """End publishing; returns how many messages the broker did not take in time."""
        for publisher in self._publishers:
            publisher.stop()
        deadline_s = time.monotonic() + timeout_s
        return sum(publisher.settle(deadline_s) for publisher in self._publishers)
