"""The command line: find the command, let it run, turn what went wrong into one line and an exit code.

Only the module of the command in question is imported, so that a short question gets a quick answer.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, Protocol, cast

import edge_appliance
from edge_appliance.cli.command import Exit, exit_code
from edge_appliance.errors import EdgeError

COMMANDS: Final = {
    "run": "take data in, keep it and serve it until stopped",
    "reload": "have the running daemon take over a changed configuration",
    "doctor": "try all that the service depends on, and say what to mend",
    "check-config": "check the configuration and name every fault",
    "show-config": "show settings with the file and line they come from",
    "query": "ask the running daemon with SQL",
    "status": "show how the running daemon is doing",
    "wal": "inspect or verify files of the write-ahead log",
    "import": "write line protocol from a file, through the running daemon",
    "export": "write a time range to Parquet, CSV or line protocol",
    "parts": "list the Parquet files that count",
    "merge": "show which parts would be merged next",
    "retention": "show which dates would be deleted next",
    "catalog": "make a lost catalog anew from footers, store and log",
    "rejects": "list rejected lines with their reasons, send them again, throw them away",
    "support-bundle": "write one file with what helps others to help, without secrets",
    "version": "show the version",
}

_OTHER_MODULES: Final = {"import": "import_lines"}
"""Of commands whose name cannot be that of a module."""


class Command(Protocol):
    """What the module of a command offers."""

    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def execute(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a usage error exits with 2, as argparse does."""
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except EdgeError as error:
        print(error, file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return Exit.BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        return Exit.FAILED
    return code


def _drop_output() -> None:
    # The interpreter flushes stdout once more on its way out; that must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(argv: Sequence[str] | None) -> int:
    usage = _parser()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        usage.print_help(sys.stderr)
        return Exit.USAGE
    if words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        usage.error(f"{words[0]}: options come after the command, as in 'edge-appliance status --config FILE'")
    chosen = usage.parse_args(argv)
    command = load(chosen.command)
    return command.execute(parser_of(chosen.command, command).parse_args(chosen.arguments))


def load(name: str) -> Command:
    """Return the module of a command."""
    module = _OTHER_MODULES.get(name, name.replace("-", "_"))
    return cast("Command", importlib.import_module(f"edge_appliance.cli.{module}"))


def parser_of(name: str, command: Command) -> argparse.ArgumentParser:
    """Return the parser of one command's options; the man page is made from it, too."""
    parser = argparse.ArgumentParser(
        prog=f"edge-appliance {name}",
        description=f"{_as_sentence(COMMANDS[name])}.",
        epilog=f"examples:\n{command.EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    return parser


def _as_sentence(text: str) -> str:
    """`text` with a capital first; str.capitalize would make "sql" of "SQL"."""
    return text[:1].upper() + text[1:]


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="edge-appliance",
        description="Edge gateway time-series appliance: MQTT in, durable log, Parquet out, SQL over both.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
        + "\n\nexample:\n  edge-appliance status\n\n'edge-appliance COMMAND --help' explains one command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s COMMAND [ARGUMENT ...]",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {edge_appliance.__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="what the command takes")
    return parser
