"""The MQTT source: keeps one link to the broker for ever, fills the inbox from it, and sends acks back.

Owns the life of the connections: connect, reconcile subscriptions, pause, back off, stop. Runs on the event
loop; DNS, TCP and TLS have a thread of their own. An ack is sent only on the connection that delivered it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from edge_appliance.core.delivery import Acks, ArrivalClock, Delivery
from edge_appliance.core.route import RouteTable
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.mqtt import Link, LinkEvents
from edge_appliance.mqtt_intake import Intake
from edge_appliance.mqtt_packets import Publish
from edge_appliance.mqtt_session import REFUSED, Backoff
from edge_appliance.mqtt_settings import MqttSettings, Version
from edge_appliance.mqtt_socket import open_socket
from edge_appliance.systemd import Station

_log = logging.getLogger(__name__)

_CONNECT_S: Final = 30.0
"""Limit of DNS, TCP and TLS together."""
_HANDSHAKE_S: Final = 20.0
"""Limit from CONNECT to the last SUBACK."""
_RESUBSCRIBE_S: Final = 60.0
"""How often refused filters are asked for again: an access list may have been corrected."""
_FLUSH_S: Final = 3.0
"""How long a stop waits for the broker to take the last acks and close."""
_ROOM_POLL_S: Final = 1.0


class DeliverySink(Protocol):
    """Where deliveries go: the inbox."""

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries, in order; never blocks."""

    @property
    def is_full(self) -> bool:
        """Whether the limit in bytes is reached."""

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop whenever there is room again after the limit was reached."""


class MqttSource:
    """One broker, from `run()` to `stop()`. All methods are for the event loop's thread."""

    def __init__(
        self,
        settings: MqttSettings,
        routes: RouteTable,
        inbox: DeliverySink,
        clock: ArrivalClock,
        last_filters: Sequence[str],
        save_filters: Callable[[Sequence[str]], None],
        metrics: Metrics,
        health: Health,
        station: Station,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`last_filters` are those of the last run; `save_filters` keeps those of this one and must not block."""
        self._settings = settings
        self._routes = routes
        self._filters = routes.filters
        self._inbox = inbox
        self._saved_filters = tuple(last_filters)
        self._save = save_filters
        self._metrics = metrics
        self._health = health
        self._station = station
        self._intake = Intake(routes, clock, metrics, clock_ns)
        self._broker = f"{settings.host}:{settings.port}"
        self._backoff = Backoff()
        self._version: Version = "3.1.1" if settings.protocol == "3.1.1" else "5"
        self._expects_session = bool(last_filters)
        self._opening: asyncio.Future[socket.socket] | None = None
        self._link: Link | None = None
        self._epoch = 0
        self._stopping = asyncio.Event()
        self._reported = ""
        self._has_warned_of_311 = False

    @property
    def is_connected(self) -> bool:
        """Whether a link is up with all filters granted."""
        link = self._link
        return link is not None and link.up_since_s is not None and not link.ended.is_set()

    @property
    def window(self) -> int | None:
        """QoS 1 messages the broker sends without an ack: our Receive Maximum; None on 3.1.1, where it is unknown."""
        return self._settings.receive_maximum if self._version == "5" else None

    async def run(self) -> None:
        """Keep a link to the broker until `stop()`. A broker that is absent is normal."""
        self._warn_of_shared_filters()
        self._inbox.on_room(self._resume)
        try:
            while not self._stopping.is_set():
                self._station.beat()
                if self._inbox.is_full:
                    # A new link would read ahead before it knows; without one the broker keeps the messages.
                    self._health.note("broker", f"broker {self._broker}: not connected, waiting for inbox room")
                    await self._sleep(_ROOM_POLL_S)
                else:
                    delay_s = await self._live_once()
                    self._station.beat()
                    await self._sleep(delay_s)
        finally:
            self._station.rest()
            if self._link is not None:
                self._link.close("cancelled")

    def apply(self, settings: MqttSettings, routes: RouteTable) -> None:
        """Use these from now on. The link stays, with all that is unacknowledged; settings count for the next one."""
        gone = [route for route in self._routes.routes if route.filter not in dict(routes.filters)]
        self._settings, self._routes, self._filters = settings, routes, routes.filters
        # What a filter that is let go still brings until the broker has confirmed it belongs where it did.
        self._intake.use(RouteTable([*routes.routes, *gone]))
        link = self._link
        if link is None:
            self._intake.use(routes)
            return
        asked, stale = link.subscriptions.want(routes.filters)
        if link.is_accepted:  # else all of it is asked for once it is
            self._save_filters([*(name for name, _ in self._filters), *stale])
            link.subscribe_to(asked)
            if stale:
                link.unsubscribe(stale)
            self._subscribed(link)

    def acknowledge(self, acks: Sequence[Acks]) -> None:
        """Send the PUBACKs of finished deliveries, joined; those of an earlier connection are dropped and counted."""
        link = self._link
        for epoch, packet_ids in acks:
            if link is not None and link.can_acknowledge and epoch == self._epoch:
                self._metrics.acked.add(len(link.acknowledge(packet_ids)))
            else:
                self._metrics.stale_acks.add(len(packet_ids))

    def pause_for_stop(self) -> None:
        """Stop reading at once and connect no more; acks of what was read can still be sent."""
        self._stopping.set()
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.pause()

    async def stop(self) -> None:
        """Say `stopped`, flush the acks and disconnect; the session and its messages stay with the broker."""
        self.pause_for_stop()
        link = self._link
        if link is None or not link.is_accepted:
            self._metrics.status_dropped.add()
        else:
            self._publish_status(link, "stopped")
            link.finish()
            await _wait(link.ended, _FLUSH_S)
        if link is not None:
            link.close("stopped")

    # The life of one link

    async def _live_once(self) -> float:
        """One connection from DNS to its end; returns the seconds to wait before the next."""
        try:
            sock = await self._open()
        except OSError as error:
            why = error.strerror or str(error)
            if isinstance(error, ssl.SSLCertVerificationError):  # will not pass by itself
                self._health.degrade("broker", f"broker {self._broker} is not trusted: {why}")
            return self._retry(why, lived_s=0)
        if sock is None:
            return 0
        link = self._link = Link(self._settings, self._version, self._filters)
        self._epoch += 1
        link.start(
            sock,
            LinkEvents(
                accepted=lambda session_present, expiry_s: self._accepted(link, session_present, expiry_s),
                published=lambda publishes: self._published(link, publishes),
                subscribed=lambda: self._subscribed(link),
                unsubscribed=self._unsubscribed,
            ),
        )
        await self._watch(link)
        return self._part_with(link)

    async def _open(self) -> socket.socket | None:
        """Connect; None when the stop came first."""
        opening = self._opening = asyncio.ensure_future(open_socket(self._settings))
        try:
            done, _ = await asyncio.wait({opening}, timeout=_CONNECT_S)
        finally:
            opening.cancel()
        if not done:
            raise TimeoutError(f"no connection within {_CONNECT_S:.0f} s")
        if opening.cancelled():
            return None
        sock = opening.result()
        if self._stopping.is_set():
            sock.close()
            return None
        return sock

    async def _watch(self, link: Link) -> None:
        """Serve the timers of a link until it ends."""
        tick_s = min(1.0, self._settings.keepalive_s / 4)
        deadline = time.monotonic() + _HANDSHAKE_S
        ask_again_at = time.monotonic() + _RESUBSCRIBE_S
        while not link.ended.is_set():
            link.loop_misc()
            if not link.is_paused or self._inbox.is_full:  # else nobody has told it that there is room again
                self._station.beat()
            now = time.monotonic()
            if link.is_paused or (link.is_accepted and link.subscriptions.is_answered):
                deadline = now + _HANDSHAKE_S
            elif now > deadline:
                link.close(f"no {'SUBACK' if link.is_accepted else 'CONNACK'} within {_HANDSHAKE_S:.0f} s")
            if now > ask_again_at:
                link.subscribe_to(list(link.subscriptions.refused))
                ask_again_at = now + _RESUBSCRIBE_S
            await _wait(link.ended, tick_s)

    def _part_with(self, link: Link) -> float:
        """Tidy up after a link; returns the seconds to wait before the next."""
        self._link = None
        self._metrics.broker_connected.set(0)
        self._metrics.read_paused.set(0)
        if self._stopping.is_set():
            self._health.note("broker", f"broker {self._broker}: disconnected")
            return 0
        if self._settings.protocol == "auto":
            if link.refuses_version and link.version == "5":
                self._fall_back()
                return 0
            if link.up_since_s is not None:
                self._version = "5"  # the broker may have been upgraded meanwhile
        if link.refuses_us:
            self._health.degrade("broker", f"broker {self._broker} {link.why}")
        lived_s = 0.0 if link.up_since_s is None else time.monotonic() - link.up_since_s
        return self._retry(link.why, lived_s=lived_s, is_expected=link.is_paused)

    def _retry(self, why: str, *, lived_s: float, is_expected: bool = False) -> float:
        """Report why there is no link; a reason that stays the same is logged once."""
        delay_s = self._backoff.delay_s(lived_s)
        report = f"broker {self._broker}: not connected ({why})"
        if report != self._reported:
            level = logging.INFO if is_expected else logging.WARNING
            event = {"event": "broker_lost"}
            _log.log(level, "%s; trying again for ever, next in %.1f s", report, delay_s, extra=event)
            self._reported = report
        self._health.note("broker", report)
        return delay_s

    def _fall_back(self) -> None:
        self._version = "3.1.1"
        if not self._has_warned_of_311:
            self._has_warned_of_311 = True
            _log.warning(
                "broker %s refuses MQTT 5, going on with 3.1.1: without Receive Maximum (set max_inflight_messages in "
                "the broker, or the rate stays low), session expiry, Maximum Packet Size and retain handling",
                self._broker,
            )

    def _warn_of_shared_filters(self) -> None:
        shared = [name for name, _ in self._filters if name.startswith("$share/")]
        if shared:
            _log.warning(
                "shared subscriptions %s: order is lost, there are no retained messages, and unacknowledged messages "
                "of a stopped member wait for its session",
                ", ".join(shared),
            )

    # What the link reports

    def _accepted(self, link: Link, session_present: bool, expiry_s: int | None) -> None:
        self._metrics.broker_connects.add()
        if self._expects_session and not session_present:
            self._metrics.session_lost.add()
            _log.warning("session_lost: broker %s has forgotten our session and what it had queued", self._broker)
        self._expects_session = True
        if expiry_s is not None and expiry_s < self._settings.session_expiry_s:
            _log.warning("broker %s keeps our session for %d s only", self._broker, expiry_s)
        wanted = [name for name, _ in self._filters]
        stale = [name for name in self._saved_filters if name not in link.subscriptions.wanted]
        # Both are kept until the broker has confirmed that the stale ones are gone.
        self._save_filters([*wanted, *stale])
        link.subscribe_to(wanted)
        if stale:
            link.unsubscribe(stale)
        else:
            self._intake.use(self._routes)
        self._publish_status(link, "online")
        self._subscribed(link)

    def _published(self, link: Link, publishes: list[Publish]) -> None:
        deliveries = self._intake.deliveries(publishes, epoch=self._epoch, skips_retained=link.version != "5")
        link.order.took([delivery.packet_id for delivery in deliveries if delivery.qos])
        self._inbox.put(deliveries)
        if self._inbox.is_full:
            link.pause()
            self._metrics.read_paused.set(1)

    def _subscribed(self, link: Link) -> None:
        subscriptions = link.subscriptions
        if not subscriptions.is_answered:
            return
        for name, qos in subscriptions.granted.items():
            self._metrics.granted_qos.set(qos, name)
        refused, lowered = ", ".join(subscriptions.refused), ", ".join(subscriptions.unprotected)
        self._judge("mqtt_refused", f"broker refuses the subscriptions {refused}" if refused else "")
        self._judge("mqtt_unprotected", f"broker granted QoS 0 only, unprotected: {lowered}" if lowered else "")
        if link.up_since_s is None and subscriptions.is_complete:
            link.up_since_s = time.monotonic()
            self._metrics.broker_connected.set(1)
            self._health.restore("broker")
            self._reported = ""
            self._health.note("broker", f"broker {self._broker} connected (MQTT {link.version})")
            granted = ", ".join(f"{name} at QoS {qos}" for name, qos in subscriptions.granted.items())
            text, event = "connected to broker %s, MQTT %s, subscribed: %s", {"event": "broker_connected"}
            _log.info(text, self._broker, link.version, granted, extra=event)

    def _judge(self, key: str, fault: str) -> None:
        """Degrade or restore; a fault that stays the same is logged once."""
        if not fault:
            self._health.restore(key)
        elif self._health.degraded.get(key) != fault:
            _log.warning("%s", fault)
            self._health.degrade(key, fault)

    def _unsubscribed(self, codes: Sequence[int]) -> None:
        self._intake.use(self._routes)
        if all(code < REFUSED for code in codes):
            self._save_filters([name for name, _ in self._filters])

    def _save_filters(self, filters: Sequence[str]) -> None:
        if set(filters) != set(self._saved_filters):
            self._saved_filters = tuple(filters)
            self._save(self._saved_filters)

    def _publish_status(self, link: Link, status: str) -> None:
        if not link.publish_status(status):
            self._metrics.status_dropped.add()

    def _resume(self) -> None:
        if self._link is not None and not self._stopping.is_set():
            self._link.resume()
            self._metrics.read_paused.set(0)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await _wait(self._stopping, seconds)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
