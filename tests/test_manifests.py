"""What a node leaves in the store: manifests before the mark, snapshots only when something changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from merge_world import OPEN_NS, MergeWorld
from part_makers import SITE, VALUE

from edge_appliance.core.delivery import ColumnDefinition, Kind, TableDefinition
from edge_appliance.core.parts import part_key, part_name
from edge_appliance.errors import FormatError
from edge_appliance.manifests import Manifests, catalog_key, definitions_of, manifest_prefix, read_json
from edge_appliance.remote_parts import find_remote_parts

DEFINITIONS = [TableDefinition("edge", "cpu", (SITE, VALUE)), TableDefinition("ed ge", "_x/y", (SITE,))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MergeWorld]:
    """A fresh world, whose catalog is closed at the end."""
    world = MergeWorld(tmp_path)
    yield world
    world.close()


def manifests(world: MergeWorld) -> Manifests:
    """As the daemon wires them."""
    return Manifests(world.store, world.spool, world.catalog)


def written(world: MergeWorld) -> list[dict[str, Any]]:
    """All manifests, the oldest first."""
    keys = sorted(item.key for item in world.store.objects(manifest_prefix("gw-01")))
    return [body for key in keys if (body := read_json(world.store, key)) is not None]


def test_manifest_says_all_that_a_reader_needs(world: MergeWorld) -> None:
    """Key, bytes, rows, times, ranks and a digest of the content."""
    (part,) = world.add_many((3,))
    manifests(world).write([part])
    (body,) = written(world)
    (entry,) = body["parts"]
    content = (world.spool / part_name(part)).read_bytes()
    assert entry["key"] == part_key(part)
    assert (entry["bytes"], entry["rows"], entry["ranks"]) == (len(content), 1, [3, 3])
    assert entry["times"] == [part.min_time_ns, part.max_time_ns]
    assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    assert body["replaced"] == []


def test_manifest_of_a_merged_part_names_what_it_replaces(world: MergeWorld) -> None:
    """Whoever adds files to a table must know which ones go."""
    inputs = world.add_many((1, 2, 3))
    world.outgoing.tried = [inputs[0]]
    world.merger().run(OPEN_NS, lambda: None)
    manifests(world).write(world.outgoing.waiting)
    assert written(world)[-1]["replaced"] == [part_key(inputs[0])], "the store never had the others"


def test_a_round_that_is_repeated_has_two_manifests(world: MergeWorld) -> None:
    """A kill before the mark leads to the same round again, under another name."""
    parts = world.add_many((1,))
    for _ in range(2):
        manifests(world).write(parts)
    assert [entry["key"] for body in written(world) for entry in body["parts"]] == [part_key(parts[0])] * 2


def test_snapshot_is_written_when_tables_change(world: MergeWorld) -> None:
    """Once at the start if the store has another one, then whenever a column or a table has come; else nothing is."""
    writer = manifests(world)
    world.catalog.define(DEFINITIONS).result(10)
    writer.snapshot()
    found = read_json(world.store, catalog_key("gw-01"))
    assert found is not None
    assert sorted(definitions_of(found)) == sorted(DEFINITIONS)
    schema = read_json(world.store, "_edge/schema/ed%20ge/%5Fx%2Fy/gw-01.json")
    assert schema is not None
    assert (schema["table"], schema["columns"]) == ("_x/y", [["site", "tag"]])
    puts: list[str] = []
    world.store.write = lambda key, data: puts.append(key)  # type: ignore[method-assign]
    writer.snapshot()
    manifests(world).snapshot()
    assert puts == []
    world.catalog.define([TableDefinition("edge", "cpu", (ColumnDefinition("late", Kind.FLOAT),))]).result(10)
    writer.snapshot()
    assert puts == ["_edge/schema/edge/cpu/gw-01.json", catalog_key("gw-01")]


def test_parts_are_found_by_manifests_and_without_them(world: MergeWorld, tmp_path: Path) -> None:
    """Listed with the stated bytes they count; others are found by their footers; what is no part is passed over."""
    parts = world.add_many((1, 2, 3), is_stored=True)
    manifests(world).write(parts[:2])
    world.store.create(f"{manifest_prefix('gw-01')}/damaged.json", b'{"format":1,"parts":[{"key":"x"}]}')
    bad = part_key(replace(parts[0], rank_lo=9, rank_hi=9))
    world.store.create(bad, b"no parquet")
    world.store.delete(part_key(parts[1]))
    told: list[str] = []
    found = find_remote_parts(world.store, "gw-01", tmp_path, told.append)
    assert {part_key(footer.part) for footer in found.footers} == {part_key(parts[0]), part_key(parts[2])}
    assert [text for text in told if "no manifest" in text] == [
        f"{key} is in no manifest: its footer is read" for key in sorted((part_key(parts[2]), bad))
    ]


def test_object_of_another_format_is_refused(world: MergeWorld) -> None:
    """A later release's object, or none of ours, is not guessed at."""
    for body in (b"[]", b"{", json.dumps({"format": 99}).encode()):
        world.store.write("_edge/x.json", body)
        with pytest.raises(FormatError):
            read_json(world.store, "_edge/x.json")
