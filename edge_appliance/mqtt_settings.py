"""What the MQTT source is told: the broker, how to reach it, and who we are there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_appliance.config import Config

Version = Literal["5", "3.1.1"]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How the broker is verified, and what we show it. The files are read again at each connect."""

    ca_file: str | Path | None = None
    """Authorities to trust; None: those of the system."""
    cert_file: str | Path | None = None
    """Our certificate with its chain, for brokers that ask for one."""
    key_file: str | Path | None = None
    """Its private key; None: it is in `cert_file`."""
    server_name: str | None = None
    """Name that the broker's certificate must carry; None: the host connected to."""
    min_version: Literal["1.2", "1.3"] = "1.2"


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """One broker. The client id must stay the same over restarts: the broker keeps our session under it."""

    host: str
    port: int
    client_id: str
    node_id: str
    protocol: Literal["auto", "5", "3.1.1"] = "auto"
    """auto: MQTT 5, and 3.1.1 once the broker has refused 5."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    keepalive_s: float = 30.0
    """Silence after which a ping is sent, and again until a dead link is given up."""
    receive_maximum: int = 4000
    """QoS 1 messages in flight (MQTT 5). Too few limit the rate to this number per commit, too many fill the inbox."""
    max_packet_bytes: int = 1 << 20
    """Larger messages are dropped by an MQTT 5 broker, and skipped and dead-lettered by us."""
    session_expiry_s: int = 7 * 24 * 3600
    """How long the broker keeps our session and its messages while we are away (MQTT 5)."""
    tls: TlsSettings | None = None

    @property
    def status_topic(self) -> str:
        """Where the retained status of this node is published."""
        return f"edge/{self.node_id}/status"


def settings_from(config: Config) -> MqttSettings:
    """The part of the configuration that concerns the broker."""
    mqtt = config.mqtt
    tls = None
    if mqtt.tls is not None:
        tls = TlsSettings(
            ca_file=mqtt.tls.ca_file,
            cert_file=mqtt.tls.cert_file,
            key_file=mqtt.tls.key_file,
            server_name=mqtt.tls.server_name or None,
            min_version=mqtt.tls.min_version,
        )
    return MqttSettings(
        host=mqtt.host,
        port=mqtt.port,
        client_id=mqtt.client_id,
        node_id=config.node.id,
        protocol=mqtt.protocol,
        username=mqtt.username or None,
        password=None if mqtt.password is None else mqtt.password.reveal(),
        keepalive_s=mqtt.keepalive_s,
        receive_maximum=mqtt.receive_maximum,
        tls=tls,
    )
