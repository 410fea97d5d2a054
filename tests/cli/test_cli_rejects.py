"""cli.rejects on dead letters written by their own module."""

import json

import pytest

from edge_appliance.cli import main as cli
from edge_appliance.core.delivery import LineError, Reason
from edge_appliance.dead_letters import DeadLetters
from edge_appliance.metrics import Metrics


@pytest.fixture
def config_file(tmp_path):
    """A configuration whose data directory has 30 dead letters."""
    letters = DeadLetters(tmp_path / "dead_letters", 1 << 20, Metrics())
    for number in range(30):
        error = LineError(number, 5, Reason.BAD_TIMESTAMP, "not a number", b"cpu a=1 x\x1b[2J\xff")
        letters.append(1_767_225_600_000_000_000 + number, "mqtt", "devices/a\nb/lp", [error])
    letters.close()
    path = tmp_path / "edge.toml"
    path.write_text(f"[node]\ndata_dir = '{tmp_path}'\n")
    return str(path)


def test_list_for_people(config_file, capsys):
    """The newest come last, with time, topic, place and reason, and no control character gets through."""
    assert cli.main(["rejects", "list", "--config", config_file, "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        r"2026-01-01T00:00:00.000000028Z  devices/a\nb/lp  line 28, column 5: bad_timestamp: not a number",
        r"    cpu a=1 x\x1b[2J\xff",
        r"2026-01-01T00:00:00.000000029Z  devices/a\nb/lp  line 29, column 5: bad_timestamp: not a number",
        r"    cpu a=1 x\x1b[2J\xff",
    ]


def test_list_default_limit(config_file, capsys):
    """Without a limit it is a screenful."""
    cli.main(["rejects", "list", "--config", config_file])
    assert len(capsys.readouterr().out.splitlines()) == 40


def test_list_as_json(config_file, capsys):
    """--json is a list of the stored objects."""
    assert cli.main(["rejects", "list", "--config", config_file, "--json", "--limit", "100"]) == 0
    letters = json.loads(capsys.readouterr().out)
    assert [letter["line"] for letter in letters] == list(range(30))
    assert letters[0]["reason"] == "bad_timestamp"


def test_list_without_any(tmp_path, capsys):
    """No letters are no error, and an empty list in JSON."""
    path = tmp_path / "edge.toml"
    path.write_text(f"[node]\ndata_dir = '{tmp_path}'\n")
    assert cli.main(["rejects", "list", "--config", str(path)]) == 0
    assert cli.main(["rejects", "list", "--json", "--config", str(path)]) == 0
    assert capsys.readouterr().out == "no rejected lines\n[]\n"


def test_show(config_file, capsys):
    """`show` has below each of them everything that is stored, under its name."""
    assert cli.main(["rejects", "show", "--config", config_file, "--limit", "1"]) == 0
    output = capsys.readouterr().out
    assert "    source:      mqtt\n" in output
    assert "    reason:      bad_timestamp\n" in output
    assert r"topic:       devices/a\nb/lp" in output
    assert r"    cpu a=1 x\x1b[2J\xff" in output
