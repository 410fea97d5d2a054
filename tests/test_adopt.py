"""A damaged or lost catalog is made anew from the parts on disk, and nothing is deleted for it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from edge_appliance import adopt as adopt_module
from edge_appliance.adopt import FoundParts, adopt, rebuild_catalog
from edge_appliance.catalog import Catalog
from edge_appliance.catalog_file import copy_path, read_catalog
from edge_appliance.core.catalog_state import CatalogState
from edge_appliance.core.delivery import ColumnDefinition, Kind, TableDefinition
from edge_appliance.core.parts import Part, cover_intervals, part_key, part_name
from edge_appliance.parquet_file import PartFooter, write_part
from edge_appliance.store_directory import DirectoryStore

DAY = dt.date(2026, 1, 2)
COLUMNS = (ColumnDefinition("host", Kind.TAG), ColumnDefinition("f", Kind.FLOAT))
CPU = TableDefinition("edge", "cpu", COLUMNS)
EMPTY = CatalogState("gw-01", "ffffffff")


def make_part(lo: int, hi: int | None = None, number: int = 0, count: int = 1, **changes: Any) -> Part:
    """A part of edge.cpu with ranks lo … hi."""
    part = Part("edge", "cpu", DAY, "gw-01", "0123abcd", lo, lo if hi is None else hi, number, count, 3, 100, 0, 9)
    return replace(part, **changes)


def footer(part: Part, generation: int = 5, segments: tuple[int, int] = (1, 1)) -> PartFooter:
    """What the part says of itself."""
    return PartFooter(part, COLUMNS, segments, generation)


def found(*parts: Part, stored: tuple[Part, ...] = ()) -> FoundParts:
    """Parts in the spool and in the store."""
    return FoundParts(tuple(map(footer, parts)), tuple(map(footer, stored)))


class Disk:
    """A state directory with real parts."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "catalog.db"
        self.spool, self.quarantine = directory / "spool", directory / "quarantine"
        self.store = DirectoryStore(directory / "store")
        self.spool.mkdir()

    def add(self, part: Part, path: Path) -> Part:
        """Write a part where it belongs."""
        table = pa.table(
            {
                "time": pa.array([1, 2, 3], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                "time_ns": pa.array([0] * 3, pa.int16()),
                "host": ["a"] * 3,
                "f": [1.0, 2.0, 3.0],
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_part(path, table, footer(part))

    def spooled(self, part: Part) -> Part:
        """A part in the spool."""
        return self.add(part, self.spool / part_name(part))

    def stored(self, part: Part) -> Part:
        """A part in the store."""
        return replace(self.add(part, self.store.path(part_key(part))), is_stored=True)

    def rebuild(self, **options: Any) -> CatalogState:
        """A new catalog from what is there."""
        return rebuild_catalog(
            self.path,
            node="gw-01",
            spool_dir=self.spool,
            store=self.store,
            quarantine_dir=self.quarantine,
            **options,
        )


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """An empty state directory."""
    return Disk(tmp_path)


def test_adopt_takes_parts_numbers_and_definitions() -> None:
    """Parts, tables, and numbers above all seen come from the footers."""
    parts = FoundParts((footer(make_part(7), 5, (2, 3)),), (footer(make_part(9), 8, (4, 4)),))
    state = adopt(EMPTY, parts)
    assert set(state.parts) == {make_part(7), make_part(9, is_stored=True)}
    assert state.definitions == [CPU]
    assert (state.generation, state.max_segment_id, state.max_sequence) == (9, 4, 9)


def test_adopt_ignores_incomplete_sets_and_covered_intervals() -> None:
    """A set with a missing slice covers nothing, a merged set covers its inputs."""
    state = adopt(EMPTY, found(make_part(5), make_part(7), make_part(4, 8), make_part(11, number=1, count=2)))
    assert state.parts == [make_part(4, 8)]
    assert not any(lo <= 11 <= hi for lo, hi in cover_intervals(state.parts)["edge", "cpu", DAY])


def test_adopt_part_in_spool_and_store_is_stored() -> None:
    """A part that both have was uploaded before its mark."""
    assert adopt(EMPTY, found(make_part(7), stored=(make_part(7),))).parts == [make_part(7, is_stored=True)]


def test_adopt_keeps_what_the_base_knows() -> None:
    """Listed parts, kinds and higher numbers of an older catalog stay."""
    base = replace(
        adopt(EMPTY, found(make_part(1))),
        tables={("edge", "cpu"): {"f": Kind.INT}},
        generation=50,
        max_sequence=70,
        persisted_segments=frozenset({3}),
    )
    state = adopt(base, found(make_part(9)))
    assert set(state.parts) == {make_part(1), make_part(9)}
    assert state.tables["edge", "cpu"] == {"f": Kind.INT, "host": Kind.TAG}
    assert (state.generation, state.max_sequence, state.persisted_segments) == (51, 70, {3})


def test_adopt_leaves_another_history_in_the_store_alone() -> None:
    """Ranks of an older life of this node would cover log rows that are not theirs."""
    old = make_part(9, incarnation="00000000")
    assert adopt(EMPTY, found(make_part(7), stored=(old,))).parts == [make_part(7)]
    assert adopt(EMPTY, found(stored=(old,)), incarnations=["0123abcd"]).parts == []
    assert adopt(EMPTY, found(stored=(old,)), incarnations=["00000000"]).parts == [replace(old, is_stored=True)]
    # A wiped card has no log: then the store is all there is, and new ranks are above it.
    wiped = adopt(EMPTY, found(stored=(old,)))
    assert wiped.parts == [replace(old, is_stored=True)]
    assert wiped.max_sequence == 9


def test_rebuild_after_damage(disk: Disk) -> None:
    """A destroyed catalog comes back from the parts; its files are kept, and it opens."""
    first, second = disk.spooled(make_part(7)), disk.stored(make_part(9))
    disk.path.write_bytes(b"destroyed")
    state = disk.rebuild(incarnations=["0123abcd"])
    assert set(state.parts) == {first, second}
    (kept,) = disk.quarantine.iterdir()
    assert kept.read_bytes() == b"destroyed"
    catalog = Catalog.open(disk.path, node="gw-01")
    assert catalog.state == state
    catalog.close()


def test_rebuild_uses_the_daily_copy(disk: Disk) -> None:
    """What footers do not say comes from the last copy: incarnation, filters, definitions without parts."""
    catalog = Catalog.open(disk.path, node="gw-01")
    catalog.save_filters(["a/+"]).result(10)
    catalog.close()
    before = read_catalog(copy_path(disk.path))
    part = disk.spooled(make_part(7))
    disk.path.write_bytes(b"")
    state = disk.rebuild()
    assert (state.incarnation, state.filters, state.parts) == (before.incarnation, ("a/+",), [part])


def test_rebuild_with_a_readable_catalog_reconciles(disk: Disk) -> None:
    """A catalog that is only too old is the base: what it lists stays, what is found joins."""
    catalog = Catalog.open(disk.path, node="gw-01")
    listed = disk.spooled(make_part(3))
    catalog.commit_persist(1, 3, [CPU], [listed]).result(10)
    catalog.close()
    later = disk.spooled(make_part(9))
    assert set(disk.rebuild().parts) == {listed, later}
    assert read_catalog(disk.path).incarnation == catalog.state.incarnation


def test_rebuild_sets_unreadable_parts_aside(disk: Disk) -> None:
    """A damaged part stalls nothing: it is kept in quarantine, out of reach of the cleaning of the spool."""
    part = disk.spooled(make_part(7))
    damaged = disk.spool / part_name(make_part(9))
    damaged.write_bytes(b"PAR1")
    assert disk.rebuild().parts == [part]
    assert not damaged.exists()
    assert (disk.quarantine / damaged.name).read_bytes() == b"PAR1"


def test_rebuild_takes_only_own_parts_of_a_shared_store(disk: Disk) -> None:
    """Parts of other nodes in the same store are theirs."""
    disk.stored(make_part(7, node="gw-02"))
    own = disk.stored(make_part(7))
    assert disk.rebuild().parts == [own]


def test_rebuild_cut_in_the_middle_is_repeated(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the new catalog is in place leaves the old one there, so that no empty one is made."""
    part = disk.spooled(make_part(7))
    disk.path.write_bytes(b"destroyed")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adopt_module, "write_catalog", crash)
    with pytest.raises(KeyboardInterrupt):
        disk.rebuild()
    monkeypatch.undo()
    assert disk.path.read_bytes() == b"destroyed"
    assert disk.rebuild().parts == [part]
    assert len(list(disk.quarantine.iterdir())) == 1
