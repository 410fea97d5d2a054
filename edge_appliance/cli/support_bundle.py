"""`edge-appliance support-bundle`: one file with what somebody needs who is to help. No secret, no row, no payload."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge_appliance import config
from edge_appliance.cli import show_config, version
from edge_appliance.cli.command import CommandError, Exit, add_config_option
from edge_appliance.cli.daemon import Daemon
from edge_appliance.cli.doctor import examine
from edge_appliance.errors import EdgeError

EXAMPLES = "  edge-appliance support-bundle\n  edge-appliance support-bundle --output /tmp/bundle.tar.gz"

JOURNAL_LINES: Final = 5_000
MAX_PART_BYTES: Final = 8 << 20
MAX_FILES_LISTED: Final = 20_000
_TIMEOUT_S: Final = 20.0
_UNIT: Final = "edge-appliance.service"

Part = Callable[[], str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: edge-appliance-support-<time>.tar.gz, here"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the file, readable by its owner only, and name it."""
    made = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    output = arguments.output or Path(f"edge-appliance-support-{made}.tar.gz")
    try:
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, part in parts(arguments.config).items():
                _add(bundle, f"edge-appliance-support/{name}", _text_of(part))
    except OSError as error:
        raise CommandError(Exit.CANNOT_CREATE, f"{output}: {error.strerror}") from error
    print(output)
    return Exit.OK


def parts(path: Path | None) -> dict[str, Part]:
    """What is in it, by file name; each part stands for itself when another one fails."""
    return {
        "version.txt": lambda: _printed(lambda: version.execute(argparse.Namespace(verbose=True))),
        "config.txt": lambda: _printed(
            lambda: show_config.execute(argparse.Namespace(config=path, effective=True, json=False))
        ),
        "doctor.json": lambda: json.dumps([finding._asdict() for finding in examine(path)], indent=2),
        "status.json": lambda: _asked(path, "/api/v1/status"),
        "metrics.txt": lambda: _asked(path, "/metrics"),
        "files.txt": lambda: _listing(config.load(path, purpose="ask").node.data_dir),
        "system.txt": lambda: "\n".join([*platform.uname(), Path("/etc/os-release").read_text()]),
        "unit.txt": lambda: _run("systemctl", "cat", _UNIT) + _run("systemctl", "show", _UNIT),
        "journal.txt": lambda: _run(
            "journalctl", "--unit", _UNIT, "--no-pager", "-o", "short-precise", "-n", str(JOURNAL_LINES)
        ),
        "disks.txt": lambda: _run("df", "-hT") + _run("df", "-i"),
        "memory.txt": lambda: Path("/proc/meminfo").read_text(),
    }


def _text_of(part: Part) -> bytes:
    try:
        text = part()
    except (EdgeError, OSError, ValueError, subprocess.SubprocessError) as error:
        text = f"not available: {error}\n"
    return text.encode("utf-8", "replace")[-MAX_PART_BYTES:]


def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    bundle.addfile(entry, io.BytesIO(content))


def _printed(command: Callable[[], int]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        command()
    return output.getvalue()


def _asked(path: Path | None, url_path: str) -> str:
    with Daemon(config.load(path, purpose="ask").http).get(url_path, timeout_s=_TIMEOUT_S) as answer:
        return answer.read(MAX_PART_BYTES).decode("utf-8", "replace")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
    return f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n"


def _listing(directory: Path) -> str:
    """Names, sizes, owners and modes of all files; not what is in them."""
    lines = []
    for path in sorted(directory.rglob("*"))[:MAX_FILES_LISTED]:
        with contextlib.suppress(OSError):
            status = path.lstat()
            owner = f"{status.st_uid}:{status.st_gid}"
            lines.append(f"{stat.filemode(status.st_mode)} {owner} {status.st_size:>12} {path.relative_to(directory)}")
    return "\n".join([str(directory), *lines, ""])
