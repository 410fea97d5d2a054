"""Build, start, supervise, stop: the life of the process reads here from top to bottom."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from edge_appliance import __version__, durable, host
from edge_appliance.config import Config, describe
from edge_appliance.health import Health, Phase
from edge_appliance.metrics import Metrics
from edge_appliance.systemd import Notifier, Station, Watchdog

_log = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0005
"""Between threads that run Python: with the default 5 ms a busy worker holds up each acknowledgement."""


def run(config: Config) -> int:
    """Run the appliance until SIGTERM or SIGINT; returns the exit code. Raises PathError."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config))
