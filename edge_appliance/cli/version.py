"""`edge-appliance version`."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

import edge_appliance
from edge_appliance.cli.command import Exit

EXAMPLES = "  edge-appliance version --verbose"

PACKAGES = ("paho-mqtt", "pyarrow", "datafusion", "aiohttp", "uvloop", "msgspec", "psutil", "sdnotify", "tomli", "rich")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--config", help=argparse.SUPPRESS)  # accepted everywhere, of no use here
    parser.add_argument("--verbose", action="store_true", help="also show what it runs on")


def execute(arguments: argparse.Namespace) -> int:
    """Print the version, and with --verbose those of the interpreter and the packages."""
    print(f"edge-appliance {edge_appliance.__version__}")
    if arguments.verbose:
        print(f"python {platform.python_version()} ({sys.executable})")
        print(f"{platform.system().lower()} {platform.release()} {platform.machine()}")
        from edge_appliance.core.append import KERNEL  # noqa: PLC0415 - brings pyarrow along

        print(f"line protocol kernel: {KERNEL}")
        for package in PACKAGES:
            print(f"{package} {_installed(package)}")
    return Exit.OK


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
