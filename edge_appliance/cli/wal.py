"""`edge-appliance wal inspect|verify`: what is in WAL files, read by the replay's own walk. Changes nothing."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edge_appliance.cli.command import CommandError, Exit
from edge_appliance.config_values import size_text, time_text
from edge_appliance.core.wal_frame import FileHeader, Frame, FrameType
from edge_appliance.core.wal_record import decode_begin, decode_end, decode_group
from edge_appliance.core.wal_scan import Damage
from edge_appliance.errors import FormatError
from edge_appliance.wal_file import SUFFIX, FileWalk, maybe_segment_id, open_file

EXAMPLES = """\
  edge-appliance wal inspect /var/lib/edge-appliance/wal
  edge-appliance wal verify /var/lib/edge-appliance/wal/00000000000000000007.wal"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions; both take a file or a directory of files."""
    parser.add_argument("--config", help=argparse.SUPPRESS)  # accepted everywhere, of no use here
    parser.add_argument("action", choices=("inspect", "verify"), help="show what is in it, or whether all is sound")
    parser.add_argument("path", type=Path, metavar="PATH", help="a WAL file, or the directory that holds them")


def execute(arguments: argparse.Namespace) -> int:
    """Print a report for each file, when verifying only for bad ones; `verify` exits with 1 on damage."""
    paths = wal_files(arguments.path)
    damaged = 0
    for path in paths:
        report = examine(path)
        damaged += report.is_damaged
        if arguments.action == "inspect" or report.is_damaged:
            print("\n".join(report.lines()))
    if not paths:
        print(f"no WAL files in {arguments.path}")
    elif arguments.action == "verify":
        print(f"{len(paths)} file(s), {damaged} damaged")
    return Exit.FAILED if arguments.action == "verify" and damaged else Exit.OK


def wal_files(path: Path) -> list[Path]:
    """Return the files to look at: the one named, or all of a directory (of a data directory: its `wal`)."""
    try:
        if not path.is_dir():
            with path.open("rb"):
                return [path]
        return _in_directory(path / "wal" if (path / "wal").is_dir() else path)
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{path}: {error.strerror}") from error


def _in_directory(directory: Path) -> list[Path]:
    return sorted(
        path for path in directory.iterdir() if path.suffix == SUFFIX and maybe_segment_id(path.name) is not None
    )


@dataclass(slots=True)
class Report:
    """What one file holds."""

    path: Path
    size_bytes: int = 0
    header: FileHeader | None = None
    unreadable: str = ""
    """Why nothing in the file can be read."""
    frames: Counter[str] = field(default_factory=Counter)
    """Number of frames by the name of their type."""
    sequences: tuple[int, int] | None = None
    """First and last."""
    entries: int = 0
    rows: int = 0
    damage: list[Damage] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        """Whether something that had been durable is lost; what a crash tore off had not been."""
        return bool(self.unreadable) or any(not damage.is_torn for damage in self.damage)

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        yield f"{self.path}  {size_text(self.size_bytes)}"
        if self.unreadable:
            yield f"  DAMAGE: {self.unreadable}"
            return
        if self.header is not None:
            origin = f"{self.header.node}-{self.header.incarnation}"
            yield f"  segment {self.header.segment_id} of {origin}, begun {time_text(self.header.created_ns)}"
        if self.sequences is None:
            yield "  no records"
        else:
            frames = ", ".join(f"{count:,} {name}" for name, count in sorted(self.frames.items()))
            yield f"  sequences {self.sequences[0]}-{self.sequences[1]}: {frames}"
            yield f"  {self.entries:,} entries, {self.rows:,} lines"
        for damage in self.damage:
            what = "torn by a crash" if damage.is_torn else "DAMAGE"
            yield f"  {what} at byte {damage.offset}, {damage.length} bytes: {damage.reason}{_lost(damage)}"

    def add(self, found: Frame | Damage) -> None:
        """Count one frame, or keep one range of damage."""
        if isinstance(found, Damage):
            self.damage.append(found)
            return
        name = found.type.name if isinstance(found.type, FrameType) else f"of unknown type {found.type}"
        self.frames[name] += 1
        self.sequences = (self.sequences or (found.sequence, 0))[0], found.sequence
        try:
            self._decode(found)
        except FormatError as error:
            sequence = found.sequence
            self.damage.append(Damage(found.offset, found.length, str(error), sequence, sequence, found.rows))

    def _decode(self, frame: Frame) -> None:
        """Decode as replay would: a payload with a good checksum may still be none that this release reads."""
        if frame.type == FrameType.GROUP:
            group = decode_group(frame.payload)
            self.entries += len(group.arrivals)
            self.rows += group.rows
        elif frame.type == FrameType.PERSIST_BEGIN:
            decode_begin(frame.payload)
        elif frame.type == FrameType.PERSIST_END:
            decode_end(frame.payload)


def _lost(damage: Damage) -> str:
    first, last = damage.first_sequence, damage.last_sequence
    sequences = f", sequences {first}-{last}" if first is not None and last is not None and first <= last else ""
    return sequences + (f", {damage.rows} lines" if damage.rows is not None else "")


def examine(path: Path) -> Report:
    """Walk over one file, record by record; the file after it tells where it ends."""
    report = Report(path, path.stat().st_size)
    try:
        file = open_file(path)
    except FormatError as error:
        report.unreadable = str(error)
        return report
    report.header = file.header
    for found in FileWalk(file, _next_header(path)):
        report.add(found)
    return report


def _next_header(path: Path) -> FileHeader | None:
    for following in _in_directory(path.absolute().parent):
        if following.name > path.name:
            try:
                return open_file(following).header
            except FormatError:
                continue
    return None
