"""`edge-appliance run`: tell systemd that we are on the way, load the configuration, start the appliance."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from edge_appliance import config, journal, systemd
from edge_appliance.cli.command import Exit, add_config_option, exit_code
from edge_appliance.errors import ConfigError, EdgeError

_log = logging.getLogger(__name__)

EXAMPLES = "  edge-appliance run\n  edge-appliance run --config ./edge-appliance.toml"

IMPORT_TIMEOUT_S: Final = 120.0
"""Time to read the packages from a slow card; from then on the appliance extends it by its own progress."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Run until stopped. Faults go to the log, so that the journal has them with their priority."""
    # A SIGHUP asks for a reload; before the appliance has a handler it would kill.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    notifier = systemd.Notifier()
    # Before the heavy imports: a first message after TimeoutStartSec would come too late.
    notifier.extend_timeout(IMPORT_TIMEOUT_S)
    notifier.status("starting")
    set_up_logging()
    systemd.dump_stacks_when_killed()
    try:
        settings = config.load(arguments.config, purpose="run")
        logging.getLogger().setLevel(settings.log.level.upper())
        if settings.notices:
            _log.info("%s", "\n".join(settings.notices))
        return start(settings, partial(config.load, arguments.config, purpose="run"))
    except ConfigError as error:
        notifier.status(f"configuration: {error.faults[0]}")
        # As below, no traceback: it says nothing about what was foreseen.
        event = {"event": "configuration_faults"}
        _log.error("the configuration has %d fault(s):\n%s", len(error.faults), error, extra=event)
        return Exit.CONFIGURATION
    except EdgeError as error:
        notifier.status(str(error))
        _log.error("%s", error)
        return exit_code(error)
    finally:
        notifier.close()


def set_up_logging() -> None:
    """Send all log lines to stderr, in the journal's form when stderr is the journal."""
    root = logging.getLogger()
    root.addHandler(journal.journal_handler())
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)


def start(settings: config.Config, load: Callable[[], config.Config]) -> int:
    """Hand over to the appliance, which imports everything it will ever need."""
    appliance = importlib.import_module("edge_appliance.appliance")
    code = int(appliance.run(settings, load))
    _log.info("stopped", extra={"event": "stopped"})
    if any(thread.daemon for thread in threading.enumerate()):
        # A query may be in a step of the engine that nothing interrupts, a connect in the resolver. All that is ours
        # is closed; tearing the interpreter down under such a thread would wait for it or crash.
        logging.shutdown()
        os._exit(code)
    return code
