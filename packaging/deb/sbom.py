"""Prints the bill of materials of an installed library directory, as CycloneDX JSON.

    sbom.py LIBRARY LOCK VERSION ARCHITECTURE

The same input gives the same output: no time of making, no random serial number.
"""

from __future__ import annotations

import email.parser
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main(library: Path, lock: Path, version: str, architecture: str) -> int:
    """Print it."""
    hashes = locked_hashes(lock)
    components = [component(path, hashes) for path in sorted(library.glob("*.dist-info"))]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "edge-appliance",
                "name": "edge-appliance",
                "version": version,
                "purl": f"pkg:deb/edge-appliance@{version}?arch={architecture}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }
    print(json.dumps(bill, indent=1, ensure_ascii=False))
    return 0


def component(dist_info: Path, hashes: dict[str, list[str]]) -> dict[str, Any]:
    """One Python package, with what it was linked with where it says so itself."""
    metadata = email.parser.HeaderParser().parsestr((dist_info / "METADATA").read_text("utf-8"))
    name, version = metadata["Name"].lower().replace("_", "-"), metadata["Version"]
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pypi/{name}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    license_text = (
        metadata["License-Expression"] or short(metadata["License"] or "") or " / ".join(classifiers(metadata))
    )
    if license_text:
        found["licenses"] = [{"license": {"name": license_text}}]
    if digests := hashes.get(f"{name}=={version}"):
        # One of them is the file in here: the lock holds those of all architectures.
        found["properties"] = [{"name": "edge-appliance:sha256-of-wheel", "value": digest} for digest in digests]
    if linked := [part for file in sorted(dist_info.rglob("*.cyclonedx.json")) for part in linked_in(file)]:
        found["components"] = linked
    return found


def short(text: str) -> str:
    """A license field, unless it is the whole text of one."""
    return text if len(text) < 80 and "\n" not in text and text != "UNKNOWN" else ""


def classifiers(metadata: Any) -> list[str]:
    """Licenses by classifier."""
    every = metadata.get_all("Classifier") or []
    return [text.rpartition(" :: ")[2] for text in every if text.startswith("License :: ")]


def linked_in(file: Path) -> Iterator[dict[str, Any]]:
    """What a package's own bill lists, by name, version and license only."""
    for part in json.loads(file.read_text("utf-8")).get("components", []):
        yield {key: part[key] for key in ("type", "name", "version", "purl", "licenses") if key in part}


def locked_hashes(lock: Path) -> dict[str, list[str]]:
    """Hashes by name==version, of all lock files."""
    found: dict[str, list[str]] = {}
    for file in sorted(lock.glob("*.txt")):
        for entry in re.split(r"\n(?=[a-z])", file.read_text()):
            pin = entry.split(" ", 1)[0]
            found[pin] = re.findall(r"sha256:([0-9a-f]{64})", entry)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
