"""What all commands share: exit codes, the error that ends one, the --config option."""

from __future__ import annotations

import argparse
import enum
from pathlib import Path

from edge_appliance.errors import ConfigError, EdgeError, PathError


class Exit(enum.IntEnum):
    """Exit codes; the larger ones are those of sysexits.h."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 69
    """The daemon does not answer."""
    CANNOT_CREATE = 73
    """A needed path cannot be created."""
    CONFIGURATION = 78
    INTERRUPTED = 130
    """128 + SIGINT."""
    BROKEN_PIPE = 141
    """128 + SIGPIPE."""


class CommandError(EdgeError):
    """Raised when a command cannot do what was asked; the message is for the person who asked."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def exit_code(error: EdgeError) -> Exit:
    """Return the exit code that an error ends a command with."""
    match error:
        case CommandError():
            return error.code
        case ConfigError():
            return Exit.CONFIGURATION
        case PathError():
            return Exit.CANNOT_CREATE
    return Exit.FAILED


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add --config; without it the default file is used, which may be missing."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file (default: /etc/edge-appliance/edge-appliance.toml)",
    )


def printable(text: str) -> str:
    """Return the text with control characters escaped: what devices sent must not steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
