"""The bench's own arithmetic: bars, kept results, and the comparison of two commits."""

import json

import bench_results
import pytest
from bench_lines import Shape
from bench_table import Bar, Bench

FACTS = {"scale": "1", "cpu": "2 x test"}


def bench_of(tmp_path, item, **values):
    bench = Bench(tmp_path, 1.0, item)
    for what, value in values.items():
        bench.add(what, value, "lines/s", peer=100.0, peer_name="peer", bar=Bar(">=", 2))
    return bench


def save(monkeypatch, tmp_path, name, bench):
    monkeypatch.setattr(bench_results, "commit", lambda _root: name)
    return bench_results.save(tmp_path, bench, FACTS)


@pytest.mark.parametrize(
    ("bar", "value", "is_kept"),
    [
        (Bar(">=", 2), 200.0, True),
        (Bar(">=", 2), 199.0, False),
        (Bar("<=", 1.3), 130.0, True),
        (Bar("<=", 1.3), 131.0, False),
        (Bar("<=", 18, of="value"), 18.0, True),
        (Bar("<=", 18, of="value"), 18.1, False),
    ],
)
def test_bar_judges_the_number_or_its_ratio(tmp_path, bar, value, is_kept):
    """A bar of a ratio looks at the peer, a bar of a value does not."""
    row = Bench(tmp_path, 1.0, "item").add("what", value, "us", peer=100.0, peer_name="peer", bar=bar)
    assert row.is_kept is is_kept


def test_bar_without_a_peer_is_not_judged(tmp_path):
    """A missing peer neither keeps nor breaks a bar."""
    assert Bench(tmp_path, 1.0, "item").add("what", 1.0, "us", bar=Bar(">=", 2)).is_kept is None


def test_save_keeps_the_items_that_were_not_measured_again(monkeypatch, tmp_path):
    """A commit can be measured in pieces: a run replaces its own items only."""
    save(monkeypatch, tmp_path, "abc", bench_of(tmp_path, "first", a=100.0))
    save(monkeypatch, tmp_path, "abc", bench_of(tmp_path, "second", b=100.0))
    text = save(monkeypatch, tmp_path, "abc", bench_of(tmp_path, "second", b=300.0))
    items = json.loads((tmp_path / "abc.json").read_text())["items"]
    assert {item: [row["value"] for row in found["rows"]] for item, found in items.items()} == {
        "first": [100.0],
        "second": [300.0],
    }
    assert "NOT MET" in text.read_text()


def test_compare_shows_change_ratios_and_verdicts(monkeypatch, tmp_path):
    """Two commits side by side, found by the beginning of their names; a row that only one has is named."""
    save(monkeypatch, tmp_path, "abc", bench_of(tmp_path, "item", same=100.0, gone=1.0))
    save(monkeypatch, tmp_path, "def", bench_of(tmp_path, "item", same=300.0, new=1.0))
    lines = bench_results.compare(tmp_path, "a", "d")
    (row,) = (line for line in lines if "same" in line)
    assert row.split()[-8:] == ["3.00x", "1.00x", "->", "3.00x", "NOT", "MET", "->", "met"]
    assert {line.strip() for line in lines if "not in both" in line} == {"gone: not in both", "new: not in both"}


def test_compare_of_an_unknown_name_says_what_there_is(monkeypatch, tmp_path):
    """A wrong name ends with a sentence, not with a traceback."""
    save(monkeypatch, tmp_path, "abc", bench_of(tmp_path, "item", a=1.0))
    with pytest.raises(SystemExit, match="no single result is named xyz; there are: abc"):
        bench_results.compare(tmp_path, "xyz", "abc")


def test_lines_visit_all_series_before_any_again():
    """A steady state is reached after as many lines as there are series, and lines have the size they are named for."""
    shape = Shape(tables=10, series=1_000)
    lines = shape.lines(1_000)
    assert len({line.split(b" ")[0] for line in lines}) == 1_000
    assert {len(line) for line in lines} == {80}
