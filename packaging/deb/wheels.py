"""The wheels that the Debian package brings along: pinned by hash in `lock/`, and fetched into a directory.

    wheels.py lock                        writes lock/*.txt anew, from pyproject.toml and what the index offers today
    wheels.py fetch cp311-x86_64 DIR      fills DIR; every file is checked against its hash
    wheels.py options cp311-x86_64        prints the options that make pip take files for that target, one a line

The package is built from that directory alone, without a network. Runs under any Python with pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = Path(__file__).resolve().parent / "lock"
SHIPPED: Final = LOCK / "shipped.txt"
FROM_SOURCE: Final = LOCK / "from_source.txt"
BUILD: Final = LOCK / "build.txt"

TARGETS: Final = ("cp311-x86_64", "cp311-aarch64", "cp313-x86_64", "cp313-aarch64")
SOURCE_ONLY: Final = ("sdnotify",)
"""Published without wheels."""
GLIBC_MINOR: Final = 36
"""Of Debian 12; wheels for an older glibc run there, too."""
INDEX: Final = "https://pypi.org/simple"
"""The lock names files of the public index, whatever this machine's pip is told to use besides it."""

HEADERS: Final = {
    SHIPPED: "Wheels in the Debian package",
    FROM_SOURCE: "Packages without wheels: pure Python, made into wheels when the Debian package is built",
    BUILD: "What builds our own wheel; not in the Debian package",
}


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for."""
    match arguments:
        case ["lock"]:
            lock()
        case ["fetch", target, directory] if target in TARGETS:
            fetch(target, Path(directory))
        case ["options", target] if target in TARGETS:
            print("\n".join(platform_options(target)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def platform_options(target: str) -> list[str]:
    """Options that make pip choose files for the target, on whatever machine it runs."""
    python, machine = target.split("-")
    version = f"{python[2]}.{python[3:]}"
    glibc = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 16, -1)]
    platforms = (*glibc, f"manylinux2014_{machine}", f"linux_{machine}", "any")
    options = ["--implementation", "cp", "--python-version", version]
    return options + [word for platform in platforms for word in ("--platform", platform)]


def fetch(target: str, directory: Path) -> None:
    """Download what the lock names for the target; files that are there already are kept."""
    directory.mkdir(parents=True, exist_ok=True)
    common = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(directory)]
    wheels_only = [*common, "--only-binary", ":all:"]
    pip(*wheels_only, *platform_options(target), "--requirement", str(SHIPPED))
    pip(*wheels_only, "--platform", "any", "--requirement", str(BUILD))
    # pip looks into a source to learn its name, for which it needs what builds it.
    with tempfile.TemporaryDirectory() as tools:
        pip("install", "--quiet", "--no-index", "--no-deps", "--find-links", str(directory), "--target", tools,
            "--require-hashes", "--requirement", str(BUILD))  # fmt: skip
        pip(*common, "--no-build-isolation", "--no-binary", ":all:", "--requirement", str(FROM_SOURCE),
            python_path=tools)  # fmt: skip


def lock() -> None:
    """Resolve for every target, and write the names, versions and hashes."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    dependencies = project["project"]["dependencies"]
    from_wheels = [text for text in dependencies if not text.startswith(SOURCE_ONLY)]
    from_source = [text for text in dependencies if text.startswith(SOURCE_ONLY)]
    shipped = [files for target in TARGETS for files in resolve(from_wheels, platform_options(target))]
    write(SHIPPED, shipped)
    write(BUILD, resolve(project["build-system"]["requires"], ["--platform", "any"]))
    write(FROM_SOURCE, resolve(from_source, ["--no-deps", "--no-binary", ":all:"], is_binary=False))


def resolve(requirements: Iterable[str], options: Iterable[str], *, is_binary: bool = True) -> list[tuple[str, str]]:
    """Return (name==version, sha256) of everything that the requirements need."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        pip("install", "--quiet", "--dry-run", "--ignore-installed", "--target", directory, "--index-url", INDEX,
            *(["--only-binary", ":all:"] if is_binary else []), *options, "--report", str(report),
            *requirements, is_isolated=True)  # fmt: skip
        found = json.loads(report.read_text())["install"]
    return [
        (
            f"{item['metadata']['name'].lower().replace('_', '-')}=={item['metadata']['version']}",
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in found
    ]


def write(path: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write one lock in pip's form."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for pin, digest in files:
        hashes[pin].add(digest)
    names = [pin.split("==")[0] for pin in hashes]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise SystemExit(f"targets disagree on the version of {', '.join(sorted(doubled))}: bound it in pyproject.toml")
    lines = [f"# {HEADERS[path]}. Written by 'wheels.py lock'."]
    for pin, digests in sorted(hashes.items()):
        lines += [f"{pin} \\", *(f"    --hash=sha256:{digest} \\" for digest in sorted(digests))]
        lines[-1] = lines[-1].removesuffix(" \\")
    path.write_text("\n".join(lines) + "\n")


def pip(*arguments: str, python_path: str = "", is_isolated: bool = False) -> None:
    """Run pip; `is_isolated` ignores what this machine's configuration says about indexes."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if python_path:
        environment["PYTHONPATH"] = python_path
    if is_isolated:
        environment = {key: value for key, value in environment.items() if key != "PIP_FIND_LINKS"}
        environment["PIP_CONFIG_FILE"] = os.devnull
    if subprocess.run([sys.executable, "-m", "pip", *arguments], env=environment, check=False).returncode:
        raise SystemExit(f"pip {arguments[0]} failed")  # it has said why


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
