"""One merge on real files: the same rows, in sorted parts with a true footer, in bounded memory, and nothing left."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from part_makers import DAY_NS, SITE, VALUE, write_rows

from edge_appliance import durable, part_merge
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.maintenance import Merge
from edge_appliance.core.parts import Part, part_name
from edge_appliance.errors import DiskError, FormatError
from edge_appliance.parquet_file import read_footer
from edge_appliance.part_merge import MergeJob, write_merged

HOST = ColumnDefinition("host", Kind.TAG)
TEXT = ColumnDefinition("text", Kind.STRING)


def job(spool: Path, parts: list[Part], target_bytes: int = 2**26) -> MergeJob:
    """The merge of all `parts`."""
    paths = [spool / part_name(part) for part in parts]
    merge = Merge(tuple(parts), parts[0].rank_lo, parts[-1].rank_hi)
    return MergeJob(merge, paths, parts[0].incarnation, 9, target_bytes)


def rows_of(spool: Path, parts: list[Part]) -> list[dict[str, Any]]:
    """All rows, in the order of the files."""
    return [row for part in parts for row in pq.read_table(spool / part_name(part)).to_pylist()]


def test_merge_keeps_the_last_value_of_each_field(tmp_path: Path) -> None:
    """A key in several parts is one row with the last value of each field; a column that came later is there."""
    old = write_rows(tmp_path, 3, [{"at": 1, "site": "a", "v": 1}, {"at": 2_000, "site": "a", "v": 2}])
    new = write_rows(
        tmp_path, 5, [{"at": 1, "site": "a", "text": "x"}, {"at": 7, "host": "h", "v": 7}], (SITE, HOST, VALUE, TEXT)
    )
    (merged,) = write_merged(job(tmp_path, [old, new]), tmp_path)
    found = [(r["site"], r["host"], r["time_ns"], r["v"], r["text"]) for r in rows_of(tmp_path, [merged])]
    assert found == [(None, "h", 7, 7, None), ("a", None, 1, 1, "x"), ("a", None, 0, 2, None)]


def test_footer_of_the_outcome_is_true(tmp_path: Path) -> None:
    """The footer rebuilds the catalog's row: interval, slices, times, columns, segments, rows and bytes."""
    parts = [write_rows(tmp_path, n, [{"at": n, "site": "a", "v": n}]) for n in (3, 5, 9)]
    (merged,) = write_merged(job(tmp_path, parts), tmp_path)
    footer = read_footer(tmp_path / part_name(merged))
    assert footer.part == merged
    assert (merged.rank_lo, merged.rank_hi, merged.slice, merged.slices, merged.rows) == (3, 9, 0, 1, 3)
    assert (merged.min_time_ns, merged.max_time_ns) == (DAY_NS + 3, DAY_NS + 9)
    assert (footer.columns, footer.segments, footer.generation) == ((SITE, VALUE), (3, 9), 9)
    sorting = pq.ParquetFile(tmp_path / part_name(merged)).metadata.row_group(0).sorting_columns
    assert [column.column_index for column in sorting] == [2, 0, 1]


def test_outcome_beyond_the_target_is_cut_into_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice knows the number of all, no row is lost, and they are sorted among each other."""
    monkeypatch.setattr(part_merge, "GROUP_ROWS", 100)
    monkeypatch.setattr(part_merge, "_MAX_ROWS", 64)
    parts = [
        write_rows(tmp_path, n, [{"at": k * 10 + n, "site": f"s{k % 7}", "v": k * k} for k in range(500)])
        for n in range(1, 4)
    ]
    merged = write_merged(job(tmp_path, parts, target_bytes=2_000), tmp_path)
    assert len(merged) > 2
    assert [(part.slice, part.slices) for part in merged] == [(n, len(merged)) for n in range(len(merged))]
    found = [(r["site"], r["time"], r["time_ns"]) for r in rows_of(tmp_path, merged)]
    assert len(found) == 1_500
    assert found == sorted(found)


def test_tags_keep_an_order_that_suits_all_parts(tmp_path: Path) -> None:
    """A part may lack the first tag: the outcome is sorted by the order of those that have both."""
    only_host = write_rows(tmp_path, 1, [{"at": 5, "host": "b", "v": 1}], (HOST, VALUE))
    both = write_rows(tmp_path, 2, [{"at": 5, "site": "a", "host": "a", "v": 2}], (SITE, HOST, VALUE))
    (merged,) = write_merged(job(tmp_path, [only_host, both]), tmp_path)
    assert read_footer(tmp_path / part_name(merged)).columns == (SITE, HOST, VALUE)
    assert [row["v"] for row in rows_of(tmp_path, [merged])] == [1, 2]


def test_tags_in_contradictory_orders_are_refused(tmp_path: Path) -> None:
    """Parts sorted by other orders of the same tags cannot be merged in one pass; that is said of the newest."""
    first = write_rows(tmp_path, 1, [{"at": 5, "site": "a", "host": "b", "v": 1}], (SITE, HOST, VALUE))
    second = write_rows(tmp_path, 2, [{"at": 5, "site": "a", "host": "b", "v": 1}], (HOST, SITE, VALUE))
    with pytest.raises(FormatError, match="another order") as caught:
        write_merged(job(tmp_path, [first, second]), tmp_path)
    assert caught.value.what.endswith(part_name(second))


@pytest.mark.parametrize("damage", ["cut", "zeroed", "another"])
def test_damaged_input_is_named_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    """Whatever is wrong with an input, its path is in the error and no file is left behind."""
    rows = [{"at": k, "site": "a", "v": k * k} for k in range(3_000)]
    parts = [write_rows(tmp_path, n, rows) for n in (1, 2, 3)]
    bad = tmp_path / part_name(parts[1])
    content = bad.read_bytes()
    if damage == "cut":
        bad.write_bytes(content[: len(content) // 2])
    elif damage == "zeroed":
        bad.write_bytes(content[:100] + bytes(len(content) // 2) + content[100 + len(content) // 2 :])
    else:
        bad.write_bytes((tmp_path / part_name(parts[0])).read_bytes())
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FormatError) as caught:
        write_merged(job(tmp_path, parts), tmp_path)
    assert caught.value.what == str(bad)
    assert sorted(tmp_path.iterdir()) == before


def test_failed_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be synced is not used, and not left."""
    parts = [write_rows(tmp_path, n, [{"at": n, "v": n}]) for n in (1, 2, 3)]
    before = sorted(tmp_path.iterdir())

    def refuse(path: object) -> None:
        raise DiskError("fsync", str(path), OSError(5, "Input/output error"))

    monkeypatch.setattr(durable, "sync_directory", refuse)
    with pytest.raises(DiskError):
        write_merged(job(tmp_path, parts), tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_memory_of_a_merge_is_bounded(tmp_path: Path) -> None:
    """Eight parts, 4.8 M rows, 0.6 GiB decoded: the process grows by less than 64 MiB and two row groups."""
    program = textwrap.dedent("""
        import sys, threading, time
        from pathlib import Path
        import psutil, pyarrow as pa, pyarrow.compute as pc
        from part_makers import DAY, DAY_NS, SITE, VALUE
        from edge_appliance.core.delivery import ColumnDefinition, Kind
        from edge_appliance.core.maintenance import Merge
        from edge_appliance.core.parts import Part, part_name
        from edge_appliance.parquet_file import PartFooter, write_part
        from edge_appliance.part_merge import MergeJob, write_merged
        spool, rows = Path(sys.argv[1]), 600_000
        columns = (SITE, *(ColumnDefinition(f"f{n}", Kind.FLOAT) for n in range(8)), ColumnDefinition("s", Kind.STRING))
        parts = []
        for number in range(-2, 8):
            rows = 600_000 if number >= 0 else 1_000
            site = pa.array([f"plant-{k:03}" for k in range(100) for _ in range(rows // 100)])
            at = pa.array([DAY_NS // 1000 + (k % (rows // 100)) * 8 + number for k in range(rows)], pa.int64())
            noise = pc.divide(pc.cast(pc.bit_wise_and(pc.multiply(at, 2654435761), 0xffffff), pa.float64()), 7.0)
            content = pa.table([at.cast(pa.timestamp("us", tz="UTC")), pa.nulls(rows, pa.int16()).fill_null(0), site,
                *[noise] * 8, pc.binary_join_element_wise(site, "some words", "-")], names=["time", "time_ns",
                *(c.name for c in columns)])
            rank = number % 99
            part = Part("edge", "cpu", DAY, "gw", "0123abcd", rank, rank, 0, 1, 0, 0, DAY_NS, DAY_NS + 10**9)
            parts.append(write_part(spool / part_name(part), content, PartFooter(part, columns, (1, 1), 1)))
            del site, at, noise, content
        # What a first merge loads is not what a merge takes.
        first, parts = parts[:2], parts[2:]
        paths = [spool / part_name(p) for p in first]
        write_merged(MergeJob(Merge(tuple(first), 90, 91), paths, "0123abcd", 1, 2**30), spool)
        pa.default_memory_pool().release_unused()
        import ctypes; ctypes.CDLL(None).malloc_trim(0)
        process, peak, done = psutil.Process(), [0], threading.Event()
        base = process.memory_info().rss
        def watch():
            while not done.wait(0.005):
                peak[0] = max(peak[0], process.memory_info().rss)
        watcher = threading.Thread(target=watch); watcher.start()
        started = time.monotonic()
        merge = Merge(tuple(parts), 0, 7)
        merged = write_merged(MergeJob(merge, [spool / part_name(p) for p in parts], "0123abcd", 1, 2**30), spool)
        seconds = time.monotonic() - started
        done.set(); watcher.join()
        assert sum(p.rows for p in merged) == 8 * rows, merged
        print((peak[0] - base) / 2**20, 8 * rows / seconds / 1e6, merge.size_bytes / 2**20)
    """)
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PYTHONPATH": f"{Path(__file__).parent / 'support'}:{Path(__file__).parent.parent}"},
    )
    assert answer.returncode == 0, answer.stderr
    grown_mib, rate, size_mib = map(float, answer.stdout.split())
    print(f"grew by {grown_mib:.0f} MiB, {rate:.2f} M rows/s, {size_mib:.0f} MiB of parts")
    row_group_mib = 128 * 1024 * 110 / 2**20  # of its inputs, as the persist writes them
    assert grown_mib <= 64 + 2 * row_group_mib
