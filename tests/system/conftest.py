"""The built package under a real systemd: `make test-system` builds it and runs these.

Layers, each made once: a base system, the package installed over it without a running systemd; a test boots over them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machine import Machine, clear_abandoned, debian_root, install, why_no_machines

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {"bookworm": "deb12", "trixie": "deb13"}
RELEASES = os.environ.get("EDGE_SYSTEM_RELEASES", "bookworm").split()


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """The release of Debian; skips where the kernel or the user may not make containers."""
    if reason := why_no_machines():
        pytest.skip(reason)
    clear_abandoned()
    return str(request.param)


@pytest.fixture(scope="session")
def base(release: str) -> Path:
    """A minimal system with a broker."""
    return debian_root(release, ROOT / "packaging/deb/root.sh")


@pytest.fixture(scope="session")
def package(release: str) -> Path:
    """The package that was built last for this release and machine."""
    architecture = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    found = sorted((ROOT / "dist").glob(f"*~{SUFFIXES[release]}u*_{architecture}.deb"), key=lambda p: p.stat().st_mtime)
    assert found, f"no package for {release} in dist/: make deb RELEASE={release}"
    return found[-1]


@pytest.fixture(scope="session")
def installed(package: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layer that installing the package makes, where no systemd runs."""
    return install(package, tmp_path_factory.mktemp("installed"), base)


@pytest.fixture
def plain(base: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine without the package, not booted yet."""
    with Machine(tmp_path / "machine", [base]) as machine:
        yield machine


@pytest.fixture
def off(installed: Path, base: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with the package, not booted yet."""
    with Machine(tmp_path / "machine", [installed, base]) as machine:
        yield machine


@pytest.fixture
def machine(off: Machine) -> Machine:
    """A booted machine with a broker and the service, which is ready."""
    off.boot()
    off.wait_active()
    return off


@pytest.fixture(scope="session")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The same package under a later version: `newer("1")`; `conffile` is appended to the one it ships."""

    def repack(suffix: str, conffile: str = "") -> Path:
        directory = tmp_path_factory.mktemp("newer")
        content = directory / "content"
        subprocess.run(["dpkg-deb", "--raw-extract", package, content], check=True)
        control = content / "DEBIAN/control"
        lines = [f"{x}+{suffix}" if x.startswith("Version:") else x for x in control.read_text().splitlines()]
        control.write_text("\n".join(lines) + "\n")
        with (content / "etc/edge-appliance/edge-appliance.toml").open("a") as file:
            file.write(conffile)
        result = directory / "newer.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", content, result]
        subprocess.run(command, check=True, capture_output=True)
        return result

    return repack
