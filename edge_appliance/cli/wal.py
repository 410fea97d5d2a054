"""`edge-appliance wal inspect|verify`: what is in WAL files, read by the replay's own walk. Changes nothing."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edge_appliance.cli.command import CommandError, Exit
from edge_appliance.config_values import size_text, time_text
from edge_appliance.core.wal_frame import BLOCK_BYTES, FileHeader, Frame, FrameType, Predecessor, decode_header
from edge_appliance.core.wal_record import decode_begin, decode_end, decode_group
from edge_appliance.core.wal_scan import Damage, ReadAt, Walk, find_salt
from edge_appliance.errors import FormatError

EXAMPLES = """\
  edge-appliance wal inspect /var/lib/edge-appliance/wal
  edge-appliance wal verify /var/lib/edge-appliance/wal/00000000000000000007.wal"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions; both take a file or a directory of files."""
    parser.add_argument("--config", help=argparse.SUPPRESS)  # accepted everywhere, of no use here
    parser.add_argument(
        "action", choices=("inspect", "verify"), help="inspect: what is in it; verify: is all of it sound"
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a WAL file, or the directory that holds them")


def execute(arguments: argparse.Namespace) -> int:
    """Print a report for each file; `verify` exits with 1 when one is damaged."""
    damaged = 0
    paths = wal_files(arguments.path)
    for path in paths:
        report = examine(path, seal_of(path))
        damaged += report.is_damaged
        if arguments.action == "inspect" or report.is_damaged:
            print("\n".join(report.lines()))
    if not paths:
        print(f"no WAL files in {arguments.path}")
    elif arguments.action == "verify":
        print(f"{len(paths)} file(s), {damaged} damaged")
    return Exit.FAILED if arguments.action == "verify" and damaged else Exit.OK


@dataclass(slots=True)
class Report:
    """What one file holds."""

    path: Path
    size_bytes: int
    header: FileHeader | str
    """The reason when the header cannot be read."""
    types: Counter[str] = field(default_factory=Counter)
    first_sequence: int | None = None
    last_sequence: int | None = None
    entries: int = 0
    rows: int = 0
    damage: list[Damage] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        """Whether something is lost that had been durable; a tail torn by a crash had not."""
        return isinstance(self.header, str) or any(not damage.is_torn for damage in self.damage)

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        yield f"{self.path}  {size_text(self.size_bytes)}"
        if isinstance(self.header, FileHeader):
            header = self.header
            yield f"  segment {header.segment_id}, node {header.node}-{header.incarnation}, {time_text(header.created_ns)}"
        else:
            yield f"  DAMAGE header: {self.header}"
        if self.first_sequence is not None:
            frames = ", ".join(f"{count:,} {name}" for name, count in sorted(self.types.items()))
            yield f"  sequences {self.first_sequence}-{self.last_sequence}: {frames}"
            yield f"  {self.entries:,} entries, {self.rows:,} lines"
        else:
            yield "  no records"
        for damage in self.damage:
            what = "torn tail" if damage.is_torn else "DAMAGE"
            yield f"  {what} at byte {damage.offset}, {damage.length} bytes: {damage.reason}{_lost(damage)}"


def _lost(damage: Damage) -> str:
    first, last = damage.first_sequence, damage.last_sequence
    sequences = f", sequences {first}-{last}" if first is not None and last is not None and first <= last else ""
    return sequences + (f", {damage.rows} lines" if damage.rows is not None else "")


def wal_files(path: Path) -> list[Path]:
    """Return the files to look at: the one named, or all of a directory (of a data directory: its `wal`)."""
    try:
        if not path.is_dir():
            with path.open("rb"):
                return [path]
        directory = path / "wal" if (path / "wal").is_dir() else path
        return sorted(file for file in directory.iterdir() if file.suffix == ".wal")
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{path}: {error.strerror}") from error


def seal_of(path: Path) -> Predecessor | None:
    """Return what the next file's header says of this one; nothing behind the end it states counts."""
    following = sorted(file for file in path.parent.iterdir() if file.suffix == ".wal" and file.name > path.name)
    own, following_headers = _header(path), (_header(file) for file in following[:1])
    for header in following_headers:
        if isinstance(header, FileHeader) and isinstance(own, FileHeader) and header.previous is not None:
            return header.previous if header.previous.segment_id == own.segment_id else None
    return None


def _header(path: Path) -> FileHeader | str:
    try:
        with path.open("rb") as file:
            return decode_header(file.read(BLOCK_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    except FormatError as error:
        return str(error)


def examine(path: Path, sealed: Predecessor | None) -> Report:
    """Walk over one file, record by record, and decode each payload."""
    header = _header(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{path}: {error.strerror}") from error
    try:
        size_bytes = os.fstat(descriptor).st_size
        report = Report(path, size_bytes, header)
        read_at = _reader(descriptor)
        is_known = isinstance(header, FileHeader)
        salt = header.salt if isinstance(header, FileHeader) else find_salt(read_at, size_bytes)
        first = header.first_sequence if isinstance(header, FileHeader) else None
        if salt is not None:
            for found in Walk(
                read_at, size_bytes, salt=salt, first_sequence=first, sealed=sealed if is_known else None
            ):
                _count(report, found)
        return report
    finally:
        os.close(descriptor)


def _reader(descriptor: int) -> ReadAt:
    def read_at(offset: int, length: int) -> bytes | None:
        try:
            return os.pread(descriptor, length, offset)
        except OSError:
            return None  # the walk takes an unreadable block for damage

    return read_at


def _count(report: Report, found: Frame | Damage) -> None:
    if isinstance(found, Damage):
        report.damage.append(found)
        return
    name = found.type.name if isinstance(found.type, FrameType) else f"unknown type {found.type}"
    report.types[name] += 1
    report.first_sequence = found.sequence if report.first_sequence is None else report.first_sequence
    report.last_sequence = found.sequence
    try:
        if found.type == FrameType.GROUP:
            group = decode_group(found.payload)
            report.entries += len(group.entries)
            report.rows += group.rows
        elif found.type == FrameType.PERSIST_BEGIN:
            decode_begin(found.payload)
        elif found.type == FrameType.PERSIST_END:
            decode_end(found.payload)
    except FormatError as error:
        report.damage.append(Damage(found.offset, found.length, str(error), found.sequence, found.sequence, found.rows))
