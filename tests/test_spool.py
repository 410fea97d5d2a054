"""What is left of the spool after a crash."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

from edge_appliance.core.parts import Part, part_name
from edge_appliance.spool import clean_spool

PART = Part("edge", "cpu", dt.date(2026, 1, 2), "gw-01", "0123abcd", 7, 7, 0, 1, 1, 4, 0, 9)


def test_clean_spool_keeps_what_is_listed(tmp_path: Path) -> None:
    """With a trusted catalog unfinished and unlisted files go, listed and foreign ones stay."""
    other = replace(PART, rank_lo=9, rank_hi=9)
    for name in (part_name(PART), part_name(other), part_name(other) + ".tmp", "README"):
        (tmp_path / name).write_text("four")
    assert clean_spool(tmp_path, [PART], is_trusted=True) == sorted([part_name(other), part_name(other) + ".tmp"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([part_name(PART), "README"])


def test_clean_spool_without_trust_deletes_no_part(tmp_path: Path) -> None:
    """While the catalog may be older than the disk, only unfinished files go."""
    for name in (part_name(PART), part_name(PART) + ".tmp"):
        (tmp_path / name).write_text("four")
    assert clean_spool(tmp_path, [], is_trusted=False) == [part_name(PART) + ".tmp"]
    assert [path.name for path in tmp_path.iterdir()] == [part_name(PART)]
