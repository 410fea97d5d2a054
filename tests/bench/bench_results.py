"""Results on disk, one file a commit, and the comparison of two of them.

A run replaces the items it measured and keeps the others, so that a commit can be measured in pieces; each item
keeps the facts of its own run.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_table import HEADING, Bench, Row, seconds, shown

from edge_appliance.core.append import KERNEL

Items = dict[str, dict[str, Any]]
"""By item: `facts` of its run, and `rows`."""


def save(results: Path, bench: Bench, facts: dict[str, str]) -> Path:
    """Write the rows as JSON and as text; returns the path of the text."""
    name = commit(results.parent)
    path = results / f"{name}.json"
    items: Items = json.loads(path.read_text())["items"] if path.exists() else {}
    measured: Items = {}
    for row in bench.rows:
        measured.setdefault(row.item, {"facts": facts, "rows": []})["rows"].append(asdict(row))
    items |= measured
    path.write_text(json.dumps({"commit": name, "items": items}, indent=1) + "\n")
    text = path.with_suffix(".txt")
    text.write_text("\n".join(_text(name, items)) + "\n")
    return text


def _text(name: str, items: Items) -> list[str]:
    lines, shown_facts = [f"commit: {name}"], None
    for item in sorted(items):
        facts = items[item]["facts"]
        if facts != shown_facts:
            lines += ["", *(f"{key}: {value}" for key, value in facts.items()), HEADING]
            shown_facts = facts
        lines.append(item)
        lines += [f"  {Row(**row)}" for row in items[item]["rows"]]
    return lines


def compare(results: Path, first: str, second: str) -> list[str]:
    """Two results side by side, in lines; a name is that of a commit or the path of a file."""
    before, after = _load(results, first), _load(results, second)
    lines = [f"{'what':<92} {first[:16]:>16} {second[:16]:>16} {'change':>8}   ratio to the peer, verdict"]
    for item in sorted(before.keys() & after.keys()):
        lines.append(item)
        if _host(before[item]) != _host(after[item]):
            lines.append("  measured on different machines or at different scales: absolute numbers do not compare")
        olds = {row["what"]: Row(**row) for row in before[item]["rows"]}
        for new in (Row(**row) for row in after[item]["rows"]):
            old = olds.pop(new.what, None)
            if old is not None and old.value is not None and new.value is not None:
                lines.append(f"  {_change(old, new)}")
            else:
                lines.append(f"  {new.what}: not in both")
        lines += [f"  {what}: not in both" for what in olds]
    lines += [f"{item}: only in one" for item in sorted(before.keys() ^ after.keys())]
    return lines


def _change(old: Row, new: Row) -> str:
    assert old.value is not None
    assert new.value is not None
    change = f"{new.value / old.value:.2f}x" if old.value else ""
    ratios = "" if old.ratio is None or new.ratio is None else f"{old.ratio:.2f}x -> {new.ratio:.2f}x"
    verdicts = " -> ".join({True: "met", False: "NOT MET", None: ""}[row.is_kept] for row in (old, new))
    verdict = verdicts if new.is_kept is not None else ""
    what = f"{new.what} [{new.unit}]"
    return f"{what:<90} {shown(old.value):>16} {shown(new.value):>16} {change:>8}   {ratios:<18} {verdict}".rstrip()


def _host(item: dict[str, Any]) -> list[str]:
    return [item["facts"].get(key, "") for key in ("cpu", "python", "scale")]


def _load(results: Path, name: str) -> Items:
    path = Path(name) if Path(name).is_file() else results / f"{name}.json"
    if not path.is_file():
        matches = sorted(results.glob(f"{name}*.json"))
        if len(matches) != 1:
            known = ", ".join(sorted(found.stem for found in results.glob("*.json"))) or "none"
            raise SystemExit(f"no single result is named {name}; there are: {known}")
        path = matches[0]
    items: Items = json.loads(path.read_text())["items"]
    return items


def commit(root: Path) -> str:
    """The commit that is measured, marked when files differ from it; the time when there is no repository."""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty"]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else time.strftime("%Y%m%dT%H%M%S")


def host_facts(directory: Path, scale: float) -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "scale": f"{scale:g}",
        "cpu": f"{os.cpu_count()} x {_cpu_model()}",
        "load average before": f"{os.getloadavg()[0]:.1f}",
        "lines are read by": KERNEL,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "fdatasync of 4 KiB, median": f"{_fsync_ms(directory):.2f} ms",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fsync_ms(directory: Path) -> float:
    path = directory / "sync-probe"
    with path.open("wb", buffering=0) as file:

        def sync() -> None:
            file.write(b"\0" * 4096)
            os.fdatasync(file.fileno())

        times = sorted(seconds(sync) for _ in range(50))
    path.unlink()
    return times[25] * 1000
