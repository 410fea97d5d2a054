"""`edge-appliance import`: line protocol from a file, through the running daemon, so that it is acknowledged like any.

Lines go in bodies of about a MiB, one after the other. A daemon that is busy is waited for. Lines with a time can be
sent again without harm; after a break the command says with which option it goes on.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple
from urllib.parse import urlencode

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option, printable
from edge_appliance.cli.daemon import Daemon, refusal
from edge_appliance.cli.progress import Progress
from edge_appliance.cli.query import default_database

EXAMPLES = """\
  edge-appliance import backup.lp.gz -d plants
  edge-appliance import old.lp --precision s --skip-lines 120000"""

BODY_BYTES: Final = 1 << 20
"""Of one write: large enough to make the answer's way short, small enough to be sent again."""
LARGEST_BYTES: Final = 8 << 20
"""A quote that nothing closes must not gather the rest of the file."""
SHOWN_FAULTS: Final = 10
_TIMEOUT_S: Final = 60.0
_WAIT_MAX_S: Final = 30.0


class _Body(NamedTuple):
    data: bytes
    lines: int
    position: int
    """Bytes of the file that are read when this is at hand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="line protocol, .gz is unpacked")
    parser.add_argument("-d", "--database", help="default: the only one of the configured routes, else 'edge'")
    parser.add_argument("--precision", choices=("ns", "us", "ms", "s"), default="ns", help="of the times; default: ns")
    parser.add_argument("--skip-lines", type=int, default=0, metavar="N", help="go on after a break")
    parser.add_argument("--wait", type=float, default=600.0, metavar="SECONDS", help="for a busy daemon; default: 600")


def execute(arguments: argparse.Namespace) -> int:
    """Send everything; returns 1 when lines were rejected."""
    settings = config.load(arguments.config, purpose="ask")
    database = arguments.database or default_database(settings)
    query = urlencode({"db": database, "precision": _LONG[arguments.precision], "accept_partial": "true"})
    sender = _Sender(Daemon(settings.http), f"/api/v3/write_lp?{query}", arguments.wait)
    done = arguments.skip_lines
    try:
        with _opened(arguments.file) as (raw, lines), Progress("importing", arguments.file.stat().st_size) as progress:
            for body in _bodies(raw, lines, arguments.skip_lines):
                sender.send(body.data, done)
                done += body.lines
                progress.reach(body.position, f"{done:,} lines, {sender.rejected:,} rejected")
    except (EOFError, gzip.BadGzipFile) as error:
        raise CommandError(Exit.FAILED, f"{arguments.file}: {error}; lines up to {done:,} are imported") from error
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{arguments.file}: {error.strerror or error}") from error
    except (CommandError, KeyboardInterrupt):
        print(f"lines up to {done:,} are imported; go on with --skip-lines {done}", file=sys.stderr)
        raise
    print(f"{done - arguments.skip_lines:,} lines imported into {database}, {sender.rejected:,} of them rejected")
    return Exit.FAILED if sender.rejected else Exit.OK


_LONG: Final = {"ns": "nanosecond", "us": "microsecond", "ms": "millisecond", "s": "second"}


class _opened:  # noqa: N801 - a context manager, used as a function
    """The file as bytes, and as lines."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("rb")
        is_packed = self._raw.peek(2)[:2] == b"\x1f\x8b"
        self._lines: IO[bytes] = gzip.GzipFile(fileobj=self._raw) if is_packed else self._raw  # type: ignore[assignment]

    def __enter__(self) -> tuple[IO[bytes], IO[bytes]]:
        return self._raw, self._lines

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._raw.close()


def _bodies(raw: IO[bytes], lines: IO[bytes], skip: int) -> Iterator[_Body]:
    """Whole lines in pieces of about BODY_BYTES; a string in quotes may hold line ends, which part no line."""
    data = bytearray()
    count = passed = 0
    is_inside = False
    for text in lines:
        data += text
        count += 1
        is_inside ^= _open_quotes(text) % 2 == 1
        if passed < skip:
            passed, count = passed + 1, 0
            data.clear()
        elif len(data) >= BODY_BYTES and (not is_inside or len(data) >= LARGEST_BYTES):
            yield _Body(bytes(data), count, raw.tell())
            data, count = bytearray(), 0
    if data:
        yield _Body(bytes(data), count, raw.tell())


def _open_quotes(text: bytes) -> int:
    """Quotes that are not escaped; those of a comment count for nothing."""
    if text.lstrip().startswith(b"#"):
        return 0
    return text.count(b'"') - text.count(b'\\"')


class _Sender:
    """Writes bodies, waits for a busy daemon, counts what is rejected."""

    def __init__(self, daemon: Daemon, path: str, patience_s: float) -> None:
        self._daemon = daemon
        self._path = path
        self._patience_s = patience_s
        self.rejected = 0
        self._shown = 0

    def send(self, data: bytes, first_line: int) -> None:
        """Write one body; raises CommandError when that cannot succeed."""
        until_s = time.monotonic() + self._patience_s
        while True:
            with self._daemon.post_lines(self._path, data, timeout_s=_TIMEOUT_S) as response:
                if response.status == http.client.NO_CONTENT:
                    return
                if response.status == http.client.BAD_REQUEST:
                    self._note(response, first_line)
                    return
                wait_s = float(response.headers.get("Retry-After") or 1)
                is_busy = response.status in (http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS)
                if not is_busy or time.monotonic() + wait_s > until_s:
                    raise refusal(response)
            time.sleep(min(wait_s, _WAIT_MAX_S))

    def _note(self, response: http.client.HTTPResponse, first_line: int) -> None:
        """Count the lines that were rejected; the others of the body are in."""
        text = response.read()
        try:
            faults = json.loads(text)["data"]
            total = len(faults)
        except (ValueError, KeyError, TypeError):
            raise CommandError(Exit.FAILED, printable(text.decode("utf-8", "replace"))[:500]) from None
        self.rejected += total
        for fault in faults[: max(0, SHOWN_FAULTS - self._shown)]:
            self._shown += 1
            line = first_line + int(fault.get("line_number", 0))
            print(f"line {line:,}: {printable(str(fault.get('error_message', '')))}", file=sys.stderr)
