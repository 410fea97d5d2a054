"""`edge-appliance doctor`: try everything that the service depends on, and say in words what to mend.

Run by root it can try all of it; run by another, it says what it could not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from edge_appliance import config
from edge_appliance.cli.command import Exit, add_config_option, printable
from edge_appliance.errors import ConfigError

EXAMPLES = "  edge-appliance doctor\n  edge-appliance doctor --json"

Verdict = Literal["pass", "warn", "fail"]

_COLOURS: Final = {"pass": "\033[32m", "warn": "\033[33m", "fail": "\033[31m"}
_PLAIN: Final = "\033[0m"


class Finding(NamedTuple):
    """What one check found."""

    check: str
    verdict: Verdict
    text: str
    fix: str = ""
    """What to do about it, in words; empty when there is nothing to do."""


Check = Callable[[config.Config], Iterator[Finding]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("--json", action="store_true", help="the findings, as one JSON array")


def execute(arguments: argparse.Namespace) -> int:
    """Run all checks; the exit code is 1 when one has failed."""
    findings = []
    for finding in examine(arguments.config):
        findings.append(finding)
        if not arguments.json:
            print(
                "\n".join(lines(finding, is_coloured=sys.stdout.isatty() and "NO_COLOR" not in os.environ)), flush=True
            )
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2, ensure_ascii=False))
    return Exit.FAILED if any(finding.verdict == "fail" for finding in findings) else Exit.OK


def examine(path: Path | None) -> Iterator[Finding]:
    """Yield the findings of all checks; without a sound configuration there is nothing further to try."""
    try:
        settings = config.load(path, purpose="check")
    except ConfigError as error:
        for fault in error.faults:
            yield Finding("configuration", "fail", str(fault), "correct this line, then: edge-appliance check-config")
        return
    files = ", ".join(map(str, settings.files)) or "the defaults"
    yield Finding("configuration", "pass", files)
    # Only now: these import the clients of broker and store.
    for name in ("host", "broker", "store"):
        checks: tuple[Check, ...] = importlib.import_module(f"edge_appliance.cli.doctor_{name}").CHECKS
        for check in checks:
            yield from check(settings)


@contextlib.contextmanager
def as_owner(directory: Path) -> Iterator[None]:
    """Act as the owner of a directory: root must leave nothing in there that the service cannot use afterwards."""
    owner = directory.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group = os.getegid()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def lines(finding: Finding, *, is_coloured: bool) -> Iterator[str]:
    """Yield the human form: one line, and one below it that says what to do."""
    before, after = (_COLOURS[finding.verdict], _PLAIN) if is_coloured else ("", "")
    yield f"{before}{finding.verdict}{after}  {finding.check}: {printable(finding.text)}"
    if finding.fix:
        yield f"      → {finding.fix}"
