"""How the package is built: the same bytes each time, no fault that Debian's own check finds, known contents."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from machine import Machine

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


def test_rebuild_is_the_same_to_the_bit(package: Path, release: str, tmp_path: Path) -> None:
    """Built anew in another directory, under another umask, at another time, it is the same file."""
    is_gzip = b"data.tar.gz" in package.read_bytes()[:1_000_000]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COMPRESSION": "gzip" if is_gzip else "xz"}
    script = ROOT / "packaging/deb/build.sh"
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", script, "--release", release, "--output", tmp_path / "again"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    again = tmp_path / "again" / package.name
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (package, again)]
    assert digests[0] == digests[1]


@pytest.mark.essential
def test_lintian(package: Path) -> None:
    """Debian's check of packages finds no error and no warning."""
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", package]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_bill_of_materials(off: Machine) -> None:
    """Every Python package in there is listed with version and license, and so is what is linked into DataFusion."""
    bill = json.loads((off.root / "usr/share/doc/edge-appliance/sbom.json").read_text())
    listed = {component["name"]: component for component in bill["components"]}
    library = off.root / "usr/lib/edge-appliance"
    there = {path.name.split("-")[0].lower().replace("_", "-") for path in library.glob("*.dist-info")}
    assert there == set(listed)
    assert [name for name, component in listed.items() if not component.get("licenses")] == []
    assert {"arrow", "parquet"} <= {part["name"] for part in listed["datafusion"]["components"]}
