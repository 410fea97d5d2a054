"""Sockets to the broker: DNS, TCP and TLS, all of which block, in a thread of their own.

Yields a connected, non-blocking socket or one OSError. Knows nothing of MQTT.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from typing import Final

from edge_appliance.mqtt_settings import MqttSettings, TlsSettings

_STEP_TIMEOUT_S: Final = 10.0
"""Limit of one blocking step: one address tried, or one read of the TLS handshake."""

_TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


async def open_socket(settings: MqttSettings) -> socket.socket:
    """Connect without blocking the loop; OSError says why it failed. Cancelling closes a socket that comes late."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[socket.socket] = loop.create_future()

    def settle(outcome: socket.socket | OSError) -> None:
        if opened.done():
            _close(outcome)
        elif isinstance(outcome, OSError):
            opened.set_exception(outcome)
        else:
            opened.set_result(outcome)

    def work() -> None:
        outcome: socket.socket | OSError
        try:
            outcome = _open(settings)
        except OSError as error:
            outcome = error
        except ValueError as error:  # a host name that cannot be one
            outcome = OSError(f"{settings.host}: {error}")
        try:
            loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:  # the loop has ended meanwhile
            _close(outcome)

    # Not an executor: its threads are joined at exit, and a resolver may hang for half a minute.
    threading.Thread(target=work, name="mqtt-connect", daemon=True).start()
    try:
        return await opened
    except asyncio.CancelledError:
        if opened.done() and not opened.cancelled() and opened.exception() is None:
            opened.result().close()
        raise


def _close(outcome: socket.socket | OSError) -> None:
    if isinstance(outcome, socket.socket):
        outcome.close()


def _open(settings: MqttSettings) -> socket.socket:
    context = None if settings.tls is None else _tls_context(settings.tls)
    plain = socket.create_connection((settings.host, settings.port), timeout=_STEP_TIMEOUT_S)
    try:
        # An ack is smaller than a segment; it must not wait for the next one.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(AttributeError):  # Linux only
            # What we send and nobody confirms ends the link no later than an unanswered ping does.
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(2000 * settings.keepalive_s))
        if context is None or settings.tls is None:
            ready: socket.socket = plain
        else:
            ready = context.wrap_socket(plain, server_hostname=settings.tls.server_name or settings.host)
        ready.setblocking(False)
    except BaseException:
        plain.close()
        raise
    return ready


def _tls_context(tls: TlsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        raise OSError(f"ca_file {tls.ca_file}: {error.strerror or error}") from error
    context.minimum_version = _TLS_VERSIONS[tls.min_version]
    if tls.cert_file:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
        except OSError as error:
            files = f"cert_file {tls.cert_file}, key_file {tls.key_file or '(the same)'}"
            raise OSError(f"{files}: {error.strerror or error}") from error
    return context
