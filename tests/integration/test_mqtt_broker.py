"""The MQTT source against a real Mosquitto, and against scripted brokers where a real one behaves too well."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pytest
import uvloop
from broker import Mosquitto
from ports import free_port

from edge_appliance.core.delivery import ArrivalClock, Delivery, Reason
from edge_appliance.core.route import Route, RouteSettings, RouteTable
from edge_appliance.health import Health, Phase
from edge_appliance.metrics import Metrics
from edge_appliance.mqtt_settings import MqttSettings, TlsSettings
from edge_appliance.mqtt_source import MqttSource
from edge_appliance.systemd import Station

pytestmark = pytest.mark.integration

TIMEOUT_S = 15.0


class _Inbox:
    """Keeps what it is given; full at a number of deliveries that were not drained."""

    def __init__(self, full_at: int) -> None:
        self.deliveries: list[Delivery] = []
        self._full_at = full_at
        self._waiting = 0
        self._callback: Callable[[], None] = lambda: None

    def put(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries += deliveries
        self._waiting += len(deliveries)

    @property
    def is_full(self) -> bool:
        return self._waiting >= self._full_at

    def on_room(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def drain(self, full_at: int) -> None:
        """Forget what waits, set a new limit and say that there is room."""
        self._waiting, self._full_at = 0, full_at
        self._callback()


class _Run:
    """One run of a source: what came in, what it saved, its numbers."""

    def __init__(
        self,
        settings: MqttSettings,
        templates: Sequence[str],
        *,
        full_at: int = 10**9,
        last_filters: Sequence[str] = (),
    ) -> None:
        self.inbox = _Inbox(full_at)
        self.saved: list[tuple[str, ...]] = []
        self.metrics = Metrics()
        self.health = Health()
        self.health.enter(Phase.RUNNING)
        self.source = MqttSource(
            settings,
            RouteTable([Route(RouteSettings(template, "edge")) for template in templates]),
            self.inbox,
            ArrivalClock(),
            last_filters,
            lambda filters: self.saved.append(tuple(filters)),
            self.metrics,
            self.health,
            Station("MQTT", 60.0),
        )

    @property
    def payloads(self) -> list[str]:
        return [delivery.payload.decode() for delivery in self.inbox.deliveries]

    async def got(self, count: int) -> list[Delivery]:
        """Wait for so many deliveries; return all, and forget them."""
        await until(lambda: len(self.inbox.deliveries) >= count, f"{count} deliveries")
        taken, self.inbox.deliveries = self.inbox.deliveries, []
        return taken

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """What a durable group does."""
        self.source.acknowledge([(delivery.epoch, [delivery.packet_id]) for delivery in deliveries if delivery.qos])

    async def connected(self) -> None:
        """Wait until all filters are granted."""
        await until(lambda: self.source.is_connected, "the source is connected")

    async def cut(self) -> None:
        """Lose the connection without a word to the broker, once what is queued has left."""
        link = self.source._link
        assert link is not None
        await until(lambda: not link.want_write(), "the queue is empty")
        link.close("cut by the test")


@contextlib.asynccontextmanager
async def running(
    settings: MqttSettings, *templates: str, is_connected: bool = True, **options: Any
) -> AsyncIterator[_Run]:
    """A source that runs, and is stopped in the end."""
    run = _Run(settings, templates, **options)
    task = asyncio.create_task(run.source.run())
    try:
        if is_connected:
            await run.connected()
        yield run
    finally:
        await run.source.stop()
        await asyncio.wait_for(task, TIMEOUT_S)


async def until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Ask until it is true; AssertionError names what was not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.005)


def settings_for(port: int, **changes: Any) -> MqttSettings:
    """Settings for a broker on the loopback."""
    return MqttSettings("127.0.0.1", port, "edge-appliance-test", "gw-test", **changes)


async def publish(port: int, *payloads: str, topic: str = "dev/a", qos: int = 1, retain: bool = False) -> None:
    """Publish with a real client, and return when the broker has everything."""
    messages = [(topic, payload, qos, retain) for payload in payloads]
    await asyncio.to_thread(paho.mqtt.publish.multiple, messages, hostname="127.0.0.1", port=port)


def numbered(start: int, stop: int) -> list[str]:
    """Lines that tell their number."""
    return [f"x v={number}i" for number in range(start, stop)]


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario on the loop the appliance uses."""
    uvloop.run(scenario)


@pytest.fixture
def port(tmp_path: Path) -> Any:
    """Port of a running broker."""
    with Mosquitto(tmp_path / "broker", settings=("max_queued_messages 100000",)) as broker:
        yield broker.port


VERSIONS = pytest.mark.parametrize("protocol", ["5", "3.1.1"])


@VERSIONS
def test_messages_arrive_in_order_and_are_acknowledged(port: int, protocol: Any) -> None:
    """Everything published comes once with its tags; what was acknowledged does not come again."""

    async def scenario() -> None:
        async with running(settings_for(port, protocol=protocol), "dev/{device}") as run:
            await publish(port, *numbered(0, 500))
            deliveries: list[Delivery] = []
            while len(deliveries) < 500:
                part = await run.got(1)
                run.ack(part)
                deliveries += part
            assert [delivery.payload.decode() for delivery in deliveries] == numbered(0, 500)
            assert deliveries[0].origin.tags == (("device", "a"),)
            assert (run.metrics.acked.value(), run.metrics.broker_connected.value()) == (500, 1)
            assert run.metrics.granted_qos.value("dev/+") == 1
            await run.cut()
            await until(lambda: run.metrics.broker_connects.value() == 2 and run.source.is_connected, "it is back")
            await publish(port, "x v=1000i")
            (last,) = await run.got(1)
            assert (last.payload, last.is_dup) == (b"x v=1000i", False)

    play(scenario())


def test_unacknowledged_messages_come_again_and_late_acks_are_dropped(port: int) -> None:
    """An ack of a dead connection acknowledges nothing on the next one, where its id may mean another message."""

    async def scenario() -> None:
        async with running(settings_for(port), "dev/+") as run:
            await publish(port, *numbered(0, 3))
            first = await run.got(3)
            await run.cut()
            run.ack(first)
            assert run.metrics.stale_acks.value() == 3
            second = await run.got(3)
            assert [d.payload for d in second] == [d.payload for d in first]
            assert [d.packet_id for d in second] == [d.packet_id for d in first]
            assert {d.is_dup for d in second} == {True}
            assert {d.epoch for d in second}.isdisjoint({d.epoch for d in first})
            run.ack(first)
            assert (run.metrics.stale_acks.value(), run.metrics.acked.value()) == (6, 0)
            run.ack(second)
            await run.cut()
            await until(lambda: run.metrics.broker_connects.value() == 3 and run.source.is_connected, "it is back")
            await publish(port, "x v=9i")
            assert [d.payload for d in await run.got(1)] == [b"x v=9i"]

    play(scenario())


def test_window_holds_the_broker(port: int) -> None:
    """With acks withheld no more than the Receive Maximum arrives; the rest comes with the acks, nothing is lost."""

    async def scenario() -> None:
        async with running(settings_for(port, receive_maximum=30), "dev/+") as run:
            assert run.source.window == 30
            await publish(port, *numbered(0, 200))
            first = await run.got(30)
            await publish(port, "y v=1", topic="dev/qos0", qos=0)  # behind it the broker has nothing more to send
            (marker,) = await run.got(1)
            assert (len(first), marker.payload) == (30, b"y v=1")
            assert run.metrics.unprotected.value("dev/+") == 1
            taken = list(first)
            while len(taken) < 200:
                run.ack(first)
                first = await run.got(1)
                taken += first
            assert [d.payload.decode() for d in taken] == numbered(0, 200)

    play(scenario())


def test_broker_restart_with_persistence(tmp_path: Path) -> None:
    """The session survives: unacknowledged messages come again, and nothing is reported as lost."""

    async def scenario() -> None:
        with Mosquitto(tmp_path / "broker", has_persistence=True) as broker:
            async with running(settings_for(broker.port), "dev/+") as run:
                await publish(broker.port, *numbered(0, 3))
                await run.got(3)
                broker.stop()
                await until(lambda: not run.source.is_connected, "the loss is noticed")
                assert run.metrics.broker_connected.value() == 0
                await until(lambda: "not connected" in run.health.status_line(), "the status says so")
                broker.start()
                assert [d.payload.decode() for d in await run.got(3)] == numbered(0, 3)
                await run.connected()
                assert run.metrics.session_lost.value() == 0

    play(scenario())


def test_broker_restart_without_persistence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker comes back empty: one warning, one count, all filters subscribed again, later data arrives."""

    async def scenario() -> None:
        with Mosquitto(tmp_path / "broker") as broker:
            async with running(settings_for(broker.port), "dev/+", "other/#") as run:
                broker.stop(signal.SIGKILL)
                await until(lambda: not run.source.is_connected, "the loss is noticed")
                broker.start()
                await run.connected()
                await publish(broker.port, "x v=1")
                await publish(broker.port, "x v=2", topic="other/a/b")
                assert len(await run.got(2)) == 2
                assert run.metrics.session_lost.value() == 1

    play(scenario())
    assert [record.levelname for record in caplog.records if "session_lost" in record.message] == ["WARNING"]


def test_broker_absent_at_start(tmp_path: Path) -> None:
    """A broker that is not there is normal: no degradation, and a connection soon after it appears."""

    async def scenario() -> None:
        broker = Mosquitto(tmp_path / "broker")
        async with running(settings_for(broker.port), "dev/+", is_connected=False) as run:
            await until(lambda: "Connection refused" in run.health.status_line(), "the reason is told")
            assert run.health.degraded == {}
            with broker:
                await run.connected()
                await publish(broker.port, "x v=1")
                await run.got(1)

    play(scenario())


def test_no_connection_while_the_inbox_is_full(port: int) -> None:
    """A new link would read ahead of a full inbox, so it waits for room; the broker keeps the messages."""

    async def scenario() -> None:
        async with running(settings_for(port), "dev/+", is_connected=False, full_at=0) as run:
            await until(lambda: "waiting for inbox room" in run.health.status_line(), "the reason is told")
            assert run.metrics.broker_connects.value() == 0
            run.inbox.drain(full_at=10)
            await run.connected()

    play(scenario())


def test_host_that_does_not_resolve_holds_nothing_up() -> None:
    """DNS has a thread of its own: the loop goes on, and a stop does not wait for it."""

    async def scenario() -> None:
        settings = replace(settings_for(1883), host="no-such-host.invalid")
        async with running(settings, "dev/+", is_connected=False):
            longest_s = last_s = 0.0
            for _ in range(50):
                last_s = time.monotonic()
                await asyncio.sleep(0.002)
                longest_s = max(longest_s, time.monotonic() - last_s)
            assert longest_s < 0.5
            stopping_s = time.monotonic()
        assert time.monotonic() - stopping_s < 1

    play(scenario())


@pytest.mark.slow
@VERSIONS
def test_pause_longer_than_two_keepalives(port: int, protocol: Any) -> None:
    """While the inbox is full nothing is read and the link lives on; with room everything arrives, once."""

    async def scenario() -> None:
        settings = settings_for(port, protocol=protocol, keepalive_s=1)
        async with running(settings, "dev/+", full_at=10) as run:
            await publish(port, *numbered(0, 20), qos=0)
            await until(lambda: run.metrics.read_paused.value() == 1, "reading is paused")
            before = len(run.inbox.deliveries)
            await publish(port, *numbered(20, 1000), qos=0)
            await asyncio.sleep(3.2)  # the time itself is what is tested
            assert (len(run.inbox.deliveries), run.metrics.broker_connects.value()) == (before, 1)
            assert run.source.is_connected
            run.inbox.drain(full_at=10**9)
            await until(lambda: len(run.inbox.deliveries) == 1000, "the rest arrives")
            assert run.payloads == numbered(0, 1000)
            assert (run.metrics.broker_connects.value(), run.metrics.read_paused.value()) == (1, 0)

    play(scenario())


@VERSIONS
def test_filters_no_longer_configured_are_unsubscribed(port: int, protocol: Any) -> None:
    """A route that was removed brings no more messages; the kept list follows the broker's confirmation."""

    async def scenario() -> None:
        settings = settings_for(port, protocol=protocol)
        async with running(settings, "dev/+", "old/+") as run:
            assert run.saved == [("dev/+", "old/+")]
        async with running(settings, "dev/+", last_filters=run.saved[-1]) as run:
            await until(lambda: run.saved == [("dev/+",)], "the broker has confirmed")
            assert run.metrics.session_lost.value() == 0
            await publish(port, "x v=1", topic="old/a")
            await publish(port, "x v=2")
            assert [d.payload for d in await run.got(1)] == [b"x v=2"]

    play(scenario())


def test_added_filter_is_subscribed_in_a_resumed_session(port: int) -> None:
    """A session that exists does not keep the old list of filters."""

    async def scenario() -> None:
        async with running(settings_for(port), "dev/+"):
            pass
        async with running(settings_for(port), "dev/+", "new/+", last_filters=["dev/+"]) as run:
            assert run.saved == [("dev/+", "new/+")]
            await publish(port, "x v=1", topic="new/a")
            await run.got(1)

    play(scenario())


@VERSIONS
def test_stop_keeps_the_session(port: int, protocol: Any) -> None:
    """Acks given before the stop count, the status says stopped, and what is published meanwhile arrives later."""

    async def scenario() -> None:
        settings = settings_for(port, protocol=protocol)
        async with running(settings, "dev/+") as run:
            await publish(port, *numbered(0, 10))
            deliveries = await run.got(10)
            run.source.pause_for_stop()
            run.ack(deliveries[:6])
        assert await status(port) == "stopped"
        await publish(port, "x v=99i")
        async with running(settings, "dev/+", last_filters=["dev/+"]) as run:
            assert [d.payload.decode() for d in await run.got(5)] == [*numbered(6, 10), "x v=99i"]
            assert await status(port) == "online"

    play(scenario())


def test_stop_with_unread_data_loses_no_ack(port: int) -> None:
    """Unread messages in the socket must not turn the goodbye into a reset that overtakes the acks."""

    async def scenario() -> None:
        async with running(settings_for(port), "dev/+", full_at=10) as run:
            await publish(port, *numbered(0, 20))
            await until(lambda: run.metrics.read_paused.value() == 1, "reading is paused")
            await publish(port, *numbered(20, 1500))
            taken = list(run.inbox.deliveries)
            run.source.pause_for_stop()
            run.ack(taken)
            stopping_s = time.monotonic()
            await run.source.stop()
            assert time.monotonic() - stopping_s < 2
        assert await status(port) == "stopped"
        async with running(settings_for(port), "dev/+", last_filters=["dev/+"]) as run:
            rest = await run.got(1500 - len(taken))
            assert [d.payload.decode() for d in rest] == numbered(len(taken), 1500)

    play(scenario())


async def status(port: int) -> str:
    """The retained status of this node, as anybody sees it."""
    process = await asyncio.create_subprocess_exec(
        *("mosquitto_sub", "-p", str(port), "-t", "edge/gw-test/status", "-C", "1", "-W", "5"),
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return output.decode().strip()


def test_retained_replays_are_skipped_on_311(port: int) -> None:
    """Each reconnect replays retained values: they give no rows, are acknowledged in their place, and are counted."""

    async def scenario() -> None:
        for number in range(5):
            await publish(port, f"old v={number}", topic=f"dev/{number}", retain=True)
        async with running(settings_for(port, protocol="3.1.1"), "dev/+") as run:
            assert run.source.window is None
            for connects in (1, 2, 3):
                replays = await run.got(5)
                assert {d.payload for d in replays} == {b""}
                run.ack(replays)
                assert run.metrics.ignored.value() == 5 * connects
                await run.cut()
                await until(lambda n=connects: run.metrics.broker_connects.value() == n + 1, "it is back")  # type: ignore[misc]

    play(scenario())


def test_retained_values_are_not_asked_for_on_5(port: int) -> None:
    """A subscription brings no replays; a live message that is published retained is data."""

    async def scenario() -> None:
        await publish(port, "old v=1", retain=True)
        async with running(settings_for(port), "dev/+") as run:
            await publish(port, "new v=2", retain=True)
            assert [d.payload for d in await run.got(1)] == [b"new v=2"]

    play(scenario())


def test_message_above_the_limit_on_311(port: int) -> None:
    """It is reported with its first bytes and acknowledged, so that it does not come back for ever."""

    async def scenario() -> None:
        async with running(settings_for(port, protocol="3.1.1", max_packet_bytes=100_000), "dev/+") as run:
            await publish(port, "x v=1", "z" * 3_000_000, "x v=2")
            before, big, after = await run.got(3)
            assert (before.payload, after.payload) == (b"x v=1", b"x v=2")
            assert big.reject is not None
            assert (big.reject.reason, big.payload, big.reject.sample[:5]) == (
                Reason.PAYLOAD_TOO_LARGE,
                b"",
                b"zzzzz",
            )
            run.ack([before, big, after])
            await run.cut()
            await until(lambda: run.metrics.broker_connects.value() == 2 and run.source.is_connected, "it is back")
            await publish(port, "x v=3")
            assert [d.payload for d in await run.got(1)] == [b"x v=3"]

    play(scenario())


def test_message_above_the_limit_on_5(port: int) -> None:
    """The broker keeps it back by our Maximum Packet Size, and the messages around it arrive."""

    async def scenario() -> None:
        async with running(settings_for(port, max_packet_bytes=100_000), "dev/+") as run:
            await publish(port, "x v=1", "z" * 3_000_000, "x v=2")
            assert [d.payload for d in await run.got(2)] == [b"x v=1", b"x v=2"]

    play(scenario())


def test_shared_subscription(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """A shared filter is granted, matches by its topic, and its costs are told once."""

    async def scenario() -> None:
        async with running(settings_for(port), "$share/pool/dev/{device}") as run:
            await publish(port, "x v=1")
            (delivery,) = await run.got(1)
            assert delivery.origin.tags == (("device", "a"),)

    play(scenario())
    assert sum("shared subscriptions" in record.message for record in caplog.records) == 1


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with an authority, a broker's and a client's certificate signed by it, and a foreign authority."""
    directory = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "foreign"):
        subject = ("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        openssl("req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", *subject)
    (directory / "names").write_text("subjectAltName=DNS:broker.test\n")
    for name in ("broker", "client"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed_by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed_by)
    return directory


@contextlib.contextmanager
def tls_broker(tmp_path: Path, certificates: Path) -> Any:
    """A broker that asks for a client certificate, and has a second, plain listener for the publisher."""
    plain_port = free_port()
    settings = (
        f"cafile {certificates}/ca.pem",
        f"certfile {certificates}/broker.pem",
        f"keyfile {certificates}/broker.key",
        "require_certificate true",
        f"listener {plain_port} 127.0.0.1",
        "max_queued_messages 100000",
    )
    with Mosquitto(tmp_path / "broker", settings=settings) as broker:
        yield broker.port, plain_port


def test_mutual_tls(tmp_path: Path, certificates: Path) -> None:
    """With the right authority, name and client certificate a burst over many TLS records arrives whole."""

    async def scenario() -> None:
        with tls_broker(tmp_path, certificates) as (tls_port, plain_port):
            tls = TlsSettings(
                certificates / "ca.pem", certificates / "client.pem", certificates / "client.key", "broker.test", "1.3"
            )
            async with running(settings_for(tls_port, tls=tls), "dev/+") as run:
                payloads = [f"{line} {'#' * 2000}" for line in numbered(0, 1000)]
                await publish(plain_port, *payloads)
                taken: list[Delivery] = []
                while len(taken) < 1000:
                    part = await run.got(1)
                    run.ack(part)
                    taken += part
                assert [d.payload.decode() for d in taken] == payloads

    play(scenario())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"ca_file": "foreign.pem"}, "CERTIFICATE_VERIFY_FAILED", id="foreign-authority"),
        pytest.param({"server_name": "other.test"}, "CERTIFICATE_VERIFY_FAILED", id="other-name"),
        pytest.param({"ca_file": "no-such.pem"}, "no-such.pem: No such file", id="file-is-missing"),
        pytest.param({"key_file": "ca.key"}, "KEY_VALUES_MISMATCH", id="key-of-another"),
    ],
)
def test_tls_that_cannot_work(
    tmp_path: Path, certificates: Path, changes: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent to a broker that is not trusted; the reason is told once, and attempts go on."""
    chosen = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key", **changes}
    name = chosen.pop("server_name", "broker.test")
    tls = TlsSettings(server_name=name, **{key: certificates / file for key, file in chosen.items()})

    async def scenario() -> None:
        with tls_broker(tmp_path, certificates) as (tls_port, _):
            async with running(settings_for(tls_port, tls=tls), "dev/+", is_connected=False) as run:
                await until(lambda: run.source._backoff._attempts >= 2, "it tries again")
                assert reason in run.health.status_line()
                assert ("broker" in run.health.degraded) == (reason == "CERTIFICATE_VERIFY_FAILED")

    play(scenario())
    assert sum(reason in record.message for record in caplog.records) == 1


# Scripted brokers


class _Script:
    """A broker that answers each connection by the next of some scripts, then by the last one for ever.

    A script maps the type of a received packet to the bytes sent back; None closes the connection.
    """

    def __init__(self, *scripts: dict[int, bytes | None]) -> None:
        self._scripts = list(scripts)
        self.connects: list[bytes] = []
        """Body of each CONNECT."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await self._packet(reader)
                if kind == 0x10:
                    self.connects.append(body)
                answer = script.get(kind, b"")
                if answer is None:
                    break
                writer.write(answer.replace(b"ID", body[:2]))
                await writer.drain()
        writer.close()

    @staticmethod
    async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
        kind, length, shift = (await reader.readexactly(1))[0], 0, 0
        while True:
            byte = (await reader.readexactly(1))[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return kind & 0xF0, await reader.readexactly(length)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Serve on a free port."""
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]


GOOD_5 = {0x10: b"\x20\x03\x00\x00\x00", 0x80: b"\x90\x04ID\x00\x01", 0xE0: None}
GOOD_311 = {0x10: b"\x20\x02\x00\x00", 0x80: b"\x90\x03ID\x01", 0xE0: None}


@pytest.mark.parametrize(
    "refusal",
    [pytest.param(b"\x20\x03\x00\x84\x00", id="5-format"), pytest.param(b"\x20\x02\x00\x01", id="311-format")],
)
def test_fallback_to_311(refusal: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that refuses MQTT 5 is asked with 3.1.1 at once; one warning names what is lost."""

    async def scenario() -> None:
        script = _Script({0x10: refusal}, GOOD_311)
        async with script.listening() as port, running(settings_for(port), "dev/+") as run:
            assert [body[6] for body in script.connects] == [5, 4]
            assert run.source.window is None
            assert run.health.degraded == {}
            assert "3.1.1" in run.health.status_line()

    play(scenario())
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    for lost in ("Receive Maximum", "session expiry", "Maximum Packet Size", "retain handling"):
        assert lost in warning.message


def test_no_fallback_when_the_version_is_configured() -> None:
    """`protocol = "5"` stays with 5 and tells why there is no connection."""

    async def scenario() -> None:
        script = _Script({0x10: b"\x20\x03\x00\x84\x00"})
        async with (
            script.listening() as port,
            running(settings_for(port, protocol="5"), "dev/+", is_connected=False) as run,
        ):
            await until(lambda: len(script.connects) >= 2, "it tries again")
            assert {body[6] for body in script.connects} == {5}
            assert "Unsupported protocol version" in run.health.degraded["broker"]

    play(scenario())


def test_refused_login_is_a_degradation_until_it_works() -> None:
    """Wrong credentials do not pass by themselves: health says so, and forgets it with the first good login."""

    async def scenario() -> None:
        script = _Script({0x10: b"\x20\x03\x00\x86\x00"}, GOOD_5)
        async with script.listening() as port:
            settings = settings_for(port, username="u", password="wrong")  # noqa: S106
            async with running(settings, "dev/+", is_connected=False) as run:
                await until(lambda: run.health.degraded, "the refusal is told")
                assert "Bad user name or password" in run.health.degraded["broker"]
                await run.connected()
                assert run.health.degraded == {}
                assert b"\x00\x01u\x00\x05wrong" in script.connects[0]
                assert "wrong" not in repr(settings)

    play(scenario())


def test_refused_filter_is_not_up() -> None:
    """A filter that the broker refuses keeps the state from `connected` and is named."""

    async def scenario() -> None:
        script = _Script({**GOOD_5, 0x80: b"\x90\x05ID\x00\x01\x87"})
        async with (
            script.listening() as port,
            running(settings_for(port), "dev/+", "secret/+", is_connected=False) as run,
        ):
            await until(lambda: run.health.degraded, "the refusal is told")
            assert "secret/+" in run.health.degraded["mqtt_refused"]
            assert "dev/+" not in run.health.degraded["mqtt_refused"]
            assert (run.source.is_connected, run.metrics.broker_connected.value()) == (False, 0)

    play(scenario())


def test_lower_granted_qos_is_told() -> None:
    """A broker that grants QoS 0 leaves messages unprotected: connected, and degraded."""

    async def scenario() -> None:
        script = _Script({**GOOD_5, 0x80: b"\x90\x04ID\x00\x00"})
        async with script.listening() as port, running(settings_for(port), "dev/+") as run:
            assert "dev/+" in run.health.degraded["mqtt_unprotected"]
            assert run.metrics.granted_qos.value("dev/+") == 0

    play(scenario())


def test_link_cut_at_every_step_of_the_handshake() -> None:
    """Wherever the connection ends, the next attempt starts over and ends subscribed."""

    async def scenario() -> None:
        script = _Script({0x10: None}, {**GOOD_5, 0x80: None}, GOOD_5)
        async with script.listening() as port, running(settings_for(port), "dev/+") as run:
            assert len(script.connects) == 3
            assert run.metrics.broker_connected.value() == 1

    play(scenario())


def test_lowered_session_expiry_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that keeps the session for less than asked says so in its CONNACK, and we in the journal."""

    async def scenario() -> None:
        script = _Script({**GOOD_5, 0x10: b"\x20\x08\x00\x00\x05\x11\x00\x00\x0e\x10"})
        async with script.listening() as port, running(settings_for(port), "dev/+"):
            pass

    play(scenario())
    assert "keeps our session for 3600 s only" in caplog.text


def test_silent_broker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that takes the SUBSCRIBE and never answers ends the link after a time limit."""
    monkeypatch.setattr("edge_appliance.mqtt_source._HANDSHAKE_S", 0.3)

    async def scenario() -> None:
        script = _Script({0x10: GOOD_5[0x10]}, GOOD_5)
        settings = settings_for(0, keepalive_s=1)
        async with script.listening() as port, running(replace(settings, port=port), "dev/+"):
            assert len(script.connects) == 2

    play(scenario())
