"""Checks of the broker: connection, login, subscriptions, and what it keeps for us while we are away."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge_appliance.cli.doctor import Finding
from edge_appliance.config import Config
from edge_appliance.core.route import route_table
from edge_appliance.mqtt import Link, LinkEvents
from edge_appliance.mqtt_settings import MqttSettings, settings_from
from edge_appliance.mqtt_socket import open_socket

TRY_S: Final = 15.0
CREDENTIALS: Final = Path("/etc/edge-appliance/credentials")
MOSQUITTO: Final = Path("/etc/mosquitto")


def login(settings: Config) -> Iterator[Finding]:
    """Connect, log in and subscribe as the service does, under a name of its own and without leaving a session."""
    broker = f"{settings.mqtt.host}:{settings.mqtt.port}"
    password = _password(settings)
    if settings.mqtt.username and password is None:
        text = f"{broker} not tried: the password is a credential that only root reads"
        yield Finding("broker", "warn", text, "run this as root")
        return
    ours = settings_from(settings)
    trial = dataclasses.replace(
        ours,
        client_id=f"{ours.client_id}-doctor-{os.getpid()}",
        node_id=f"{ours.node_id}-doctor",
        password=password,
        session_expiry_s=0,
    )
    # A member of a shared subscription would take messages away.
    filters = [each for each in route_table(settings.mqtt.routes).filters if not each[0].startswith("$share/")]
    try:
        link = asyncio.run(asyncio.wait_for(_try(trial, filters), TRY_S))
    except TimeoutError:
        yield Finding("broker", "fail", f"{broker} did not answer within {TRY_S:g} s", "is mqtt.host the broker?")
    except OSError as error:
        text = f"{broker}: {error.strerror or error}"
        yield Finding("broker", "fail", text, "is it running, and is mqtt.host right? systemctl status mosquitto")
    else:
        yield from _judge(link, broker)


async def _try(settings: MqttSettings, filters: list[tuple[str, int]]) -> Link:
    """One connection up to the answers to its subscriptions."""
    answered = asyncio.Event()
    link = Link(settings, "5", filters)

    def accepted(*_: object) -> None:
        link.subscribe_to([name for name, _ in filters])
        if not filters:
            answered.set()

    def ignore(_: object) -> None:
        """Messages are copies, and go with the session."""

    link.start(await open_socket(settings), LinkEvents(accepted, ignore, answered.set, ignore))
    waits = [asyncio.ensure_future(answered.wait()), asyncio.ensure_future(link.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not link.ended.is_set():
        link.finish()  # without this goodbye the broker would publish our last will
        await waits[1]
    return link


def _judge(link: Link, broker: str) -> Iterator[Finding]:
    if link.refuses_version:
        text = f"{broker} speaks MQTT 3.1.1 only: a login would leave a session behind, and was not tried"
        yield Finding("broker", "warn", text, "a broker with MQTT 5 allows more messages in flight")
    elif not link.is_accepted:
        yield Finding(
            "broker", "fail", f"{broker} {link.why}", "mqtt.username and the password: does the broker have them?"
        )
    elif link.subscriptions.refused:
        names = ", ".join(link.subscriptions.refused)
        yield Finding(
            "broker", "fail", f"{broker} refuses the subscriptions {names}", "allow them in the broker's access list"
        )
    elif lowered := ", ".join(link.subscriptions.unprotected):
        yield Finding("broker", "warn", f"{broker} grants QoS 0 only, unprotected: {lowered}", "raise its max_qos")
    else:
        yield Finding("broker", "pass", f"{broker} takes the login and grants all subscriptions")


def _password(settings: Config) -> str | None:
    """The password; of a credential, which only systemd hands over, read from its source."""
    if settings.mqtt.password is not None:
        return settings.mqtt.password.reveal()
    if settings.mqtt.password_credential:
        try:
            return (CREDENTIALS / settings.mqtt.password_credential).read_text().rstrip("\r\n")
        except OSError:
            return None
    return "" if settings.mqtt.username else None


def queue(settings: Config) -> Iterator[Finding]:
    """Whether a Mosquitto on this machine drops messages while the service is away."""
    if settings.mqtt.host not in ("127.0.0.1", "::1", "localhost") or not MOSQUITTO.is_dir():
        return
    try:
        files = [MOSQUITTO / "mosquitto.conf", *sorted((MOSQUITTO / "conf.d").glob("*.conf"))]
        text = "\n".join(file.read_text(errors="replace") for file in files if file.exists())
    except OSError as error:
        yield Finding("broker queue", "warn", f"{MOSQUITTO} cannot be read: {error.strerror}", "run this as root")
        return
    found = re.findall(r"(?m)^\s*max_queued_(messages|bytes)\s+(\d+)", text)
    if not found:
        fix = f"'max_queued_messages 0' and 'max_queued_bytes 100000000' in {MOSQUITTO}/conf.d/edge-appliance.conf"
        yield Finding("broker queue", "warn", "Mosquitto keeps 1,000 messages for us while we are away", fix)
    else:
        stated = ", ".join(f"max_queued_{what} {number}" for what, number in found)
        yield Finding("broker queue", "pass", stated)


CHECKS: Final = (login, queue)
